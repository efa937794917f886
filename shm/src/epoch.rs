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
//!
//! A reader that has looked up all it will read *finishes* its lease: from then on it holds what it can have found, and
//! nothing that was published later.
//!
//! ```text
//! reader                                      daemon
//! the last of its words      (Acquire)        p = epoch              (Acquire)
//! d = epoch                  (Acquire)        bytes, then word       (Release)
//! last look = d              (Relaxed)        ... retired at r, as above ...
//! lease = (e, slot) finished (Release)        a finished lease holds it if e <= r and p <= d
//! ```
//!
//! A word that the reader has found was stored after its p was loaded, so the reader's d is no less than p.
//! A lease may be taken and finished again between the scan's two loads: the scan then finds a later d, which holds more.
//! Source: design brief, section 3, "Lease"; explored by `tests/loom.rs` together with the mutants of [`Rules`].

use crate::sync::{AtomicU64, Ordering, fence_seq_cst};
use crate::types::SlotIdx;

/// Bits of an epoch in a lease word.
pub const EPOCH_BITS: u32 = 39;
/// The last epoch that a lease can hold; a daemon that reaches it must be restarted.
pub const MAX_EPOCH: u64 = (1 << EPOCH_BITS) - 1;
const SLOT_BITS: u32 = 24;
/// The bit of a lease word that says that the reader looks nothing up any more.
const FINISHED: u64 = 1 << (SLOT_BITS + EPOCH_BITS);

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
    pub finish_store: Ordering,
    /// Whether a finished lease holds what was published in the very epoch of its last look-up.
    pub same_last_look_holds: bool,
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
        finish_store: Ordering::Release,
        same_last_look_holds: true,
    };
}

/// The step of the epoch at which something was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

impl Stamp {
    /// Whether this step came before the one that set the clock to `epoch`'s next value.
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
    /// Whether it looks nothing up any more.
    pub is_finished: bool,
}

impl LeaseWord {
    /// Takes a lease word apart; `None` when it is free.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 {
            return None;
        }
        Some(Self {
            epoch: bits >> SLOT_BITS & MAX_EPOCH,
            slot: SlotIdx::from_low_bits(bits),
            is_finished: bits & FINISHED != 0,
        })
    }

    const fn bits(self) -> u64 {
        let finished = if self.is_finished { FINISHED } else { 0 };
        finished | self.epoch << SLOT_BITS | self.slot.get() as u64
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
    lease.store(LeaseWord { epoch: seen, slot, is_finished: false }.bits(), rules.lease_store);
    if rules.reader_fence {
        fence_seq_cst();
    }
}

/// Reader: has looked up all that it will read; loads no word and no entry of a table until it leaves.
///
/// `last_look` is the second word of the lease.
#[inline]
pub fn finish(lease: &AtomicU64, last_look: &AtomicU64, epoch: &AtomicU64) {
    // Acquire: not before the last look-up, which was an Acquire too.
    let seen = epoch.load(Ordering::Acquire);
    finish_by(&Rules::SPEC, lease, last_look, seen);
}

#[doc(hidden)]
#[inline(always)]
pub fn finish_by(rules: &Rules, lease: &AtomicU64, last_look: &AtomicU64, seen: u64) {
    last_look.store(seen, Ordering::Relaxed);
    // Relaxed: the word is this reader's own.
    let word = lease.load(Ordering::Relaxed);
    // Release: pairs with the Acquire scan; the second word is seen with it, and all look-ups are done before it.
    lease.store(word | FINISHED, rules.finish_store);
}

/// Reader: whether it has finished a lease of its own.
#[inline]
pub fn is_finished(lease: &AtomicU64) -> bool {
    lease.load(Ordering::Relaxed) & FINISHED != 0
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

/// A lease on one slot: it holds what retired from `epoch` on, and was published until `last_look`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    slot: SlotIdx,
    epoch: u64,
    last_look: u64,
}

