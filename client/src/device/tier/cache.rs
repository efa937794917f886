//! The memory of a cache, and what must be done to it before a launch.
//!
//! A line is tagged with the block word that it came from, so stores need no message.
//! But a block's word may come back after 2^18 stores, when its sequence comes round: before that, a sweep empties the
//! lines whose word is not their block's any more.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_kernels::block::Block;
use tierpack_kernels::cuda::driver::{DeviceBuffer, GatherWork, GpuError, Step};
use tierpack_kernels::cuda::gather::{Cache as Place, CacheLayout, row_sizes, sweep};
use tierpack_shm::attachment::NoGuard;
use tierpack_shm::page::DeviceAccess;
use tierpack_shm::types::index;

use super::table::Table;
use crate::blocks::word;
use crate::decode::{Coders, whole};
use crate::device::gpu;
use crate::device::plan::OwnedGuard;
use crate::handle::{Fault, Opened};
use crate::overlays::chain;

/// Stores in the namespace after which a sweep is due: half of the contract's 2^17.
const SWEEP_AFTER: u64 = 1 << 16;
/// Stores after which a block's word may be one that it had at the last sweep.
const WRAP_AFTER: u64 = 1 << 18;
/// Blocks whose rows tell how long a line is to be.
const SAMPLED_BLOCKS: u64 = 64;

/// The cache of one tensor on one GPU, of its [`super::DeviceHandle`] and of graphs that were made of it.
#[derive(Debug)]
pub(super) struct Cache {
    buffer: Option<Arc<DeviceBuffer>>,
    layout: CacheLayout,
    state: Mutex<CacheState>,
}

/// What was done to a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheState {
    /// Where the ring of changed blocks stood at the last sweep.
    swept: u64,
    /// Its tags are to be zeroed first.
    is_unset: bool,
}

impl Cache {
    pub(super) fn new(gpu: &gpu::Inner, layout: CacheLayout) -> Result<Arc<Self>, GpuError> {
        let buffer = match layout.bytes() {
            0 => None,
            bytes => Some(Arc::new(DeviceBuffer::new(&gpu.device, bytes)?)),
        };
        let state = Mutex::new(CacheState { swept: 0, is_unset: true });
        Ok(Arc::new(Self { buffer, layout, state }))
    }

    pub(super) const fn layout(&self) -> &CacheLayout {
        &self.layout
    }

