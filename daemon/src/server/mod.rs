//! The poll loop: one thread owns the sockets, the sessions, and what each session holds.
//!
//! A turn costs what is ready: sessions that something happened to are on a list, and deadlines in an order of their own.
//! It answers nothing that takes long: requests go to workers over a bounded queue, and come back as events.
//! Bad bytes end one session; a broken invariant of our own ends the daemon with a message.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use nix::sys::epoll::EpollFlags;
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::message::{MAX_MESSAGE_BYTES, Refusal, Reply, SegmentId};
use tierpack_shm::socket::{PeerProcess, peer_process, recv_keeping};

use crate::config::Config;
use crate::error::{Error, Result, chain};
use crate::shutdown::Shutdown;
use crate::stats::Board;
use crate::store::Store;
use crate::store::background::BackgroundThread;
use crate::store::transfer::Transfers;

pub(crate) mod accept;
mod closer;
mod deadlines;
pub(crate) mod events;
mod messages;
mod poller;
pub(crate) mod queue;
mod requests;
mod returns;
mod rights;
pub(crate) mod session;
pub(crate) mod shares;

use accept::Front;
use closer::Closer;
use events::{Event, Inbox};
use poller::{Poller, Source};
use queue::Class;
use requests::Workers;
use returns::{Freer, Returning};
use session::{Passed, Session};
use shares::Shares;

/// The name and version that peers and logs see.
pub(crate) const SOFTWARE: &str = concat!("tierpackd ", env!("CARGO_PKG_VERSION"));
/// Messages, and their bytes, that are taken from one session before the others have their turn.
const MESSAGES_PER_TURN: usize = 16;
const BYTES_PER_TURN: usize = 64 << 10;
/// How long a put may idle, in request deadlines.
const IDLE_PUT_DEADLINES: u32 = 10;
/// How long shutdown waits for what workers have, and then for replies to be read.
const WORK_DEADLINE: Duration = Duration::from_millis(1000);
const FLUSH_DEADLINE: Duration = Duration::from_millis(300);

/// The daemon, bound to its sockets and ready to run.
#[derive(Debug)]
pub struct Server {
    front: Front,
    store: Arc<Store>,
    transfers: Arc<Transfers>,
    board: Arc<Board>,
    inbox: Inbox,
    workers: Workers,
    background: BackgroundThread,
    stats: crate::stats_socket::StatsThread,
    poller: Poller,
    closer: Arc<Closer>,
    freer: Freer,
    /// Sessions that are not read for now.
    paused: Vec<u64>,
    sessions: BTreeMap<u64, Session>,
    /// Sessions attached to each namespace.
    members: BTreeMap<u32, BTreeSet<u64>>,
    shares: Shares,
    /// Sessions that something happened to in this turn.
    touched: Vec<u64>,
    /// When deadlines of sessions are looked at.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Replies that the loop has made itself; they go after the events that were there before them.
    answers: Vec<(u64, u64, core::result::Result<Reply, Refusal>)>,
    returning: BTreeMap<(u32, SegmentId), Returning>,
    ticks: deadlines::Ticks,
    /// As [`Budget::returns`](crate::store::budget::Budget::returns) was when the loop last looked.
    returns: u64,
    next_session: u64,
    /// Those who wait until segments were sent, at the end of this turn.
    announced: Vec<Sender<()>>,
    put_idle_limit: Duration,
    message: Vec<u8>,
}