/// The leases that were taken when the daemon looked.
///
/// The words come from pages that clients write; whatever is in them only decides how long memory is held.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// By slot, then by epoch; `last_look` is the greatest of all on the slot up to that epoch.
    held: Vec<Held>,
}

impl Leases {
    /// Daemon: looks at the leases, after the step of the epoch ([`retire`]) of everything it will ask about.
    ///
    /// Each is described by its two words.
    pub fn scan<'a>(leases: impl IntoIterator<Item = (&'a AtomicU64, &'a AtomicU64)>) -> Self {
        Self::scan_by(&Rules::SPEC, leases)
    }

    #[doc(hidden)]
    pub fn scan_by<'a>(
        rules: &Rules,
        leases: impl IntoIterator<Item = (&'a AtomicU64, &'a AtomicU64)>,
    ) -> Self {
        let look = |(lease, last_look): (&AtomicU64, &AtomicU64)| {
            // Acquire: pairs with the Release stores in `begin`, `finish` and `end`.
            let LeaseWord { epoch, slot, is_finished } = LeaseWord::from_bits(lease.load(rules.scan_load))?;
            // Relaxed: the Acquire above has seen the store that comes before `finished`.
            let last_look = if is_finished { last_look.load(Ordering::Relaxed) } else { u64::MAX };
            Some(Held { slot, epoch, last_look })
        };
        let mut held: Vec<_> = leases.into_iter().filter_map(look).collect();
        held.sort_unstable();
        for n in 1..held.len() {
            if held[n].slot == held[n - 1].slot {
                held[n].last_look = held[n].last_look.max(held[n - 1].last_look);
            }
        }
        Self { held }
    }

    /// How late what retired from `slot` at `stamp` must have been published for no lease to hold it: what was published
    /// in this epoch or earlier is held. `None` when nothing is.
    #[inline]
    pub fn hold_until(&self, stamp: Stamp, slot: SlotIdx) -> Option<u64> {
        self.hold_until_by(&Rules::SPEC, stamp, slot)
    }

    fn hold_until_by(&self, rules: &Rules, stamp: Stamp, slot: SlotIdx) -> Option<u64> {
        let is_old = |epoch: u64| if rules.same_epoch_holds { epoch <= stamp.0 } else { epoch < stamp.0 };
        if slot == SlotIdx::EVERY {
            return self.held.iter().filter(|held| is_old(held.epoch)).map(|held| held.last_look).max();
        }
        let on = |slot: SlotIdx| {
            let end = self.held.partition_point(|held| (held.slot, !is_old(held.epoch)) <= (slot, false));
            self.held[..end].last().filter(|held| held.slot == slot).map(|held| held.last_look)
        };
        on(slot).max(on(SlotIdx::EVERY))
    }

    /// Whether any of them may still read what was published in epoch `published`, and retired from `slot` at `stamp`.
    pub fn hold(&self, stamp: Stamp, slot: SlotIdx, published: u64) -> bool {
        self.hold_by(&Rules::SPEC, stamp, slot, published)
    }

    #[doc(hidden)]
    pub fn hold_by(&self, rules: &Rules, stamp: Stamp, slot: SlotIdx, published: u64) -> bool {
        self.hold_until_by(rules, stamp, slot).is_some_and(|last_look| {
            if rules.same_last_look_holds { published <= last_look } else { published < last_look }
        })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slot(value: u32) -> SlotIdx {
        SlotIdx::new(value).expect("a test's index")
    }

    #[derive(Default)]
    struct Lease(AtomicU64, AtomicU64);

    impl Lease {
        fn holds(&self, stamp: Stamp, slot: SlotIdx, published: u64) -> bool {
            Leases::scan([(&self.0, &self.1)]).hold(stamp, slot, published)
        }
    }

    #[test]
    fn a_lease_holds_its_own_slot_until_it_ends() {
        let (epoch, lease) = (AtomicU64::new(1), Lease::default());
        begin(&lease.0, &epoch, slot(7));
        let stamp = retire(&epoch).unwrap();
        assert!(lease.holds(stamp, slot(7), 1));
        assert!(!lease.holds(stamp, slot(8), 1));
        end(&lease.0);
        assert!(!lease.holds(stamp, slot(7), 1));
    }

    #[test]
    fn a_lease_from_after_the_step_holds_nothing() {
        let (epoch, lease) = (AtomicU64::new(1), Lease::default());
        let stamp = retire(&epoch).unwrap();
        begin(&lease.0, &epoch, slot(7));
        assert!(!lease.holds(stamp, slot(7), 1));
        assert!(lease.holds(retire(&epoch).unwrap(), slot(7), 1));
    }

    #[test]
    fn a_lease_on_every_slot_holds_each() {
        let (epoch, lease) = (AtomicU64::new(1), Lease::default());
        begin(&lease.0, &epoch, SlotIdx::EVERY);
        let stamp = retire(&epoch).unwrap();
        assert!(lease.holds(stamp, slot(0), 1));
        assert!(lease.holds(stamp, slot(0xFF_FFFE), 1));
    }

    #[test]
    fn a_finished_lease_holds_what_was_published_before_its_last_look() {
        let (epoch, lease) = (AtomicU64::new(1), Lease::default());
        begin(&lease.0, &epoch, slot(7));
        let early = retire(&epoch).unwrap();
        finish(&lease.0, &lease.1, &epoch);
        let late = retire(&epoch).unwrap();
        for stamp in [early, late] {
            assert!(lease.holds(stamp, slot(7), 1) && lease.holds(stamp, slot(7), 2));
            assert!(!lease.holds(stamp, slot(7), 3), "published after the last look");
            assert!(!lease.holds(stamp, slot(8), 1));
        }
        assert!(is_finished(&lease.0));
        end(&lease.0);
        assert!(!lease.holds(late, slot(7), 1));
    }

    #[test]
    fn many_leases_hold_what_any_of_them_holds() {
        let random = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        let words = (1..200).map(|n| {
            let slot = if random(n) % 9 == 0 { SlotIdx::EVERY } else { slot((random(n) % 5) as u32) };
            let (epoch, is_finished) = (1 + random(n + 1000) % 20, random(n + 2000) % 4 > 0);
            (LeaseWord { epoch, slot, is_finished }, random(n + 3000) % 20)
        });
        let words: Vec<_> = words.collect();
        for n in [0, 1, 2, 5, 20, words.len()] {
            let pairs: Vec<_> = words[..n]
                .iter()
                .map(|(word, last_look)| Lease(AtomicU64::new(word.bits()), AtomicU64::new(*last_look)))
                .collect();
            let leases = Leases::scan(pairs.iter().map(|pair| (&pair.0, &pair.1)));
            for (stamp, asked, published) in
                (0..22).flat_map(|r| (0..6).flat_map(move |s| (1..22).map(move |p| (r, s, p))))
            {
                let expected = words[..n].iter().any(|(word, last_look)| {
                    (word.slot == slot(asked) || word.slot == SlotIdx::EVERY)
                        && word.epoch <= stamp
                        && (!word.is_finished || published <= *last_look)
                });
                assert_eq!(leases.hold(Stamp(stamp), slot(asked), published), expected);
            }
        }
    }

    #[test]
    fn the_clock_refuses_to_wrap() {
        let epoch = AtomicU64::new(MAX_EPOCH - 1);
        assert!(retire(&epoch).is_some());
        assert!(retire(&epoch).is_none());
    }

    #[test]
    fn lease_words_round_trip_at_their_limits() {
        let limits = [(1, slot(0)), (MAX_EPOCH, SlotIdx::EVERY), (MAX_EPOCH, slot(0)), (1, SlotIdx::EVERY)];
        for (epoch, slot) in limits {
            for is_finished in [false, true] {
                let word = LeaseWord { epoch, slot, is_finished };
                assert_eq!(LeaseWord::from_bits(word.bits()), Some(word));
            }
        }
        assert_eq!(LeaseWord::from_bits(0), None);
    }
}
