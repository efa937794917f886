//! Whether puts wait for room that lies scattered over segments: compaction then goes on at once, outside its share of
//! the processor.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a demand counts: who waits repeats it more often.
const LASTS: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
struct State {
    /// The last demand.
    at: Option<Instant>,
    /// How often something was freed.
    frees: u64,
    /// Compaction has found no segment to empty since.
    is_hopeless: bool,
}

/// What puts ask of compaction.
#[derive(Debug, Default)]
pub(crate) struct Demand(Mutex<State>);

impl Demand {
    /// Asks for room; says whether compaction may make some.
    pub(in crate::store) fn ask(&self) -> bool {
        let mut state = self.0.lock();
        state.at = Some(Instant::now());
        !state.is_hopeless
    }

    /// Whether somebody waits for what compaction may make.
    pub(in crate::store) fn is_open(&self) -> bool {
        let state = self.0.lock();
        !state.is_hopeless && state.at.is_some_and(|at| at.elapsed() < LASTS)
    }

    /// How often something was freed, for [`Demand::give_up`].
    pub(in crate::store) fn frees(&self) -> u64 {
        self.0.lock().frees
    }

    /// Compaction has found nothing to do since it asked for [`Demand::frees`].
    pub(in crate::store) fn give_up(&self, frees: u64) {
        let mut state = self.0.lock();
        state.is_hopeless = state.frees == frees;
    }

    /// Something was freed: compaction may find a segment again.
    pub(in crate::store) fn note_freed(&self) {
        let mut state = self.0.lock();
        (state.frees, state.is_hopeless) = (state.frees + 1, false);
    }
}
