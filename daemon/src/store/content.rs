//! What a tensor is made of: blocks with the counts of their encoding, overlays over them, and generations of metadata.
//!
//! The extents are the daemon's own record of what the words in shared memory say; both change under one lock.
//! With each goes the epoch before it could be found: a lease that was finished earlier does not hold it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tierpack_kernels::codec::Encoded;
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::layout::generation::ENTRIES;
use tierpack_shm::types::{BlockWord, CodecChoice, CodecId, Extent, index};

use super::file_metadata::SharedText;

/// Everything about a tensor except where the directory keeps it.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) geometry: Geometry,
    pub(crate) shape: Vec<u64>,
    pub(crate) row_elems: Option<u64>,
    /// What the put asked for: a refit keeps to it.
    pub(crate) choice: CodecChoice,
    /// The codec of the current generation.
    pub(crate) codec: CodecId,
    blocks: Vec<StoredBlock>,
    pub(crate) generations: Generations,
    pub(crate) predicted_bytes: u64,
    pub(crate) runner_up: Option<(CodecId, u64)>,
    pub(crate) file_metadata: Option<SharedText>,
    pub(crate) sums: Sums,
    /// Blocks that have overlays.
    pub(crate) overlaid: BTreeSet<u64>,
}

/// What the blocks of a tensor come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Bytes of all extents, metadata included, rounding included.
    pub(crate) stored_bytes: u64,
    /// Bytes of overlays among them.
    pub(crate) overlay_bytes: u64,
    pub(crate) escapes: u64,
    pub(crate) participating: u64,
}

/// One block as it is stored, and the counts of its encoding.
#[derive(Debug)]
pub(crate) struct StoredBlock {
    pub(crate) extent: Extent,
    /// The epoch before its word was stored; 0 for a block that came with the put: that of the slot's publication.
    pub(crate) published: u64,
    pub(crate) is_raw: bool,
    /// The index of its metadata; without meaning when it is raw.
    pub(crate) generation_idx: u8,
    /// Chunks that did not fit the metadata, and chunks that it shortened: a refit weighs them.
    pub(crate) escapes: u64,
    pub(crate) participating: u64,
    /// CRC32C of the raw bytes, taken before they were encoded; overlays aside.
    pub(crate) raw_crc: u32,
    /// From the oldest to the newest.
    pub(crate) overlays: Vec<StoredOverlay>,
}

/// One overlay of a block.
#[derive(Debug)]
pub(crate) struct StoredOverlay {
    pub(crate) extent: Extent,
    /// As [`StoredBlock::published`].
    pub(crate) published: u64,
    pub(crate) n_rows: u64,
}

/// One generation of a tensor's metadata.
#[derive(Debug)]
pub(crate) struct StoredMetadata {
    pub(crate) number: u32,
    pub(crate) len: u32,
    pub(crate) extent: Extent,
    /// As [`StoredBlock::published`], of where it is now.
    pub(crate) published: u64,
    /// As [`StoredBlock::published`], of its index.
    entered: u64,
    /// Blocks that it decodes.
    blocks: u64,
}

/// The generations that are alive, by their index.
#[derive(Debug)]
pub(crate) struct Generations {
    live: Vec<(u8, StoredMetadata)>,
    /// The one that new blocks are encoded with; `None` when they are stored raw.
    current: Option<u8>,
    last_number: u32,
    /// A bit per index that is free: shared with what is retired, which frees its index when no lease holds it.
    free: Arc<AtomicU32>,
}

/// An index of a generation that is retired: free again once this is dropped.
#[derive(Debug)]
pub(crate) struct RetiredIndex {
    generation_idx: u8,
    /// As [`StoredBlock::published`].
    pub(crate) published: u64,
    free: Arc<AtomicU32>,
}

impl Drop for RetiredIndex {
    fn drop(&mut self) {
        // Relaxed: indexes are freed and taken under the namespace's lock.
        self.free.fetch_or(1 << self.generation_idx, Ordering::Relaxed);
    }
}

/// An extent that nothing leads to any more, and as [`StoredBlock::published`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) extent: Extent,
    pub(crate) published: u64,
}

/// What a change leaves over: freed when no lease covers it.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    pub(crate) extents: Vec<Left>,
    pub(crate) indexes: Vec<RetiredIndex>,
}

