//! Finished leases: a reader that has looked up all it will read holds what it found, and nothing that came later.

use loom::sync::Arc;
use loom::thread;
use tierpack_shm::epoch;
use tierpack_shm::sync::Ordering;

use crate::explore::{RACE, breaks, holds, holds_within};
use crate::shared::{Rules, Shared, WRONG_BYTES, raw, switch};

const HELD_LATER: &str = "a finished lease holds what was published later";

/// What is done at the wrong time, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The reader loads the epoch of its last look-up before its last word.
    LastLookBeforeTheWord,
    /// The daemon takes the epoch of a publication after it: after the step that belongs to it.
    PublishedAfterTheStore,
}

/// Reader: one guard that finishes after its only word, and reads then.
fn read_finished(shared: &Shared, rules: &Rules, wrong: Wrong) {
    shared.begin(rules, 0);
    let early = (wrong == Wrong::LastLookBeforeTheWord).then(|| shared.epoch.load(Ordering::Acquire));
    switch();
    let word = shared.load(rules);
    let seen = early.unwrap_or_else(|| shared.epoch.load(Ordering::Acquire));
    epoch::finish_by(&rules.epoch, &shared.leases[0], &shared.last_looks[0], seen);
    switch();
    assert_eq!(shared.read(word), [u64::from(word.sequence()); 2], "{WRONG_BYTES}");
    shared.end(rules, 0);
}

/// Another tensor retires something; then the block is stored twice, and what the second store retires is overwritten
/// as soon as no lease holds it.
fn store_twice_after_a_step(rules: Rules, wrong: Wrong) {
    let daemon = Arc::new(Shared::new());
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || read_finished(&client, &rules, wrong));
    daemon.retire(&rules);
    let before = daemon.epoch.load(Ordering::Acquire);
    let first = daemon.publish(&rules, [raw(0, 0), raw(1, 1)], [1, 1]);
    let after = daemon.epoch.load(Ordering::Acquire);
    if !daemon.holds(&rules, first, 1) {
        daemon.extents[0].set([77, 77]);
    }
    let published = if wrong == Wrong::PublishedAfterTheStore { after } else { before };
    let second = daemon.publish(&rules, [raw(1, 1), raw(2, 2)], [2, 2]);
    if !daemon.holds(&rules, second, published) {
        daemon.extents[1].set([88, 88]);
    }
    reader.join().expect("the reader ends");
    assert!(!daemon.is_held(&rules, second), "a lease is left behind");
}

/// A guard that is finished before anything is stored, and stays.
fn finish_and_stay(rules: Rules) {
    let daemon = Arc::new(Shared::new());
    daemon.begin(&rules, 0);
    let word = daemon.load(&rules);
    epoch::finish_by(&rules.epoch, &daemon.leases[0], &daemon.last_looks[0], 1);
    let first = daemon.publish(&rules, [raw(0, 0), raw(1, 1)], [1, 1]);
    assert!(daemon.holds(&rules, first, 1), "what it found is not held");
    // From here on the block moves between two extents, however often.
    let second = daemon.publish(&rules, [raw(1, 1), raw(2, 2)], [2, 2]);
    assert!(!daemon.holds(&rules, second, 2), "{HELD_LATER}");
    assert_eq!(daemon.read(word), [0, 0], "{WRONG_BYTES}");
}

/// Two guards of one client, one after the other on the same words, while the daemon stores the block twice.
fn finish_twice(rules: Rules) {
    let daemon = Arc::new(Shared::new());
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || {
        read_finished(&client, &rules, Wrong::Nothing);
        read_finished(&client, &rules, Wrong::Nothing);
    });
    let first = daemon.publish(&rules, [raw(0, 0), raw(1, 1)], [1, 1]);
    if !daemon.holds(&rules, first, 1) {
        daemon.extents[0].set([77, 77]);
    }
    reader.join().expect("the reader ends");
}

fn mutant_breaks(name: &str, rules: Rules, wrong: Wrong) {
    breaks(name, &[RACE, WRONG_BYTES], move || store_twice_after_a_step(rules, wrong));
}

#[test]
fn a_finished_reader_reads_what_it_found() {
    // In full this takes minutes.
    holds_within("finished lease, a step and two stores", Some(3), || {
        store_twice_after_a_step(Rules::SPEC, Wrong::Nothing);
    });
}

#[test]
fn a_finished_lease_does_not_hold_what_comes_later() {
    holds("finished lease that stays", || finish_and_stay(Rules::SPEC));
}

#[test]
fn a_lease_may_be_finished_again_while_it_is_looked_at() {
    holds("two finished guards on one lease, one store", || finish_twice(Rules::SPEC));
}

#[test]
fn finishing_by_an_epoch_from_before_the_last_word_is_found() {
    mutant_breaks("last look before the word", Rules::SPEC, Wrong::LastLookBeforeTheWord);
}

#[test]
fn an_epoch_of_publication_from_after_the_store_is_found() {
    mutant_breaks("published after the store", Rules::SPEC, Wrong::PublishedAfterTheStore);
}

#[test]
fn a_relaxed_finish_is_found() {
    let rules = Rules::with_epoch(|rules| rules.finish_store = Ordering::Relaxed);
    mutant_breaks("relaxed finish", rules, Wrong::Nothing);
}

#[test]
fn freeing_what_was_published_in_the_epoch_of_the_last_look_is_found() {
    let rules = Rules::with_epoch(|rules| rules.same_last_look_holds = false);
    mutant_breaks("same last look does not hold", rules, Wrong::Nothing);
}
