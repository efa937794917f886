//! The ring of changed blocks: a drainer misses no change without being told.

use loom::sync::Arc;
use loom::thread;
use tierpack_shm::publish::{load_word, publish_word};
use tierpack_shm::ring::{Changed, Drained, Ring, Rules};
use tierpack_shm::sync::{AtomicU64, Ordering};

use crate::explore::{breaks, holds};
use crate::shared::{raw, slot};

const MISSED: &str = "a change was missed without notice";
const TOO_SOON: &str = "a change was told before its word was stored";

struct Memory<const CAPACITY: usize> {
    head: AtomicU64,
    entries: [AtomicU64; CAPACITY],
    /// Its sequence counts the stores to the one block, one per push.
    word: AtomicU64,
}

impl<const CAPACITY: usize> Memory<CAPACITY> {
    fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
            word: AtomicU64::new(raw(0, 0).bits()),
        }
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.head, &self.entries)
    }

    /// Daemon: stores the word, then tells of it; the entry's block index is its position in the ring.
    fn store(&self, rules: &Rules) {
        let old = load_word(&self.word);
        publish_word(&self.word, old, raw(0, old.sequence() + 1)).expect("the only writer of the block");
        let changed = Changed { slot: slot(), block_idx: self.head.load(Ordering::Relaxed) };
        self.ring().push_by(rules, changed);
    }

    /// Drainer: one drain from `tail`; checks what it can be checked for, and gives the next tail.
    fn drain(&self, rules: &Rules, tail: u64) -> u64 {
        let mut found = Vec::new();
        let next = match self.ring().drain_by(rules, tail, |changed| found.push(changed.block_idx)) {
            Drained::UpTo(next) => {
                assert_eq!(found, (tail..next).collect::<Vec<_>>(), "{MISSED}");
                next
            }
            Drained::Lapped(next) => {
                assert!(next - tail >= CAPACITY as u64, "a drainer that was not lapped fetches every word");
                next
            }
        };
        // Told of a change or lapped: either way the words are fetched after this, and are no older than the tail.
        assert!(u64::from(load_word(&self.word).sequence()) >= next, "{TOO_SOON}");
        next
    }
}

/// `before` changes lie in the ring when a drainer starts; `beside` more come while it drains `drains` times.
fn drain_beside_pushes<const CAPACITY: usize>(rules: Rules, before: u64, beside: u64, drains: usize) {
    let daemon = Arc::new(Memory::<CAPACITY>::new());
    (0..before).for_each(|_| daemon.store(&rules));
    let pusher = Arc::clone(&daemon);
    let pushes = thread::spawn(move || (0..beside).for_each(|_| pusher.store(&rules)));
    let mut tail = 0;
    for _ in 0..drains {
        tail = daemon.drain(&rules, tail);
    }
    pushes.join().expect("the pusher ends");
    assert_eq!(daemon.drain(&rules, tail), before + beside, "{MISSED}");
}

#[test]
fn a_drainer_that_is_lapped_is_told() {
    holds("ring of 2, two pushes beside one drain", || drain_beside_pushes::<2>(Rules::SPEC, 1, 2, 1));
}

#[test]
fn a_drainer_at_capacity_is_told() {
    holds("full ring of 2, two pushes beside one drain", || drain_beside_pushes::<2>(Rules::SPEC, 2, 2, 1));
}

#[test]
fn a_drainer_goes_on_after_each_drain() {
    holds("ring of 4, two pushes beside two drains", || drain_beside_pushes::<4>(Rules::SPEC, 2, 2, 2));
}

#[test]
fn calling_a_drainer_lapped_only_beyond_the_capacity_is_found() {
    let rules = Rules { slack: 1, ..Rules::SPEC };
    breaks("lapped only beyond the capacity", &[MISSED], move || drain_beside_pushes::<2>(rules, 1, 2, 1));
}

#[test]
fn a_drain_without_a_second_look_is_found() {
    let rules = Rules { second_look: false, ..Rules::SPEC };
    breaks("no second look", &[MISSED], move || drain_beside_pushes::<2>(rules, 1, 2, 1));
}

#[test]
fn a_relaxed_store_of_an_entry_is_found() {
    let rules = Rules { entry_store: Ordering::Relaxed, ..Rules::SPEC };
    breaks("relaxed entry", &[MISSED], move || drain_beside_pushes::<2>(rules, 1, 2, 1));
}
