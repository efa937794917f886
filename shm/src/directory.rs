//! The daemon's side of a namespace's directory: header, slots, block tables, generation tables.
//!
//! A slot's memory is never used for anything but slots, so that a stale handle that looks at it can only see
//! another publication. It is never returned either, so beyond the first segment slots have segments of their own, and
//! those of the tables return.

use std::sync::Arc;

use crate::epoch::{Stamp, retire};
use crate::error::{Error, Result};
use crate::layout::{LAYOUT_VERSION, SEGMENT_SPAN_UNITS, generation, header, slot, table};
use crate::page::NamespaceId;
use crate::pool::{Fresh, Pool};
use crate::publish::{publish_slot, unpublish_slot};
use crate::ring::{Changed, Ring};
use crate::segment::Segment;
use crate::seqcount::{begin_change, end_change};
use crate::sync::{AtomicU64, Ordering};
use crate::types::{BlockWord, Extent, SlotIdx, UNIT_BYTES};

#[expect(clippy::cast_possible_truncation, reason = "a small constant of the layout")]
const SLOTS_PER_SLAB: u32 = slot::PER_SLAB as u32;

/// A slot of the directory, taken or free; its holder owns it.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    idx: SlotIdx,
    address: u64,
}

impl Slot {
    /// Its index, as leases store it.
    pub fn idx(&self) -> SlotIdx {
        self.idx
    }

    /// Its address in units of the directory.
    pub fn address(&self) -> u64 {
        self.address
    }
}

/// What a slot says about its tensor.
#[derive(Clone, Copy, Debug)]
pub struct SlotFields<'a> {
    /// The block table.
    pub table: &'a Extent,
    /// Blocks.
    pub n_blocks: u64,
    /// The generation table.
    pub generations: &'a Extent,
    /// Dtype number.
    pub dtype: u8,
    /// Access number.
    pub access: u8,
    /// Gather rows.
    pub n_rows: u64,
    /// Bytes of a gather row.
    pub row_bytes: u64,
    /// Raw bytes of the tensor.
    pub raw_bytes: u64,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// There is no room for another slab of slots: they need a reserved segment.
    Room,
    /// There is no room for the tables.
    TableRoom,
    /// So many slots are in use, which is the limit.
    Limit(u32),
}

/// The directory of one namespace.
#[derive(Debug)]
pub struct Directory {
    pool: Pool,
    header: Arc<Segment>,
    free_slots: Vec<Slot>,
    /// Indexes of slots in barred segments: each is used again by a slot in other memory.
    free_indexes: Vec<SlotIdx>,
    slots_made: u32,
    max_slots: u32,
}

impl Directory {
    /// A directory whose segment 0 is `segment`.
    ///
    /// # Panics
    /// When the segment is shorter than `layout::MIN_SEGMENT_BYTES`.
    pub fn new(segment: Segment, id: NamespaceId) -> Self {
        let (mut pool, header) = (Pool::default(), Arc::new(segment));
        let first = pool.next_index().expect("an empty pool has every index");
        pool.add(first, Arc::clone(&header), header::END);
        let this = Self {
            pool,
            header,
            free_slots: Vec::new(),
            free_indexes: Vec::new(),
            slots_made: 0,
            max_slots: SlotIdx::EVERY.get(),
        };
        this.word(header::MAGIC_AT).store(header::MAGIC, Ordering::Relaxed);
        this.word(header::INSTANCE_AT).store(id.instance, Ordering::Relaxed);
        this.word(header::NAMESPACE_AT).store(u64::from(id.namespace), Ordering::Relaxed);
        this.word(header::RING_CAPACITY_AT).store(header::RING_CAPACITY, Ordering::Relaxed);
        this.word(header::EPOCH_AT).store(1, Ordering::Relaxed);
        // Release: the header is whole when its version is seen.
        this.word(header::VERSION_AT).store(u64::from(LAYOUT_VERSION), Ordering::Release);
        this
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.header.word(at).expect("segment 0 holds the header")
    }

