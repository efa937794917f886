//! Compaction: a segment of which little is used is emptied, so that its memory returns to the system.
//!
//! Nothing new is put into it; what is visible in it moves to other segments, block by block, by words as every store
//! of a block; what is retired in it goes as its leases end.
//! Nothing grows for it: when the others have no room, the segment is used again as before.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tierpack_shm::faults::{Point, reach};

use super::namespace::{Change, Intent, Key, Namespace, Stored, Target};
use super::update::Workspace;
use super::{Outcome, Store};

/// A namespace is compacted while less than this part of its data segments is used, in percent.
const USED_PERCENT: u64 = 95;
/// What moves must find this much room elsewhere, in percent of its bytes: room is in pieces.
const ROOM_PERCENT: u64 = 110;
/// Tensors that one look goes through: the lock is not held for long, however many there are.
const LOOKS: usize = 256;
/// How long a segment in which nothing visible is left may wait for leases before it is used again.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a compaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to do, or to wait for.
    More,
    /// The segment is empty.
    Emptied,
    /// It is used again as before.
    GivenUp,
}

/// One segment on its way to be empty.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub(crate) namespace: Arc<Namespace>,
    segment_idx: usize,
    /// The name after which tensors have not been looked at.
    after: Option<String>,
    /// Blocks of the last tensor that was looked at, the next one last.
    blocks: Vec<u64>,
    target: Option<Target>,
    /// Since when nothing was left to move.
    emptied: Option<Instant>,
}

impl Namespace {
    /// The data segment that is worth emptying most, closed for what is new; `None` when none is.
    fn close_sparsest(&self) -> Option<usize> {
        let mut inner = self.inner.lock();
        let data = &mut inner.data;
        let (used, all) = (data.used_bytes(), data.segment_bytes());
        if used * 100 >= all * USED_PERCENT {
            return None;
        }
        let uses = data.segments().map(|(idx, segment)| (idx, data.segment_used_bytes(idx), segment.len()));
        // One that is empty already returns by itself.
        let candidates = uses.filter(|(_, used_here, _)| *used_here > 0);
        let (segment_idx, used_here, len) =
            candidates.min_by_key(|(_, used_here, len)| used_here * 1000 / len.max(&1))?;
        let free_elsewhere = (all - used) - (len - used_here);
        if used_here * ROOM_PERCENT / 100 > free_elsewhere {
            return None;
        }
        data.close_segment(segment_idx);
        Some(segment_idx)
    }

    fn reopen(&self, segment_idx: usize) {
        self.inner.lock().data.open_segment(segment_idx);
    }

    fn is_gone_or_free(&self, segment_idx: usize) -> bool {
        let inner = self.inner.lock();
        inner.data.segments().all(|(idx, _)| idx != segment_idx)
            || inner.data.free_segments().contains(&segment_idx)
    }

    /// The next tensor after a name that has something in a segment, and its blocks there; of those that have nothing,
    /// the last of the few that one look goes through. `None` after the last tensor.
    fn next_in(&self, after: Option<&str>, segment_idx: usize) -> Option<(Target, Vec<u64>)> {
        let inner = self.inner.lock();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (name, tensor) in inner.tensors.range::<str, _>((start, Bound::Unbounded)).take(LOOKS) {
            let mut blocks = tensor.content.blocks_in(segment_idx);
            blocks.reverse();
            let is_found = !blocks.is_empty() || tensor.content.has_metadata_in(segment_idx);
            last = Some((tensor, name, blocks));
            if is_found {
                break;
            }
        }
        last.map(|(tensor, name, blocks)| (tensor.target(name), blocks))
    }

    /// Moves the metadata of a tensor that lie in a segment; says whether there was room.
    fn move_metadata(&self, key: &Key, segment_idx: usize) -> Outcome<bool> {
        let mut inner = self.inner.lock();
        let tensor = self.keyed(&mut inner, key)?;
        let live = tensor.content.generations.live();
        let found: Vec<_> = live
            .filter(|(_, metadata)| metadata.extent.segment_idx() == segment_idx)
            .map(|(generation_idx, metadata)| (*generation_idx, metadata.number, metadata.len))
            .collect();
        for (generation_idx, number, len) in found {
            if !inner.move_generation(key, generation_idx, (number, len))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Store {
    /// Begins to empty a segment of a namespace, if one is worth it.
    pub(super) fn compaction(&self, namespace: &Arc<Namespace>) -> Option<Compaction> {
        let segment_idx = namespace.close_sparsest()?;
        reach(Point::SegmentClosed);
        tracing::debug!(namespace = namespace.name, segment_idx, "compaction begins");
        Some(Compaction {
            namespace: Arc::clone(namespace),
            segment_idx,
            after: None,
            blocks: Vec::new(),
            target: None,
            emptied: None,
        })
    }

    /// Moves one block, or finds the next tensor with some.
    pub(super) fn compact(&self, compaction: &mut Compaction, work: &mut Workspace) -> Progress {
        let Compaction { namespace, segment_idx, after, blocks, target, emptied } = compaction;
        if let (Some(target), Some(block_idx)) = (&target, blocks.pop()) {
            match self.move_block(namespace, target, block_idx, work) {
                Ok(true) => return Progress::More,
                Ok(false) => {
                    namespace.reopen(*segment_idx);
                    return Progress::GivenUp;
                }
                // The tensor is gone: on to the next one.
                Err(_) => blocks.clear(),
            }
        }
        if let Some((next, found)) = namespace.next_in(after.as_deref(), *segment_idx) {
            let has_room = namespace.move_metadata(&next.key, *segment_idx).unwrap_or(true);
            *after = Some(next.key.name.clone());
            (*target, *blocks) = (Some(next), found);
            if !has_room {
                namespace.reopen(*segment_idx);
            }
            return if has_room { Progress::More } else { Progress::GivenUp };
        }
        let since = *emptied.get_or_insert_with(Instant::now);
        if namespace.is_gone_or_free(*segment_idx) {
            self.trim_one(namespace, 0);
            return Progress::Emptied;
        }
        if since.elapsed() > PATIENCE {
            namespace.reopen(*segment_idx);
            return Progress::GivenUp;
        }
        // What was put or updated before the segment was closed may have become visible since.
        (*after, *target) = (None, None);
        Progress::More
    }

    /// Moves one block; says whether there was room.
    fn move_block(
        &self,
        namespace: &Namespace,
        target: &Target,
        block_idx: u64,
        work: &mut Workspace,
    ) -> Outcome<bool> {
        let copied = namespace.copy_block(&target.key, block_idx)?;
        if !copied.overlays.is_empty() {
            self.rewrite(namespace, target, block_idx, work)?;
            return Ok(true);
        }
        let Some(mut fresh) = namespace.allocate(copied.bytes.len() as u64) else { return Ok(false) };
        fresh.write(0, &copied.bytes);
        let change = Change { block_idx, from: copied.word, to: Stored::Moved(fresh.freeze()) };
        let _writing = target.writing.lock();
        reach(Point::BlockCopied);
        // A block that was stored anew meanwhile lies elsewhere already.
        namespace.store_blocks(&target.key, vec![change], Intent::Rewrite)?;
        Ok(true)
    }
}

impl Compaction {
    /// Whether it is about to look anew: nothing visible was left at the last look, only leases or puts under way.
    pub(super) fn is_waiting(&self) -> bool {
        self.emptied.is_some() && self.after.is_none()
    }
}
