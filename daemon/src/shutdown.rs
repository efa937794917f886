//! Shutdown as a value: one handle that signals, tests and an embedding program share.
//!
//! The handle is a flag for code that works and a descriptor for code that polls.
//! The descriptor is written once and never read, so it stays readable for everyone who polls it, however
//! late.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

/// Tells every holder of a clone that the daemon is to end.
#[derive(Clone, Debug)]
pub struct Shutdown {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    triggered: AtomicBool,
    event: EventFd,
}

impl Shutdown {
    /// A handle that nobody has triggered yet.
    ///
    /// # Errors
    /// [`Error::ShutdownDescriptor`] when the system has no descriptor left.
    pub fn new() -> Result<Shutdown> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|source| Error::ShutdownDescriptor { source })?;
        Ok(Shutdown { state: Arc::new(State { triggered: AtomicBool::new(false), event }) })
    }

    /// Asks the daemon to end. Asking again changes nothing.
    pub fn trigger(&self) {
        // AcqRel: pairs with the Acquire in is_triggered, so that what was written before is seen by who
        // ends.
        if !self.state.triggered.swap(true, Ordering::AcqRel) {
            // Fails only when the counter would pass 2^64 - 2, and this adds 1 once.
            let written = self.state.event.write(1);
            debug_assert!(written.is_ok(), "event descriptor written once: {written:?}");
        }
    }

    /// Whether the daemon is to end.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        // Acquire: pairs with the AcqRel in trigger.
        self.state.triggered.load(Ordering::Acquire)
    }

    /// A descriptor that is readable from the first [`Shutdown::trigger`] on; for poll only, never to be
    /// read.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.state.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(shutdown: &Shutdown) -> bool {
        let mut fds = [PollFd::new(shutdown.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn stays_readable_in_every_clone() {
        let shutdown = Shutdown::new().unwrap();
        let other = shutdown.clone();
        assert!(!other.is_triggered() && !is_readable(&other));
        shutdown.trigger();
        shutdown.trigger();
        drop(shutdown);
        assert!(other.is_triggered() && is_readable(&other) && is_readable(&other));
    }

    #[test]
    fn wakes_a_thread_that_polls() {
        let shutdown = Shutdown::new().unwrap();
        let waiter = std::thread::spawn({
            let shutdown = shutdown.clone();
            move || {
                let mut fds = [PollFd::new(shutdown.fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::NONE).unwrap();
                shutdown.is_triggered()
            }
        });
        shutdown.trigger();
        assert!(waiter.join().unwrap());
    }
}
