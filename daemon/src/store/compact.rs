//! Compaction: a segment of which little is used is emptied, so that its memory returns to the system.
//!
//! Nothing new is put into it; what is visible in it moves to other segments, block by block, by words as every store
//! of a block; what is retired in it goes as its leases end.
//! Nothing grows for it: when the others have no room, the segment is used again as before.
//!
//! Barred segments (see `namespace::audience`) are emptied first, however much of them is used, and are never used
//! again. For them the budget keeps back as much as the largest holds: that becomes a reserved segment, which only
//! moves may use, and what they empty fills up again what is kept back.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tierpack_kernels::codec::max_encoded_len;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::types::Extent;

use super::namespace::{BATCH, BLOCKS, Change, Intent, Key, Namespace, Stored, Target};
use super::update::{Longer, Workspace};
use super::{Outcome, Store};

mod demand;

pub(super) use demand::Demand;

/// A namespace is compacted while less than this part of its data segments is used, in percent.
const USED_PERCENT: u64 = 95;
/// What moves must find this much room elsewhere, in percent of its bytes: room is in pieces.
const ROOM_PERCENT: u64 = 110;
/// How long a segment in which nothing visible is left may wait for leases before it is used again.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while puts wait for room.
const DEMAND_PATIENCE: Duration = Duration::from_millis(20);
/// How long a barred segment may wait for leases or for room before another one has its turn.
const BARRED_PATIENCE: Duration = Duration::from_secs(1);
/// When that one has its turn again.
const TURN_AFTER: Duration = Duration::from_secs(5);

/// State of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to do, or to wait for.
    More,
    /// The segment is empty, or holds only what nobody can move: another one may be worth it.
    Emptied,
    /// There is no room; a segment that is not barred is used again as before.
    GivenUp,
}

/// One segment on its way to be empty.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub(crate) namespace: Arc<Namespace>,
    segment_idx: usize,
    is_barred: bool,
    /// The tensor and the block that are looked at next.
    at: Option<(String, u64)>,
    /// Blocks of the last tensor that was looked at, the next one last.
    blocks: Vec<u64>,
    target: Option<Target>,
    /// Since when nothing was left to move.
    emptied: Option<Instant>,
    /// Since when there is no room for what is left.
    stalled: Option<Instant>,
}

/// What one look found.
struct Look {
    target: Target,
    /// Blocks in the segment, the first one last.
    blocks: Vec<u64>,
    /// Where the next look begins.
    next: (String, u64),
}

impl Namespace {
    /// The data segment that is worth emptying most, closed for what is new, and whether it is barred; `None` when none
    /// is.
    fn close_sparsest(&self) -> Option<(usize, bool)> {
        let mut inner = self.inner.lock();
        let super::namespace::Inner { data, looked_through, .. } = &mut *inner;
        looked_through.retain(|_, at| at.elapsed() < TURN_AFTER);
        // One that is empty already returns by itself.
        let uses: Vec<_> = data
            .segments()
            .map(|(idx, segment)| (idx, data.segment_used_bytes(idx), segment.len()))
            .collect();
        let sparsest = |found: &mut dyn Iterator<Item = &(usize, u64, u64)>| {
            let found = found.filter(|(_, used_here, _)| *used_here > 0);
            found.min_by_key(|(_, used_here, len)| used_here * 1000 / len.max(&1)).copied()
        };
        let is_barred = |idx: usize| data.is_segment_barred(idx);
        let is_due = |(idx, ..): &&(usize, u64, u64)| !looked_through.contains_key(idx);
        let barred = uses.iter().filter(|(idx, ..)| is_barred(*idx));
        if let Some((segment_idx, ..)) = sparsest(&mut barred.filter(is_due)) {
            return Some((segment_idx, true));
        }
        let is_plain = |(idx, ..): &&(usize, u64, u64)| !is_barred(*idx) && !data.is_segment_reserved(*idx);
        let plain: Vec<_> = uses.iter().filter(is_plain).copied().collect();
        let used: u64 = plain.iter().map(|(_, used, _)| used).sum();
        let all: u64 = plain.iter().map(|(_, _, len)| len).sum();
        if used * 100 >= all * USED_PERCENT {
            return None;
        }
        // One that leases or a lack of room kept from being emptied has its turn again after the others.
        let (segment_idx, used_here, len) = sparsest(&mut plain.iter().filter(is_due))?;
        let free_elsewhere = (all - used) - (len - used_here);
        if used_here * ROOM_PERCENT / 100 > free_elsewhere {
            return None;
        }
        data.close_segment(segment_idx);
        Some((segment_idx, false))
    }

