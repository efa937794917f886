//! The front door: the socket files, and who gets in.
//!
//! A peer that cannot be let in (the limit on sessions or on open files, another user) gets the reason and is closed;
//! nothing is left in the backlog to make the loop spin.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{Shutdown, SockFlag, accept4, shutdown};
use nix::unistd::geteuid;
use parking_lot::Mutex;
use tierpack_shm::faults::{Point, check, reach};
use tierpack_shm::fork::Unshared;
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{ErrorCode, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Refusal, encode};
use tierpack_shm::socket::{Peer, peer, peer_groups, recv_keeping, send};

use super::closer::Closer;
use super::shares::{self, Shares};
use crate::address;
use crate::config::{Admit, Config, LockMode};
use crate::error::{Result, chain};
use crate::health::{Fault, Health};
use crate::limits::{self, Handles};
use crate::ownership::{Listener, Ownership, SocketKind};
use crate::store;
use crate::store::access::Caller;

/// Mode of the socket files when only the daemon's own user and root may connect.
const OWNER_MODE: u32 = 0o600;
/// Mode when everybody may: what each user may do is checked at every request.
const EVERYONE_MODE: u32 = 0o666;
/// Connections taken in one turn of the loop.
const ACCEPTS_PER_TURN: usize = 8;
/// Descriptors that are kept for what clients send, so that no message loses one, and for segments.
const RESERVED_DESCRIPTORS: u64 = 1024;
const NO_DESCRIPTOR: &str = "the daemon has no descriptor left: raise its limit on open files (ulimit -n)";
/// Listening sockets, their files, and the lock that makes them ours.
#[derive(Debug)]
pub(super) struct Front {
    // Dropped in this order: the names go before the lock.
    control: Option<Listener>,
    /// The stats socket and the metrics socket, which another thread serves.
    stats: [Arc<Mutex<Listener>>; 2],
    ownership: Ownership,
    control_path: PathBuf,
    stats_paths: [PathBuf; 2],
    admit: Admit,
    /// Closed for a moment to take in, and turn away, a peer at the limit on open files.
    spare: Option<File>,
    health: Arc<Health>,
    closer: Arc<Closer>,
}

impl Front {
    pub(super) fn open(config: &Config, closer: Arc<Closer>) -> Result<Self> {
        limits::check_pool_size(config.pool_bytes(), Path::new("/"))?;
        if config.lock() == LockMode::Require {
            limits::check_lock(config.pool_bytes())?;
            store::check_locking()?;
        }
        limits::raise_descriptor_limit()?;
        for text in may_need(config).near_limits(Path::new("/")) {
            tracing::warn!("the configuration may need {text}");
        }
        address::prepare_directory(config.socket())?;
        let ownership = Ownership::acquire(config.socket())?;
        reach(Point::StartLocked);
        let control = ownership.bind(config.socket(), SocketKind::SeqPacket, mode(config.admit()))?;
        let stats_paths = [config.stats_socket(), config.metrics_socket()];
        let bind = |path: &PathBuf| ownership.bind(path, SocketKind::Stream, OWNER_MODE);
        let stats = [bind(&stats_paths[0])?, bind(&stats_paths[1])?];
        reach(Point::StartBound);
        Ok(Self {
            control: Some(control),
            stats: stats.map(|listener| Arc::new(Mutex::new(listener))),
            ownership,
            control_path: config.socket().to_owned(),
            stats_paths,
            admit: config.admit(),
            spare: spare(),
            health: Arc::default(),
            closer,
        })
    }

    pub(super) fn control(&self) -> &Path {
        &self.control_path
    }

    pub(super) fn stats(&self) -> [Arc<Mutex<Listener>>; 2] {
        self.stats.clone()
    }

    /// Where it notes that its files cannot be restored.
    pub(super) fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Takes in who waits, and turns away who may not stay; says whether the system has memory for more.
    pub(super) fn accept(&mut self, shares: &mut Shares) -> (Vec<(Unshared<OwnedFd>, Peer, Caller)>, bool) {
        let (mut taken, mut has_memory) = (Vec::new(), true);
        let reserved_from = reserved_from();
        if self.spare.is_none() {
            self.spare = spare();
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(control) = &self.control else { break };
            match check(Point::Accept).and_then(|()| accept::<OwnedFd>(control)) {
                Ok(fd) => match self.check(fd.as_fd(), shares, reserved_from) {
                    Ok((peer, caller)) => taken.push((fd, peer, caller)),
                    Err(refusal) => self.turn_away(fd, refusal),
                },
                Err(Errno::EAGAIN) => break,
                Err(Errno::EMFILE | Errno::ENFILE) if self.spare.take().is_some() => {
                    if let Some(Ok(fd)) = self.control.as_ref().map(accept) {
                        self.turn_away(fd, Refusal::new(ErrorCode::Limit, NO_DESCRIPTOR));
                    }
                    self.spare = spare();
                }
                Err(Errno::EMFILE | Errno::ENFILE) => {
                    self.spare = spare();
                    break;
                }
                // The peer still waits.
                Err(Errno::ENOBUFS | Errno::ENOMEM) => {
                    has_memory = false;
                    break;
                }
                // The peer left before it was taken in.
                Err(_) => {}
            }
        }
        (taken, has_memory)
    }

