//! What a GPU knows of a tensor, and the host's copy of it.
//!
//! ```text
//! device  [GatherTensor | segments, 16 bytes each | block words]
//! ```
//!
//! [`Table::sync`] finds out, under a guard, which blocks were stored since the last time, and makes the copies that
//! bring the device up to date: segments and metadata that the new words need, and the words.
//! So a gather finds every block that is in the pool; only what is not resident goes to its miss list.
//!
//! A segment that is unmapped may come back elsewhere under its index.
//! No current word names it in between, so a count of unmapped segments that is read after the words tells in time.

use std::sync::Arc;

use tierpack_kernels::cuda::driver::{DeviceBuffer, GatherWork, GpuError, Step};
use tierpack_kernels::cuda::gather::{
    Addresses, Cache, DeviceForm, GatherTensor, MAX_FORMS, Segment, describe,
};
use tierpack_shm::attachment::{Attachment, NoGuard};
use tierpack_shm::page::DeviceAccess;
use tierpack_shm::publish::load_word;
use tierpack_shm::ring::Drained;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::types::{BlockWord, UNIT_BYTES, index};
use zerocopy::IntoBytes;

use crate::decode::Coders;
use crate::device::gpu;
use crate::device::plan::OwnedGuard;
use crate::device::segments::Segments;
use crate::error::Error;
use crate::handle::{Fault, Opened};
use crate::overlays::chain;

/// Where the segments start.
const SEGMENTS_AT: u64 = (size_of::<GatherTensor>() as u64).next_multiple_of(64);
/// Segments that there is room for at first: 64 GiB of pool.
const MIN_SEGMENTS: usize = 1024;
/// Words between two that changed which are copied along with them.
const GAP: u64 = 64;
/// Copies of words for one launch; more become one.
const MAX_COPIES: usize = 32;

/// The table of one tensor on one GPU.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) opened: Arc<Opened>,
    buffer: Arc<DeviceBuffer>,
    tensor: GatherTensor,
    words: Vec<u64>,
    segments: Vec<Segment>,
    forms: [Option<(u32, Arc<DeviceBuffer>)>; MAX_FORMS],
    /// How far the ring of changed blocks was read.
    tail: u64,
    /// Segments that the process had unmapped when this was brought up to date.
    unmapped: u64,
    /// What the device has is not known: everything is copied next time.
    is_stale: bool,
}

/// What changed since the last time.
#[derive(Debug, Default)]
struct Changes {
    everything: bool,
    tensor: bool,
    segments: bool,
    /// Blocks with other words.
    blocks: Vec<u64>,
}

impl Table {
    /// A table whose words all come with the first [`Table::sync`].
    pub(super) fn new(opened: &Arc<Opened>, gpu: &gpu::Inner, cache: Cache) -> Result<Self, Error> {
        let geometry = &opened.geometry;
        let mut this = Self {
            buffer: buffer(gpu, MIN_SEGMENTS, geometry.n_blocks())?,
            tensor: GatherTensor::default(),
            words: vec![0; index(geometry.n_blocks())],
            segments: vec![Segment::default(); MIN_SEGMENTS],
            forms: [const { None }; MAX_FORMS],
            tail: 0,
            unmapped: 0,
            is_stale: true,
            opened: Arc::clone(opened),
        };
        this.tensor = describe(geometry, &[], &this.addresses(cache))
            .map_err(|_| Error::NotGatherable { dtype: geometry.dtype(), shape: opened.shape().to_vec() })?;
        Ok(this)
    }

    fn addresses(&self, cache: Cache) -> Addresses {
        let segments = self.buffer.address() + SEGMENTS_AT;
        let n_segments = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        Addresses { words: segments + size_of_val(&*self.segments) as u64, segments, n_segments, cache }
    }

    /// Whether it is of this tensor; then what `opened` knows is used from now on.
    pub(super) fn is_of(&mut self, opened: &Arc<Opened>) -> bool {
        let same = self.opened.slot == opened.slot && self.opened.instance() == opened.instance();
        if same && !Arc::ptr_eq(&self.opened, opened) {
            // Another session has mapped every segment again; the old one hears of none that is returned.
            self.is_stale |= self.opened.attachment_number() != opened.attachment_number();
            self.opened = Arc::clone(opened);
        }
        same
    }

    /// The tensor as the device has it after the copies.
    pub(super) const fn tensor(&self) -> &GatherTensor {
        &self.tensor
    }

    /// The device's address of the tensor.
    pub(super) fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// The device's addresses of the block words, and their bytes.
    pub(super) fn words(&self) -> (u64, u64) {
        (self.tensor.words, size_of_val(&*self.words) as u64)
    }

