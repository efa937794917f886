//! A refit under way: a new generation, and block by block into it.
//!
//! A refit that nobody forces leaves a block as it is where the new form is longer.
//! It begins with the blocks that its plan was tried on: where these save less than half of what they did then, the
//! values are others by now, and it stops there.
//! At its end what is stored takes the place of what was promised.

use std::sync::Arc;
use std::time::Instant;

use tierpack_kernels::fit::Fit;
use tierpack_kernels::metadata::Metadata;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::RefitState;

use super::RefitTask;
use crate::store::namespace::quota::Place;
use crate::store::namespace::{Current, Key, Namespace, NewGeneration, Target};
use crate::store::shares::User;
use crate::store::update::{Longer, Workspace};
use crate::store::{Outcome, Store};

/// Of what the first blocks saved when the plan was made, they must save one part in so many.
const KEPT_SHARE: u64 = 2;

/// A refit under way.
#[derive(Debug)]
pub(in crate::store) struct Refit {
    pub(in crate::store) namespace: Arc<Namespace>,
    pub(in crate::store) target: Target,
    longer: Longer,
    /// The tensor's, when the plan was made.
    revision: u64,
    /// What new blocks were encoded with before.
    before: Current,
    first: First,
    /// Where it goes on after the first blocks.
    from: u64,
    stored_blocks: u64,
    kept_blocks: u64,
}

/// The blocks that a refit begins with.
#[derive(Debug)]
struct First {
    blocks: Vec<u64>,
    /// How many of them are done.
    done: usize,
    /// What they have saved, and what they were to save.
    saved_bytes: u64,
    promised_bytes: u64,
}

/// What a refit does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Block(u64),
    /// The first blocks do not keep what was promised.
    Stop,
    End,
}

impl First {
    fn is_done(&self) -> bool {
        self.done == self.blocks.len()
    }

    fn keeps_its_promise(&self) -> bool {
        self.saved_bytes >= self.promised_bytes / KEPT_SHARE
    }
}

impl Refit {
    /// The next block that it has something to do with.
    fn next(&mut self) -> Outcome<Next> {
        let key = &self.target.key;
        while let Some(&block_idx) = self.first.blocks.get(self.first.done) {
            if self.namespace.next_stale(key, block_idx)? == Some(block_idx) {
                return Ok(Next::Block(block_idx));
            }
            self.first.done += 1;
        }
        if !self.first.keeps_its_promise() {
            return Ok(Next::Stop);
        }
        while let Some(block_idx) = self.namespace.next_stale(key, self.from)? {
            self.from = block_idx + 1;
            // What was kept among the first is kept.
            if self.first.blocks.binary_search(&block_idx).is_err() {
                return Ok(Next::Block(block_idx));
            }
        }
        Ok(Next::End)
    }
}

impl Store {
    /// Begins a refit: from now on blocks of the tensor are encoded by the plan.
    pub(in crate::store) fn begin_refit(&self, task: RefitTask) -> Outcome<Refit> {
        let RefitTask { namespace, target, plan } = task;
        let key = &target.key;
        let writing = target.writing.lock();
        let before = namespace.current(key)?;
        let number = namespace.next_generation(key)?;
        let Fit { codec, metadata, .. } = plan.fit;
        let store = |metadata: Metadata| {
            let bytes = metadata.with_generation(number).to_bytes();
            self.store_metadata(&namespace, number, &bytes, (Place::Exempt, User::DAEMON))
        };
        let metadata = metadata.map(store).transpose()?;
        reach(Point::RefitPlanned);
        let predicted_bytes = plan.promised_bytes;
        namespace.begin_generation(key, NewGeneration { codec, metadata, predicted_bytes })?;
        reach(Point::RefitBegun);
        let blocks_left = namespace.count_stale(key)?;
        namespace.record(key, |record| {
            record.state = RefitState::Running;
            record.blocks_left = blocks_left;
        })?;
        drop(writing);
        // Of so few that all were tried, none comes first.
        let is_whole = plan.checked.blocks.len() as u64 == target.geometry.n_blocks();
        let checked = if is_whole { super::Checked::default() } else { plan.checked };
        let first =
            First { blocks: checked.blocks, done: 0, saved_bytes: 0, promised_bytes: checked.saved_bytes };
        let (longer, revision) = (plan.longer, plan.revision);
        Ok(Refit {
            namespace,
            target,
            longer,
            revision,
            before,
            first,
            from: 0,
            stored_blocks: 0,
            kept_blocks: 0,
        })
    }

    /// Stores the next block again that a refit has something to do with; says whether there was one.
    pub(in crate::store) fn refit_block(&self, refit: &mut Refit, work: &mut Workspace) -> Outcome<bool> {
        let next = refit.next()?;
        let Next::Block(block_idx) = next else {
            finish(refit, next == Next::Stop)?;
            return Ok(false);
        };
        let Refit { namespace, target, longer, .. } = &*refit;
        let done = self.rewrite(namespace, target, (block_idx, *longer), work)?;
        reach(Point::RefitBetweenBlocks);
        let raw_bytes = if done.is_kept { 0 } else { done.raw_bytes };
        self.background.note(|record| record.rewritten_bytes += raw_bytes);
        namespace.record(&target.key, |record| {
            record.state = RefitState::Running;
            record.blocks_left = record.blocks_left.saturating_sub(1);
            record.reencoded_bytes += raw_bytes;
        })?;
        refit.stored_blocks += u64::from(!done.is_kept);
        refit.kept_blocks += u64::from(done.is_kept);
        if !refit.first.is_done() {
            refit.first.done += 1;
            refit.first.saved_bytes += done.old_bytes.saturating_sub(done.new_bytes);
        }
        Ok(true)
    }
}

/// Ends a refit: what is stored takes the place of what was promised.
fn finish(refit: &Refit, is_stopped: bool) -> Outcome<()> {
    let Refit { namespace, target, revision, before, stored_blocks, kept_blocks, .. } = refit;
    let key = &target.key;
    if *stored_blocks == 0 && *kept_blocks > 0 {
        // No block needs the new generation.
        let _writing = target.writing.lock();
        namespace.return_to_generation(key, *before)?;
    }
    namespace.settle(key, *revision)?;
    let drift = namespace.drift(key)?;
    tracing::debug!(
        tensor = key.name,
        generation = drift.generation,
        bytes = drift.stored_bytes,
        stored_blocks,
        kept_blocks,
        is_stopped,
        "refitted a tensor"
    );
    end_refit(namespace, key, None);
    Ok(())
}

/// Notes the end of a refit, or why it failed; a tensor that is gone needs no note.
pub(in crate::store) fn end_refit(namespace: &Namespace, key: &Key, failure: Option<String>) {
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
