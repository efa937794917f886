//! Sequence counts: what a reader finds between two equal even counts is of one moment.

use loom::sync::Arc;
use loom::thread;
use tierpack_shm::publish::{load_word, publish_word};
use tierpack_shm::ring::{Changed, Drained, Ring};
use tierpack_shm::seqcount::{Rules, begin_change_by, end_change_by, is_still_by, steady_by};
use tierpack_shm::sync::AtomicU64;

use crate::explore::{breaks, holds};
use crate::shared::{raw, slot, switch};

const MIXED: &str = "words of two moments";
const OUTDATED: &str = "words from before the count";

/// Two blocks, which every update stores with one more sequence number each, and the ring that names them.
struct Memory {
    updates: AtomicU64,
    words: [AtomicU64; 2],
    head: AtomicU64,
    entries: [AtomicU64; 4],
}

impl Memory {
    fn new() -> Self {
        Self {
            updates: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(raw(0, 0).bits())),
            head: AtomicU64::new(0),
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.head, &self.entries)
    }

    /// Daemon: one update of both blocks.
    fn update(&self, rules: &Rules) {
        begin_change_by(rules, &self.updates);
        for (block_idx, word) in (0..).zip(&self.words) {
            let old = load_word(word);
            switch();
            publish_word(word, old, raw(0, old.sequence() + 1)).expect("the only writer");
            self.ring().push(Changed { slot: slot(), block_idx });
        }
        end_change_by(rules, &self.updates);
    }

    /// Reader: loads both words, then again those that the ring names, until nothing changed meanwhile.
    fn snapshot(&self, rules: &Rules, passes: usize) -> Option<(u64, [u32; 2])> {
        let mut tail = self.ring().head();
        let mut found = [0, 1].map(|block_idx: usize| load_word(&self.words[block_idx]).sequence());
        for _ in 0..passes {
            switch();
            let Some(seen) = steady_by(rules, &self.updates) else { continue };
            let mut named = Vec::new();
            match self.ring().drain(tail, |changed| named.push(changed.block_idx)) {
                Drained::UpTo(next) => tail = next,
                Drained::Lapped(next) => (tail, named) = (next, vec![0, 1]),
            }
            for block_idx in named {
                let block_idx = usize::try_from(block_idx).expect("one of two");
                found[block_idx] = load_word(&self.words[block_idx]).sequence();
                switch();
            }
            if is_still_by(rules, &self.updates, seen) {
                return Some((seen, found));
            }
        }
        None
    }
}

fn snapshot_next_to_updates(rules: Rules, updates: usize) {
    let daemon = Arc::new(Memory::new());
    let reader = Arc::clone(&daemon);
    let reading = thread::spawn(move || {
        if let Some((seen, found)) = reader.snapshot(&rules, 2) {
            assert_eq!(found[0], found[1], "{MIXED}");
            assert!(u64::from(found[0]) >= seen / 2, "{OUTDATED}");
        }
    });
    (0..updates).for_each(|_| daemon.update(&rules));
    reading.join().expect("the reader ends");
    let (seen, found) = daemon.snapshot(&rules, 1).expect("nothing changes any more");
    assert_eq!((seen / 2, found[0], found[1]), (updates as u64, updates as u32, updates as u32));
}

fn mutant_breaks(name: &str, change: impl FnOnce(&mut Rules)) {
    let mut rules = Rules::SPEC;
    change(&mut rules);
    breaks(name, &[MIXED, OUTDATED], move || snapshot_next_to_updates(rules, 1));
}

#[test]
fn a_snapshot_is_of_one_moment() {
    holds("two blocks, one update next to a snapshot of two passes", || {
        snapshot_next_to_updates(Rules::SPEC, 1)
    });
}

#[test]
fn a_change_that_is_not_announced_is_found() {
    mutant_breaks("update without an odd count", |rules| rules.is_announced = false);
}

#[test]
fn a_reader_that_does_not_look_again_is_found() {
    mutant_breaks("no second look at the count", |rules| rules.second_look = false);
}

#[test]
fn a_count_that_ends_relaxed_is_found() {
    mutant_breaks("even count stored relaxed", |rules| {
        rules.end_store = loom::sync::atomic::Ordering::Relaxed
    });
}

#[test]
fn a_count_that_is_loaded_relaxed_is_found() {
    mutant_breaks("first look relaxed", |rules| rules.first_load = loom::sync::atomic::Ordering::Relaxed);
}
