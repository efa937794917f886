//! Running a model: it holds in every execution, or a mutant of it breaks in one.
//!
//! loom bounds what "every execution" means: its loads never see stores that come later in the execution, and it
//! switches threads only at accesses that it believes to depend on each other (see `shared::switch`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What loom says when two accesses to a cell are not ordered.
pub(crate) const RACE: &str = "Causality violation";

/// Explores `model` in full and fails when it fails.
pub(crate) fn holds(name: &str, model: impl Fn() + Send + Sync + 'static) {
    holds_within(name, None, model);
}

/// Explores every execution of `model` with at most `preemptions` switches away from a thread that could go on.
pub(crate) fn holds_within(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let (outcome, told) = explore(preemptions, model);
    report(name, &told, "holds");
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure);
    }
}

/// Explores `mutant` until it fails, and checks that it fails by one of `violations`: a race, or a wrong value.
///
/// Any other failure would only mean that the model itself is wrong.
#[track_caller]
pub(crate) fn breaks(name: &str, violations: &[&str], mutant: impl Fn() + Send + Sync + 'static) {
    let (outcome, told) = explore(None, mutant);
    let failure = outcome.expect_err("the mutant holds: the model does not see what the rule is for");
    let text = text_of(&*failure);
    report(name, &told, "breaks");
    assert!(violations.iter().any(|violation| text.contains(violation)), "{name} fails by {text:?}");
}

fn explore(
    preemptions: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) -> (Result<(), Box<dyn Any + Send>>, String) {
    let executions = Arc::new(AtomicU64::new(0));
    let (counter, start) = (Arc::clone(&executions), Instant::now());
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 100_000;
        builder.check(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            model();
        });
    }));
    let executions = executions.load(Ordering::Relaxed);
    let bound = preemptions.map_or(String::new(), |bound| format!(", at most {bound} preemptions"));
    (outcome, format!("{executions} executions in {:.1} s{bound}", start.elapsed().as_secs_f32()))
}

#[expect(clippy::print_stdout, reason = "the size of each exploration is part of the result")]
fn report(name: &str, told: &str, verdict: &str) {
    println!("{name}: {verdict}, {told}");
}

fn text_of(failure: &(dyn Any + Send)) -> String {
    let text = failure.downcast_ref::<String>().cloned();
    text.or_else(|| failure.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
