//! Flights: what a launch uses, until its event has fired.
//!
//! A flight ends once: by whoever waits for it, or by the reaper.
//! Then its lease ends, its run can be used again, and its outcome stays.

use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_kernels::cuda::abi::Status;
use tierpack_kernels::cuda::driver::{DeviceBuffer, Event, GpuError, Run, Work};

use super::plan::OwnedGuard;
use crate::error::{Error, Result};
use crate::handle::{Handle, Opened};

/// Times in a row that an event may not be asked for before it counts as lost: some 0.1 s of the reaper's.
const MAX_REFUSALS: u32 = 100;
/// Runs that are kept for later reads.
const KEPT_RUNS: usize = 32;

/// What the launch uses.
#[derive(Debug, Default)]
pub(super) struct Load {
    // The guards go before what keeps their sessions.
    pub(super) guards: Vec<OwnedGuard>,
    pub(super) opened: Vec<Arc<Opened>>,
    #[expect(dead_code, reason = "kept, so that the memory is not freed while kernels use it")]
    pub(super) buffers: Vec<Arc<DeviceBuffer>>,
    /// The tensors, each with the number of its first block.
    pub(super) tensors: Vec<(u32, Handle)>,
}

/// A launch, and how it went.
#[derive(Debug)]
pub(super) struct Flight {
    state: Mutex<State>,
    runs: Arc<Runs>,
}

#[derive(Debug)]
enum State {
    Flying { run: Run, load: Load, refusals: u32 },
    Landed(Outcome),
}

#[derive(Clone, Debug)]
enum Outcome {
    Done,
    Damaged { namespace: String, name: String, block_idx: u64, fault: &'static str },
    Failed(GpuError),
}

impl Flight {
    /// A run that was submitted, with what its launches use.
    pub(super) fn new(run: Run, load: Load, runs: &Arc<Runs>) -> Arc<Self> {
        let state = State::Flying { run, load, refusals: 0 };
        Arc::new(Self { state: Mutex::new(state), runs: Arc::clone(runs) })
    }

    /// Ends it if its event has fired; says whether it has ended.
    pub(super) fn poll(&self) -> bool {
        // Who holds the lock is ending it, or asks the same.
        let Some(mut state) = self.state.try_lock() else { return false };
        let State::Flying { run, refusals, .. } = &mut *state else { return true };
        match run.event().is_done() {
            Ok(false) => return false,
            Ok(true) => self.land(&mut state, None),
            Err(error) if error.is_lost() || *refusals == MAX_REFUSALS => self.land(&mut state, Some(error)),
            Err(_) => {
                *refusals += 1;
                return false;
            }
        }
        true
    }

    /// Its event, while it flies.
    pub(super) fn event(&self) -> Option<Arc<Event>> {
        match &*self.state.lock() {
            State::Flying { run, .. } => Some(Arc::clone(run.event())),
            State::Landed(_) => None,
        }
    }

    /// Waits for its end.
    pub(super) fn wait(&self) -> Result<()> {
        if let Some(event) = self.event() {
            // Not under the lock. Another thread may end it meanwhile and use the event again: that waits longer.
            let waited = event.synchronize();
            let mut state = self.state.lock();
            match waited {
                Err(error) if !error.is_lost() => return Err(error.into()),
                waited => self.land(&mut state, waited.err()),
            }
        }
        match &*self.state.lock() {
            State::Landed(outcome) => outcome.result(),
            State::Flying { .. } => Ok(()),
        }
    }

    /// The launch has run, or never will.
    fn land(&self, state: &mut State, error: Option<GpuError>) {
        let State::Flying { run, load, .. } = &*state else { return };
        let outcome = match error {
            Some(error) => Outcome::Failed(error),
            None => outcome(run.status(), &load.tensors),
        };
        let is_lost = matches!(outcome, Outcome::Failed(_));
        let flown = std::mem::replace(state, State::Landed(outcome));
        if let State::Flying { run, load, .. } = flown {
            drop(load);
            if !is_lost {
                self.runs.give_back(run);
            }
        }
    }
}

impl Outcome {
    fn result(&self) -> Result<()> {
        match self.clone() {
            Self::Done => Ok(()),
            Self::Damaged { namespace, name, block_idx, fault } => {
                Err(Error::Damaged { namespace, name, block_idx, fault: fault.to_owned() })
            }
            Self::Failed(error) => Err(error.into()),
        }
    }
}

fn outcome(status: Status, tensors: &[(u32, Handle)]) -> Outcome {
    let fault = match status.flags {
        0 => return Outcome::Done,
        flags if flags & Status::OVERFLOW != 0 => "a record's rest lies outside the block",
        flags if flags & Status::NO_ESCAPE != 0 => "an escape code has no entry",
        _ => "an overlay names a row that the block lacks",
    };
    let found = tensors.iter().rfind(|(first, _)| *first <= status.first);
    let (namespace, name, first) = found.map_or_else(Default::default, |(first, handle)| {
        (handle.client().namespace_name().to_owned(), handle.name().to_owned(), *first)
    });
    Outcome::Damaged { namespace, name, block_idx: u64::from(status.first - first), fault }
}

/// Runs that are not in use.
#[derive(Debug, Default)]
pub(super) struct Runs(Mutex<Vec<Run>>);

impl Runs {
    /// One with room for this work.
    pub(super) fn take(&self, work: &Work) -> Option<Run> {
        let mut runs = self.0.lock();
        let found = runs.iter().position(|run| run.has_room(work))?;
        Some(runs.swap_remove(found))
    }

    fn give_back(&self, run: Run) {
        let mut runs = self.0.lock();
        let surplus = if runs.len() < KEPT_RUNS {
            runs.push(run);
            None
        } else {
            Some(run)
        };
        drop(runs);
        // Frees memory of the device, which is not for under the lock.
        drop(surplus);
    }

    pub(super) fn clear(&self) {
        let runs = std::mem::take(&mut *self.0.lock());
        drop(runs);
    }
}

/// A read to a GPU that is on its way; dropping this changes nothing for it.
#[derive(Clone, Debug, Default)]
#[must_use = "whether the tensor was whole is only known after `wait`"]
pub struct DeviceGet {
    pub(super) flights: Vec<Arc<Flight>>,
}

impl DeviceGet {
    /// Waits until the bytes are on the GPU.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a block was not what was put, [`Error::Gpu`].
    pub fn wait(&self) -> Result<()> {
        // All of them, so that nothing is read any more afterwards.
        let outcomes = self.flights.iter().map(|flight| flight.wait());
        outcomes.fold(Ok(()), Result::and)
    }

    /// Whether [`DeviceGet::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        self.flights.iter().all(|flight| flight.poll())
    }
}
