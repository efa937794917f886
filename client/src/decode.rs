//! Decoding: blocks that are not raw, straight from the pool into the caller's buffer.
//!
//! A handle keeps coders by index of the tensor's generation table, built at the first read that needs it; after
//! that a row costs no allocation.
//! The geometry finds a row in its block's front; the block's header says how far the overflow goes.
//!
//! An index is used again for another generation, so a kept coder counts only if its number is the one in the table.
//! Within one guard that is asked once per index: a generation index retires as an extent does, so an index that a
//! word named under this guard's lease is not entered again before the lease ends.
//! It is asked before the lease is finished: what is entered later is not held. Each batch of a call asks again.
//! An index that no word has named yet may be entered meanwhile, but that happens before the word that names it is
//! stored, and nothing looks at an entry before such a word was loaded.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::OnceLock;

use tierpack_kernels::block::{Block, HEADER_BYTES, stored_len};
use tierpack_kernels::codec::{Rows, Scratch, decode_block};
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, geometry::Geometry};
use tierpack_shm::attachment::{Attachment, Generation, Guard, NoGuard};
use tierpack_shm::layout::generation::ENTRIES;
use tierpack_shm::types::{BlockWord, index};

use crate::handle::{Fault, Opened};

/// Coders that are kept per index; when these are full, the whole set is rebuilt.
const KEPT_PER_INDEX: usize = 4;

/// The coders that a handle has built, by index in the generation table.
///
/// Each stays as long as this does, so that using one costs no count of who uses it.
/// When an index has no room left, the handle gets another of these: see [`Fault::NoRoom`].
#[derive(Debug, Default)]
pub(crate) struct KeptCoders([[OnceLock<Box<Coder>>; KEPT_PER_INDEX]; index(ENTRIES)]);

impl KeptCoders {
    /// The coder of generation `number` at an index; `make` makes one where there is none.
    #[inline]
    fn get(&self, idx: usize, number: u32, make: impl FnOnce() -> Option<Coder>) -> Result<&Coder, Fault> {
        let kept = self.0.get(idx).ok_or(NoGuard::Corrupt)?;
        let found = kept.iter().map_while(OnceLock::get).find(|coder| coder.generation() == number);
        match found {
            Some(coder) => Ok(coder),
            None => make_coder(kept, number, make),
        }
    }
}

#[cold]
fn make_coder(
    kept: &[OnceLock<Box<Coder>>],
    number: u32,
    make: impl FnOnce() -> Option<Coder>,
) -> Result<&Coder, Fault> {
    let mut fresh = Some(Box::new(make().ok_or(NoGuard::Corrupt)?));
    for place in kept {
        // Another thread may have been faster, with the same generation.
        let coder = match (place.get(), fresh.take()) {
            (Some(coder), made) => {
                fresh = made;
                coder
            }
            (None, Some(made)) => place.get_or_init(|| made),
            (None, None) => break,
        };
        if coder.generation() == number {
            return Ok(coder);
        }
    }
    Err(Fault::NoRoom)
}

/// The coders that one call has needed so far, under its guard.
pub(crate) struct Coders<'a, A: Deref<Target = Attachment>> {
    pub(crate) guard: &'a Guard<A>,
    pub(crate) opened: &'a Opened,
    looked_up: [Cell<Option<&'a Coder>>; index(ENTRIES)],
}

impl<'a, A: Deref<Target = Attachment>> Coders<'a, A> {
    /// None yet.
    #[inline]
    pub(crate) fn new(guard: &'a Guard<A>, opened: &'a Opened) -> Self {
        Self { guard, opened, looked_up: [const { Cell::new(None) }; index(ENTRIES)] }
    }

    /// Those of generations that were looked up before the guard was finished, by their indexes.
    pub(crate) fn of(
        guard: &'a Guard<A>,
        opened: &'a Opened,
        generations: &[(u8, Generation)],
    ) -> Result<Self, Fault> {
        let this = Self::new(guard, opened);
        for &(generation_idx, generation) in generations {
            let (idx, number) = (usize::from(generation_idx), generation.number);
            let bytes = guard.metadata(generation)?;
            let coder = opened.coders.get(idx, number, || parse(number, bytes, &opened.geometry))?;
            this.looked_up.get(idx).ok_or(NoGuard::Corrupt)?.set(Some(coder));
        }
        Ok(this)
    }

    /// The coder of the metadata that `word` names, which was loaded under the guard.
    #[inline]
    pub(crate) fn get(&self, word: BlockWord) -> Result<&'a Coder, Fault> {
        let idx = usize::from(word.generation_idx());
        let looked_up = self.looked_up.get(idx).ok_or(NoGuard::Corrupt)?;
        match looked_up.get() {
            Some(coder) => Ok(coder),
            None => self.look_up(idx, looked_up),
        }
    }

    /// Once per index: kept out of the loop over rows.
    #[inline(never)]
    fn look_up(&self, idx: usize, looked_up: &Cell<Option<&'a Coder>>) -> Result<&'a Coder, Fault> {
        let generation_idx = u8::try_from(idx).map_err(|_| NoGuard::Corrupt)?;
        let (number, bytes) = self.guard.generation(generation_idx)?;
        let coder = self.opened.coders.get(idx, number, || parse(number, bytes, &self.opened.geometry))?;
        looked_up.set(Some(coder));
        Ok(coder)
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
pub(crate) fn whole<A>(guard: &Guard<A>, word: BlockWord) -> Result<&[u8], NoGuard>
where
    A: Deref<Target = Attachment>,
{
    let header = guard.stored(word, HEADER_BYTES)?;
    guard.stored(word, stored_len(header))
}

/// Decodes a block into `out`, which has its raw length.
pub(crate) fn decode_whole<A>(coders: &Coders<'_, A>, word: BlockWord, out: &mut [u8]) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let block = Block::parse(whole(coders.guard, word)?).map_err(|_| NoGuard::Corrupt)?;
    Ok(decode_block(&block, Some(coders.get(word)?), out).map_err(|_| NoGuard::Corrupt)?)
}

/// The rows of a block.
#[inline]
pub(crate) fn rows<'a, A>(coders: &Coders<'a, A>, word: BlockWord, block_idx: u64) -> Result<Rows<'a>, Fault>
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
