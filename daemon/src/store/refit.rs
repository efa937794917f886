//! Refits: new compression metadata for a tensor whose data have drifted.
//!
//! A plan fits a sample of the tensor as it is now. A refit enters the planned metadata as a new generation and stores
//! block by block anew, while readers go on: each block names the generation that decodes it.
//! The thread that does so is in the module `background`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tierpack_kernels::fit::{Fit, choose, fit, sample_blocks};
use tierpack_kernels::metadata::Metadata;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{Drift, ErrorCode, RefitMode, RefitState, Refusal};
use tierpack_shm::types::{CodecChoice, CodecId};

use super::access::{Caller, Right};
use super::decoding::Coders;
use super::namespace::quota::Place;
use super::namespace::{Key, Namespace, NewGeneration, Target};
use super::shares::User;
use super::update::Workspace;
use super::{Outcome, Store};

/// Metadata for a tensor as it is now, and what they promise.
#[derive(Debug)]
pub(crate) struct Plan {
    fit: Fit,
    stored_bytes: u64,
}

/// A refit that was asked for.
#[derive(Debug)]
pub(crate) struct RefitTask {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) target: Target,
    pub(crate) plan: Plan,
}

impl Plan {
    /// Stored bytes that it saves, in percent; 0 when none.
    pub(crate) fn gain_percent(&self) -> u64 {
        let gain = self.stored_bytes.saturating_sub(self.fit.predicted_stored_bytes);
        gain.saturating_mul(100) / self.stored_bytes.max(1)
    }

    fn is_better(&self) -> bool {
        self.fit.predicted_stored_bytes < self.stored_bytes
    }

    pub(crate) fn codec(&self) -> CodecId {
        self.fit.codec
    }
}

impl Store {
    /// Carries out a request for a refit, or only for a look at one tensor.
    pub(crate) fn refit(
        &self,
        caller: &Caller,
        namespace: &str,
        name: &str,
        mode: RefitMode,
    ) -> Outcome<Drift> {
        let namespace = self.namespace(namespace)?;
        let right = match mode {
            RefitMode::Look | RefitMode::DryRun => Right::Read,
            RefitMode::IfBetter | RefitMode::Force => Right::Write,
        };
        namespace.check(caller, right)?;
        let target = namespace.target(name, None)?;
        // Without blocks there is nothing to fit.
        if mode == RefitMode::Look || target.geometry.n_blocks() == 0 {
            return namespace.drift(&target.key);
        }
        // Who may read may ask for a dry run: all of them together have one worker.
        let looking = (mode == RefitMode::DryRun).then(|| self.looking.try_lock());
        if let Some(None) = looking {
            let text = "another dry run of a refit is under way: try again";
            return Err(Refusal::new(ErrorCode::Busy, text));
        }
        let plan = self.plan(&namespace, &target)?;
        drop(looking);
        let is_wanted = mode == RefitMode::Force || mode == RefitMode::IfBetter && plan.is_better();
        let is_idle = namespace.drift(&target.key)?.state == RefitState::Idle;
        if is_wanted && (is_idle || mode == RefitMode::Force) {
            let key = target.key.clone();
            let task = RefitTask { namespace: Arc::clone(&namespace), target, plan };
            let busy = |_| Refusal::new(ErrorCode::Busy, "the queue of refits is full: try again");
            // Before the thread may see the task: what it notes comes after.
            namespace.record(&key, |record| record.state = RefitState::Queued)?;
            let sent = self.refits.try_send(task).map_err(busy);
            return match sent {
                Ok(()) => namespace.drift(&key),
                Err(refusal) => {
                    namespace.record(&key, |record| record.state = RefitState::Idle)?;
                    Err(refusal)
                }
            };
        }
        namespace.drift(&target.key)
    }