impl Server {
    /// Takes ownership of the sockets and starts the workers; nothing is answered before [`Server::run`].
    ///
    /// # Errors
    /// [`Error`] naming what is in the way: another daemon, a directory, a limit.
    pub fn bind(config: &Config) -> Result<Self> {
        let (events, inbox) = events::channel()?;
        let poller = Poller::new()?;
        let closer = Arc::new(Closer::start(events.clone())?);
        let freer = Freer::start(events.clone())?;
        let front = Front::open(config, Arc::clone(&closer))?;
        let (store, tasks) = Store::new(config, events.clone())?;
        let store = Arc::new(store);
        let transfers = Arc::new(Transfers::default());
        let board = Arc::new(Board::new(config, Arc::clone(&store), Arc::clone(&transfers), front.health()));
        let stats = crate::stats_socket::StatsThread::start(front.stats(), Arc::clone(&board))?;
        let background = BackgroundThread::start(config, Arc::clone(&store), tasks, events.clone())?;
        let workers = Workers::start(config.workers(), &store, &transfers, &events)?;
        Ok(Self {
            front,
            store,
            transfers,
            board,
            inbox,
            workers,
            background,
            stats,
            poller,
            closer,
            freer,
            paused: Vec::new(),
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            shares: Shares::new(config.max_sessions()),
            touched: Vec::new(),
            deadlines: BTreeSet::new(),
            answers: Vec::new(),
            returning: BTreeMap::new(),
            ticks: deadlines::Ticks::new(),
            returns: 0,
            next_session: 1,
            announced: Vec::new(),
            put_idle_limit: config.deadline() * IDLE_PUT_DEADLINES,
            message: vec![0; MAX_MESSAGE_BYTES],
        })
    }

    /// Serves until `shutdown` is triggered; then refuses what waits, and removes the sockets.
    ///
    /// # Errors
    /// [`Error::Panicked`] when a worker found a broken invariant; [`Error::Poll`] when the kernel refuses to poll.
    pub fn run(mut self, shutdown: &Shutdown) -> Result<()> {
        tracing::info!(socket = ?self.front.control(), pool_bytes = self.store.budget.size(), "serving");
        let outcome = self.serve(shutdown);
        tracing::info!("shutting down");
        self.finish();
        outcome
    }

