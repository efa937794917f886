//! The session thread: receives while no caller does, and does what nobody waits for.
//!
//! It fills the page tables of what the session has mapped, some pages at a time, so that the first reads do not fault;
//! it leaves namespaces that are not used; and it watches the socket where no caller has received for a while.
//! It does not keep the session alive: it holds what it shares with it, and ends when the socket is shut down.
//!
//! It is woken through `Inner::changed` while a caller receives. While it watches the socket, whatever could give it
//! something to do comes by the socket, and wakes it; only where a caller has taken a message between the thread's look
//! and its wait is it missed. So it waits for as long as no caller has received: what it misses is late by no more.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use parking_lot::MutexGuard;

use super::role::{PATIENCE, Turn};
use super::{End, Inner};

/// Goes on until the connection ends.
pub(super) fn run(inner: &Inner) {
    /// Ends the session even if the thread panics, so that nobody waits for it.
    struct Ending<'a>(&'a Inner);
    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.finish(End::HungUp);
        }
    }
    let _ending = Ending(inner);
    block_signals();
    while let Some(limit) = next(inner) {
        if let Some(limit) = limit {
            watch(inner, limit);
        }
    }
}

/// Signals of the process are for the threads of the program, except those that a thread raises itself.
pub(crate) fn block_signals() {
    let mut set = SigSet::all();
    for signal in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGTRAP] {
        set.remove(signal);
    }
    // Not being able to only means that a handler may run here.
    let _ = set.thread_block();
}

/// One step of what nobody waits for; then how long the socket is the thread's to watch, if it is.
///
/// Waits while it is not; `None` once the session has ended.
fn next(inner: &Inner) -> Option<Option<Duration>> {
    let mut table = inner.table.lock();
    let limit = table.step(inner);
    // A caller that waits for the table goes before the next step.
    MutexGuard::unlock_fair(table);
    let mut state = inner.state.lock();
    if state.end.is_some() {
        return None;
    }
    let quiet = state.role.quiet();
    let pause = match limit {
        _ if std::mem::take(&mut state.has_chores) => return Some(None),
        limit if state.role.is_taken() => {
            state.role.is_awaited = true;
            limit
        }
        limit if quiet < PATIENCE => Some(limit.unwrap_or(PATIENCE).min(PATIENCE - quiet)),
        limit => return Some(Some(limit.unwrap_or(quiet).min(quiet))),
    };
    match pause {
        Some(Duration::ZERO) => {}
        Some(pause) => {
            inner.changed.wait_for(&mut state, pause);
        }
        None => inner.changed.wait(&mut state),
    }
    Some(None)
}

/// Waits for the daemon, and receives one message, unless a caller has come meanwhile.
fn watch(inner: &Inner, limit: Duration) {
    if inner.wait_incoming(limit) != Some(true) {
        return;
    }
    let mut state = inner.state.lock();
    let turn = if state.role.quiet() < PATIENCE { None } else { Turn::take(inner, &mut state) };
    drop(state);
    if let Some(turn) = turn {
        turn.handle_next();
        let mut state = inner.state.lock();
        turn.give_back(&mut state);
        inner.pass_on(&mut state);
    }
}
