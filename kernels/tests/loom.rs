//! The protocol of a cache line in device memory, explored by loom: `kernels/cuda/cache.cuh` in Rust.
//!
//! A team is one thread here: that its lanes are ordered by `__syncwarp` is not modeled.
//! Each rule has a mutant that breaks it, and a test that loom finds the break.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p tierpack-kernels --release --test loom -- --nocapture
//! ```
#![cfg(loom)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

const MIXED: &str = "a row of two inserts";

/// How a line is taken.
#[derive(Clone, Copy)]
enum Claim {
    CompareAndSwap,
    /// A mutant: a thread that saw it even takes it.
    Store,
}

/// What inserts and probes do.
#[derive(Clone, Copy)]
struct Rules {
    claim: Claim,
    claim_fence: bool,
    publish: Ordering,
    first_look: Ordering,
    probe_fence: bool,
    second_look: bool,
}

const SPEC: Rules = Rules {
    claim: Claim::CompareAndSwap,
    claim_fence: true,
    publish: Ordering::Release,
    first_look: Ordering::Acquire,
    probe_fence: true,
    second_look: true,
};

/// One line; its bytes are two words, each of which must be the tag.
struct Line {
    state: AtomicU64,
    tag: AtomicU64,
    bytes: [AtomicU64; 2],
}

impl Line {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            bytes: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Whether the row went in.
    fn insert(&self, rules: Rules, tag: u64) -> bool {
        let seen = self.state.load(Ordering::Acquire);
        if seen % 2 == 1 {
            return false;
        }
        match rules.claim {
            Claim::CompareAndSwap => {
                let claimed =
                    self.state.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
                if claimed.is_err() {
                    return false;
                }
            }
            Claim::Store => self.state.store(seen + 1, Ordering::Relaxed),
        }
        if rules.claim_fence {
            fence(Ordering::AcqRel);
        }
        self.bytes[0].store(tag, Ordering::Relaxed);
        self.bytes[1].store(tag, Ordering::Relaxed);
        self.tag.store(tag, Ordering::Relaxed);
        self.state.store(seen + 2, rules.publish);
        switch();
        true
    }

    /// Whether it was a hit; a hit has the bytes of one insert.
    fn probe(&self, rules: Rules, tag: u64) -> bool {
        switch();
        let seen = self.state.load(rules.first_look);
        if seen == 0 || seen % 2 == 1 || self.tag.load(Ordering::Relaxed) != tag {
            return false;
        }
        let copy = [self.bytes[0].load(Ordering::Relaxed), self.bytes[1].load(Ordering::Relaxed)];
        if rules.probe_fence {
            fence(Ordering::AcqRel);
        }
        if rules.second_look && self.state.load(Ordering::Relaxed) != seen {
            return false;
        }
        assert_eq!(copy, [tag; 2], "{MIXED}");
        true
    }
}

/// A place where loom may switch threads: it remembers one last access per atomic, and without this never lets the
/// insert end before the probe begins.
fn switch() {
    loom::lazy_static! {
        static ref DUMMY: AtomicU64 = AtomicU64::new(0);
    }
    DUMMY.fetch_add(0, Ordering::Relaxed);
}

/// A line that holds row 1, a team that puts row 2 there, and one that looks for `wanted`.
fn replace_beside_a_probe(rules: Rules, wanted: u64) {
    let line = Arc::new(Line::new());
    assert!(line.insert(SPEC, 1));
    let writer = Arc::clone(&line);
    let team = thread::spawn(move || writer.insert(rules, 2));
    line.probe(rules, wanted);
    assert!(team.join().expect("the team ends"));
    assert!(line.probe(SPEC, 2));
}

/// An empty line, and two teams with a row each; what a third sees meanwhile and afterwards is one of them.
fn two_inserts(rules: Rules, probes: bool) {
    let line = Arc::new(Line::new());
    let teams: Vec<_> = [1, 2]
        .into_iter()
        .map(|tag| {
            let line = Arc::clone(&line);
            thread::spawn(move || line.insert(rules, tag))
        })
        .collect();
    if probes {
        line.probe(rules, 2);
    }
    let inserted =
        teams.into_iter().map(|team| team.join().expect("the team ends")).filter(|&done| done).count();
    assert!(inserted >= 1);
    // What the joins have ordered needs no second look.
    let found = [1, 2].into_iter().filter(|&tag| line.probe(SPEC, tag)).count();
    assert_eq!(found, 1, "{MIXED}");
}

fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> std::thread::Result<()> {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    catch_unwind(AssertUnwindSafe(move || builder.check(model)))
}

fn holds(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    if let Err(failure) = explore(preemptions, model) {
        resume_unwind(failure);
    }
}

#[track_caller]
fn breaks(mutant: impl Fn() + Send + Sync + 'static) {
    let failure =
        explore(None, mutant).expect_err("the mutant holds: the model does not see what the rule is for");
    assert!(text_of(&*failure).contains(MIXED), "it fails by {:?}", text_of(&*failure));
}

fn text_of(failure: &(dyn Any + Send)) -> String {
    let text = failure.downcast_ref::<String>().cloned();
    text.or_else(|| failure.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

#[test]
fn a_probe_beside_an_insert_sees_one_row() {
    holds(None, || replace_beside_a_probe(SPEC, 1));
    holds(None, || replace_beside_a_probe(SPEC, 2));
}

#[test]
fn one_of_two_inserts_has_the_line() {
    holds(None, || two_inserts(SPEC, false));
}

#[test]
fn a_probe_beside_two_inserts_sees_one_row() {
    // Not exhaustive: at most three switches away from a thread that could go on.
    holds(Some(3), || two_inserts(SPEC, true));
}

#[test]
fn a_relaxed_publication_is_found() {
    breaks(|| replace_beside_a_probe(Rules { publish: Ordering::Relaxed, ..SPEC }, 2));
}

#[test]
fn a_relaxed_first_look_is_found() {
    breaks(|| replace_beside_a_probe(Rules { first_look: Ordering::Relaxed, ..SPEC }, 2));
}

#[test]
fn a_probe_without_a_second_look_is_found() {
    breaks(|| replace_beside_a_probe(Rules { second_look: false, ..SPEC }, 1));
}

#[test]
fn a_probe_without_a_fence_is_found() {
    breaks(|| replace_beside_a_probe(Rules { probe_fence: false, ..SPEC }, 1));
}

#[test]
fn an_insert_without_a_fence_is_found() {
    breaks(|| replace_beside_a_probe(Rules { claim_fence: false, ..SPEC }, 1));
}

#[test]
fn a_claim_without_compare_and_swap_is_found() {
    breaks(|| two_inserts(Rules { claim: Claim::Store, ..SPEC }, false));
}