    /// The segments and what is free in them.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// As [`Directory::pool`], to grow it or free extents.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Steps the epoch; `None` at the end of the clock.
    pub fn retire(&self) -> Option<Stamp> {
        retire(self.word(header::EPOCH_AT))
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.word(header::EPOCH_AT).load(Ordering::Acquire)
    }

    /// Notes that names or slots change from here on, until [`Directory::end_names`].
    pub fn begin_names(&self) {
        begin_change(self.word(header::NAMES_AT));
    }

    /// Notes that they have changed.
    pub fn end_names(&self) {
        end_change(self.word(header::NAMES_AT));
    }

    /// The sequence count of names and slots.
    pub fn names(&self) -> u64 {
        self.word(header::NAMES_AT).load(Ordering::Relaxed)
    }

    /// Notes that an update stores its words from here on, until [`Directory::end_update`].
    pub fn begin_update(&self) {
        begin_change(self.word(header::UPDATES_AT));
    }

    /// Notes that its words are stored and pushed.
    pub fn end_update(&self) {
        end_change(self.word(header::UPDATES_AT));
    }

    /// Tells device copies of a changed block.
    ///
    /// # Panics
    /// Never: segment 0 holds the ring.
    pub fn push_changed(&self, changed: Changed) {
        let entries = self.header.words(header::RING_AT, header::RING_CAPACITY);
        Ring::new(self.word(header::RING_HEAD_AT), entries.expect("segment 0 holds the ring")).push(changed);
    }

    /// Lowers the limit on slots, for tests of what happens there.
    #[doc(hidden)]
    pub fn limit_slots(&mut self, max_slots: u32) {
        self.max_slots = max_slots;
    }

    /// Takes a free slot.
    ///
    /// # Errors
    /// [`NoSlot`] says what is missing.
    pub fn take_slot(&mut self) -> core::result::Result<Slot, NoSlot> {
        if self.free_slots.is_empty() {
            if self.free_indexes.is_empty() && self.slots_made >= self.max_slots {
                return Err(NoSlot::Limit(self.max_slots));
            }
            let slab = self.new_slab().ok_or(NoSlot::Room)?.freeze();
            // Near the end of the indexes a slab has fewer slots.
            let indexes: Vec<_> = (0..SLOTS_PER_SLAB).map_while(|_| self.next_index()).collect();
            for (n, idx) in indexes.into_iter().enumerate().rev() {
                let address = slab.offset() + n as u64 * (slot::BYTES / UNIT_BYTES);
                self.free_slots.push(Slot { idx, address });
            }
        }
        self.free_slots.pop().ok_or(NoSlot::Limit(self.max_slots))
    }

    /// Memory for slots, from a reserved segment; from the first one while it is the only one.
    fn new_slab(&mut self) -> Option<Fresh> {
        let len = slot::PER_SLAB * slot::BYTES;
        let is_first = self.pool.segments().nth(1).is_none();
        self.pool.allocate_reserved(len).or_else(|| if is_first { self.pool.allocate(len) } else { None })
    }

    /// Whether a slot can be taken without another reserved segment.
    pub fn has_slot(&mut self) -> bool {
        match self.take_slot() {
            Ok(slot) => {
                self.give_slot(slot);
                true
            }
            Err(no_slot) => no_slot != NoSlot::Room,
        }
    }

    fn next_index(&mut self) -> Option<SlotIdx> {
        if let Some(idx) = self.free_indexes.pop() {
            return Some(idx);
        }
        let idx = SlotIdx::new(self.slots_made).filter(|idx| idx.get() < self.max_slots)?;
        self.slots_made += 1;
        Some(idx)
    }