    /// Where the ring of changed blocks stood when this was brought up to date.
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    /// What a launch uses of the device's memory.
    pub(super) fn buffers(&self) -> impl Iterator<Item = Arc<DeviceBuffer>> + '_ {
        let forms = self.forms.iter().flatten().map(|(_, form)| Arc::clone(form));
        forms.chain([Arc::clone(&self.buffer)])
    }

    /// Has everything copied next time.
    pub(super) const fn spoil(&mut self) {
        self.is_stale = true;
    }

    /// The copies that this asked for are on a stream.
    pub(super) const fn settle(&mut self) {
        self.is_stale = false;
    }

    /// Brings the device up to date with what the guard's words are; [`Table::settle`] says that this was done.
    pub(super) fn sync(
        &mut self,
        guard: &OwnedGuard,
        (gpu, mode): (&gpu::Inner, DeviceAccess),
        work: &mut GatherWork,
    ) -> Result<(), Fault> {
        // Until the copies are on a stream.
        let mut changes =
            Changes { everything: std::mem::replace(&mut self.is_stale, true), ..Changes::default() };
        let mut stored = Vec::new();
        // A new table has no place in the ring yet: its words are all loaded after this.
        let tail = if changes.everything { guard.changes() } else { self.tail };
        let (tail, is_lapped) = match guard.changed_blocks(tail, |block_idx| stored.push(block_idx)) {
            Drained::UpTo(tail) => (tail, false),
            Drained::Lapped(tail) => (tail, true),
        };
        self.tail = tail;
        let opened = Arc::clone(&self.opened);
        let coders = Coders::new(guard, &opened);
        let mut find = Find { coders: &coders, gpu, mode };
        if is_lapped {
            stored.clear();
            stored.extend(0..self.words.len() as u64);
        }
        if !changes.everything {
            stored.sort_unstable();
            stored.dedup();
            self.load(stored.into_iter(), &mut find, &mut changes)?;
        }
        loop {
            let unmapped = Segments::of_process().unmapped();
            if unmapped == self.unmapped && !changes.everything {
                break;
            }
            // From the start: every word, and every segment that it names.
            self.unmapped = unmapped;
            self.segments.fill(Segment::default());
            self.words.fill(0);
            changes = Changes { everything: true, ..Changes::default() };
            self.load(0..opened.geometry.n_blocks(), &mut find, &mut changes)?;
            if Segments::of_process().unmapped() == unmapped {
                break;
            }
        }
        self.copies(&changes, work);
        Ok(())
    }

    /// Loads the words of some blocks, and finds what the new ones need.
    fn load(
        &mut self,
        blocks: impl Iterator<Item = u64>,
        find: &mut Find<'_>,
        changes: &mut Changes,
    ) -> Result<(), Fault> {
        let words = find.coders.guard.words()?;
        for block_idx in blocks {
            let at = index(block_idx);
            let (Some(word), Some(known)) = (words.get(at), self.words.get(at)) else { continue };
            let word = load_word(word);
            if word.bits() != *known {
                self.resolve(word, block_idx, find, changes)?;
                self.words[at] = word.bits();
                changes.blocks.push(block_idx);
            }
        }
        Ok(())
    }

    /// Finds what a block's word needs: the segments of its overlays and of the block, and its metadata.
    ///
    /// What contradicts itself is left for the kernel to report, if anybody asks for it.
    fn resolve(
        &mut self,
        word: BlockWord,
        block_idx: u64,
        find: &mut Find<'_>,
        changes: &mut Changes,
    ) -> Result<(), Fault> {
        let guard = find.coders.guard;
        let mut chain = chain(guard, word, self.opened.geometry.block(block_idx).row_bytes);
        loop {
            let at = chain.at();
            if !at.is_resident() {
                return Ok(());
            }
            self.find_segment(at, find, changes)?;
            match chain.next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault @ NoGuard::NotMapped(..)) => return Err(fault.into()),
                Err(_) => return Ok(()),
            }
        }
        let block = chain.at();
        if block.is_raw() { Ok(()) } else { self.find_form(block, find, changes) }
    }

    fn find_segment(&mut self, word: BlockWord, find: &Find<'_>, changes: &mut Changes) -> Result<(), Fault> {
        let (guard, gpu) = (find.coders.guard, find.gpu);
        let (segment_idx, _) = guard.place(word, UNIT_BYTES)?;
        if segment_idx >= self.segments.len() {
            self.grow(gpu, segment_idx).map_err(Error::from)?;
            changes.everything = true;
        }
        if self.segments[segment_idx].address != 0 {
            return Ok(());
        }
        let address = gpu.base(find.mode, guard.attachment(), segment_idx).map_err(Error::from)?;
        let bytes = mapped_bytes(guard.attachment(), segment_idx)?;
        self.segments[segment_idx] = Segment { address, bytes };
        changes.segments = true;
        Ok(())
    }

    fn find_form(&mut self, word: BlockWord, find: &Find<'_>, changes: &mut Changes) -> Result<(), Fault> {
        let generation_idx = word.generation_idx();
        let (number, _) = find.coders.guard.generation(generation_idx)?;
        let place = self.forms.get_mut(usize::from(generation_idx)).ok_or(NoGuard::Corrupt)?;
        if place.as_ref().is_some_and(|(known, _)| *known == number) {
            return Ok(());
        }
        let coder = find.coders.get(word)?;
        let buffer = find.gpu.form(&self.opened, coder).map_err(Error::from)?;
        let form = DeviceForm { generation_idx, coder, address: buffer.address() };
        self.tensor.set_form(&self.opened.geometry, &form).map_err(|_| NoGuard::Corrupt)?;
        *place = Some((number, buffer));
        changes.tensor = true;
        Ok(())
    }

    /// Makes room for more segments, in other memory.
    fn grow(&mut self, gpu: &gpu::Inner, segment_idx: usize) -> Result<(), GpuError> {
        let room = (segment_idx + 1).next_power_of_two();
        self.buffer = buffer(gpu, room, self.words.len() as u64)?;
        self.segments.resize(room, Segment::default());
        let Addresses { words, segments, n_segments, .. } = self.addresses(Cache::default());
        (self.tensor.words, self.tensor.segments, self.tensor.n_segments) = (words, segments, n_segments);
        Ok(())
    }

    /// Adds the copies to the work of a launch.
    fn copies(&self, changes: &Changes, work: &mut GatherWork) {
        let mut copy = |address: u64, bytes: &[u8]| {
            let start = work.bytes.len();
            work.bytes.extend_from_slice(bytes);
            work.steps.push(Step::Copy { address, part: start..start + bytes.len() });
        };
        if changes.everything || changes.segments {
            copy(self.tensor.segments, self.segments.as_bytes());
        }
        if changes.everything || changes.tensor {
            copy(self.address(), self.tensor.as_bytes());
        }
        let n_blocks = self.words.len() as u64;
        let everything = changes.everything.then_some(0..n_blocks);
        let ranges = everything.map_or_else(|| ranges(&changes.blocks), |all| [all].into());
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            let words = &self.words[index(range.start)..index(range.end)];
            copy(self.tensor.words + 8 * range.start, words.as_bytes());
        }
    }
}