impl StoredBlock {
    pub(crate) fn new(extent: Extent, told: Encoded, generation_idx: u8, raw_crc: u32) -> Self {
        Self {
            extent,
            published: 0,
            is_raw: told.codec == CodecId::Raw,
            generation_idx,
            escapes: told.escapes,
            participating: told.participating,
            raw_crc,
            overlays: Vec::new(),
        }
    }

    /// The word of this block without overlays.
    pub(crate) fn word(&self, sequence: u32) -> BlockWord {
        let (generation_idx, flags) =
            if self.is_raw { (0, BlockWord::RAW) } else { (self.generation_idx, 0) };
        BlockWord::resident(self.extent.offset(), generation_idx, flags, sequence)
    }

    fn overlay_bytes(&self) -> u64 {
        self.overlays.iter().map(|overlay| overlay.extent.len_bytes()).sum()
    }

    /// Rows that its overlays hold, each as often as they hold it.
    pub(crate) fn overlay_rows(&self) -> u64 {
        self.overlays.iter().map(|overlay| overlay.n_rows).sum()
    }

    /// Bytes of its extents.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.extent.len_bytes() + self.overlay_bytes()
    }

    fn into_left(self) -> impl Iterator<Item = Left> {
        let block = Left { extent: self.extent, published: self.published };
        let left = |StoredOverlay { extent, published, .. }| Left { extent, published };
        self.overlays.into_iter().map(left).chain([block])
    }
}

impl StoredMetadata {
    pub(crate) fn new(number: u32, len: u32, extent: Extent) -> Self {
        Self { number, len, extent, published: 0, entered: 0, blocks: 0 }
    }

    /// As it is found from epoch `published` on.
    pub(crate) fn entered(self, published: u64) -> Self {
        Self { published, entered: published, ..self }
    }
}

impl Sums {
    fn add(&mut self, block: &StoredBlock) {
        self.stored_bytes += block.stored_bytes();
        self.overlay_bytes += block.overlay_bytes();
        self.escapes += block.escapes;
        self.participating += block.participating;
    }

    fn subtract(&mut self, block: &StoredBlock) {
        self.stored_bytes -= block.stored_bytes();
        self.overlay_bytes -= block.overlay_bytes();
        self.escapes -= block.escapes;
        self.participating -= block.participating;
    }
}

impl Generations {
    /// With the metadata of a put as the first one, at index 0.
    pub(crate) fn new(first: Option<StoredMetadata>) -> Self {
        let all = (1 << ENTRIES) - 1;
        let free = if first.is_some() { all & !1 } else { all };
        Self {
            current: first.as_ref().map(|_| 0),
            last_number: first.as_ref().map_or(0, |first| first.number),
            live: first.map(|first| (0, first)).into_iter().collect(),
            free: Arc::new(AtomicU32::new(free)),
        }
    }

    pub(crate) fn get(&self, generation_idx: u8) -> Option<&StoredMetadata> {
        self.live.iter().find(|(idx, _)| *idx == generation_idx).map(|(_, found)| found)
    }

    pub(crate) fn by_number(&self, number: u32) -> Option<&StoredMetadata> {
        self.live.iter().find(|(_, found)| found.number == number).map(|(_, found)| found)
    }

    /// Index and number of the current one.
    pub(crate) fn current(&self) -> Option<(u8, u32)> {
        let generation_idx = self.current?;
        Some((generation_idx, self.get(generation_idx)?.number))
    }

    pub(crate) fn has(&self, (generation_idx, number): (u8, u32)) -> bool {
        self.get(generation_idx).is_some_and(|found| found.number == number)
    }

    /// How many of them are newer than one.
    pub(crate) fn newer_than(&self, number: u32) -> usize {
        self.live.iter().filter(|(_, found)| found.number > number).count()
    }

    /// Those that some block needs, or the next encode, or a lease.
    pub(crate) fn n_alive(&self) -> u32 {
        u32::try_from(ENTRIES).unwrap_or(u32::MAX) - self.free.load(Ordering::Relaxed).count_ones()
    }

    /// The number that the next generation gets; `None` when there is none left.
    pub(crate) fn next_number(&self) -> Option<u32> {
        self.last_number.checked_add(1)
    }