    /// Frees a slot: it was never published, or the lease rule allows its reuse.
    pub fn give_slot(&mut self, slot: Slot) {
        if self.is_barred(&slot) {
            self.free_indexes.push(slot.idx);
        } else {
            self.free_slots.push(slot);
        }
    }

    fn is_barred(&self, slot: &Slot) -> bool {
        self.pool.is_segment_barred(crate::types::index(slot.address / SEGMENT_SPAN_UNITS))
    }

    /// Puts no slot and no table of another tensor into these segments.
    ///
    /// Slots in them stay hidden once they are free, so their memory is never used for anything else.
    pub fn bar_segments(&mut self, segments: &[usize]) {
        segments.iter().for_each(|&segment_idx| self.pool.bar_segment(segment_idx));
        for slot in std::mem::take(&mut self.free_slots) {
            self.give_slot(slot);
        }
    }

    /// Makes a block table with these words; `None` when there is no room.
    pub fn new_table(&mut self, words: &[BlockWord]) -> Option<Extent> {
        let table = self.pool.allocate(table::bytes(words.len() as u64)?)?.freeze();
        let header_words = table::WORDS_AT / 8;
        let all = self.pool.words(table.offset(), words.len() as u64 + header_words).ok()?;
        for (n, shared) in all.iter().enumerate() {
            let word = n.checked_sub(crate::types::index(header_words)).map_or(0, |n| words[n].bits());
            // Relaxed: the slot's publication reveals the table.
            shared.store(word, Ordering::Relaxed);
        }
        Some(table)
    }

    /// Makes an empty generation table; `None` when there is no room.
    pub fn new_generations(&mut self) -> Option<Extent> {
        let len = generation::ENTRIES * generation::ENTRY_BYTES;
        let table = self.pool.allocate(len)?.freeze();
        self.pool
            .words(table.offset(), len / 8)
            .ok()?
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        Some(table)
    }

    /// Enters metadata into a generation table, before any word names it.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when the table has no such entry.
    pub fn set_generation(
        &self,
        table: &Extent,
        generation_idx: u8,
        (number, len): (u32, u32),
        metadata: &Extent,
    ) -> Result<()> {
        let [number_and_len, address] = self.generation_entry(table, generation_idx)?;
        number_and_len.store(u64::from(number) << 32 | u64::from(len), Ordering::Relaxed);
        // Release: pairs with the Acquire in `Guard::generation`.
        address.store(metadata.offset(), Ordering::Release);
        Ok(())
    }

    fn generation_entry(&self, table: &Extent, generation_idx: u8) -> Result<&[AtomicU64; 2]> {
        let at = table.offset();
        let words = self.pool.words(at, generation::ENTRIES * generation::ENTRY_BYTES / 8)?;
        let entry = words.as_chunks().0.get(usize::from(generation_idx));
        entry.ok_or(Error::OutOfSegment { what: "a generation", address: at, len: u64::from(generation_idx) })
    }

    /// Counts a committed update, after its words are stored; returns the new revision.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when the table is none of this directory.
    pub fn count_update(&self, table: &Extent) -> Result<u64> {
        let header = self.pool.words(table.offset(), table::WORDS_AT / 8)?;
        // Release: pairs with the Acquire in `Guard::revision`; the words of the update are seen with it.
        Ok(header[crate::types::index(table::REVISION_AT / 8)].fetch_add(1, Ordering::Release) + 1)
    }

    /// The words of a block table.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when the table is shorter.
    pub fn table_words(&self, table: &Extent, n_blocks: u64) -> Result<&[AtomicU64]> {
        let first = table.offset() + table::WORDS_AT / UNIT_BYTES;
        if table::bytes(n_blocks).is_none_or(|needed| needed > table.len_bytes()) {
            return Err(Error::OutOfSegment {
                what: "a block table",
                address: first,
                len: n_blocks.saturating_mul(8),
            });
        }
        self.pool.words(first, n_blocks)
    }

