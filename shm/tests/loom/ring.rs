//! The ring of changed blocks: a drainer misses no change without being told.

use loom::sync::Arc;
use loom::thread;
use tierpack_shm::publish::{load_word, publish_word};
use tierpack_shm::ring::{Changed, Drained, Ring, Rules};
use tierpack_shm::sync::{AtomicU64, Ordering};

use crate::explore::{breaks, holds};
use crate::shared::{raw, slot, switch};

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

    /// Daemon: stores the word, then tells of it; the entry's block index is its position.
    fn store(&self, rules: &Rules) {
        let old = load_word(&self.word);
        switch();
        publish_word(&self.word, old, raw(0, old.sequence() + 1)).expect("the only writer of the block");
        let changed = Changed { slot: slot(), block_idx: u64::from(old.sequence()) };
        self.ring().push_by(rules, changed);
    }

    /// Drainer: one drain from `tail`; checks what it can be checked for, and gives the next tail.
    fn drain(&self, rules: &Rules, lapped: AfterLap, tail: u64) -> u64 {
        let mut found = Vec::new();
        let told = |changed: Changed| {
            found.push(changed.block_idx);
            switch();
        };
        let next = match self.ring().drain_by(rules, tail, told) {
            Drained::UpTo(next) => {
                assert_eq!(found, (tail..next).collect::<Vec<_>>(), "{MISSED}");
                next
            }
            Drained::Lapped(next) => {
                assert!(next - tail >= CAPACITY as u64, "a drainer that was not lapped fetches every word");
                match lapped {
                    AfterLap::LooksAtTheHead => self.ring().head(),
                    AfterLap::TakesTheTailAsItIs => next,
                }
            }
        };
        // Told of a change or lapped: either way the words are fetched after this, and are no older than the tail.
        assert!(u64::from(load_word(&self.word).sequence()) >= next, "{TOO_SOON}");
        next
    }
}

/// What a drainer that was lapped does before it fetches every word.
#[derive(Clone, Copy)]
enum AfterLap {
    /// Takes its tail from the head: what was pushed before that is seen from then on.
    LooksAtTheHead,
    /// Goes on from the tail that the second look gave: only right because that look is an Acquire.
    TakesTheTailAsItIs,
}

/// `before` changes lie in a ring when a drainer starts; `beside` more come while it drains `drains` times.
#[derive(Clone, Copy)]
struct Scene {
    before: u64,
    beside: u64,
    drains: usize,
}

const ONE_BEFORE: Scene = Scene { before: 1, beside: 2, drains: 1 };

fn drain_beside_pushes<const CAPACITY: usize>(rules: Rules, lapped: AfterLap, scene: Scene) {
    let daemon = Arc::new(Memory::<CAPACITY>::new());
    (0..scene.before).for_each(|_| daemon.store(&rules));
    let device = Arc::clone(&daemon);
    let drainer = thread::spawn(move || {
        (0..scene.drains).fold(0, |tail, _| {
            switch();
            device.drain(&rules, lapped, tail)
        })
    });
    (0..scene.beside).for_each(|_| daemon.store(&rules));
    let tail = drainer.join().expect("the drainer ends");
    assert_eq!(daemon.drain(&rules, lapped, tail), scene.before + scene.beside, "{MISSED}");
}

fn holds_for<const CAPACITY: usize>(name: &str, scene: Scene) {
    holds(name, move || drain_beside_pushes::<CAPACITY>(Rules::SPEC, AfterLap::LooksAtTheHead, scene));
}

fn mutant_breaks(name: &str, rules: Rules) {
    breaks(name, &[MISSED, TOO_SOON], move || {
        drain_beside_pushes::<2>(rules, AfterLap::LooksAtTheHead, ONE_BEFORE);
    });
}

#[test]
fn a_drainer_that_is_lapped_is_told() {
    holds_for::<2>("ring of 2, two pushes beside one drain", ONE_BEFORE);
}

#[test]
fn a_drainer_at_capacity_is_told() {
    holds_for::<2>("full ring of 2, two pushes beside two drains", Scene { before: 2, beside: 2, drains: 2 });
}

#[test]
fn a_drainer_goes_on_after_each_drain() {
    holds_for::<4>("ring of 4, two pushes beside two drains", Scene { before: 2, beside: 2, drains: 2 });
}

#[test]
fn calling_a_drainer_lapped_only_beyond_the_capacity_is_found() {
    mutant_breaks("lapped only beyond the capacity", Rules { slack: 1, ..Rules::SPEC });
}

#[test]
fn a_drain_without_a_second_look_is_found() {
    mutant_breaks("no second look", Rules { second_look: false, ..Rules::SPEC });
}

#[test]
fn a_relaxed_store_of_an_entry_is_found() {
    mutant_breaks("relaxed entry", Rules { entry_store: Ordering::Relaxed, ..Rules::SPEC });
}

#[test]
fn fetching_words_right_after_the_second_look_misses_nothing() {
    holds("words fetched after the second look", || {
        drain_beside_pushes::<2>(Rules::SPEC, AfterLap::TakesTheTailAsItIs, ONE_BEFORE);
    });
}

#[test]
fn fetching_words_right_after_a_relaxed_second_look_is_found() {
    let rules = Rules { look_load: Ordering::Relaxed, ..Rules::SPEC };
    breaks("words fetched after a relaxed look", &[TOO_SOON], move || {
        drain_beside_pushes::<2>(rules, AfterLap::TakesTheTailAsItIs, ONE_BEFORE);
    });
}
