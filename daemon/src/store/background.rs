//! The background thread: folds overlays, refits tensors that have drifted, empties segments of which little is used.
//!
//! It works in steps of at most one block, and sleeps between them so that it takes no more than its share of one core.
//! It leaves a namespace alone while readers hold back more retired memory there than `max_held_percent` allows.
//! A step that fails is noted for its tensor and tried again later; a panic of the thread ends the daemon, since it may
//! have left something half done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use tierpack_shm::message::{ErrorCode, RefitState, Refusal};
use tierpack_shm::stats::BackgroundStats;

use super::compact::{Compaction, Progress};
use super::heap::Trimmer;
use super::namespace::{Due, Namespace, Target};
use super::refit::{Refit, RefitTask, end_refit};
use super::update::{Longer, Workspace};
use super::{Outcome, Store};
use crate::config::{Config, RefitMode};
use crate::error::Result;
use crate::priority;
use crate::server::events::Events;
use crate::shutdown::Shutdown;

/// How often it looks for something to do.
const TICK: Duration = Duration::from_millis(50);
/// Jobs from which on it looks for no more.
const MAX_JOBS: usize = 256;
/// How often it looks for segments to empty.
const ROOM_TICK: Duration = Duration::from_secs(1);
/// A tensor that rests is refitted for a gain of one part in so many of what is asked of others.
const RESTING_SHARE: u64 = 3;
/// The shortest sleep that is worth one.
const LEAST_SLEEP: Duration = Duration::from_millis(1);

/// What the thread tells the stats.
#[derive(Debug)]
pub(crate) struct Record {
    refit: RefitMode,
    inner: Mutex<Done>,
}

#[derive(Debug, Default)]
pub(super) struct Done {
    state: &'static str,
    folds: u64,
    refits: u64,
    pub(super) rewritten_bytes: u64,
    failures: u64,
    last_failure: Option<String>,
    last_success: Option<Instant>,
}

impl Record {
    pub(super) fn new(refit: RefitMode) -> Self {
        Self { refit, inner: Mutex::new(Done { state: "idle", ..Done::default() }) }
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut Done)) {
        change(&mut self.inner.lock());
    }

    pub(crate) fn stats(&self) -> BackgroundStats {
        let done = self.inner.lock();
        let mut stats = BackgroundStats::default();
        done.state.clone_into(&mut stats.state);
        match self.refit {
            RefitMode::Auto => "auto",
            RefitMode::Manual => "manual",
        }
        .clone_into(&mut stats.refit);
        stats.folds = done.folds;
        stats.refits = done.refits;
        stats.rewritten_bytes = done.rewritten_bytes;
        stats.failures = done.failures;
        stats.last_failure.clone_from(&done.last_failure);
        let age = done.last_success.map(|at| at.elapsed().as_millis());
        stats.last_success_ms = age.map(|age| u64::try_from(age).unwrap_or(u64::MAX));
        stats
    }
}

/// The thread and how to end it.
#[derive(Debug)]
pub(crate) struct BackgroundThread {
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    pub(crate) fn start(
        config: &Config,
        store: Arc<Store>,
        tasks: Receiver<RefitTask>,
        events: Events,
    ) -> Result<Self> {
        let shutdown = Shutdown::new()?;
        let mut background = Background {
            store,
            tasks,
            shutdown: shutdown.clone(),
            is_auto: config.refit() == RefitMode::Auto,
            gain_percent: config.refit_gain_percent(),
            cpu_percent: u32::try_from(config.refit_cpu_percent()).unwrap_or(100),
            jobs: VecDeque::new(),
            compaction: None,
            workspace: Workspace::default(),
            trimmer: Trimmer::default(),
            debt: Duration::ZERO,
        };
        let thread = events.spawn(("background", "the background thread"), move || {
            priority::lower();
            background.run();
        })?;
        Ok(Self { shutdown, thread: Some(thread) })
    }

    /// As [`BackgroundThread::stop`], but leaves a step that takes longer than `deadline` to the end of the process.
    pub(crate) fn stop_by(&mut self, deadline: Instant) {
        self.shutdown.trigger();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= deadline {
                self.thread = None;
                return;
            }
            thread::sleep(LEAST_SLEEP);
        }
        self.stop();
    }

    /// Ends the thread after its step; what it has not finished is abandoned.
    pub(crate) fn stop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join().is_ok();
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What is under way.
#[derive(Debug)]
enum Job {
    /// Overlays of a tensor are folded, from this block on.
    Fold { namespace: Arc<Namespace>, target: Target, from: u64 },
    /// A tensor is looked at, and refitted if that promises enough.
    Look { namespace: Arc<Namespace>, target: Target },
    /// A refit begins.
    Begin(RefitTask),
    /// A refit goes on.
    Refit(Box<Refit>),
}