    /// An index that no word names and no lease can have seen; `None` when all are in use.
    pub(crate) fn free_index(&self) -> Option<u8> {
        let free = self.free.load(Ordering::Relaxed);
        (free != 0).then(|| u8::try_from(free.trailing_zeros()).unwrap_or(u8::MAX))
    }

    /// Enters metadata at a free index and makes it the current one.
    fn enter(&mut self, generation_idx: u8, metadata: StoredMetadata) {
        self.free.fetch_and(!(1 << generation_idx), Ordering::Relaxed);
        self.last_number = metadata.number;
        self.live.push((generation_idx, metadata));
        self.current = Some(generation_idx);
    }

    fn count(&mut self, generation_idx: u8, more: bool) {
        if let Some((_, found)) = self.live.iter_mut().find(|(idx, _)| *idx == generation_idx) {
            found.blocks = if more { found.blocks + 1 } else { found.blocks - 1 };
        }
    }

    /// Takes out the generations that no block needs and that are not current.
    fn take_unused(&mut self, sums: &mut Sums, leftover: &mut Leftover) {
        let current = self.current;
        for (generation_idx, unused) in
            self.live.extract_if(.., |(idx, found)| found.blocks == 0 && Some(*idx) != current)
        {
            sums.stored_bytes -= unused.extent.len_bytes();
            let StoredMetadata { extent, published, entered, .. } = unused;
            leftover.extents.push(Left { extent, published });
            let free = Arc::clone(&self.free);
            leftover.indexes.push(RetiredIndex { generation_idx, published: entered, free });
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &(u8, StoredMetadata)> {
        self.live.iter()
    }
}

/// What a put brings next to its blocks and metadata.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) geometry: Geometry,
    pub(crate) shape: Vec<u64>,
    pub(crate) row_elems: Option<u64>,
    pub(crate) choice: CodecChoice,
    pub(crate) codec: CodecId,
    pub(crate) predicted_bytes: Option<u64>,
    pub(crate) runner_up: Option<(CodecId, u64)>,
    pub(crate) file_metadata: Option<SharedText>,
}

impl Content {
    pub(crate) fn new(
        described: Description,
        blocks: Vec<StoredBlock>,
        metadata: Option<StoredMetadata>,
    ) -> Self {
        let mut sums = Sums::default();
        sums.stored_bytes += metadata.as_ref().map_or(0, |metadata| metadata.extent.len_bytes());
        let mut generations = Generations::new(metadata);
        for block in &blocks {
            sums.add(block);
            if !block.is_raw {
                generations.count(block.generation_idx, true);
            }
        }
        let Description {
            geometry,
            shape,
            row_elems,
            choice,
            codec,
            predicted_bytes,
            runner_up,
            file_metadata,
        } = described;
        Self {
            geometry,
            shape,
            row_elems,
            choice,
            codec,
            blocks,
            generations,
            predicted_bytes: predicted_bytes.unwrap_or(sums.stored_bytes),
            runner_up,
            file_metadata,
            sums,
            overlaid: BTreeSet::new(),
        }
    }

