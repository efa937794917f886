//! The atomics of the shared-memory protocol: std's, or loom's under `cfg(loom)`.
//!
//! Protocol code takes `&AtomicU64` from here, so that the very functions that run in production are the ones
//! that `tests/loom.rs` explores.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering};

/// A sequentially consistent fence.
///
/// loom does not schedule at fences, so a mutant that only a switch there reveals would pass.
/// Under loom a read-modify-write on one shared dummy atomic precedes the fence and is that chance.
#[inline]
pub(crate) fn fence_seq_cst() {
    #[cfg(loom)]
    {
        loom::lazy_static! {
            static ref SWITCH: AtomicU64 = AtomicU64::new(0);
        }
        SWITCH.fetch_add(0, Ordering::AcqRel);
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
    #[cfg(not(loom))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// An acquire fence.
#[inline]
pub(crate) fn fence_acquire() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::Acquire);
    #[cfg(not(loom))]
    std::sync::atomic::fence(Ordering::Acquire);
}