    /// Uses a segment again, unless it is barred: then another one has its turn.
    fn give_up(&self, segment_idx: usize) {
        let mut inner = self.inner.lock();
        inner.data.open_segment(segment_idx);
        inner.looked_through.insert(segment_idx, Instant::now());
    }

    fn is_gone_or_free(&self, segment_idx: usize) -> bool {
        let inner = self.inner.lock();
        inner.data.segments().all(|(idx, _)| idx != segment_idx)
            || inner.data.free_segments().contains(&segment_idx)
    }

    /// The next tensor from a place on that has something in a segment, and some of its blocks there; of those that
    /// have nothing, the last of the few that one look goes through. `None` after the last tensor.
    fn next_in(&self, at: Option<&(String, u64)>, segment_idx: usize) -> Option<Look> {
        let inner = self.inner.lock();
        let start = at.map_or(Bound::Unbounded, |(name, _)| Bound::Included(name.as_str()));
        let (mut left, mut last) = (BLOCKS, None);
        for (name, tensor) in inner.tensors.range::<str, _>((start, Bound::Unbounded)).take(BATCH) {
            let from = at.filter(|(of, _)| of == name).map_or(0, |(_, from)| *from);
            let n_blocks = tensor.content.n_blocks();
            if from >= n_blocks.max(1) {
                continue;
            }
            let end = n_blocks.min(from.saturating_add(left));
            left -= end - from;
            let mut blocks = tensor.content.blocks_in(segment_idx, from..end);
            blocks.reverse();
            let is_found = !blocks.is_empty() || from == 0 && tensor.content.has_metadata_in(segment_idx);
            last = Some((tensor, name, blocks, end.max(1)));
            if is_found || left == 0 {
                break;
            }
        }
        last.map(|(tensor, name, blocks, end)| Look {
            target: tensor.target(name),
            blocks,
            next: (name.clone(), end),
        })
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
        if self.budget.is_kept_back_whole() || !namespace.has_barred() {
            namespace.open_reserved_segments();
        }
        let (segment_idx, is_barred) = namespace.close_sparsest()?;
        reach(Point::SegmentClosed);
        tracing::debug!(namespace = namespace.name, segment_idx, is_barred, "compaction begins");
        Some(Compaction {
            namespace: Arc::clone(namespace),
            segment_idx,
            is_barred,
            at: None,
            blocks: Vec::new(),
            target: None,
            emptied: None,
            stalled: None,
        })
    }

