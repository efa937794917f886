//! Who receives: a caller that waits for its reply, else the session thread.
//!
//! Handing a reply to another thread wakes another CPU, which costs more than the rest of a short request.
//! So a caller that waits takes the role of the receiver if nobody has it, and handles whatever comes until its own
//! reply is there or its deadline has passed.
//!
//! - Only who has the role takes messages from the socket: they are handled one after the other, in their order.
//! - Who returns the role, and who stops to wait while nobody has it, wakes one of those who wait for it.
//! - The session thread watches the socket without the role, so that a caller finds it free, and takes it for one
//!   message at a time. For some time after a caller's turn it leaves the socket alone, since each reply to the next
//!   caller would wake it for nothing.
//! - A turn that panics ends the session.
//!
//! A caller that blocks while another receives has a condition variable of its own.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};
use tierpack_shm::error::Error as ShmError;

use super::{End, Inner, State};
use crate::deadline::Deadline;
use crate::wire;

/// For how long the session thread leaves the socket alone after a caller's turn.
///
/// What the daemon sends while nobody calls waits for so long at most: the daemon waits 100 ms for an announcement to
/// be read. Calls that follow each other faster than this do not wake the thread (bench `service`: one a millisecond).
pub(super) const PATIENCE: Duration = Duration::from_millis(4);

/// The role of the receiver.
#[derive(Debug)]
pub(super) struct Role {
    is_taken: bool,
    /// Somebody waits on `Inner::changed` until it is free.
    pub(super) is_awaited: bool,
    /// When a caller has last returned it.
    left_at: Instant,
}

impl Role {
    pub(super) fn new() -> Self {
        Self { is_taken: false, is_awaited: false, left_at: Instant::now() }
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// How long ago a caller has last returned it.
    pub(super) fn quiet(&self) -> Duration {
        self.left_at.elapsed()
    }
}

/// The right to receive.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    inner: &'a Inner,
    is_over: bool,
}

impl<'a> Turn<'a> {
    /// Takes the role, unless somebody has it.
    pub(super) fn take(inner: &'a Inner, state: &mut State) -> Option<Self> {
        if state.role.is_taken {
            return None;
        }
        state.role.is_taken = true;
        Some(Self { inner, is_over: false })
    }

    /// Handles the next message if one comes before the deadline; says whether there is nothing to wait for any more.
    fn receive(&self, deadline: &Deadline) -> bool {
        match self.inner.wait_incoming(deadline.left()) {
            Some(true) => self.handle_next() || deadline.left().is_zero(),
            Some(false) => deadline.left().is_zero(),
            None => true,
        }
    }

    /// Handles a message if there is one; says whether that has ended the session.
    pub(super) fn handle_next(&self) -> bool {
        let handled = self.inner.table.lock().receive(self.inner);
        handled.map_err(|end| self.inner.finish(end)).is_err()
    }

    pub(super) fn give_back(mut self, state: &mut State) {
        self.is_over = true;
        state.role.is_taken = false;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // It panics: what it has not handled is lost.
            self.inner.state.lock().role.is_taken = false;
            self.inner.finish(End::HungUp);
        }
    }
}

impl Inner {
    /// Waits for a message, and sends meanwhile what waits; says whether one is there, `None` where the session has ended.
    pub(super) fn wait_incoming(&self, limit: Duration) -> Option<bool> {
        match wire::wait(self.socket.as_fd(), self.flush(), Some(limit)) {
            Ok(ready) => Some(wire::has_incoming(ready)),
            Err(errno) => {
                self.finish(ShmError::Io { operation: "wait for a socket", source: errno.into() }.into());
                None
            }
        }
    }

    /// Waits until `look` finds something, at most until the deadline; receives meanwhile, unless somebody else does.
    ///
    /// `id` is the request whose reply the caller waits for, if it is one; else what it waits for signals `changed`.
    pub(super) fn wait_for<T>(
        &self,
        id: Option<u64>,
        deadline: &Deadline,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        // Before the lock, so that it is dropped after the lock's guard where something panics.
        let mut turn = None;
        let mut state = self.state.lock();
        // What has come in time is found even where the caller comes late: the first round does not look at the clock.
        let mut is_late = false;
        let found = loop {
            let found = look(&mut state);
            if found.is_some() || is_late {
                break found;
            }
            turn = turn.or_else(|| Turn::take(self, &mut state));
            is_late = match &turn {
                Some(turn) => MutexGuard::unlocked(&mut state, || turn.receive(deadline)),
                None => self.block(&mut state, id, deadline),
            };
        };
        if let Some(turn) = turn {
            turn.give_back(&mut state);
            state.role.left_at = Instant::now();
        }
        self.pass_on(&mut state);
        found
    }

    /// Waits until who receives has something for the caller, or returns the role; says whether it is too late.
    fn block(&self, state: &mut MutexGuard<'_, State>, id: Option<u64>, deadline: &Deadline) -> bool {
        let Some((id, waiter)) = id.and_then(|id| Some((id, state.waiters.get_mut(&id)?))) else {
            state.role.is_awaited = true;
            return self.changed.wait_until(state, deadline.at()).timed_out();
        };
        let signal = Arc::new(Condvar::new());
        waiter.blocked = Some(Arc::clone(&signal));
        let is_late = signal.wait_until(state, deadline.at()).timed_out();
        if let Some(waiter) = state.waiters.get_mut(&id) {
            waiter.blocked = None;
        }
        is_late
    }

    /// Wakes one who waits for the role, if it is free.
    pub(super) fn pass_on(&self, state: &mut State) {
        if state.role.is_taken {
            return;
        }
        let mut waiting = state.waiters.values().filter(|waiter| waiter.answer.is_none());
        if let Some(signal) = waiting.find_map(|waiter| waiter.blocked.as_ref()) {
            signal.notify_one();
        } else if std::mem::take(&mut state.role.is_awaited) {
            self.changed.notify_all();
        }
    }
}