    fn turn_away(&self, fd: Unshared<OwnedFd>, refusal: Refusal) {
        tracing::warn!(reason = refusal.text, "connection refused");
        // What it has sent is taken, and nothing more can come: a socket that is closed over unread messages makes the
        // peer's next call fail before it sees the answer.
        let _ = shutdown(fd.as_raw_fd(), Shutdown::Read).is_ok();
        let (mut message, mut received) = (vec![0; MAX_MESSAGE_BYTES], Vec::new());
        while recv_keeping(&fd, &mut message, &mut received).is_ok() {}
        let reply = HelloReply::Refused { protocol: PROTOCOL_VERSION, layout: LAYOUT_VERSION, refusal };
        if let Ok(bytes) = encode(&reply) {
            // A peer that is gone already needs no answer.
            let _ = send(&fd, &bytes, &[]).is_ok();
        }
        let uid = peer(&fd).map_or(u32::MAX, |peer| peer.uid);
        self.closer.close(uid, received.into_iter().chain([fd.into_inner()]));
    }

    fn check(
        &self,
        fd: BorrowedFd<'_>,
        shares: &mut Shares,
        reserved_from: i32,
    ) -> core::result::Result<(Peer, Caller), Refusal> {
        // The kernel assigns the lowest number that is free.
        if fd.as_raw_fd() >= reserved_from {
            return Err(Refusal::new(ErrorCode::Limit, NO_DESCRIPTOR));
        }
        let internal = |error| Refusal::new(ErrorCode::Internal, chain(&error));
        let peer = peer(fd).map_err(internal)?;
        let own = geteuid().as_raw();
        let caller = Caller::new(peer, peer_groups(fd).map_err(internal)?, own);
        if self.admit == Admit::Owner && !caller.is_operator {
            let text =
                format!("user {} may not use the daemon of user {own}: it admits only that one", peer.uid);
            return Err(Refusal::new(ErrorCode::Denied, text));
        }
        shares.admit(&caller)?;
        Ok((peer, caller))
    }

    /// Makes the socket files again when somebody has removed them.
    pub(super) fn keep_files(&mut self) {
        let control_lost = self.control.as_ref().is_some_and(|control| !control.is_still_there());
        let lost = self.stats.each_ref().map(|stats| !stats.lock().is_still_there());
        let [stats_lost, metrics_lost] = lost;
        if !control_lost && !stats_lost && !metrics_lost {
            return;
        }
        let restored = self.restore(control_lost, lost);
        match restored {
            Ok(()) => {
                self.health.clear(Fault::SocketFiles);
                tracing::warn!(
                    control = control_lost,
                    stats = stats_lost,
                    metrics = metrics_lost,
                    "socket files were removed: made again"
                );
            }
            Err(error) => {
                let text = format!("socket files were removed and cannot be made again: {}", chain(&error));
                if self.health.note(Fault::SocketFiles, text.clone()) {
                    tracing::error!("{text}");
                }
            }
        }
    }

    fn restore(&mut self, control_lost: bool, stats_lost: [bool; 2]) -> Result<()> {
        self.ownership.restore()?;
        if control_lost {
            self.control =
                Some(self.ownership.bind(&self.control_path, SocketKind::SeqPacket, mode(self.admit))?);
        }
        for (n, stats) in self.stats.iter().enumerate().filter(|(n, _)| stats_lost[*n]) {
            *stats.lock() = self.ownership.bind(&self.stats_paths[n], SocketKind::Stream, OWNER_MODE)?;
        }
        Ok(())
    }

    pub(super) fn stop_listening(&mut self) {
        self.control = None;
    }
}

impl AsFd for Front {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_ref().expect("polled only before stop_listening").as_fd()
    }
}

/// Takes in one waiting peer, non-blocking; `EAGAIN` means that nobody waits.
pub(crate) fn accept<T: From<OwnedFd> + AsRawFd>(listener: impl AsFd) -> nix::Result<Unshared<T>> {
    let fd = accept4(listener, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
    // Fails only where the listener, too, could not be registered.
    Unshared::new(T::from(fd)).map_err(|_| Errno::EMFILE)
}

fn mode(admit: Admit) -> u32 {
    match admit {
        Admit::Owner => OWNER_MODE,
        Admit::Everyone => EVERYONE_MODE,
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// What full tables take: a page per attachment, the segments of a full pool, a socket per session.
fn may_need(config: &Config) -> Handles {
    let segments = config.pool_bytes() / config.segment_bytes();
    let (pages, sessions) = (shares::ATTACHMENTS[2] as u64, config.max_sessions() as u64);
    Handles { mappings: segments + pages, descriptors: segments + sessions }
}

/// The number from which on descriptors are kept for what clients send and for segments: the last quarter of the
/// limit, at most [`RESERVED_DESCRIPTORS`].
fn reserved_from() -> i32 {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    i32::try_from(limit - RESERVED_DESCRIPTORS.min(limit / 4)).unwrap_or(i32::MAX)
}
