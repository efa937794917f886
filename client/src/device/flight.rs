//! Flights: what a launch uses, until its event has fired.
//!
//! A flight ends once: by the caller that waits for it, or by the reaper.
//! Then its lease ends, its run can be used again, and its outcome stays.
//! A driver that keeps refusing to say whether the event has fired ends it too: then what it uses is kept for ever, the
//! lease with it, since the GPU may still read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tierpack_kernels::cuda::abi::Status;
use tierpack_kernels::cuda::driver::{DeviceBuffer, Event, GpuError, Run};
use tierpack_kernels::cuda::gather::GatherStatus;
use tierpack_shm::page::Counter;

use super::plan::OwnedGuard;
use super::tier::{Repair, Snapshot};
use crate::error::{Error, Result};
use crate::handle::{Handle, Opened};

/// How long the driver may refuse to say whether an event has fired before nobody asks any more.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two questions of a thread that waits for an event which the driver does not wait for.
const PAUSE: Duration = Duration::from_millis(1);
/// Runs that are kept for later reads.
const KEPT_RUNS: usize = 32;

/// What the launch uses.
#[derive(Debug, Default)]
pub(super) struct Load {
    // What a graph may have put into a cache is known before its lease ends.
    #[expect(dead_code, reason = "it acts when it is dropped")]
    pub(super) snapshots: Vec<Snapshot>,
    // The guards go before what keeps their sessions.
    pub(super) guards: Vec<OwnedGuard>,
    pub(super) opened: Vec<Arc<Opened>>,
    /// Kept, so that the memory is not freed while kernels use it.
    pub(super) buffers: Vec<Arc<DeviceBuffer>>,
    /// The tensors of a decode, each with the number of its first block.
    pub(super) tensors: Vec<(u32, Handle)>,
    /// Calls of a gather: `opened` has the tensor of each.
    pub(super) n_calls: usize,
}

/// What one call of a gather reported.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) status: GatherStatus,
    /// Positions of rows that are not in the pool, as far as the list had room.
    pub(super) missed: Vec<u32>,
}

/// A launch, and how it went.
#[derive(Debug)]
pub(super) struct Flight {
    state: Mutex<State>,
    runs: Arc<Runs>,
}

#[derive(Debug)]
enum State {
    Flying {
        run: Run,
        load: Load,
        /// Since when the driver refuses to say whether the event has fired.
        refused_since: Option<Instant>,
    },
    Landed(Outcome),
}

/// What a flight used, to be dropped without its lock: a guard that ends may be the last owner of much.
#[derive(Debug)]
struct Flown {
    // Before the run can be used again.
    load: Load,
    run: Run,
    is_lost: bool,
}

#[derive(Clone, Debug)]
enum Outcome {
    Done,
    Gathered(Arc<[Report]>),
    Damaged { namespace: String, name: String, block_idx: u64, fault: &'static str },
    Failed(GpuError),
}

impl Flight {
    /// A run that was submitted, with what its launches use.
    pub(super) fn new(run: Run, load: Load, runs: &Arc<Runs>) -> Arc<Self> {
        let state = State::Flying { run, load, refused_since: None };
        Arc::new(Self { state: Mutex::new(state), runs: Arc::clone(runs) })
    }

    /// Ends it if its event has fired; says whether it has ended.
    pub(super) fn poll(&self) -> bool {
        self.ask(false)
    }

    /// As [`Flight::poll`], for the thread that looks after it: abandons it once the driver has refused for too long.
    pub(super) fn reap(&self) -> bool {
        self.ask(true)
    }

    fn ask(&self, may_give_up: bool) -> bool {
        // Who holds the lock is ending it, or asks the same.
        let Some(mut state) = self.state.try_lock() else { return false };
        let State::Flying { run, refused_since, .. } = &mut *state else { return true };
        let flown = match run.event().is_done() {
            Ok(false) => {
                *refused_since = None;
                return false;
            }
            Ok(true) => land(&mut state, None),
            Err(error) if error.is_lost() => land(&mut state, Some(error)),
            Err(error) if may_give_up => {
                if refused_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    return false;
                }
                give_up(&mut state, error);
                None
            }
            Err(_) => return false,
        };
        drop(state);
        self.end(flown);
        true
    }

    /// Its event, while it flies.
    pub(super) fn event(&self) -> Option<Arc<Event>> {
        self.pending().unwrap_or_default()
    }

    /// Its event, while it flies; then how it went.
    pub(super) fn pending(&self) -> Result<Option<Arc<Event>>> {
        match &*self.state.lock() {
            State::Flying { run, .. } => Ok(Some(Arc::clone(run.event()))),
            State::Landed(outcome) => outcome.result().map(|()| None),
        }
    }

    /// What the calls of a gather reported, once it has landed.
    pub(super) fn reports(&self) -> Arc<[Report]> {
        match &*self.state.lock() {
            State::Landed(Outcome::Gathered(reports)) => Arc::clone(reports),
            _ => Arc::default(),
        }
    }