/// What words are resolved with.
struct Find<'a> {
    coders: &'a Coders<'a, Arc<Attachment>>,
    gpu: &'a gpu::Inner,
    mode: DeviceAccess,
}

fn buffer(gpu: &gpu::Inner, n_segments: usize, n_blocks: u64) -> Result<Arc<DeviceBuffer>, GpuError> {
    let bytes = SEGMENTS_AT + (n_segments * size_of::<Segment>()) as u64 + 8 * n_blocks;
    DeviceBuffer::new(&gpu.device, bytes).map(Arc::new)
}

/// Bytes of a data segment that a guard reads.
fn mapped_bytes(attachment: &Attachment, segment_idx: usize) -> Result<u64, NoGuard> {
    let range = attachment.segment_range(SegmentKind::Data, segment_idx);
    range.map(|(_, len)| len as u64).ok_or(NoGuard::NotMapped(SegmentKind::Data, segment_idx))
}

/// Ranges of blocks, in ascending order, that hold all of these, which are in ascending order.
fn ranges(blocks: &[u64]) -> Vec<std::ops::Range<u64>> {
    let near = |a: &u64, b: &u64| b - a <= GAP;
    let all = blocks.chunk_by(near).map(|near| near[0]..near[near.len() - 1] + 1);
    let ranges: Vec<_> = all.collect();
    match (ranges.first(), ranges.last()) {
        (Some(first), Some(last)) if ranges.len() > MAX_COPIES => {
            std::iter::once(first.start..last.end).collect()
        }
        _ => ranges,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_few_ranges() {
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[3, 4, 68, 133, 9000]), [3..69, 133..134, 9000..9001]);
        let far: Vec<u64> = (0..33).map(|n| n * 1000).collect();
        assert_eq!((ranges(&far).len(), ranges(&far)[0].clone()), (1, 0..32_001));
        assert_eq!(ranges(&far[..32]).len(), 32);
    }
}