    pub(crate) fn n_blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub(crate) fn block(&self, block_idx: u64) -> Option<&StoredBlock> {
        self.blocks.get(index(block_idx))
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = &StoredBlock> {
        self.blocks.iter()
    }

    /// Every extent of the data segments.
    pub(super) fn into_left(self) -> impl Iterator<Item = Left> {
        let left = |(_, StoredMetadata { extent, published, .. })| Left { extent, published };
        let metadata = self.generations.live.into_iter().map(left);
        self.blocks.into_iter().flat_map(StoredBlock::into_left).chain(metadata)
    }

    /// As [`Content::into_left`], of what was never published.
    pub(super) fn into_extents(self) -> impl Iterator<Item = Extent> {
        self.into_left().map(|left| left.extent)
    }

    /// Puts a block in the place of another and of its overlays; what is left over goes to `leftover`.
    pub(crate) fn replace(&mut self, block_idx: u64, block: StoredBlock, leftover: &mut Leftover) {
        self.sums.add(&block);
        if !block.is_raw {
            self.generations.count(block.generation_idx, true);
        }
        let replaced = std::mem::replace(&mut self.blocks[index(block_idx)], block);
        self.sums.subtract(&replaced);
        if !replaced.is_raw {
            self.generations.count(replaced.generation_idx, false);
        }
        self.overlaid.remove(&block_idx);
        leftover.extents.extend(replaced.into_left());
        self.generations.take_unused(&mut self.sums, leftover);
    }

    /// Moves a block whose bytes stay what they are; returns the extent that it leaves.
    pub(crate) fn relocate(&mut self, block_idx: u64, to: Left) -> Left {
        let block = &mut self.blocks[index(block_idx)];
        let published = std::mem::replace(&mut block.published, to.published);
        Left { extent: std::mem::replace(&mut block.extent, to.extent), published }
    }

    /// Moves the metadata of a generation; returns the extent that it leaves.
    pub(crate) fn relocate_metadata(&mut self, generation_idx: u8, to: Left) -> Left {
        let found = self.generations.live.iter_mut().find(|(idx, _)| *idx == generation_idx);
        let (_, metadata) = found.expect("the caller has found it, under the same lock");
        let published = std::mem::replace(&mut metadata.published, to.published);
        Left { extent: std::mem::replace(&mut metadata.extent, to.extent), published }
    }

    /// The blocks in a range of which something lies in a segment.
    pub(crate) fn blocks_in(&self, segment_idx: usize, few: Range<u64>) -> Vec<u64> {
        let is_in = |block: &StoredBlock| {
            let mut extents = block.overlays.iter().map(|overlay| &overlay.extent).chain([&block.extent]);
            extents.any(|extent| extent.segment_idx() == segment_idx)
        };
        few.filter(|&block_idx| self.block(block_idx).is_some_and(is_in)).collect()
    }

    /// Whether metadata of a generation lie in a segment.
    pub(crate) fn has_metadata_in(&self, segment_idx: usize) -> bool {
        self.generations.live.iter().any(|(_, metadata)| metadata.extent.segment_idx() == segment_idx)
    }

    /// Puts an overlay over a block.
    pub(crate) fn cover(&mut self, block_idx: u64, overlay: StoredOverlay) {
        self.sums.stored_bytes += overlay.extent.len_bytes();
        self.sums.overlay_bytes += overlay.extent.len_bytes();
        self.blocks[index(block_idx)].overlays.push(overlay);
        self.overlaid.insert(block_idx);
    }

    /// Begins a generation: from now on blocks are encoded by `codec` with this metadata, or stored raw.
    pub(crate) fn begin_generation(
        &mut self,
        codec: CodecId,
        metadata: Option<(u8, StoredMetadata)>,
        leftover: &mut Leftover,
    ) {
        self.codec = codec;
        match metadata {
            Some((generation_idx, metadata)) => {
                self.sums.stored_bytes += metadata.extent.len_bytes();
                self.generations.enter(generation_idx, metadata);
            }
            None => self.generations.current = None,
        }
        self.generations.take_unused(&mut self.sums, leftover);
    }

    /// Encodes blocks as before a generation began, by `codec`, unless the generation of then has ended.
    pub(crate) fn return_to_generation(
        &mut self,
        (codec, current): (CodecId, Option<(u8, u32)>),
        leftover: &mut Leftover,
    ) {
        if current.is_some_and(|current| !self.generations.has(current)) {
            return;
        }
        self.codec = codec;
        self.generations.current = current.map(|(generation_idx, _)| generation_idx);
        self.generations.take_unused(&mut self.sums, leftover);
    }

    /// Whether a refit has something to do with a block.
    pub(crate) fn is_stale(&self, block_idx: u64) -> bool {
        let current = self.generations.current;
        self.block(block_idx).is_some_and(|block| {
            !block.overlays.is_empty()
                || match current {
                    Some(current) => block.is_raw || block.generation_idx != current,
                    None => !block.is_raw,
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_free_again_when_what_retired_it_is_dropped() {
        let generations = Generations::new(None);
        let mut taken = Vec::new();
        for n in 0..16 {
            let generation_idx = generations.free_index().expect("sixteen indexes");
            assert_eq!(generation_idx, n);
            generations.free.fetch_and(!(1 << generation_idx), Ordering::Relaxed);
            taken.push(RetiredIndex { generation_idx, published: 1, free: Arc::clone(&generations.free) });
        }
        assert_eq!((generations.free_index(), generations.n_alive()), (None, 16));
        drop(taken.remove(7));
        assert_eq!((generations.free_index(), generations.n_alive()), (Some(7), 15));
    }
}