    /// Moves one block, or finds the next tensor with some.
    pub(super) fn compact(&self, compaction: &mut Compaction, work: &mut Workspace) -> Progress {
        let Compaction { namespace, segment_idx, blocks, target, .. } = compaction;
        if let (Some(of), Some(block_idx)) = (&target, blocks.pop()) {
            match self.move_block(namespace, of, block_idx, work) {
                Ok(true) => {
                    compaction.stalled = None;
                    return Progress::More;
                }
                Ok(false) => {
                    blocks.push(block_idx);
                    let needed = max_encoded_len(&of.geometry.block(block_idx));
                    return self.make_room(compaction, needed);
                }
                // The tensor is gone: on to the next one.
                Err(_) => blocks.clear(),
            }
        }
        if let Some(Look { target: found, blocks: in_it, next }) =
            namespace.next_in(compaction.at.as_ref(), *segment_idx)
        {
            if !namespace.move_metadata(&found.key, *segment_idx).unwrap_or(true) {
                return self.make_room(compaction, 0);
            }
            (compaction.at, compaction.target, compaction.blocks) = (Some(next), Some(found), in_it);
            return Progress::More;
        }
        if !compaction.is_barred {
            // A put or an update may have opened it again, for want of room.
            namespace.inner.lock().data.close_segment(*segment_idx);
        }
        let since = *compaction.emptied.get_or_insert_with(Instant::now);
        if namespace.is_gone_or_free(*segment_idx) {
            self.trim_one(namespace, 0);
            return Progress::Emptied;
        }
        let patience = match compaction.is_barred {
            true => BARRED_PATIENCE,
            // What a put under way has stored in it cannot be moved: another segment has its turn.
            false if self.demand.is_open() => DEMAND_PATIENCE,
            false => PATIENCE,
        };
        if since.elapsed() > patience {
            namespace.give_up(*segment_idx);
            return if compaction.is_barred { Progress::Emptied } else { Progress::GivenUp };
        }
        // What was put or updated before the segment was closed may have become visible since.
        (compaction.at, compaction.target) = (None, None);
        Progress::More
    }

    /// There is no room for what moves: allows it some for a barred segment, or stops.
    fn make_room(&self, compaction: &mut Compaction, needed: u64) -> Progress {
        let Compaction { namespace, segment_idx, is_barred, stalled, .. } = compaction;
        if *is_barred {
            let in_it = namespace.inner.lock().data.segment_used_bytes(*segment_idx);
            let wished = in_it.max(needed);
            // Whatever forbids a segment now may be over soon.
            let mut grown = [wished, needed].into_iter().filter(|len| *len > 0);
            if grown.any(|len| self.grow_reserved(namespace, len).unwrap_or(false)) {
                *stalled = None;
                return Progress::More;
            }
            // What was emptied before may be about to return.
            if stalled.get_or_insert_with(Instant::now).elapsed() < BARRED_PATIENCE {
                return Progress::More;
            }
        }
        namespace.give_up(*segment_idx);
        Progress::GivenUp
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
            work.is_moving = true;
            let moved = self.rewrite(namespace, target, (block_idx, Longer::Dropped), work);
            work.is_moving = false;
            return match moved {
                Err(refusal) if refusal.code() == Some(ErrorCode::PoolFull) => Ok(false),
                moved => moved.map(|_| true),
            };
        }
        let Some(mut fresh) = namespace.allocate_for_move(copied.bytes.len() as u64) else {
            return Ok(false);
        };
        fresh.write(0, &copied.bytes);
        let change = Change { block_idx, from: copied.word, to: Stored::Moved(fresh.freeze()) };
        let _writing = target.writing.lock();
        reach(Point::BlockCopied);
        // A block that was stored again meanwhile lies elsewhere already.
        namespace.store_blocks(&target.key, vec![change], Intent::Rewrite)?;
        Ok(true)
    }

    /// Stores bytes that are moved out of a segment.
    pub(super) fn store_moved(&self, namespace: &Namespace, bytes: &[u8]) -> Outcome<Extent> {
        let full = || Refusal::new(ErrorCode::PoolFull, "there is no room to move a block to");
        let mut fresh = namespace.allocate_for_move(bytes.len() as u64).ok_or_else(full)?;
        fresh.write(0, bytes);
        Ok(fresh.freeze())
    }
}

impl Compaction {
    /// Whether it only waits: nothing visible was left at the last look, or there was no room for what is.
    pub(super) fn is_waiting(&self) -> bool {
        self.emptied.is_some() && self.at.is_none() || self.stalled.is_some()
    }
}
