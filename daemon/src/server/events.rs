//! What workers tell the poll loop: one queue, so that a segment is announced before the reply that needs it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam::channel::{Receiver, Sender, unbounded};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tierpack_shm::message::{Refusal, Reply, SegmentId};
use tierpack_shm::segment::Segment;

use super::queue::Class;
use super::shares::Load;
use crate::error::{Error, Result};

/// Something for the poll loop to do.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per request on its way, never kept")]
pub(crate) enum Event {
    /// A request was carried out.
    Done {
        /// The session that asked; it may be gone.
        session: u64,
        /// The id of its request.
        id: u64,
        /// What came of it.
        result: core::result::Result<Reply, Refusal>,
        /// Descriptors that the reply names.
        descriptors: Vec<OwnedFd>,
        /// What it took of the queue.
        load: Load,
        /// What kind of request it was.
        class: Class,
    },
    /// A segment that every attached session must map.
    Announce {
        /// Its namespace.
        namespace: u32,
        /// Which.
        id: SegmentId,
        /// The segment.
        segment: Arc<Segment>,
        /// Dropped once it was sent.
        sent: Sender<()>,
    },
    /// A segment that every session must unmap before its memory returns.
    Retire {
        /// Its namespace.
        namespace: u32,
        /// Which.
        id: SegmentId,
        /// The segment.
        segment: Arc<Segment>,
    },
    /// The memory of a retired segment is free.
    Freed {
        /// Its namespace, and which it was.
        segment: (u32, SegmentId),
        /// Its bytes.
        len: u64,
        /// Whether it was page-locked.
        was_locked: bool,
    },
    /// Owner, group or mode of a namespace have changed: who may not read it now loses it.
    RightsChanged {
        /// Which.
        namespace: u32,
    },
    /// Enough descriptors were closed of a user from whom reading was put off.
    CaughtUp,
    /// A worker has panicked: one of our own invariants is broken, and the daemon ends.
    Panicked(String),
}

/// The sending end; wakes the poll loop.
///
/// Unbounded, but what is in it is bounded: at most one `Done` per queued request, and segments by the budget.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    sender: Sender<Event>,
    wake: Arc<EventFd>,
}

/// The poll loop's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<Event>,
    wake: Arc<EventFd>,
}

pub(crate) fn channel() -> Result<(Events, Inbox)> {
    let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let wake = Arc::new(wake.map_err(|source| Error::ShutdownDescriptor { source })?);
    let (sender, receiver) = unbounded();
    Ok((Events { sender, wake: Arc::clone(&wake) }, Inbox { receiver, wake }))
}

impl Events {
    pub(crate) fn send(&self, event: Event) {
        // Without a receiver the server has ended, and nobody is left to tell.
        if self.sender.send(event).is_ok() {
            // Fails only when the counter is full, and then the loop is awake anyway.
            let _ = self.wake.write(1).is_ok();
        }
    }
}

impl Events {
    /// Starts a thread without which the daemon cannot go on: when it panics, the daemon ends and says which it was.
    ///
    /// # Errors
    /// [`Error::Thread`] when the system starts none.
    pub(crate) fn spawn(
        &self,
        (name, what): (&'static str, &'static str),
        run: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let events = self.clone();
        let run = move || {
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                events.send(Event::Panicked(format!("{what} panicked")));
            }
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(run);
        started.map_err(|source| Error::Thread { name, source })
    }
}

impl Inbox {
    /// The next event, without waiting.
    pub(crate) fn next(&self) -> Option<Event> {
        self.receiver.try_recv().ok()
    }

    /// Resets the wake-up, once the poller has reported it; call it before the last look at [`Inbox::next`].
    pub(crate) fn clear_wake(&self) {
        let _ = self.wake.read().is_ok();
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