    /// Fills a free slot and reveals it; returns the epoch of this publication.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when the slot is not one of this directory.
    pub fn publish(&self, slot: &Slot, fields: SlotFields<'_>) -> Result<u64> {
        let words = self.pool.words(slot.address, slot::BYTES / 8)?;
        let store = |at: u64, value: u64| words[crate::types::index(at / 8)].store(value, Ordering::Relaxed);
        store(slot::INDEX_AT, u64::from(slot.idx.get()));
        store(slot::TABLE_AT, fields.table.offset());
        store(slot::N_BLOCKS_AT, fields.n_blocks);
        store(slot::GENERATIONS_AT, fields.generations.offset());
        store(slot::N_GENERATIONS_AT, generation::ENTRIES);
        store(slot::DTYPE_AT, u64::from(fields.dtype) | u64::from(fields.access) << 8);
        store(slot::N_ROWS_AT, fields.n_rows);
        store(slot::ROW_BYTES_AT, fields.row_bytes);
        store(slot::RAW_BYTES_AT, fields.raw_bytes);
        let epoch = self.epoch();
        publish_slot(&words[crate::types::index(slot::PUBLICATION_AT / 8)], epoch);
        Ok(epoch)
    }

    /// Hides a slot; the caller steps the epoch and waits for the leases before it frees the slot.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when the slot is not one of this directory.
    pub fn unpublish(&self, slot: &Slot) -> Result<()> {
        let words = self.pool.words(slot.address, slot::BYTES / 8)?;
        unpublish_slot(&words[crate::types::index(slot::PUBLICATION_AT / 8)]);
        Ok(())
    }

    /// The header segment, which clients get first.
    ///
    /// # Panics
    /// Never: segment 0 is never taken out.
    pub fn header_segment(&self) -> &Arc<Segment> {
        self.pool.segment(0).expect("segment 0 stays, it holds the header")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MIN_SEGMENT_BYTES;

    fn directory() -> Directory {
        let header = Segment::create(MIN_SEGMENT_BYTES).expect("a segment");
        Directory::new(header, NamespaceId { instance: 1, namespace: 1 })
    }

    #[test]
    fn the_limit_on_slots_is_told_apart_from_a_lack_of_room() {
        let mut directory = directory();
        directory.limit_slots(40);
        let mut slots: Vec<_> = (0..40).map(|_| directory.take_slot().expect("a slot")).collect();
        assert_eq!(directory.take_slot(), Err(NoSlot::Limit(40)));
        directory.give_slot(slots.pop().expect("forty slots"));
        assert_eq!(directory.take_slot().map(|slot| slot.idx().get()), Ok(39));
        directory.limit_slots(u32::MAX);
        let error = (0..).find_map(|_| directory.take_slot().err());
        assert_eq!(error, Some(NoSlot::Room));
    }

    #[test]
    fn a_barred_segment_keeps_its_slots_and_gives_their_indexes_to_other_memory() {
        let mut directory = directory();
        directory.limit_slots(SLOTS_PER_SLAB);
        let taken = directory.take_slot().expect("a slot");
        directory.bar_segments(&[0]);
        assert_eq!(directory.take_slot(), Err(NoSlot::Room), "the free slots lie in the barred segment");
        let added = directory.pool_mut().next_index().expect("an index");
        let segment = Arc::new(Segment::create(MIN_SEGMENT_BYTES).expect("a segment"));
        directory.pool_mut().add_reserved(added, segment);
        let mut found = std::collections::BTreeSet::from([taken.idx().get()]);
        directory.give_slot(taken);
        while let Ok(slot) = directory.take_slot() {
            assert_eq!(slot.address() / SEGMENT_SPAN_UNITS, added as u64);
            found.insert(slot.idx().get());
        }
        assert_eq!(found.len() as u64, slot::PER_SLAB, "every index is used again");
        assert_eq!(directory.take_slot(), Err(NoSlot::Limit(SLOTS_PER_SLAB)));
    }
}
