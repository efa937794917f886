//! Blocks of visible tensors: copied out to be read without the lock, and stored again.
//!
//! A block is changed only under its tensor's `writing` lock, from the word that it read; readers see the old
//! word or the new one.

use std::ops::Range;

use tierpack_shm::faults::{Point, reach};
use tierpack_shm::publish::{load_word, publish_word};
use tierpack_shm::ring::Changed;
use tierpack_shm::types::{BlockWord, Extent, index};

use super::quota::Place;
use super::reclaim::end_of_clock;
use super::{Inner, Key, Namespace};
use crate::store::Outcome;
use crate::store::content::{Content, Left, Leftover, StoredBlock, StoredOverlay};

/// Blocks that one turn under the lock looks through.
pub(in crate::store) const BLOCKS: u64 = 1 << 14;

/// The stored bytes of one block and of its overlays, and the word that they were found under.
#[derive(Debug)]
pub(crate) struct BlockCopy {
    pub(crate) word: BlockWord,
    pub(crate) bytes: Vec<u8>,
    /// From the oldest to the newest.
    pub(crate) overlays: Vec<Vec<u8>>,
    /// The number of its metadata, unless it is raw.
    pub(crate) generation: Option<u32>,
    /// Generations that are newer than it, unless it is raw.
    pub(crate) newer: usize,
    pub(crate) raw_crc: u32,
}

impl BlockCopy {
    /// Bytes of its extents.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.overlays.iter().chain([&self.bytes]).map(|bytes| bytes.len() as u64).sum()
    }
}

/// State of a block, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockState {
    pub(crate) word: BlockWord,
    pub(crate) stored_bytes: u64,
    pub(crate) overlays: u64,
    /// Rows that they hold, each as often as they hold it.
    pub(crate) overlay_rows: u64,
}

/// What a block is to become.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) block_idx: u64,
    /// The word that it was made from.
    pub(crate) from: BlockWord,
    pub(crate) to: Stored,
}

/// What was stored for a block.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Another block in its place.
    Block(StoredBlock),
    /// An overlay over it.
    Overlay(StoredOverlay),
    /// The same bytes in another place; the block has no overlays.
    Moved(Extent),
}

impl Change {
    pub(crate) fn into_extent(self) -> Extent {
        match self.to {
            Stored::Block(block) => block.extent,
            Stored::Overlay(overlay) => overlay.extent,
            Stored::Moved(extent) => extent,
        }
    }
}

/// Whether the changes of a request count as an update, or leave every value as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// New values, within the quota.
    Update,
    /// The same values in other bytes.
    Rewrite,
}

impl Namespace {
    pub(crate) fn copy_block(&self, key: &Key, block_idx: u64) -> Outcome<BlockCopy> {
        let mut inner = self.inner.lock();
        let word = self.word(&mut inner, key, block_idx)?;
        let inner = &*inner;
        let content = &inner.tensors[&key.name].content;
        let block = content.block(block_idx).ok_or_else(|| self.not_found(&key.name))?;
        let copy = |extent: &Extent| inner.data.bytes(extent).expect("the extent is this tensor's").to_vec();
        let metadata = content.generations.get(block.generation_idx).filter(|_| !block.is_raw);
        Ok(BlockCopy {
            word,
            bytes: copy(&block.extent),
            overlays: block.overlays.iter().map(|overlay| copy(&overlay.extent)).collect(),
            generation: metadata.map(|metadata| metadata.number),
            newer: metadata.map_or(0, |metadata| content.generations.newer_than(metadata.number)),
            raw_crc: block.raw_crc,
        })
    }

    pub(crate) fn block_state(&self, key: &Key, block_idx: u64) -> Outcome<BlockState> {
        let mut inner = self.inner.lock();
        let word = self.word(&mut inner, key, block_idx)?;
        let block = inner.tensors[&key.name].content.block(block_idx);
        let (stored_bytes, overlays, overlay_rows) = block.map_or((0, 0, 0), |block| {
            (block.stored_bytes(), block.overlays.len() as u64, block.overlay_rows())
        });
        Ok(BlockState { word, stored_bytes, overlays, overlay_rows })
    }

    fn word(&self, inner: &mut Inner, key: &Key, block_idx: u64) -> Outcome<BlockWord> {
        self.keyed(inner, key)?;
        let words = inner.tensors[&key.name].words(&inner.directory);
        words.get(index(block_idx)).map(load_word).ok_or_else(|| self.not_found(&key.name))
    }

    /// The bytes of metadata by their number; `None` when that generation is gone.
    pub(crate) fn copy_metadata(&self, key: &Key, number: u32) -> Outcome<Option<Vec<u8>>> {
        let mut inner = self.inner.lock();
        self.keyed(&mut inner, key)?;
        let found = inner.tensors[&key.name].content.generations.by_number(number);
        Ok(found.map(|metadata| {
            let bytes = inner.data.bytes(&metadata.extent).expect("the extent is this tensor's");
            bytes[..index(u64::from(metadata.len))].to_vec()
        }))
    }

    /// The first block from `from` on that a refit has something to do with.
    pub(crate) fn next_stale(&self, key: &Key, from: u64) -> Outcome<Option<u64>> {
        let find =
            |content: &Content, mut few: Range<u64>| few.find(|&block_idx| content.is_stale(block_idx));
        self.find_in_blocks(key, from, find)
    }

    /// Blocks that a refit has something to do with.
    pub(crate) fn count_stale(&self, key: &Key) -> Outcome<u64> {
        let mut n_stale = 0;
        self.find_in_blocks(key, 0, |content, few| {
            n_stale += few.filter(|&block_idx| content.is_stale(block_idx)).count() as u64;
            None::<u64>
        })?;
        Ok(n_stale)
    }

