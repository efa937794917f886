//! Refits: new compression metadata for a tensor whose data have drifted.
//!
//! A plan fits a sample of the tensor as it is now, and tries what it found on whole blocks: it promises no more than
//! these keep. A refit enters the planned metadata as a new generation and encodes block by block again, while readers
//! go on: each block names the generation that decodes it.
//! The thread that does so is in the module `background`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tierpack_kernels::fit::{Fit, Sample, choose, fit, pieces, seed};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{Drift, ErrorCode, RefitMode, RefitState, Refusal};
use tierpack_shm::types::{CodecChoice, CodecId};

use super::access::{Caller, Right};
use super::decoding::Coders;
use super::namespace::{Namespace, Target};
use super::update::Longer;
use super::{Outcome, Store};

mod check;
mod run;
#[cfg(test)]
mod tests;

use check::{Checked, Fitted};
pub(super) use run::{Refit, end_refit};

/// Metadata for a tensor as it is now, and what they promise.
#[derive(Debug)]
pub(crate) struct Plan {
    fit: Fit,
    stored_bytes: u64,
    /// Stored bytes after a refit, as far as whole blocks bear that out.
    promised_bytes: u64,
    checked: Checked,
    /// What becomes of blocks that grow.
    longer: Longer,
    /// The tensor's, when it was sampled.
    revision: u64,
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
        let gain = self.stored_bytes.saturating_sub(self.promised_bytes);
        gain.saturating_mul(100) / self.stored_bytes.max(1)
    }

    fn is_better(&self) -> bool {
        self.promised_bytes < self.stored_bytes
    }

    /// The plan, carried out on every block whatever comes of it.
    fn forced(self) -> Self {
        Self { longer: Longer::Stored, checked: Checked::default(), ..self }
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
            let plan = if mode == RefitMode::Force { plan.forced() } else { plan };
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
        let standing = namespace.standing(key)?;
        let seed = seed(&key.name, standing.revision);
        let (mut coders, mut raw, mut read) = (Coders::default(), Vec::new(), None);
        let mut sampled = Vec::new();
        for piece in pieces(geometry, 0..geometry.n_blocks(), seed) {
            if read != Some(piece.block_idx()) {
                namespace.read_block(target, piece.block_idx(), &mut coders, &mut raw)?;
                read = Some(piece.block_idx());
            }
            sampled.push((piece, raw[piece.in_block()].to_vec()));
        }
        let sample: Vec<Sample<'_>> = sampled.iter().map(|(piece, raw)| (*piece, &raw[..])).collect();
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
        let checked = check::check(namespace, target, &fit, seed, &mut coders)?;
        let (promised_bytes, longer) = checked.promise(geometry.n_blocks(), &standing, Fitted::from(&fit));
        namespace.record(key, |record| {
            record.predicted_bytes = promised_bytes;
            record.predicted_codec = Some(fit.codec);
            record.last_look = Some(Instant::now());
        })?;
        let (revision, stored_bytes) = (standing.revision, standing.stored_bytes);
        Ok(Plan { fit, stored_bytes, promised_bytes, checked, longer, revision })
    }
}
