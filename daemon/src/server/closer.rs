//! Closes descriptors that came from peers, and their sockets, in threads of its own.
//!
//! A descriptor may block who closes it: a socket that lingers, a file of a peer's own file system, a socket in whose
//! queue one of these lies. Each user has a line of its own, with one thread at a time, so that nobody waits for another.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::fstat;
use parking_lot::{Condvar, Mutex};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{MAX_CHUNK_BYTES, MAX_FILE_METADATA_BYTES};

use super::events::{Event, Events};
use crate::error::Result;

/// Threads at most: as many users may block one each before others wait.
const MAX_THREADS: usize = 16;
/// Descriptors that wait to be closed, from which on nothing is read from their user.
const BEHIND: usize = 256;
/// Bytes of a memory file that is closed where it is used: freeing it takes no time.
const HARMLESS_BYTES: u64 = 2 * MAX_CHUNK_BYTES;
/// Bytes of a block in `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;
const _: () = assert!(MAX_FILE_METADATA_BYTES <= HARMLESS_BYTES);

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<OwnedFd>,
    is_busy: bool,
    /// Whether reading from its user has been put off since it was long.
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<u32, Line>,
    /// Users with descriptors that no thread closes now.
    turns: VecDeque<u32>,
    threads: usize,
    idle: usize,
    is_ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// Where descriptors of peers go.
#[derive(Debug)]
pub(crate) struct Closer {
    events: Events,
    shared: Arc<Shared>,
}

impl Closer {
    /// # Errors
    /// [`crate::error::Error::Thread`] when the system starts none.
    pub(crate) fn start(events: Events) -> Result<Self> {
        let this = Self { events, shared: Arc::default() };
        this.shared.state.lock().threads = 1;
        this.spawn()?;
        Ok(this)
    }

    fn spawn(&self) -> Result<()> {
        let (shared, events) = (Arc::clone(&self.shared), self.events.clone());
        // The line that a thread had would wait for ever.
        let what = ("closer", "a thread that closes descriptors");
        self.events.spawn(what, move || shared.run(&events)).map(drop)
    }

    /// Closes descriptors that a user sent, or its sockets; returns at once.
    pub(crate) fn close(&self, uid: u32, fds: impl IntoIterator<Item = OwnedFd>) {
        let mut state = self.shared.state.lock();
        let line = state.lines.entry(uid).or_default();
        let was_empty = line.waiting.is_empty();
        line.waiting.extend(fds);
        let (has_some, is_busy) = (!line.waiting.is_empty(), line.is_busy);
        if !has_some && !is_busy {
            state.lines.remove(&uid);
        }
        if !has_some || !was_empty || is_busy {
            return;
        }
        state.turns.push_back(uid);
        let needs_thread = state.idle == 0 && state.threads < MAX_THREADS;
        state.threads += usize::from(needs_thread);
        drop(state);
        self.shared.wake.notify_one();
        if needs_thread && let Err(error) = self.spawn() {
            self.shared.state.lock().threads -= 1;
            tracing::warn!(error = crate::error::chain(&error), "descriptors of peers are closed later");
        }
    }

    /// Whether a user has left so many descriptors to close that nothing more is taken from it; then
    /// [`Event::CaughtUp`] comes when that has changed.
    pub(crate) fn is_behind(&self, uid: u32) -> bool {
        let mut state = self.shared.state.lock();
        state.lines.get_mut(&uid).is_some_and(|line| {
            let is_behind = line.waiting.len() > BEHIND;
            line.is_awaited |= is_behind;
            is_behind
        })
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.state.lock().is_ended = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// One descriptor of one user at a time; what is left when the daemon ends is closed still.
    fn run(&self, events: &Events) {
        let mut state = self.state.lock();
        loop {
            let Some(uid) = state.turns.pop_front() else {
                if state.is_ended {
                    return;
                }
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            let line = state.lines.entry(uid).or_default();
            line.is_busy = true;
            let fd = line.waiting.pop_front();
            drop(state);
            reach(Point::CloserTurn);
            fd.into_iter().for_each(close);
            state = self.state.lock();
            if let Some(line) = state.lines.get_mut(&uid) {
                line.is_busy = false;
                if line.is_awaited && line.waiting.len() <= BEHIND / 2 {
                    line.is_awaited = false;
                    events.send(Event::CaughtUp);
                }
                if line.waiting.is_empty() {
                    state.lines.remove(&uid);
                } else {
                    state.turns.push_back(uid);
                }
            }
        }
    }
}

fn close(fd: OwnedFd) {
    // What is no socket refuses.
    let _ = setsockopt(&fd, sockopt::Linger, &linger { l_onoff: 0, l_linger: 0 }).is_ok();
    drop(fd);
}

/// Whether a descriptor is a small memory file that can no longer grow: closing it never takes long.
pub(crate) fn is_harmless(fd: impl AsFd) -> bool {
    // Only memory files answer the first, and for these the second asks nobody else.
    let is_fixed = fcntl(&fd, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_GROW));
    is_fixed
        && fstat(&fd).is_ok_and(|stat| {
            let (len, blocks) = (u64::try_from(stat.st_size), u64::try_from(stat.st_blocks));
            let is_short = |bytes: u64| bytes <= HARMLESS_BYTES;
            len.is_ok_and(is_short)
                && blocks.is_ok_and(|blocks| is_short(blocks.saturating_mul(STAT_BLOCK_BYTES)))
        })
}