    /// Looks through the blocks from `from` on, a few at a time: the lock is not held for long, however many there are.
    fn find_in_blocks<T>(
        &self,
        key: &Key,
        mut from: u64,
        mut find: impl FnMut(&Content, Range<u64>) -> Option<T>,
    ) -> Outcome<Option<T>> {
        loop {
            let mut inner = self.inner.lock();
            let content = &self.keyed(&mut inner, key)?.content;
            if from >= content.n_blocks() {
                return Ok(None);
            }
            let few = from..content.n_blocks().min(from.saturating_add(BLOCKS));
            from = few.end;
            if let Some(found) = find(content, few) {
                return Ok(Some(found));
            }
        }
    }

    /// The first block from `from` on that has overlays.
    pub(crate) fn next_overlaid(&self, key: &Key, from: u64) -> Outcome<Option<u64>> {
        let mut inner = self.inner.lock();
        Ok(self.keyed(&mut inner, key)?.content.overlaid.range(from..).next().copied())
    }

    /// Stores blocks of a tensor; the caller holds its `writing` lock. Returns the revision.
    ///
    /// Changes whose block has another word by now are handed back, with their extents free again.
    ///
    /// # Errors
    /// Nothing is changed then, and every extent is free again.
    pub(crate) fn store_blocks(
        &self,
        key: &Key,
        changes: Vec<Change>,
        intent: Intent,
    ) -> Outcome<(u64, Vec<u64>)> {
        let mut inner = self.inner.lock();
        if let Err(refusal) = self.check_change(&mut inner, key, &changes, intent) {
            changes.into_iter().for_each(|change| inner.data.free(change.into_extent()));
            return Err(refusal);
        }
        let Inner { tensors, directory, data, stored_bytes, changed, .. } = &mut *inner;
        let tensor = tensors.get_mut(&key.name).expect("checked above, under the same lock");
        let (mut leftover, mut missed) = (Leftover::default(), Vec::new());
        let before = tensor.content.sums.stored_bytes;
        let mut left = changes.len();
        // Before the first word: an extent that a reader has found was published in this epoch or later.
        let published = directory.epoch();
        if intent == Intent::Update {
            directory.begin_update();
        }
        for change in changes {
            let (block_idx, from) = (change.block_idx, change.from);
            let word = &tensor.words(directory)[index(block_idx)];
            let sequence = from.sequence().wrapping_add(1);
            let to = match &change.to {
                Stored::Block(block) => block.word(sequence),
                Stored::Overlay(overlay) => {
                    let (offset, generation_idx) = (overlay.extent.offset(), from.generation_idx());
                    BlockWord::resident(offset, generation_idx, BlockWord::OVERLAY, sequence)
                }
                Stored::Moved(extent) => {
                    let flags = from.bits() & BlockWord::RAW;
                    BlockWord::resident(extent.offset(), from.generation_idx(), flags, sequence)
                }
            };
            if publish_word(word, from, to).is_err() {
                missed.push(block_idx);
                data.free(change.into_extent());
                continue;
            }
            reach(Point::WordSwapped);
            directory.push_changed(Changed { slot: key.slot_idx, block_idx });
            match change.to {
                Stored::Block(block) => {
                    let block = StoredBlock { published, ..block };
                    tensor.content.replace(block_idx, block, &mut leftover);
                }
                Stored::Overlay(overlay) => {
                    tensor.content.cover(block_idx, StoredOverlay { published, ..overlay });
                }
                Stored::Moved(extent) => {
                    let to = Left { extent, published };
                    leftover.extents.push(tensor.content.relocate(block_idx, to));
                }
            }
            let changed =
                if intent == Intent::Update { tensor.content.geometry.block(block_idx).raw_bytes } else { 0 };
            tensor.note_change(changed);
            left -= 1;
            if left > 0 {
                reach(Point::BetweenWords);
            }
        }
        if intent == Intent::Update {
            directory.end_update();
        }
        reach(Point::WordsStored);
        *stored_bytes = *stored_bytes - before + tensor.content.sums.stored_bytes;
        let revision = match intent {
            Intent::Update => {
                changed.insert(key.name.clone());
                directory.count_update(&tensor.table).expect("the table is this tensor's")
            }
            Intent::Rewrite => tensor.revision(directory),
        };
        inner.retire_leftover(key, leftover)?;
        Ok((revision, missed))
    }

    /// Refuses changes of a tensor that is gone, beyond the quota, or at the end of the clock.
    fn check_change(&self, inner: &mut Inner, key: &Key, changes: &[Change], intent: Intent) -> Outcome<()> {
        self.keyed(inner, key)?;
        if intent == Intent::Update {
            inner.commits.check()?;
        }
        if inner.directory.epoch() >= tierpack_shm::epoch::MAX_EPOCH - 1 {
            return Err(end_of_clock());
        }
        if intent == Intent::Rewrite {
            return Ok(());
        }
        let content = &inner.tensors[&key.name].content;
        let replaced = |change: &Change| match &change.to {
            Stored::Block(_) => content.block(change.block_idx).map_or(0, StoredBlock::stored_bytes),
            Stored::Overlay(_) | Stored::Moved(_) => 0,
        };
        let less: u64 = changes.iter().map(replaced).sum();
        // Their extents are taken, and so counted, already.
        inner.check_quota(&self.name, Place::Blocks(&key.name, less), 0)
    }
}
