//! What a namespace takes, to be read without its lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Inner;

/// A namespace's inner state under its lock, and the sums as they were when it was last unlocked.
#[derive(Debug)]
pub(in crate::store) struct Guarded {
    inner: Mutex<Inner>,
    sums: Sums,
}

#[derive(Debug, Default)]
struct Sums {
    stored: AtomicU64,
    held: AtomicU64,
    used: AtomicU64,
    directory: AtomicU64,
    segments: AtomicU64,
}

/// Bytes that a namespace takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Taken {
    /// Stored bytes of visible tensors.
    pub(in crate::store) stored: u64,
    /// Retired bytes that are not free yet.
    pub(in crate::store) held: u64,
    /// Extents in use in data segments: stored, held, and what puts and updates under way have stored.
    pub(in crate::store) used: u64,
    /// Segments of the directory.
    pub(in crate::store) directory: u64,
    /// Segments of both kinds.
    pub(in crate::store) segments: u64,
}

impl Taken {
    pub(in crate::store) fn plus(self, other: Self) -> Self {
        Self {
            stored: self.stored + other.stored,
            held: self.held + other.held,
            used: self.used + other.used,
            directory: self.directory + other.directory,
            segments: self.segments + other.segments,
        }
    }

    /// What puts and updates under way have stored.
    pub(in crate::store) fn under_way(self) -> u64 {
        self.used.saturating_sub(self.stored + self.held)
    }
}

impl Guarded {
    pub(super) fn new(inner: Inner) -> Self {
        let sums = Sums::default();
        sums.note(&inner);
        Self { inner: Mutex::new(inner), sums }
    }

    pub(in crate::store) fn lock(&self) -> Guard<'_> {
        Guard { inner: self.inner.lock(), sums: &self.sums }
    }

    pub(super) fn try_lock(&self) -> Option<Guard<'_>> {
        self.inner.try_lock().map(|inner| Guard { inner, sums: &self.sums })
    }

    /// What the namespace took when it was last unlocked.
    pub(in crate::store) fn taken(&self) -> Taken {
        // Relaxed: sums for comparisons and for people, which are outdated as soon as they are read.
        let Sums { stored, held, used, directory, segments } = &self.sums;
        let [stored, held, used, directory, segments] =
            [stored, held, used, directory, segments].map(|sum| sum.load(Ordering::Relaxed));
        Taken { stored, held, used, directory, segments }
    }
}

impl Sums {
    fn note(&self, inner: &Inner) {
        let taken = inner.taken();
        self.stored.store(taken.stored, Ordering::Relaxed);
        self.held.store(taken.held, Ordering::Relaxed);
        self.used.store(taken.used, Ordering::Relaxed);
        self.directory.store(taken.directory, Ordering::Relaxed);
        self.segments.store(taken.segments, Ordering::Relaxed);
    }
}

/// The lock of a namespace; its sums are noted when it is unlocked.
pub(in crate::store) struct Guard<'a> {
    inner: MutexGuard<'a, Inner>,
    sums: &'a Sums,
}

impl Deref for Guard<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // Before the lock is released, which comes after this.
        self.sums.note(&self.inner);
    }
}