    /// Fits a sample of the tensor as it is now; notes what that promises.
    pub(crate) fn plan(&self, namespace: &Namespace, target: &Target) -> Outcome<Plan> {
        let Target { key, geometry, .. } = target;
        let (mut coders, mut blocks) = (Coders::default(), Vec::new());
        for block_idx in sample_blocks(geometry) {
            let mut raw = Vec::new();
            namespace.read_block(target, block_idx, &mut coders, &mut raw)?;
            blocks.push((block_idx, raw));
        }
        let sample: Vec<(u64, &[u8])> =
            blocks.iter().map(|(block_idx, raw)| (*block_idx, &raw[..])).collect();
        let choice = namespace.choice(key)?;
        // No lock is held and nothing is half done in here: what panics costs this plan alone.
        let fitted = catch_unwind(AssertUnwindSafe(|| {
            reach(Point::Fitting);
            match choice {
                CodecChoice::Only(codec) => fit(codec, geometry, &sample),
                CodecChoice::Auto(prefer) => choose(geometry, &sample, prefer).map(|choice| choice.chosen),
            }
        }));
        let failed = |text: String| {
            Refusal::new(ErrorCode::Internal, format!("no fit for tensor {:?}: {text}", key.name))
        };
        let fit = fitted
            .map_err(|_| failed("the fit panicked".to_owned()))?
            .map_err(|error| failed(error.to_string()))?;
        let stored_bytes = namespace.drift(key)?.stored_bytes;
        namespace.record(key, |record| {
            record.predicted_bytes = fit.predicted_stored_bytes;
            record.predicted_codec = Some(fit.codec);
            record.last_look = Some(Instant::now());
        })?;
        Ok(Plan { fit, stored_bytes })
    }

    /// Begins a refit: from now on blocks of the tensor are encoded by the plan.
    pub(crate) fn begin_refit(&self, namespace: &Namespace, target: &Target, plan: Plan) -> Outcome<()> {
        let key = &target.key;
        let _writing = target.writing.lock();
        let number = namespace.next_generation(key)?;
        let Fit { codec, metadata, predicted_stored_bytes: predicted_bytes, .. } = plan.fit;
        let store = |metadata: Metadata| {
            let bytes = metadata.with_generation(number).to_bytes();
            self.store_metadata(namespace, number, &bytes, (Place::Exempt, User::DAEMON))
        };
        let metadata = metadata.map(store).transpose()?;
        reach(Point::RefitPlanned);
        namespace.begin_generation(key, NewGeneration { codec, metadata, predicted_bytes })?;
        reach(Point::RefitBegun);
        let blocks_left = namespace.count_stale(key)?;
        namespace.record(key, |record| {
            record.state = RefitState::Running;
            record.blocks_left = blocks_left;
        })
    }

    /// Stores the next block anew that a refit has something to do with; gives where to go on.
    pub(super) fn refit_block(
        &self,
        namespace: &Namespace,
        target: &Target,
        from: u64,
        work: &mut Workspace,
    ) -> Outcome<Option<u64>> {
        let key = &target.key;
        let Some(block_idx) = namespace.next_stale(key, from)? else {
            end_refit(namespace, key, None);
            return Ok(None);
        };
        let raw_bytes = self.rewrite(namespace, target, block_idx, work)?;
        reach(Point::RefitBetweenBlocks);
        self.background.note(|done| done.rewritten_bytes += raw_bytes);
        namespace.record(key, |record| {
            record.state = RefitState::Running;
            record.blocks_left = record.blocks_left.saturating_sub(1);
            record.reencoded_bytes += raw_bytes;
        })?;
        Ok(Some(block_idx + 1))
    }
}

/// Notes the end of a refit, or why it failed; a tensor that is gone needs no note.
pub(super) fn end_refit(namespace: &Namespace, key: &Key, failure: Option<String>) {
    let noted = namespace.record(key, |record| {
        record.state = RefitState::Idle;
        record.blocks_left = 0;
        if failure.is_none() {
            record.refits += 1;
            record.failures = 0;
            record.last_refit = Some(Instant::now());
        }
        record.last_failure = failure;
    });
    let _ = noted.is_ok();
}
