//! Which leases of a client page are taken: known to this process alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::layout::page;
use crate::page::spread;
use crate::types::index;

/// Lease words of one cache line.
const PER_LINE: usize = 8;

/// Which of the leases of a cache line are claimed: a line here for each line there, so that threads whose leases lie on
/// different lines share none here either.
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicBool; PER_LINE]);

/// Which leases of a page are claimed.
pub(super) struct Claims(Box<[Line]>);

impl Claims {
    pub(super) fn new() -> Self {
        Self((0..index(page::N_LEASES) / PER_LINE).map(|_| Line::default()).collect())
    }

    #[inline]
    fn of(&self, lease_idx: usize) -> &AtomicBool {
        &self.0[lease_idx / PER_LINE].0[lease_idx % PER_LINE]
    }

    /// Claims a lease; `None` when all are taken.
    #[inline]
    pub(super) fn claim(&self) -> Option<usize> {
        static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static FIRST: Cell<usize> = Cell::new(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        let first = FIRST.get();
        // SeqCst: see `Guard::new`. It is an Acquire as well, and pairs with the Release in `release`, so that one
        // lease word has one owner at a time.
        (0..index(page::N_LEASES)).map(|n| spread(first + n)).find(|&lease_idx| {
            let claimed = self.of(lease_idx);
            !claimed.load(Ordering::Relaxed) && !claimed.swap(true, Ordering::SeqCst)
        })
    }

    /// Whether any lease is claimed.
    pub(super) fn any(&self) -> bool {
        // SeqCst: see `Guard::new`.
        self.0.iter().flat_map(|line| &line.0).any(|claimed| claimed.load(Ordering::SeqCst))
    }

    /// Takes a lease back, whose word is free again.
    #[inline]
    pub(super) fn release(&self, lease_idx: usize) {
        // Release: pairs with the Acquire in `claim`.
        self.of(lease_idx).store(false, Ordering::Release);
    }
}
