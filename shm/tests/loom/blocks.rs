//! Publication, reading and retirement of one block, with its extents reused.

use loom::sync::Arc;
use loom::thread;
use tierpack_shm::sync::Ordering;

use crate::explore::{RACE, breaks, holds, holds_within};
use crate::shared::{Rules, Shared, Step, WRONG_BYTES, raw};

/// Which lease word a reader's next guard takes.
#[derive(Clone, Copy)]
enum Leases {
    /// The one that its last guard left.
    Same,
    /// The other one.
    Alternating,
}

/// A reader takes guards one after another while the daemon stores the block twice, the second time into the extent
/// that the first store retired, and then overwrites the other extent.
fn store_twice(rules: Rules, guards: usize, leases: Leases) {
    let daemon = Arc::new(Shared::new());
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || {
        let mut last = 0;
        for guard in 0..guards {
            let lease_idx = match leases {
                Leases::Same => 0,
                Leases::Alternating => guard % 2,
            };
            let seen = client.read_under_lease(&rules, lease_idx);
            assert!(seen >= last, "the block went back");
            last = seen;
        }
    });
    let mut stamp = daemon.publish(&rules, [raw(0, 0), raw(1, 1)], [1, 1]);
    let mut held = daemon.is_held(&rules, stamp);
    if held {
        thread::yield_now();
        held = daemon.is_held(&rules, stamp);
    }
    if !held {
        stamp = daemon.publish(&rules, [raw(1, 1), raw(0, 2)], [2, 2]);
        if !daemon.is_held(&rules, stamp) {
            daemon.extents[1].set([77, 77]);
        }
    }
    reader.join().expect("the reader ends");
    assert!(!daemon.is_held(&rules, stamp), "a lease is left behind");
}

/// Two readers while the daemon stores the block once and overwrites the retired extent.
fn two_readers(rules: Rules) {
    let daemon = Arc::new(Shared::new());
    let readers = [0, 1].map(|lease_idx| {
        let client = Arc::clone(&daemon);
        thread::spawn(move || client.read_under_lease(&rules, lease_idx))
    });
    let stamp = daemon.publish(&rules, [raw(0, 0), raw(1, 1)], [1, 1]);
    if !daemon.is_held(&rules, stamp) {
        daemon.extents[0].set([77, 78]);
    }
    for reader in readers {
        reader.join().expect("the reader ends");
    }
    assert!(!daemon.is_held(&rules, stamp), "a lease is left behind");
}

fn store_twice_breaks(name: &str, rules: Rules) {
    breaks(name, &[RACE, WRONG_BYTES], move || store_twice(rules, 2, Leases::Same));
}

#[test]
fn readers_see_whole_stores_while_extents_are_reused() {
    holds("two stores, two guards on one lease", || store_twice(Rules::SPEC, 2, Leases::Same));
}

#[test]
fn readers_see_whole_stores_while_their_leases_alternate() {
    // Exhaustive, this takes 1.4 million executions and holds too.
    holds_within("two stores, two guards on two leases", Some(4), || {
        store_twice(Rules::SPEC, 2, Leases::Alternating);
    });
}

#[test]
fn two_readers_see_whole_stores() {
    // In full this is millions of executions, for minutes.
    holds_within("one store, two readers", Some(3), || two_readers(Rules::SPEC));
}

#[test]
fn a_relaxed_lease_store_is_found_by_a_second_guard() {
    let rules = Rules::with_epoch(|rules| rules.lease_store = Ordering::Relaxed);
    store_twice_breaks("relaxed lease store", rules);
}

#[test]
fn a_relaxed_end_of_a_lease_is_found() {
    let rules = Rules::with_epoch(|rules| rules.lease_clear = Ordering::Relaxed);
    store_twice_breaks("relaxed end of a lease", rules);
}

#[test]
fn a_relaxed_scan_of_the_leases_is_found() {
    let rules = Rules::with_epoch(|rules| rules.scan_load = Ordering::Relaxed);
    store_twice_breaks("relaxed scan", rules);
}

#[test]
fn a_reader_without_its_fence_is_found() {
    let rules = Rules::with_epoch(|rules| rules.reader_fence = false);
    store_twice_breaks("no fence in the reader", rules);
}

#[test]
fn a_daemon_without_its_fence_is_found() {
    let rules = Rules::with_epoch(|rules| rules.daemon_fence = false);
    store_twice_breaks("no fence in the daemon", rules);
}

#[test]
fn freeing_under_a_lease_of_the_same_epoch_is_found() {
    let rules = Rules::with_epoch(|rules| rules.same_epoch_holds = false);
    store_twice_breaks("a lease of the same epoch does not hold", rules);
}

#[test]
fn a_relaxed_step_of_the_epoch_is_found() {
    let rules = Rules::with_epoch(|rules| rules.epoch_add = Ordering::Relaxed);
    store_twice_breaks("relaxed step", rules);
}

#[test]
fn a_step_before_the_publication_is_found() {
    store_twice_breaks("step first", Rules { step: Step::BeforeThePublication, ..Rules::SPEC });
}

#[test]
fn a_relaxed_publication_of_a_word_is_found() {
    let mut rules = Rules::SPEC;
    rules.words.word_swap = Ordering::Relaxed;
    store_twice_breaks("relaxed publication", rules);
}

#[test]
fn a_relaxed_load_of_a_word_is_found() {
    let mut rules = Rules::SPEC;
    rules.words.word_load = Ordering::Relaxed;
    store_twice_breaks("relaxed load of a word", rules);
}
