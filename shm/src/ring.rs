//! The ring of changed blocks: tells device copies which block words to fetch again.
//!
//! One pusher at a time (the daemon's lock) stores the entry, then the head.
//! A drainer reads from its own tail to the head, then reads the head again after an acquire fence:
//! when the pusher may have come round (`head - tail >= capacity`), nothing it read can be trusted, and it fetches
//! every word again.
//! Source: design brief, section 3, "Ring of changed blocks"; explored by `tests/loom.rs` together with the mutants
//! of [`Rules`].

use crate::sync::{AtomicU64, Ordering, fence_acquire};
use crate::types::SlotIdx;

/// Bits of a block index in an entry.
pub const BLOCK_BITS: u32 = 40;

/// The rules of the ring; loom shows that each mutant of [`Rules::SPEC`] breaks it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub entry_store: Ordering,
    /// Whether a drainer reads the head again after its entries.
    pub second_look: bool,
    pub look_load: Ordering,
    /// Entries beyond the capacity that a drainer may lag behind.
    pub slack: u64,
}

impl Rules {
    pub const SPEC: Self =
        Self { entry_store: Ordering::Release, second_look: true, look_load: Ordering::Acquire, slack: 0 };
}

/// A block whose word changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The tensor's slot.
    pub slot: SlotIdx,
    /// The block within the tensor, below 2^40.
    pub block_idx: u64,
}

impl Changed {
    const fn bits(self) -> u64 {
        (self.slot.get() as u64) << BLOCK_BITS | self.block_idx & ((1 << BLOCK_BITS) - 1)
    }

    const fn from_bits(bits: u64) -> Self {
        Self { slot: SlotIdx::from_low_bits(bits >> BLOCK_BITS), block_idx: bits & ((1 << BLOCK_BITS) - 1) }
    }
}

/// What a drainer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every change up to this new tail was handed out.
    UpTo(u64),
    /// The pusher came round: fetch every word again and go on from this tail.
    Lapped(u64),
}

/// A view of the ring: its head and its entries (a power of two of them).
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    head: &'a AtomicU64,
    entries: &'a [AtomicU64],
}

impl<'a> Ring<'a> {
    /// A view over `head` and `entries`.
    ///
    /// # Panics
    /// When the number of entries is not a power of two.
    pub fn new(head: &'a AtomicU64, entries: &'a [AtomicU64]) -> Self {
        assert!(entries.len().is_power_of_two(), "the ring's capacity is fixed by the layout");
        Self { head, entries }
    }

    fn entry(&self, position: u64) -> &AtomicU64 {
        &self.entries[crate::types::index(position) & (self.entries.len() - 1)]
    }

    /// The position that the next push takes: where a new drainer starts.
    pub fn head(&self) -> u64 {
        // Acquire: pairs with the Release in `push`.
        self.head.load(Ordering::Acquire)
    }

    /// Daemon, one at a time: tells of one changed block.
    pub fn push(&self, changed: Changed) {
        self.push_by(&Rules::SPEC, changed);
    }

    #[doc(hidden)]
    #[inline(always)]
    pub fn push_by(&self, rules: &Rules, changed: Changed) {
        let head = self.head.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `drain`; a drainer that sees this entry also sees the head that
        // came before it, so its second look at the head notices the lap.
        self.entry(head).store(changed.bits(), rules.entry_store);
        // Release: pairs with the Acquire in `drain` and `head`; the entry is seen with it.
        self.head.store(head.wrapping_add(1), Ordering::Release);
    }

    /// Drainer: hands the changes from `tail` on to `found`, and says whether they can be trusted.
    ///
    /// On [`Drained::Lapped`] what `found` got is to be thrown away.
    pub fn drain(&self, tail: u64, found: impl FnMut(Changed)) -> Drained {
        self.drain_by(&Rules::SPEC, tail, found)
    }

    #[doc(hidden)]
    #[inline(always)]
    pub fn drain_by(&self, rules: &Rules, tail: u64, mut found: impl FnMut(Changed)) -> Drained {
        let capacity = self.entries.len() as u64 + rules.slack;
        let head = self.head();
        if head.wrapping_sub(tail) >= capacity {
            return Drained::Lapped(head);
        }
        let mut position = tail;
        while position != head {
            // Acquire: pairs with the Release in `push`.
            found(Changed::from_bits(self.entry(position).load(Ordering::Acquire)));
            position = position.wrapping_add(1);
        }
        fence_acquire();
        // Acquire: pairs with the Release in `push`; words that a lapped drainer fetches are no older than its tail.
        let again = if rules.second_look { self.head.load(rules.look_load) } else { head };
        if again.wrapping_sub(tail) >= capacity { Drained::Lapped(again) } else { Drained::UpTo(head) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn changed(block_idx: u64) -> Changed {
        Changed { slot: SlotIdx::new(3).expect("a test's index"), block_idx }
    }

    #[test]
    fn drains_in_order_across_the_end_of_the_counter() {
        let start = u64::MAX - 1;
        let (head, entries) = (AtomicU64::new(start), std::array::from_fn::<_, 8, _>(|_| AtomicU64::new(0)));
        let ring = Ring::new(&head, &entries);
        for block_idx in 0..5 {
            ring.push(changed(block_idx));
        }
        let mut found = Vec::new();
        assert_eq!(ring.drain(start, |c| found.push(c)), Drained::UpTo(start.wrapping_add(5)));
        assert_eq!(found, (0..5).map(changed).collect::<Vec<_>>());
    }

    #[test]
    fn tells_a_drainer_that_was_lapped() {
        let (head, entries) = (AtomicU64::new(0), std::array::from_fn::<_, 4, _>(|_| AtomicU64::new(0)));
        let ring = Ring::new(&head, &entries);
        for block_idx in 0..4 {
            ring.push(changed(block_idx));
        }
        assert_eq!(ring.drain(0, |_| panic!("nothing can be trusted")), Drained::Lapped(4));
        assert_eq!(ring.drain(4, |_| panic!("nothing is new")), Drained::UpTo(4));
    }

    #[test]
    fn entries_keep_slot_and_block_apart() {
        let entry = Changed { slot: SlotIdx::new(0xFF_FFFE).unwrap(), block_idx: (1 << BLOCK_BITS) - 1 };
        assert_eq!(Changed::from_bits(entry.bits()), entry);
    }
}
