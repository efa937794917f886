//! Blocks: their words, their bytes, and copies of whole ones.

use std::cell::Cell;
use std::ops::{Deref, Range};

use tierpack_kernels::codec;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::page::ACCESS_SAMPLE;
use tierpack_shm::publish::load_word;
use tierpack_shm::sync::AtomicU64;
use tierpack_shm::types::{BlockWord, index};

use crate::decode::{coder, decode_whole};
use crate::error::Error;
use crate::handle::{Fault, Opened};

/// Copies neighboring blocks: all of a tensor, or the pieces of a row that is longer than a block.
pub(crate) fn copy_run<A>(
    guard: &Guard<A>,
    opened: &Opened,
    blocks: Range<u64>,
    out: &mut [u8],
) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = guard.words()?;
    let mut rest = out;
    for block_idx in blocks {
        let raw_bytes = opened.geometry.block(block_idx).raw_bytes;
        let (target, left) = rest.split_at_mut_checked(index(raw_bytes)).ok_or(NoGuard::Corrupt)?;
        let word = word(words, block_idx)?;
        reach(Point::CopyWordLoaded);
        if word.is_raw() {
            let block = block_bytes(guard, word, block_idx, raw_bytes)?;
            target.copy_from_slice(codec::raw_payload(block, raw_bytes).ok_or(NoGuard::Corrupt)?);
        } else {
            check_readable(guard, word, block_idx)?;
            decode_whole(guard, coder(guard, opened, word)?, word, target)?;
        }
        rest = left;
        if !rest.is_empty() {
            reach(Point::CopyBetweenBlocks);
        }
    }
    Ok(())
}

/// The word of a block.
#[inline]
pub(crate) fn word(words: &[AtomicU64], block_idx: u64) -> Result<BlockWord, NoGuard> {
    words.get(index(block_idx)).map(load_word).ok_or(NoGuard::Corrupt)
}

/// The stored bytes of a raw block of `raw_bytes`, header first.
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
    if !word.is_raw() {
        return Err(unsupported(word, block_idx).into());
    }
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
    if !word.is_resident() || word.is_overlay() {
        return Err(unsupported(word, block_idx).into());
    }
    if is_sampled() {
        guard.record_access(block_idx);
    }
    Ok(())
}

#[cold]
fn unsupported(word: BlockWord, block_idx: u64) -> Error {
    let state = match word {
        word if !word.is_resident() => "not in the pool",
        word if word.is_overlay() => "updated by an overlay",
        _ => "encoded",
    };
    Error::Unsupported { block_idx, state }
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
