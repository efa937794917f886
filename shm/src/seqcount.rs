//! Sequence counts: whether something shared has changed while a reader looked at it.
//!
//! The count is odd while its one writer changes what it covers, and another even number afterwards.
//! A reader loads the count, then what it covers, then the count again; equal and even, nothing of it changed between
//! the two loads.
//! What is covered is stored with Release and loaded with Acquire: a reader that finds a value of a change also finds the
//! odd count that came before it.
//! Explored by `tests/loom.rs` together with the mutants of [`Rules`].

use crate::sync::{AtomicU64, Ordering};

/// The rules of a sequence count; loom shows that each mutant of [`Rules::SPEC`] breaks it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether a change is announced before its first store.
    pub is_announced: bool,
    pub end_store: Ordering,
    pub first_load: Ordering,
    /// Whether a reader loads the count again.
    pub second_look: bool,
}

impl Rules {
    pub const SPEC: Self = Self {
        is_announced: true,
        end_store: Ordering::Release,
        first_load: Ordering::Acquire,
        second_look: true,
    };
}

/// Daemon, one at a time: a change begins; its stores follow, each with Release.
#[inline]
pub fn begin_change(count: &AtomicU64) {
    begin_change_by(&Rules::SPEC, count);
}

#[doc(hidden)]
#[inline(always)]
pub fn begin_change_by(rules: &Rules, count: &AtomicU64) {
    if rules.is_announced {
        // Relaxed: the stores that follow are Releases, and come after this.
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Daemon: the change is complete.
#[inline]
pub fn end_change(count: &AtomicU64) {
    end_change_by(&Rules::SPEC, count);
}

#[doc(hidden)]
#[inline(always)]
pub fn end_change_by(rules: &Rules, count: &AtomicU64) {
    let step = if rules.is_announced { 1 } else { 2 };
    // Release: pairs with the Acquire in `steady`; a reader that starts here finds all of the change.
    count.store(count.load(Ordering::Relaxed).wrapping_add(step), rules.end_store);
}

/// Reader: the count before the look, unless something is changing.
#[inline]
pub fn steady(count: &AtomicU64) -> Option<u64> {
    steady_by(&Rules::SPEC, count)
}

#[doc(hidden)]
#[inline(always)]
pub fn steady_by(rules: &Rules, count: &AtomicU64) -> Option<u64> {
    // Acquire: pairs with the Release in `end_change`.
    let found = count.load(rules.first_load);
    found.is_multiple_of(2).then_some(found)
}

/// Reader, after Acquire loads of what it looked at: whether nothing has changed since [`steady`] returned `seen`.
#[inline]
pub fn is_still(count: &AtomicU64, seen: u64) -> bool {
    is_still_by(&Rules::SPEC, count, seen)
}

#[doc(hidden)]
#[inline(always)]
pub fn is_still_by(rules: &Rules, count: &AtomicU64, seen: u64) -> bool {
    // Acquire: what follows a look that has succeeded does not come before it.
    !rules.second_look || count.load(Ordering::Acquire) == seen
}
