//! Decoding: blocks that are not raw, straight from the pool into the caller's buffer.
//!
//! A handle keeps one coder per index of the tensor's generation table, built at the first read that needs it; after
//! that a row costs no allocation.
//! The geometry finds a row in its block's front; the block's header says how far the overflow goes.
//!
//! An index is used again for another generation, so a kept coder counts only if its number is the one in the table.
//! Within one guard that is asked once per index: a generation index retires as an extent does, so an index that a
//! word named under this guard's lease is not entered anew before the lease ends.
//! An index that no word has named yet may be entered meanwhile, but that happens before the word that names it is
//! stored, and nothing looks at an entry before such a word was loaded.

use std::cell::{OnceCell, RefCell};
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tierpack_kernels::block::{Block, HEADER_BYTES, stored_len};
use tierpack_kernels::codec::{Rows, Scratch, decode_block};
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, geometry::Geometry};
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::layout::generation::ENTRIES;
use tierpack_shm::types::{BlockWord, index};

use crate::handle::{Fault, Opened};

/// The coders that a handle has built, by index in the generation table.
#[derive(Debug, Default)]
pub(crate) struct KeptCoders([ArcSwapOption<Coder>; index(ENTRIES)]);

type KeptCoder = arc_swap::Guard<Option<Arc<Coder>>>;

impl KeptCoders {
    /// The coder of generation `number` at an index; `make` makes one where another or none is kept.
    fn get(&self, idx: usize, number: u32, make: impl FnOnce() -> Option<Coder>) -> Option<KeptCoder> {
        let kept = self.0.get(idx)?;
        let found = kept.load();
        if found.as_ref().is_some_and(|coder| coder.generation() == number) {
            return Some(found);
        }
        let fresh = Some(Arc::new(make()?));
        kept.store(fresh.clone());
        Some(KeptCoder::from_inner(fresh))
    }
}

/// The coders that one call has needed so far, under its guard.
pub(crate) struct Coders<'a, A: Deref<Target = Attachment>> {
    pub(crate) guard: &'a Guard<A>,
    pub(crate) opened: &'a Opened,
    looked_up: [OnceCell<KeptCoder>; index(ENTRIES)],
}

impl<'a, A: Deref<Target = Attachment>> Coders<'a, A> {
    /// None yet.
    #[inline]
    pub(crate) fn new(guard: &'a Guard<A>, opened: &'a Opened) -> Self {
        Self { guard, opened, looked_up: [const { OnceCell::new() }; index(ENTRIES)] }
    }

    /// The coder of the metadata that `word` names, which was loaded under the guard.
    #[inline]
    pub(crate) fn get(&self, word: BlockWord) -> Result<&Coder, NoGuard> {
        let idx = usize::from(word.generation_idx());
        let cell = self.looked_up.get(idx).ok_or(NoGuard::Corrupt)?;
        let kept = match cell.get() {
            Some(kept) => kept,
            None => self.look_up(word, cell)?,
        };
        kept.as_deref().ok_or(NoGuard::Corrupt)
    }

    fn look_up<'c>(&self, word: BlockWord, cell: &'c OnceCell<KeptCoder>) -> Result<&'c KeptCoder, NoGuard> {
        let (number, bytes) = self.guard.generation(word.generation_idx())?;
        let make = || parse(number, bytes, &self.opened.geometry);
        let kept = self.opened.coders.get(usize::from(word.generation_idx()), number, make);
        let kept = kept.ok_or(NoGuard::Corrupt)?;
        Ok(cell.get_or_init(|| kept))
    }
}

fn parse(number: u32, bytes: &[u8], geometry: &Geometry) -> Option<Coder> {
    let metadata = Metadata::parse(bytes, geometry).ok()?;
    if metadata.generation() != number {
        return None;
    }
    Coder::new(&metadata, geometry).ok()
}

/// All stored bytes of a block, as many as its own header says; not yet looked at.
#[inline]
fn whole<A>(guard: &Guard<A>, word: BlockWord) -> Result<&[u8], NoGuard>
where
    A: Deref<Target = Attachment>,
{
    let header = guard.stored(word, HEADER_BYTES)?;
    guard.stored(word, stored_len(header))
}

/// Decodes a block into `out`, which has its raw length.
pub(crate) fn decode_whole<A>(coders: &Coders<'_, A>, word: BlockWord, out: &mut [u8]) -> Result<(), NoGuard>
where
    A: Deref<Target = Attachment>,
{
    let block = Block::parse(whole(coders.guard, word)?).map_err(|_| NoGuard::Corrupt)?;
    decode_block(&block, Some(coders.get(word)?), out).map_err(|_| NoGuard::Corrupt)
}

/// The rows of a block.
#[inline]
pub(crate) fn rows<'c, A>(
    coders: &'c Coders<'_, A>,
    word: BlockWord,
    block_idx: u64,
) -> Result<Rows<'c>, Fault>
where
    A: Deref<Target = Attachment>,
{
    let coder = coders.get(word)?;
    Ok(Rows::new(coder, block_idx, whole(coders.guard, word)?).map_err(|_| NoGuard::Corrupt)?)
}

/// Calls `read` with this thread's room to decode in.
#[inline]
pub(crate) fn with_scratch<T>(read: impl FnOnce(&mut Scratch) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
    }
    SCRATCH.with_borrow_mut(read)
}

#[cfg(test)]
mod tests;