    fn serve(&mut self, shutdown: &Shutdown) -> Result<()> {
        self.poller.add(shutdown.fd(), Source::Shutdown, EpollFlags::EPOLLIN)?;
        self.poller.add(self.inbox.as_fd(), Source::Inbox, EpollFlags::EPOLLIN)?;
        self.poller.add(self.front.as_fd(), Source::Front, EpollFlags::EPOLLIN)?;
        while !shutdown.is_triggered() {
            for n in 0..self.poller.wait(self.until_next())? {
                match self.poller.ready(n) {
                    (Source::Shutdown, _) => {}
                    (Source::Inbox, _) => self.inbox.clear_wake(),
                    (Source::Front, _) => self.accept(),
                    (Source::Session(number), flags) => self.attend(number, flags),
                    (Source::Process(number), _) => self.drop_session(number),
                }
            }
            self.take_events()?;
            self.answer();
            self.announced.clear();
            self.keep_time();
            if let Some(bytes) = self.shares.changed_request_bytes() {
                self.store.budget.charge_requests(bytes);
            }
            let returns = self.store.budget.returns();
            if std::mem::replace(&mut self.returns, returns) != returns {
                self.workers.queue.unpark();
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        let (taken, has_memory) = self.front.accept(&mut self.shares);
        if !has_memory {
            self.rest_front();
        }
        for (fd, peer, caller) in taken {
            let number = self.next_session;
            self.next_session += 1;
            tracing::debug!(session = number, pid = peer.pid, uid = peer.uid, "connected");
            let mut session = Session::new(number, peer, caller, fd);
            session.awaited = session.wanted();
            let added = self.poller.add(&session, Source::Session(number), session.awaited);
            self.sessions.insert(number, session);
            match added {
                Ok(()) => drop(self.touch(number)),
                Err(error) => {
                    self.end_session(number, &chain(&error));
                    self.drop_session(number);
                }
            }
        }
    }

    /// A session to which something happens: it is looked at again at the end of the turn.
    fn touch(&mut self, number: u64) -> Option<&mut Session> {
        let session = self.sessions.get_mut(&number)?;
        if !std::mem::replace(&mut session.touched, true) {
            self.touched.push(number);
        }
        Some(session)
    }

    /// Sessions that are attached to a namespace.
    fn members(&self, namespace: u32) -> Vec<u64> {
        self.members.get(&namespace).map(|members| members.iter().copied().collect()).unwrap_or_default()
    }

    /// Reads from, writes to, or ends one session.
    fn attend(&mut self, number: u64, flags: EpollFlags) {
        let Some(session) = self.touch(number) else { return };
        if flags.contains(EpollFlags::EPOLLOUT) {
            session.flush_writable();
        }
        let uid = session.caller.uid;
        let is_gone = flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        if !is_gone && !flags.contains(EpollFlags::EPOLLIN) {
            return;
        }
        if self.closer.is_behind(uid) {
            // Also when it is gone: its last words, a goodbye among them, are read first.
            return self.pause(number);
        }
        let (mut bytes, mut was_closed) = (0, false);
        for _ in 0..MESSAGES_PER_TURN {
            let Some(session) = self.sessions.get(&number) else { return };
            let (is_open, limit) = (session.is_open(), session.message_limit());
            let mut descriptors = Vec::new();
            let received = recv_keeping(session, &mut self.message[..limit], &mut descriptors);
            let taken = received.and_then(|len| {
                bytes += len;
                self.take_message(number, len, &mut descriptors)
            });
            if !descriptors.is_empty() {
                self.closer.close(uid, descriptors);
            }
            match taken {
                // The loop has the answer: it goes out before the next look at the socket.
                Ok(()) if !self.answers.is_empty() => return,
                Ok(()) => {}
                // Nothing that an ended session may still say is as long.
                Err(ShmError::MessageTooLong { .. }) if !is_open => {}
                // A peer that has closed over unread messages shows first as a reset, then its last words are here.
                Err(ShmError::Closed) if !std::mem::replace(&mut was_closed, true) => {}
                Err(ShmError::WouldBlock) if !is_gone && !was_closed => break,
                Err(ShmError::WouldBlock | ShmError::Closed) => return self.hung_up(number),
                Err(_) if is_gone && !is_open => return self.hung_up(number),
                Err(error) => self.end_session(number, &chain(&error)),
            }
            if bytes >= BYTES_PER_TURN {
                break;
            }
        }
        // What an ended session goes on sending costs the others next to nothing.
        if !is_gone && self.sessions.get(&number).is_some_and(|session| !session.is_open()) {
            self.pause(number);
        }
    }

    /// Reads nothing from a session until the next look around, or until its descriptors are closed.
    fn pause(&mut self, number: u64) {
        let Some(session) = self.touch(number) else { return };
        if !std::mem::replace(&mut session.is_paused, true) {
            self.paused.push(number);
        }
    }

    /// Reads again from sessions that are paused.
    fn resume(&mut self, which: impl Fn(&Session) -> bool) {
        for number in std::mem::take(&mut self.paused) {
            match self.sessions.get(&number) {
                Some(session) if which(session) => {
                    if let Some(session) = self.touch(number) {
                        session.is_paused = false;
                    }
                }
                Some(_) => self.paused.push(number),
                None => {}
            }
        }
    }

    /// Ends a session for what its peer did.
    fn end_session(&mut self, number: u64, reason: &str) {
        let Some(session) = self.touch(number) else { return };
        if session.is_open() {
            tracing::warn!(session = number, pid = session.peer.pid, reason, "session ended");
            session.end();
        }
    }

    /// The connection is closed. Without a goodbye the leases count until the process is gone, where the kernel can
    /// say so: a program may have closed a descriptor that is not its own, and still read.
    fn hung_up(&mut self, number: u64) {
        let Some(session) = self.touch(number) else { return };
        if session.said_goodbye || session.attached.is_empty() {
            return self.drop_session(number);
        }
        let process = match peer_process(&*session) {
            Ok(PeerProcess::Alive(process)) => Some(process),
            Ok(PeerProcess::Gone | PeerProcess::Unknown) => return self.drop_session(number),
            // No descriptor is left: looked at again later.
            Err(_) => None,
        };
        let Some(session) = self.sessions.get_mut(&number) else { return };
        self.poller.remove(&*session);
        session.awaited = EpollFlags::EPOLLIN;
        let has_process = process.is_some();
        let uid = session.caller.uid;
        self.closer.close(uid, session.hang_up(process));
        if has_process && self.poller.add(&*session, Source::Process(number), EpollFlags::EPOLLIN).is_err() {
            return self.drop_session(number);
        }
        self.board.session_hung_up(number);
        if !std::mem::replace(&mut session.settled, true) {
            self.forget_requests(number);
        }
    }

    /// Ends what a session has under way.
    fn forget_requests(&mut self, number: u64) {
        self.transfers.abort_session(&self.store, number);
        let jobs = self.workers.queue.take_session(number);
        let Some(session) = self.sessions.get_mut(&number) else { return };
        for job in jobs {
            self.shares.unqueue(session, job.load);
        }
    }

    /// Nothing is this session's any more: its peer has said goodbye, or the kernel has reported it gone.
    fn drop_session(&mut self, number: u64) {
        let Some(mut session) = self.sessions.remove(&number) else { return };
        self.poller.remove(&session);
        self.shares.leave(&session);
        for (namespace, attached) in std::mem::take(&mut session.attached) {
            attached.namespace.detach(number);
            self.leave_namespace(number, namespace);
            self.release_all(number, namespace, attached.retired);
        }
        self.forget_requests(number);
        if let Some(at) = session.check_at {
            self.deadlines.remove(&(at, number));
        }
        self.board.session_gone(number);
        self.closer.close(session.caller.uid, [session.into_fd()]);
        self.store.bury();
        self.ticks.expect_reclaim();
        tracing::debug!(session = number, "disconnected");
    }

    fn leave_namespace(&mut self, number: u64, namespace: u32) {
        if let Some(members) = self.members.get_mut(&namespace) {
            members.remove(&number);
            if members.is_empty() {
                self.members.remove(&namespace);
            }
        }
    }

    fn take_events(&mut self) -> Result<()> {
        while let Some(event) = self.inbox.next() {
            match event {
                Event::Done { session: number, id, result, descriptors, load, class } => {
                    if class == Class::Bulk {
                        self.ticks.expect_reclaim();
                    }
                    if let Some(session) = self.sessions.get_mut(&number) {
                        self.shares.unqueue(session, load);
                    }
                    if self.sessions.get(&number).is_none_or(|session| !session.is_open()) {
                        // The put that a worker has just begun is nobody's: its session ended before that.
                        self.transfers.abort_session(&self.store, number);
                    }
                    let passed = descriptors.into_iter().map(Passed::Owned).collect();
                    self.reply(number, id, result, passed);
                }
                Event::Announce { namespace, id, segment, sent } => {
                    self.announce(namespace, id, &segment);
                    self.announced.push(sent);
                }
                Event::RightsChanged { namespace } => self.revoke(namespace),
                Event::Retire { namespace, id, segment } => self.retire_segment(namespace, id, segment),
                Event::Freed { segment, len, was_locked } => self.store.returned(segment, len, was_locked),
                Event::CaughtUp => self.resume(Session::is_open),
                Event::Panicked(text) => return Err(Error::Panicked { text }),
            }
        }
        Ok(())
    }

    /// Refuses what waits, lets replies be read for a moment, and removes the sockets.
    fn finish(mut self) {
        let deadline = Instant::now() + WORK_DEADLINE;
        self.front.stop_listening();
        // Who waits for memory is refused.
        self.store.budget.stop();
        self.refuse_queued();
        self.background.stop_by(deadline);
        self.workers.finish(deadline);
        // A panic has been reported already, or the daemon ends anyway.
        while let Some(event) = self.inbox.next() {
            if let Event::Done { session, id, result, descriptors, .. } = event
                && let Some(session) = self.sessions.get_mut(&session)
            {
                let passed = descriptors.into_iter().map(Passed::Owned).collect();
                session.send(&tierpack_shm::message::DaemonMessage::Reply { id, result }, passed);
            }
        }
        let deadline = Instant::now() + FLUSH_DEADLINE;
        while self.sessions.values().any(Session::is_waiting) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            self.sessions.values_mut().for_each(Session::flush);
        }
        self.stats.stop();
        for session in std::mem::take(&mut self.sessions).into_values() {
            session.shut();
            self.closer.close(session.caller.uid, [session.into_fd()]);
        }
    }
}