    /// Waits for its end, also where the driver refuses to.
    pub(super) fn wait(&self) -> Result<()> {
        while let Some(event) = self.pending()? {
            // The reaper abandons it if it cannot ask for the event either.
            if !self.wait_for(&event) && !self.poll() {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// As [`Flight::wait`], for the last one who looks after it: abandons it as [`Flight::reap`] does.
    pub(super) fn wait_or_give_up(&self) {
        while let Some(event) = self.event() {
            if !self.wait_for(&event) && !self.reap() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Ends it once its event has fired; `false` where the driver refuses to wait.
    fn wait_for(&self, event: &Event) -> bool {
        // Not under the lock. Another thread may end it meanwhile and use the event again: that waits longer.
        match event.synchronize() {
            Err(error) if !error.is_lost() => false,
            waited => {
                let flown = land(&mut self.state.lock(), waited.err());
                self.end(flown);
                true
            }
        }
    }

    /// Returns what it used.
    fn end(&self, flown: Option<Flown>) {
        if let Some(Flown { load, run, is_lost }) = flown {
            drop(load);
            if !is_lost {
                self.runs.give_back(run);
            }
        }
    }
}

/// The launch has run, or never will; does nothing for a flight that has ended.
fn land(state: &mut State, error: Option<GpuError>) -> Option<Flown> {
    let State::Flying { run, load, .. } = &*state else { return None };
    let outcome = match error {
        Some(error) => Outcome::Failed(error),
        None if load.n_calls > 0 => Outcome::Gathered(reports(run, load)),
        // Copies alone report nothing.
        None if load.tensors.is_empty() => Outcome::Done,
        None => outcome(run.status(), &load.tensors),
    };
    let is_lost = matches!(outcome, Outcome::Failed(_));
    match std::mem::replace(state, State::Landed(outcome)) {
        State::Flying { run, load, .. } => Some(Flown { load, run, is_lost }),
        State::Landed(_) => None,
    }
}

/// Nobody knows whether the launch still runs: what it uses stays as it is.
fn give_up(state: &mut State, error: GpuError) {
    let flown = std::mem::replace(state, State::Landed(Outcome::Failed(error.clone())));
    if let State::Flying { run, load, .. } = flown {
        abandon(run, load, &error);
    }
}

static ABANDONED: Mutex<Vec<(Run, Load)>> = Mutex::new(Vec::new());

/// Whether anything was abandoned: then no segment is unregistered while it is mapped.
pub(super) fn has_abandoned() -> bool {
    !ABANDONED.lock().is_empty()
}

/// Keeps for ever what a launch uses that may still run: its leases too, which end with the process.
pub(super) fn abandon(run: Run, load: Load, error: &GpuError) {
    tracing::error!(
        %error,
        "the GPU's driver does not say whether a read is over: its leases and memory are kept until this process ends; \
         start it again"
    );
    ABANDONED.lock().push((run, load));
}

impl Outcome {
    fn result(&self) -> Result<()> {
        match self.clone() {
            Self::Done | Self::Gathered(_) => Ok(()),
            Self::Damaged { namespace, name, block_idx, fault } => {
                Err(Error::Damaged { namespace, name, block_idx, fault: fault.to_owned() })
            }
            Self::Failed(error) => Err(error.into()),
        }
    }
}

/// What a kernel has found, if anything.
pub(super) const fn fault(status: Status) -> Option<&'static str> {
    match status.flags {
        0 => None,
        flags if flags & Status::OVERFLOW != 0 => Some("a record's rest lies outside the block"),
        flags if flags & Status::NO_ESCAPE != 0 => Some("an escape code has no entry"),
        _ => Some("an overlay is not one of the block"),
    }
}

/// Reads the reports of a gather, and counts them where the daemon finds them.
fn reports(run: &Run, load: &Load) -> Arc<[Report]> {
    let each = load.opened.iter().enumerate().map(|(call_idx, opened)| {
        let (status, missed) = run.gathered(call_idx, load.n_calls);
        count(opened, &status);
        Report { status, missed: missed.to_vec() }
    });
    each.collect()
}

pub(super) fn count(opened: &Opened, status: &GatherStatus) {
    let counts = [
        (Counter::DeviceHits, status.hits),
        (Counter::DeviceMisses, status.misses),
        (Counter::DeviceInserts, status.inserts),
        (Counter::DeviceConflicts, status.conflicts),
        (Counter::DeviceBypasses, status.bypasses),
    ];
    counts.into_iter().for_each(|(counter, n)| opened.page().count(0, counter, n));
}

fn outcome(status: Status, tensors: &[(u32, Handle)]) -> Outcome {
    let Some(fault) = fault(status) else { return Outcome::Done };
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
    /// One with room for so many bytes.
    pub(super) fn take(&self, bytes: u64) -> Option<Run> {
        let mut runs = self.0.lock();
        let found = runs.iter().position(|run| run.has_room(bytes))?;
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
    /// What is to be done once a gather, which has one flight, is over.
    pub(super) repair: Option<Arc<Repair>>,
}

impl DeviceGet {
    /// Waits until the bytes are on the GPU.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a block was not what was put, [`Error::Gpu`].
    /// After [`GpuError::Driver`] the driver has refused for seconds to say whether the read is over: its target is kept.
    pub fn wait(&self) -> Result<()> {
        // All of them, so that nothing is read any more afterwards.
        let outcomes = self.flights.iter().map(|flight| flight.wait());
        outcomes.fold(Ok(()), Result::and)?;
        match (&self.repair, self.flights.as_slice()) {
            (Some(repair), [flight]) => repair.finish(flight),
            _ => Ok(()),
        }
    }

    /// Whether [`DeviceGet::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        self.flights.iter().all(|flight| flight.poll())
    }
}
