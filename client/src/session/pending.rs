//! Requests that were sent, and the replies that their callers have yet to take.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Condvar;
use tierpack_shm::attachment::Attachment;
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::message::{Refusal, Reply};

use super::{Inner, State};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject, refused};

/// A request under way, under its id.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The namespace that the request attaches.
    pub(super) attaching: Option<Arc<str>>,
    /// The namespace that the request removes.
    pub(super) removing: Option<Arc<str>>,
    /// What has come for it; nothing comes after that.
    pub(super) answer: Option<core::result::Result<Answer, Refusal>>,
    /// Wakes the caller, where it waits while another receives.
    pub(super) blocked: Option<Arc<Condvar>>,
    /// Nobody will take the answer.
    is_given_up: bool,
}

/// What came for a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(Reply, Vec<OwnedFd>),
    Attached(Arc<Attachment>),
    /// The reply came, and the system refused this process what it brought.
    Failed(ShmError),
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    inner: Arc<Inner>,
    id: u64,
    deadline: Deadline,
    is_attach: bool,
    is_answered: bool,
}

impl Waiter {
    pub(super) fn new(attaching: Option<Arc<str>>, removing: Option<Arc<str>>) -> Self {
        Self { attaching, removing, answer: None, blocked: None, is_given_up: false }
    }
}

impl Answer {
    /// The reply to a request that attaches nothing.
    pub(crate) fn reply(self, subject: &Subject<'_>) -> Result<Reply> {
        match self {
            Self::Reply(reply, _) => Ok(reply),
            Self::Attached(_) | Self::Failed(_) => Err(subject.fault(ProtocolFault::Reply)),
        }
    }
}

impl Pending {
    pub(super) fn new(inner: &Arc<Inner>, id: u64, deadline: &Deadline, is_attach: bool) -> Self {
        Self { inner: Arc::clone(inner), id, deadline: *deadline, is_attach, is_answered: false }
    }

    /// Waits for the reply, and receives meanwhile; a refusal becomes its error.
    pub(crate) fn wait(mut self, subject: &Subject<'_>) -> Result<Answer> {
        let id = self.id;
        let look = |state: &mut State| match state.waiters.get(&id) {
            Some(waiter) if waiter.answer.is_none() => None,
            _ => Some(state.waiters.remove(&id).and_then(|waiter| waiter.answer)),
        };
        let found = self.inner.wait_for(Some(id), &self.deadline, look);
        self.is_answered = found.is_some();
        match found {
            Some(Some(Ok(Answer::Failed(source)))) => {
                Err(Error::System { operation: subject.operation, source })
            }
            Some(Some(Ok(answer))) => Ok(answer),
            Some(Some(Err(refusal))) => Err(refused(refusal, subject, self.deadline.seconds())),
            Some(None) => Err(self.inner.lost(subject.operation)),
            None => Err(self.deadline.passed(subject.operation)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // In a fork, the lock may have been caught in the middle of a change.
        if self.is_answered || !self.inner.cookie.is_here() {
            return;
        }
        let mut state = self.inner.state.lock();
        let left = match state.waiters.get_mut(&self.id) {
            // An attach goes on without us: its reply brings a page and segments that somebody will want.
            Some(waiter) if self.is_attach && waiter.answer.is_none() => {
                waiter.is_given_up = true;
                None
            }
            _ => state.waiters.remove(&self.id),
        };
        drop(state);
        if let Some(answer) = left.and_then(|waiter| waiter.answer) {
            self.inner.turn_down(answer);
        }
    }
}

impl Inner {
    /// Passes an answer to the caller that waits for it.
    pub(super) fn hand_over(&self, id: u64, answer: core::result::Result<Answer, Refusal>) {
        let mut state = self.state.lock();
        match state.waiters.get_mut(&id) {
            Some(waiter) if !waiter.is_given_up => {
                waiter.answer = Some(answer);
                if let Some(signal) = &waiter.blocked {
                    signal.notify_one();
                }
                return;
            }
            _ => drop(state.waiters.remove(&id)),
        }
        drop(state);
        self.turn_down(answer);
    }

    /// Undoes what a request has begun whose caller has stopped waiting; descriptors are closed.
    fn turn_down(&self, answer: core::result::Result<Answer, Refusal>) {
        if let Ok(Answer::Reply(Reply::Transfer { transfer }, _)) = answer {
            self.abort_put(transfer);
        }
    }
}
