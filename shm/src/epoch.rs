//! Leases and the reclamation clock: who may still read what.
//!
//! A reader stores the epoch that it saw and the tensor slot that it reads into a lease word of its client page.
//! The daemon publishes first, then steps the epoch, then looks at the leases: what it retired at step `r` may be
//! freed when every lease on that slot is from an epoch after `r`.
//!
//! ```text
//! reader                                daemon
//! e = epoch          (Acquire)          bytes, then word         (Release)
//! lease = (e, slot)  (Release)          r = epoch.fetch_add(1)   (AcqRel)
//! fence              (SeqCst)    <->    fence                    (SeqCst)
//! publication, words (Acquire)          scan leases              (Acquire)
//! ... read ...                          free if no lease on the slot has e <= r
//! lease = 0          (Release)
//! ```
//!
//! Either the daemon's scan sees the lease, or the reader's loads after its fence see what was published before
//! the step, and so never what was retired.
//! Source: design brief, section 3, "Lease"; explored by `tests/loom.rs` together with the mutants of [`Rules`].

use crate::sync::{AtomicU64, Ordering, fence_seq_cst};
use crate::types::SlotIdx;

/// Bits of an epoch in a lease word.
pub const EPOCH_BITS: u32 = 40;
/// The last epoch that a lease can hold; a daemon that reaches it must be restarted.
pub const MAX_EPOCH: u64 = (1 << EPOCH_BITS) - 1;
const SLOT_BITS: u32 = 64 - EPOCH_BITS;

/// The orderings of the protocol; loom shows that each mutant of [`Rules::SPEC`] breaks it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub epoch_load: Ordering,
    pub lease_store: Ordering,
    pub lease_clear: Ordering,
    pub reader_fence: bool,
    pub epoch_add: Ordering,
    pub daemon_fence: bool,
    pub scan_load: Ordering,
    /// Whether a lease from the very epoch of the retirement still holds.
    pub same_epoch_holds: bool,
}

impl Rules {
    pub const SPEC: Self = Self {
        epoch_load: Ordering::Acquire,
        lease_store: Ordering::Release,
        lease_clear: Ordering::Release,
        reader_fence: true,
        epoch_add: Ordering::AcqRel,
        daemon_fence: true,
        scan_load: Ordering::Acquire,
        same_epoch_holds: true,
    };
}

/// The step of the epoch at which something was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

impl Stamp {
    /// Whether this step came before the one that gives the clock `epoch`'s next value.
    #[inline]
    pub const fn is_before(self, epoch: u64) -> bool {
        self.0 < epoch
    }
}

/// A lease word taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWord {
    /// The epoch that the reader saw.
    pub epoch: u64,
    /// The slot that it reads, or [`SlotIdx::EVERY`].
    pub slot: SlotIdx,
}

impl LeaseWord {
    /// Takes a lease word apart; `None` when it is free.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 {
            return None;
        }
        Some(Self { epoch: bits >> SLOT_BITS, slot: SlotIdx::from_low_bits(bits) })
    }

    const fn bits(self) -> u64 {
        self.epoch << SLOT_BITS | self.slot.get() as u64
    }
}

/// Reader: enters `slot`; what is published now stays until [`end`].
#[inline]
pub fn begin(lease: &AtomicU64, epoch: &AtomicU64, slot: SlotIdx) {
    begin_by(&Rules::SPEC, lease, epoch, slot);
}

#[doc(hidden)]
#[inline(always)]
pub fn begin_by(rules: &Rules, lease: &AtomicU64, epoch: &AtomicU64, slot: SlotIdx) {
    // Acquire: pairs with the AcqRel step in `retire`; a reader of this epoch sees all that was published before it.
    let seen = epoch.load(rules.epoch_load);
    // Release: pairs with the Acquire scan in `is_held`; an earlier guard's reads are done when this is seen.
    lease.store(LeaseWord { epoch: seen, slot }.bits(), rules.lease_store);
    if rules.reader_fence {
        fence_seq_cst();
    }
}

/// Reader: leaves; nothing that the lease covered may be read after this.
#[inline]
pub fn end(lease: &AtomicU64) {
    end_by(&Rules::SPEC, lease);
}

#[doc(hidden)]
#[inline(always)]
pub fn end_by(rules: &Rules, lease: &AtomicU64) {
    // Release: pairs with the Acquire scan in `is_held`; all reads are done before the lease is seen free.
    lease.store(0, rules.lease_clear);
}

/// Daemon: steps the epoch after a publication; one step may retire a whole batch.
///
/// Returns `None` when the clock is at its end: the caller must publish nothing more.
#[inline]
pub fn retire(epoch: &AtomicU64) -> Option<Stamp> {
    retire_by(&Rules::SPEC, epoch)
}

#[doc(hidden)]
#[inline(always)]
pub fn retire_by(rules: &Rules, epoch: &AtomicU64) -> Option<Stamp> {
    // AcqRel: pairs with the Acquire load in `begin`; what was published before the step is seen by its readers.
    let stamp = epoch.fetch_add(1, rules.epoch_add);
    if rules.daemon_fence {
        fence_seq_cst();
    }
    (stamp < MAX_EPOCH).then_some(Stamp(stamp))
}