    pub(super) const fn buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        self.buffer.as_ref()
    }

    /// What the kernels receive.
    pub(super) fn place(&self) -> Place {
        self.buffer.as_ref().map_or_else(Place::default, |buffer| self.layout.at(buffer.address()))
    }

    /// Has its tags zeroed before the next launch, while no other launch uses it.
    pub(super) fn unset(&self) {
        self.state.lock().is_unset = true;
    }

    /// What was done to it; [`Cache::restore`] goes back to that, where steps that were asked for did not run.
    pub(super) fn state(&self) -> CacheState {
        *self.state.lock()
    }

    pub(super) fn restore(&self, before: CacheState) {
        // Not ahead: another thread may have gone back further meanwhile.
        self.rewind(before.swept);
        self.state.lock().is_unset |= before.is_unset;
    }

    /// Lines may have words as old as those that were loaded where the ring stood at `tail`.
    fn rewind(&self, tail: u64) {
        let mut state = self.state.lock();
        // The ring's counter goes round: what is less than half of it behind is older.
        if state.swept.wrapping_sub(tail) < 1 << 63 {
            state.swept = tail;
        }
    }

    /// Brings `table` up to date, and adds what is due to the cache, to the work of a launch.
    pub(super) fn sync(
        &self,
        table: &mut Table,
        guard: &OwnedGuard,
        (gpu, mode): (&gpu::Inner, DeviceAccess),
        work: &mut GatherWork,
    ) -> Result<(), Fault> {
        let (n_steps, n_bytes) = (work.steps.len(), work.bytes.len());
        table.sync(guard, (gpu, mode), work)?;
        // Asked for only now, so that no word is of a store that this does not count.
        let due = self.due(guard.changes());
        if due == Due::Empty {
            work.steps.truncate(n_steps);
            work.bytes.truncate(n_bytes);
            table.spoil();
            table.sync(guard, (gpu, mode), work)?;
        }
        let copies = n_steps..work.steps.len();
        self.steps(due, table, gpu.device.facts().n_multiprocessors, copies, work);
        Ok(())
    }

    /// What is due, where the ring of changed blocks is at `head`.
    fn due(&self, head: u64) -> Due {
        let state = self.state.lock();
        match head.wrapping_sub(state.swept) {
            _ if self.buffer.is_none() => Due::Nothing,
            _ if state.is_unset => Due::Zero,
            0..SWEEP_AFTER => Due::Nothing,
            SWEEP_AFTER..WRAP_AFTER => Due::Sweep,
            _ => Due::Empty,
        }
    }

    /// Adds what is due to the work of a launch, behind `copies`, which bring the device up to date with `table`.
    ///
    /// For [`Due::Empty`] these are copies of everything.
    fn steps(
        &self,
        due: Due,
        table: &Table,
        n_multiprocessors: u32,
        copies: Range<usize>,
        work: &mut GatherWork,
    ) {
        let Some(buffer) = &self.buffer else { return };
        let sweep = sweep(table.tensor(), n_multiprocessors);
        let sweep = sweep.map(|launch| Step::Sweep { launch, tensor: table.address() });
        match due {
            Due::Nothing => return,
            Due::Zero => {
                work.steps.push(Step::Zero { address: buffer.address(), len: self.layout.tag_bytes() });
            }
            Due::Sweep => work.steps.extend(sweep),
            Due::Empty => {
                // Any line may have the word that its block has come back to: without words, all are out of date.
                let (address, len) = table.words();
                work.steps.extend([Step::Zero { address, len }].into_iter().chain(sweep));
                work.steps.extend_from_within(copies);
            }
        }
        *self.state.lock() = CacheState { swept: table.tail(), is_unset: false };
    }
}

/// Words that a graph reads for as long as their lease lasts, and may put into the cache at any time until then.
///
/// It goes before the lease does: afterwards a block may have such a word again.
#[derive(Debug)]
pub(in crate::device) struct Snapshot {
    cache: Arc<Cache>,
    tail: u64,
}

impl Snapshot {
    /// Of the words that `table` has.
    pub(super) fn new(cache: &Arc<Cache>, table: &Table) -> Self {
        Self { cache: Arc::clone(cache), tail: table.tail() }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.cache.rewind(self.tail);
    }
}

/// What must be done to a cache before the next launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Its lines may all be used as they are.
    Nothing,
    /// All tags are zeroed: it is new, or is to be empty.
    Zero,
    /// Lines that are out of date are emptied.
    Sweep,
    /// All lines are emptied, since so much was stored since the last sweep; those that are to stay keep their place.
    Empty,
}

/// The layout of a cache for rows as they are stored now.
pub(super) fn layout(guard: &OwnedGuard, opened: &Opened, bytes: u64) -> Result<CacheLayout, Fault> {
    let geometry = &opened.geometry;
    if bytes == 0 || !geometry.is_gatherable() || geometry.raw_bytes() == 0 || geometry.pieces_per_row() > 1 {
        return Ok(CacheLayout::NONE);
    }
    let (coders, words) = (Coders::new(guard, opened), guard.words()?);
    let mut sizes = Vec::new();
    let step = geometry.n_blocks().div_ceil(SAMPLED_BLOCKS).max(1);
    for block_idx in (0..geometry.n_blocks()).step_by(index(step)) {
        let newest = word(words, block_idx)?;
        let below = chain(guard, newest, geometry.block(block_idx).row_bytes).collect();
        // What cannot be read has no size; a gather of it says why.
        let Ok(word) = below.map(|below| below.block) else { continue };
        if !word.is_resident() {
            continue;
        }
        let coder = if word.is_raw() { None } else { Some(coders.get(word)?) };
        let block = Block::parse(whole(guard, word)?).map_err(|_| NoGuard::Corrupt)?;
        sizes.extend(row_sizes(coder, geometry, &block).map_err(|_| NoGuard::Corrupt)?);
    }
    Ok(CacheLayout::new(bytes, &mut sizes))
}
