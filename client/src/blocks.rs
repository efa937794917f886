//! Blocks: their words, their bytes, and copies of whole ones.
//!
//! Which way a block goes is for its own word to say: a refit may change a tensor's codec under a handle.

use std::cell::Cell;
use std::ops::{Deref, Range};

use tierpack_kernels::codec;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::page::ACCESS_SAMPLE;
use tierpack_shm::publish::load_word;
use tierpack_shm::sync::AtomicU64;
use tierpack_shm::types::{BlockWord, index};

use crate::decode::{Coders, decode_whole};
use crate::error::Error;
use crate::handle::Fault;
use crate::overlays::chain;

/// Copies neighboring blocks: all of a tensor, or the pieces of a row that is longer than a block.
pub(crate) fn copy_run<A>(coders: &Coders<'_, A>, blocks: Range<u64>, out: &mut [u8]) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = coders.guard.words()?;
    let mut rest = out;
    for block_idx in blocks {
        let shape = coders.opened.geometry.block(block_idx);
        let (target, left) = rest.split_at_mut_checked(index(shape.raw_bytes)).ok_or(NoGuard::Corrupt)?;
        let word = word(words, block_idx)?;
        reach(Point::CopyWordLoaded);
        if word.is_overlay() {
            let overlays = chain(coders.guard, word, shape.row_bytes).collect()?;
            copy_block(coders, overlays.block, block_idx, target)?;
            overlays.apply(target)?;
        } else {
            copy_block(coders, word, block_idx, target)?;
        }
        rest = left;
        if !rest.is_empty() {
            reach(Point::CopyBetweenBlocks);
        }
    }
    Ok(())
}

/// Copies the block that `word` addresses, as it was last stored as a whole; `out` has its raw length.
fn copy_block<A>(coders: &Coders<'_, A>, word: BlockWord, block_idx: u64, out: &mut [u8]) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    if word.is_raw() {
        let raw_bytes = out.len() as u64;
        let block = block_bytes(coders.guard, word, block_idx, raw_bytes)?;
        out.copy_from_slice(codec::raw_payload(block, raw_bytes).ok_or(NoGuard::Corrupt)?);
        return Ok(());
    }
    check_readable(coders.guard, word, block_idx)?;
    decode_whole(coders, word, out)
}

/// The word of a block.
#[inline]
pub(crate) fn word(words: &[AtomicU64], block_idx: u64) -> Result<BlockWord, NoGuard> {
    words.get(index(block_idx)).map(load_word).ok_or(NoGuard::Corrupt)
}

/// The stored bytes of a block of `raw_bytes` whose word says that it is raw, header first.
#[inline]
pub(crate) fn block_bytes<A>(
    guard: &Guard<A>,
    word: BlockWord,
    block_idx: u64,
    raw_bytes: u64,
) -> Result<&[u8], Fault>
where
    A: Deref<Target = Attachment>,
{
    check_readable(guard, word, block_idx)?;
    let len = tierpack_kernels::block::HEADER_BYTES + raw_bytes;
    Ok(guard.stored(word, len)?)
}

/// Refuses a block that this version cannot read; records the access for the eviction policy.
#[inline]
pub(crate) fn check_readable<A>(guard: &Guard<A>, word: BlockWord, block_idx: u64) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    if !word.is_resident() {
        return Err(not_resident(block_idx).into());
    }
    if is_sampled() {
        guard.record_access(block_idx);
    }
    Ok(())
}

#[cold]
fn not_resident(block_idx: u64) -> Error {
    Error::Unsupported { block_idx, state: "not in the pool" }
}

/// Whether this access is the one of many that the eviction policy hears of.
#[inline]
fn is_sampled() -> bool {
    thread_local! {
        static ACCESSES: Cell<u64> = const { Cell::new(0) };
    }
    let n = ACCESSES.get();
    ACCESSES.set(n.wrapping_add(1));
    n.is_multiple_of(ACCESS_SAMPLE)
}