struct Background {
    store: Arc<Store>,
    tasks: Receiver<RefitTask>,
    shutdown: Shutdown,
    is_auto: bool,
    gain_percent: u64,
    cpu_percent: u32,
    jobs: VecDeque<Job>,
    /// The segment that is being emptied: one at a time.
    compaction: Option<Compaction>,
    workspace: Workspace,
    trimmer: Trimmer,
    /// Time that it has yet to sleep for what it has worked.
    debt: Duration,
}

impl Background {
    fn run(&mut self) {
        let (mut next_look, mut next_room) = (Instant::now(), Instant::now() + ROOM_TICK);
        while !self.shutdown.is_triggered() {
            let is_idle = self.jobs.is_empty() && self.compaction.as_ref().is_none_or(Compaction::is_waiting);
            let is_asked = self.meet_demand();
            let wait = match (is_idle, is_asked) {
                (true, true) => LEAST_SLEEP,
                (true, false) => TICK,
                (false, _) => self.debt.min(TICK),
            };
            if is_idle || self.debt >= LEAST_SLEEP {
                let slept = Instant::now();
                match self.tasks.recv_timeout(wait) {
                    Ok(task) => self.jobs.push_back(Job::Begin(task)),
                    Err(RecvTimeoutError::Timeout) => {}
                    // The store is gone, and with it everything to do.
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                self.debt = self.debt.saturating_sub(slept.elapsed());
            }
            self.store.transactions.clear_ended(&self.store);
            if Instant::now() >= next_look {
                next_look = Instant::now() + TICK;
                self.look_around();
            }
            if Instant::now() >= next_room {
                next_room = Instant::now() + ROOM_TICK;
                self.look_for_room();
            }
            if self.jobs.is_empty() && self.compaction.is_none() {
                self.store.background.note(|done| done.state = "idle");
            } else if self.debt < LEAST_SLEEP {
                self.work();
            }
        }
    }

    /// One step of a job and one of the compaction, where readers do not hold back too much.
    fn work(&mut self) {
        let started = cpu_time();
        self.note_held();
        let next = self.jobs.iter().position(|job| !self.is_held(job.of().0));
        let compacted = self.compaction.take_if(|compaction| !is_held(&self.store, &compaction.namespace));
        let is_held = next.is_none() && compacted.is_none();
        self.store.background.note(|done| done.state = if is_held { "held" } else { "working" });
        if is_held {
            // Nothing but the end of leases helps: sleep as if it had worked.
            self.debt += TICK;
        }
        if let Some(job) = next.and_then(|next| self.jobs.remove(next)) {
            self.step(job);
        }
        if let Some(compaction) = compacted {
            self.compact(compaction);
        }
        self.store.reclaim_all();
        let worked = cpu_time().saturating_sub(started);
        self.debt += worked * (100 - self.cpu_percent) / self.cpu_percent;
    }

    /// Tells of the refits that wait for the end of leases.
    fn note_held(&self) {
        for job in self.jobs.iter().filter(|job| matches!(job, Job::Refit(_) | Job::Begin(_))) {
            let (namespace, target) = job.of();
            if !self.is_held(namespace) {
                continue;
            }
            let noted = namespace.record(&target.key, |record| record.state = RefitState::Held);
            let _ = noted.is_ok();
        }
    }

    /// Finds tensors with something to do that are not under way yet.
    fn look_around(&mut self) {
        if self.jobs.len() >= MAX_JOBS {
            return;
        }
        for namespace in self.store.namespaces() {
            for (target, due) in namespace.due(self.is_auto) {
                if self.jobs.iter().any(|job| job.is_for(&namespace, &target)) {
                    continue;
                }
                let namespace = Arc::clone(&namespace);
                self.jobs.push_back(match due {
                    Due::Fold => Job::Fold { namespace, target, from: 0 },
                    Due::Look => Job::Look { namespace, target },
                });
            }
        }
    }

    /// Begins to make room for puts that wait for it, outside the share of the processor; says whether some do.
    fn meet_demand(&mut self) -> bool {
        if !self.store.demand.is_open() {
            return false;
        }
        self.debt = Duration::ZERO;
        if self.compaction.is_none() {
            let frees = self.store.demand.frees();
            let is_held = self.look_for_room();
            if self.compaction.is_none() && !is_held {
                self.store.demand.give_up(frees);
            }
        }
        true
    }

    /// Looks for memory that could return to the system; says whether readers kept it from looking somewhere.
    fn look_for_room(&mut self) -> bool {
        self.store.trim_resting();
        self.trimmer.look(&self.store.budget);
        self.store.keep_back();
        if self.compaction.is_some() {
            return false;
        }
        let (held, open): (Vec<_>, Vec<_>) =
            self.store.namespaces().into_iter().partition(|namespace| self.is_held(namespace));
        self.compaction = open.iter().find_map(|namespace| self.store.compaction(namespace));
        !held.is_empty()
    }

    /// One step of the compaction under way.
    fn compact(&mut self, mut compaction: Compaction) {
        match self.store.compact(&mut compaction, &mut self.workspace) {
            Progress::More => self.compaction = Some(compaction),
            // Where one could be emptied, another may be worth it.
            Progress::Emptied => self.compaction = self.store.compaction(&compaction.namespace),
            Progress::GivenUp => {}
        }
    }

    /// Whether readers hold back too much for another block of a namespace to be stored again.
    fn is_held(&self, namespace: &Namespace) -> bool {
        is_held(&self.store, namespace)
    }

    /// One step of a job; what is not finished goes to the end of the line.
    fn step(&mut self, job: Job) {
        let (namespace, target) = job.of();
        let (namespace, target) = (Arc::clone(namespace), target.clone());
        match self.carry_out(job) {
            Ok(next) => {
                self.store.background.note(|done| done.last_success = Some(Instant::now()));
                self.jobs.extend(next);
            }
            Err(refusal) if is_gone(&refusal) => {}
            Err(refusal) => {
                self.store.background.note(|done| {
                    done.failures += 1;
                    done.last_failure = Some(refusal.text.clone());
                });
                fail(&namespace, &target, &refusal);
            }
        }
    }

    /// What a refit must promise, in percent: less where the tensor rests, since it is not soon outdated there.
    fn least_gain(&self, is_resting: bool) -> u64 {
        if is_resting { (self.gain_percent / RESTING_SHARE).max(1) } else { self.gain_percent }
    }

    fn carry_out(&mut self, job: Job) -> Outcome<Option<Job>> {
        let store = Arc::clone(&self.store);
        match job {
            Job::Fold { namespace, target, from } => {
                let Some(block_idx) = namespace.next_overlaid(&target.key, from)? else { return Ok(None) };
                let place = (block_idx, Longer::Dropped);
                let raw_bytes = store.rewrite(&namespace, &target, place, &mut self.workspace)?.raw_bytes;
                store.background.note(|done| {
                    done.folds += 1;
                    done.rewritten_bytes += raw_bytes;
                });
                Ok(Some(Job::Fold { namespace, target, from: block_idx + 1 }))
            }
            Job::Look { namespace, target } => {
                // Before the sample is read: what changes from here on asks for another look.
                namespace.record(&target.key, |record| record.changed_bytes = 0)?;
                let plan = store.plan(&namespace, &target)?;
                let (tensor, gain_percent) = (&target.key.name, plan.gain_percent());
                tracing::debug!(tensor, gain_percent, codec = %plan.codec(), "looked at a tensor");
                let is_resting = namespace.is_tensor_resting(&target.key)?;
                let is_wanted = gain_percent >= self.least_gain(is_resting);
                let has_small_gain = !is_resting && !is_wanted && gain_percent >= self.least_gain(true);
                namespace.record(&target.key, |record| record.has_small_gain = has_small_gain)?;
                Ok(is_wanted.then_some(Job::Begin(RefitTask { namespace, target, plan })))
            }
            Job::Begin(task) => Ok(Some(Job::Refit(Box::new(store.begin_refit(task)?)))),
            Job::Refit(mut refit) => {
                let is_under_way = store.refit_block(&mut refit, &mut self.workspace)?;
                if !is_under_way {
                    store.background.note(|done| done.refits += 1);
                }
                Ok(is_under_way.then_some(Job::Refit(refit)))
            }
        }
    }
}

fn is_held(store: &Store, namespace: &Namespace) -> bool {
    namespace.held_bytes() > store.max_held_bytes
}

/// Time that this thread has had a core: what it waited for one on a busy machine is nobody's loss.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Whether a job ended because its tensor is gone: that is no failure.
fn is_gone(refusal: &Refusal) -> bool {
    matches!(refusal.code(), Some(ErrorCode::NotFound | ErrorCode::Replaced))
}

/// Notes why a job failed.
fn fail(namespace: &Namespace, target: &Target, refusal: &Refusal) {
    let (tensor, reason) = (&target.key.name, &refusal.text);
    tracing::warn!(namespace = namespace.name, tensor, reason, "background work failed");
    end_refit(namespace, &target.key, Some(refusal.text.clone()));
    namespace.note_failure(&target.key);
}

impl Job {
    fn of(&self) -> (&Arc<Namespace>, &Target) {
        match self {
            Self::Fold { namespace, target, .. }
            | Self::Look { namespace, target }
            | Self::Begin(RefitTask { namespace, target, .. }) => (namespace, target),
            Self::Refit(refit) => (&refit.namespace, &refit.target),
        }
    }

    fn is_for(&self, namespace: &Namespace, target: &Target) -> bool {
        let (of, found) = self.of();
        of.id == namespace.id && found.key == target.key
    }
}
