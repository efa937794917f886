//! What a slot says about its tensor.

use super::{Attachment, NoGuard};
use crate::layout::{generation, slot, table};
use crate::sync::{AtomicU64, Ordering};
use crate::types::{SlotIdx, UNIT_BYTES, index};

/// Where a handle's tensor is: what the daemon answers to `open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SlotRef {
    /// Address of the slot in units of the directory.
    pub address: u64,
    /// Its index.
    pub idx: SlotIdx,
    /// The epoch in which it was published.
    pub publication: u64,
}

/// A look at what one slot says about its tensor, under a guard that covers it.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    pub(super) attachment: &'a Attachment,
    pub(super) slot: SlotRef,
}

/// Where the metadata of a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its number.
    pub number: u32,
    pub(super) len: u32,
    pub(super) address: u64,
}

impl<'a> Look<'a> {
    #[inline]
    fn field(&self, at: u64) -> Result<u64, NoGuard> {
        let words = self.attachment.words(self.slot.address, slot::BYTES / 8)?;
        // Relaxed: the Acquire of the publication check came first.
        Ok(words[index(at / 8)].load(Ordering::Relaxed))
    }

    /// As [`Guard::words`](super::Guard::words).
    ///
    /// # Errors
    /// As [`Guard::words`](super::Guard::words).
    #[inline]
    pub fn words(&self) -> Result<&'a [AtomicU64], NoGuard> {
        let first = self.field(slot::TABLE_AT)?.saturating_add(table::WORDS_AT / UNIT_BYTES);
        self.attachment.words(first, self.field(slot::N_BLOCKS_AT)?)
    }

    pub(super) fn revision(&self) -> Result<u64, NoGuard> {
        // Acquire: an update stores its words before it counts itself.
        Ok(self.attachment.words(self.field(slot::TABLE_AT)?, 1)?[0].load(Ordering::Acquire))
    }

    /// The generation that a block word's index names.
    ///
    /// # Errors
    /// As [`Guard::words`](super::Guard::words); [`NoGuard::Corrupt`] for an index beyond the table.
    pub fn generation(&self, generation_idx: u8) -> Result<Generation, NoGuard> {
        if u64::from(generation_idx) >= self.field(slot::N_GENERATIONS_AT)? {
            return Err(NoGuard::Corrupt);
        }
        let entries = self.field(slot::GENERATIONS_AT)?;
        let words =
            self.attachment.words(entries, (u64::from(generation_idx) + 1) * generation::ENTRY_BYTES / 8)?;
        let at = |field: u64| index((u64::from(generation_idx) * generation::ENTRY_BYTES + field) / 8);
        let number_and_len = words[at(generation::NUMBER_AND_LEN_AT)].load(Ordering::Acquire);
        let address = words[at(generation::METADATA_AT)].load(Ordering::Acquire);
        let number = u32::try_from(number_and_len >> 32).map_err(|_| NoGuard::Corrupt)?;
        let len = u32::try_from(number_and_len & 0xFFFF_FFFF).map_err(|_| NoGuard::Corrupt)?;
        Ok(Generation { number, len, address })
    }
}