/// The leases that were taken when the daemon looked: the oldest on each slot.
///
/// The words come from pages that clients write; whatever is in them only decides how long memory is held.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// The least epoch on each slot, by slot, each slot once.
    oldest: Vec<(SlotIdx, u64)>,
}

impl Leases {
    /// Daemon: looks at the leases, after the step of the epoch ([`retire`]) of everything it will ask about.
    pub fn scan<'a>(leases: impl IntoIterator<Item = &'a AtomicU64>) -> Self {
        Self::scan_by(&Rules::SPEC, leases)
    }

    #[doc(hidden)]
    pub fn scan_by<'a>(rules: &Rules, leases: impl IntoIterator<Item = &'a AtomicU64>) -> Self {
        // Acquire: pairs with the Release stores in `begin` and `end`.
        let words = leases.into_iter().map(|lease| lease.load(rules.scan_load));
        let taken = words.filter_map(LeaseWord::from_bits);
        let mut oldest: Vec<_> = taken.map(|lease| (lease.slot, lease.epoch)).collect();
        oldest.sort_unstable();
        oldest.dedup_by_key(|(slot, _)| *slot);
        Self { oldest }
    }

    fn on(&self, slot: SlotIdx) -> Option<u64> {
        let found = self.oldest.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(self.oldest[found].1)
    }

    /// Whether any of them may still read what was retired from `slot` at `stamp`.
    pub fn hold(&self, stamp: Stamp, slot: SlotIdx) -> bool {
        self.hold_by(&Rules::SPEC, stamp, slot)
    }

    #[doc(hidden)]
    pub fn hold_by(&self, rules: &Rules, stamp: Stamp, slot: SlotIdx) -> bool {
        let is_old = |epoch: u64| if rules.same_epoch_holds { epoch <= stamp.0 } else { epoch < stamp.0 };
        if slot == SlotIdx::EVERY {
            return self.oldest.iter().any(|(_, epoch)| is_old(*epoch));
        }
        [slot, SlotIdx::EVERY].into_iter().filter_map(|slot| self.on(slot)).any(is_old)
    }
}

/// Daemon: whether any of `leases` may still read what was retired from `slot` at `stamp`.
pub fn is_held<'a>(stamp: Stamp, slot: SlotIdx, leases: impl IntoIterator<Item = &'a AtomicU64>) -> bool {
    Leases::scan(leases).hold(stamp, slot)
}

#[doc(hidden)]
pub fn is_held_by<'a>(
    rules: &Rules,
    stamp: Stamp,
    slot: SlotIdx,
    leases: impl IntoIterator<Item = &'a AtomicU64>,
) -> bool {
    Leases::scan_by(rules, leases).hold_by(rules, stamp, slot)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slot(value: u32) -> SlotIdx {
        SlotIdx::new(value).expect("a test's index")
    }

    #[test]
    fn a_lease_holds_its_own_slot_until_it_ends() {
        let (epoch, lease) = (AtomicU64::new(1), AtomicU64::new(0));
        begin(&lease, &epoch, slot(7));
        let stamp = retire(&epoch).unwrap();
        assert!(is_held(stamp, slot(7), [&lease]));
        assert!(!is_held(stamp, slot(8), [&lease]));
        end(&lease);
        assert!(!is_held(stamp, slot(7), [&lease]));
    }

    #[test]
    fn a_lease_from_after_the_step_holds_nothing() {
        let (epoch, lease) = (AtomicU64::new(1), AtomicU64::new(0));
        let stamp = retire(&epoch).unwrap();
        begin(&lease, &epoch, slot(7));
        assert!(!is_held(stamp, slot(7), [&lease]));
        assert!(is_held(retire(&epoch).unwrap(), slot(7), [&lease]));
    }

    #[test]
    fn a_lease_on_every_slot_holds_each() {
        let (epoch, lease) = (AtomicU64::new(1), AtomicU64::new(0));
        begin(&lease, &epoch, SlotIdx::EVERY);
        let stamp = retire(&epoch).unwrap();
        assert!(is_held(stamp, slot(0), [&lease]));
        assert!(is_held(stamp, slot(0xFF_FFFE), [&lease]));
    }

    #[test]
    fn the_clock_refuses_to_wrap() {
        let epoch = AtomicU64::new(MAX_EPOCH - 1);
        assert!(retire(&epoch).is_some());
        assert!(retire(&epoch).is_none());
    }

    #[test]
    fn lease_words_round_trip_at_their_limits() {
        for (epoch, slot) in
            [(1, slot(0)), (MAX_EPOCH, SlotIdx::EVERY), (MAX_EPOCH, slot(0)), (1, SlotIdx::EVERY)]
        {
            let word = LeaseWord { epoch, slot };
            assert_eq!(LeaseWord::from_bits(word.bits()), Some(word));
        }
        assert_eq!(LeaseWord::from_bits(0), None);
    }
}
