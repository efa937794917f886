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
use crate::handle::{Fault, Opened};
use crate::overlays::chain;

/// Blocks that one lease covers: a whole tensor of 64 MiB, usually.
const BATCH: usize = 256;
/// As [`BATCH`] for fewer blocks: room for their words costs less to make.
const FEW: usize = 8;

/// A guard that lives as long as one call.
pub(crate) type CallGuard<'o> = Guard<&'o Attachment>;

/// Copies neighboring blocks: all of a tensor, or the pieces of a row that is longer than a block; returns the last guard.
///
/// Each batch has a lease of its own, and a batch that finds another publication fails the call: blocks of two
/// publications never come together.
pub(crate) fn copy_run<'o>(
    opened: &'o Opened,
    blocks: Range<u64>,
    out: &mut [u8],
) -> Result<CallGuard<'o>, Fault> {
    if blocks.end - blocks.start <= FEW as u64 {
        copy_batches::<FEW>(opened, blocks, out)
    } else {
        copy_batches::<BATCH>(opened, blocks, out)
    }
}

fn copy_batches<'o, const N: usize>(
    opened: &'o Opened,
    mut blocks: Range<u64>,
    out: &mut [u8],
) -> Result<CallGuard<'o>, Fault> {
    let mut found = [BlockWord::from_bits(0); N];
    let mut rest = out;
    loop {
        let guard = opened.guard()?;
        let found = &mut found[..N.min(index(blocks.end - blocks.start))];
        let coders = Coders::new(&guard, opened);
        look_up_blocks(&coders, blocks.start, found)?;
        guard.finish();
        rest = copy_found(&coders, blocks.start, found, rest)?;
        blocks.start += found.len() as u64;
        if blocks.is_empty() {
            return Ok(guard);
        }
        drop(guard);
        reach(Point::CopyBetweenBlocks);
    }
}

/// Copies blocks whose words, and what they name, were looked up under the coders' guard; returns what is left of `out`.
pub(crate) fn copy_found<'b, A>(
    coders: &Coders<'_, A>,
    first: u64,
    found: &[BlockWord],
    out: &'b mut [u8],
) -> Result<&'b mut [u8], Fault>
where
    A: Deref<Target = Attachment>,
{
    let (mut rest, end) = (out, first + found.len() as u64);
    for (block_idx, &word) in (first..).zip(found) {
        let shape = coders.opened.geometry.block(block_idx);
        let (target, left) = rest.split_at_mut_checked(index(shape.raw_bytes)).ok_or(NoGuard::Corrupt)?;
        reach(Point::CopyWordLoaded);
        if word.is_overlay() {
            let overlays = chain(coders.guard, word, shape.row_bytes).collect()?;
            copy_block(coders, overlays.block, block_idx, target)?;
            overlays.apply(target)?;
        } else {
            copy_block(coders, word, block_idx, target)?;
        }
        rest = left;
        if block_idx + 1 < end {
            reach(Point::CopyBetweenBlocks);
        }
    }
    Ok(rest)
}

/// Loads the words of some blocks, and all that reading them takes from the tables.
fn look_up_blocks<A>(coders: &Coders<'_, A>, first: u64, found: &mut [BlockWord]) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = coders.guard.words()?;
    for (block_idx, found) in (first..).zip(found) {
        *found = word(words, block_idx)?;
        if !found.is_raw() {
            look_up_coder(coders, *found, block_idx)?;
        }
    }
    Ok(())
}

/// Looks up the coder that a block needs, if it needs one; returns the word of the block itself.
pub(crate) fn look_up_coder<A>(
    coders: &Coders<'_, A>,
    newest: BlockWord,
    block_idx: u64,
) -> Result<BlockWord, Fault>
where
    A: Deref<Target = Attachment>,
{
    let word = if newest.is_overlay() {
        chain(coders.guard, newest, coders.opened.geometry.block(block_idx).row_bytes).collect()?.block
    } else {
        newest
    };
    if !word.is_raw() && word.is_resident() {
        coders.get(word)?;
    }
    Ok(word)
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
pub(crate) fn not_resident(block_idx: u64) -> Error {
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
