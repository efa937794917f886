//! What the guards of a session's attachments have to know of the session.

use std::sync::atomic::{AtomicU8, Ordering, fence};

/// Where the daemon counts the leases, and new ones are taken.
const OPEN: u8 = 0;
/// No guard is created any more; the socket is still open on this side, or the daemon is gone.
const ENDED: u8 = 1;
/// The socket is not open any more, though nobody said goodbye: leases may not count any more.
const LOST: u8 = 2;

/// The state of a session, shared by all its attachments.
#[derive(Debug, Default)]
pub struct Link(AtomicU8);

impl Link {
    /// No guard is created from now on.
    pub fn end(&self) {
        // Release: pairs with the Acquire in `is_open`.
        self.0.fetch_max(ENDED, Ordering::Release);
    }

    /// The process has closed the socket of the session: what guards hold may be overwritten from now on.
    pub fn lose(&self) {
        self.0.fetch_max(LOST, Ordering::Release);
    }

    /// Whether guards are created.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    /// Whether the bytes that the caller has read under a guard may have been overwritten meanwhile.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        // The reads of the bytes come before that of the state.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == LOST
    }
}
