//! Decoding: blocks that are not raw, straight from the pool into the caller's buffer.
//!
//! A handle builds its coder from the tensor's metadata at its first read; after that a row costs no allocation.
//! The geometry finds a row in its block's front; the block's header says how far the overflow goes.

use std::cell::RefCell;
use std::ops::Deref;

use tierpack_kernels::block::{Block, HEADER_BYTES, stored_len};
use tierpack_kernels::codec::{Rows, Scratch, decode_block};
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, geometry::Geometry};
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::types::BlockWord;

use crate::handle::{Fault, Opened};

/// The coder of the metadata that `word` names; built once per handle.
pub(crate) fn coder<'a, A>(guard: &Guard<A>, opened: &'a Opened, word: BlockWord) -> Result<&'a Coder, Fault>
where
    A: Deref<Target = Attachment>,
{
    if let Some(coder) = opened.coder.get() {
        return Ok(coder);
    }
    let (number, bytes) = guard.generation(word.generation_idx())?;
    let coder = parse(number, bytes, &opened.geometry).ok_or(NoGuard::Corrupt)?;
    Ok(opened.coder.get_or_init(|| coder))
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
pub(crate) fn decode_whole<A>(
    guard: &Guard<A>,
    coder: &Coder,
    word: BlockWord,
    out: &mut [u8],
) -> Result<(), NoGuard>
where
    A: Deref<Target = Attachment>,
{
    let block = Block::parse(whole(guard, word)?).map_err(|_| NoGuard::Corrupt)?;
    decode_block(&block, Some(coder), out).map_err(|_| NoGuard::Corrupt)
}

/// The rows of a block.
#[inline]
pub(crate) fn rows<'a, A>(
    guard: &'a Guard<A>,
    coder: &'a Coder,
    word: BlockWord,
    block_idx: u64,
) -> Result<Rows<'a>, NoGuard>
where
    A: Deref<Target = Attachment>,
{
    Rows::new(coder, block_idx, whole(guard, word)?).map_err(|_| NoGuard::Corrupt)
}

/// Calls `read` with this thread's room to decode in.
#[inline]
pub(crate) fn with_scratch<T>(read: impl FnOnce(&mut Scratch) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
    }
    SCRATCH.with_borrow_mut(read)
}
