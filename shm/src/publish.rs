//! Publication: the words that reveal a tensor and its blocks.
//!
//! A slot's publication word holds the epoch in which it was published, and 0 while the slot is free.
//! Everything else in a slot is written only while it is free; a replacement takes another slot.
//! A block word is published by compare-and-swap from the word its writer read, so that two writers of one block
//! (update and fold) cannot lose each other's work.
//! Source: design brief, section 3, "Slots" and "Block word"; explored by `tests/loom.rs` together with the mutants
//! of [`Rules`].

use crate::sync::{AtomicU64, Ordering};
use crate::types::BlockWord;

/// The orderings of block words; loom shows that each mutant of [`Rules::SPEC`] breaks it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub word_load: Ordering,
    pub word_swap: Ordering,
}

impl Rules {
    pub const SPEC: Self = Self { word_load: Ordering::Acquire, word_swap: Ordering::AcqRel };
}

/// Daemon: reveals a slot whose fields are written; `epoch` is the current one and never 0.
#[inline]
pub fn publish_slot(publication: &AtomicU64, epoch: u64) {
    // Release: pairs with the Acquire in `is_published`; the slot's fields are seen with it.
    publication.store(epoch, Ordering::Release);
}

/// Daemon: hides a slot; it may be reused when the lease rule says so.
#[inline]
pub fn unpublish_slot(publication: &AtomicU64) {
    // Release: ordered before the step of the epoch that retires the slot.
    publication.store(0, Ordering::Release);
}

/// Reader, under a lease: whether the slot is still the publication that the handle was opened on.
#[inline]
pub fn is_published(publication: &AtomicU64, expected: u64) -> bool {
    // Acquire: pairs with the Release in `publish_slot`.
    publication.load(Ordering::Acquire) == expected
}

/// Reads a block word; a reader does so under a lease.
#[inline]
pub fn load_word(word: &AtomicU64) -> BlockWord {
    load_word_by(&Rules::SPEC, word)
}

#[doc(hidden)]
#[inline(always)]
pub fn load_word_by(rules: &Rules, word: &AtomicU64) -> BlockWord {
    // Acquire: pairs with the Release in `publish_word`; the bytes that the word addresses are seen with it.
    BlockWord::from_bits(word.load(rules.word_load))
}

/// Daemon: publishes `new` if the word is still `old`.
///
/// # Errors
/// The word found instead: the caller starts again from it.
#[inline]
pub fn publish_word(word: &AtomicU64, old: BlockWord, new: BlockWord) -> Result<(), BlockWord> {
    publish_word_by(&Rules::SPEC, word, old, new)
}

#[doc(hidden)]
#[inline(always)]
pub fn publish_word_by(
    rules: &Rules,
    word: &AtomicU64,
    old: BlockWord,
    new: BlockWord,
) -> Result<(), BlockWord> {
    // AcqRel: Release pairs with `load_word`; Acquire orders this writer after the one whose word it replaces.
    word.compare_exchange(old.bits(), new.bits(), rules.word_swap, Ordering::Acquire)
        .map(drop)
        .map_err(BlockWord::from_bits)
}
