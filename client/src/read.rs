//! Reading: the tier walk behind `get` and `gather`.
//!
//! A read takes a guard, looks at the word of each block, and copies from where that says the bytes are.
//! With one tier that is short: every block is in the pool, raw or encoded.
//!
//! ```text
//! guard          lease + checks: session alive, same process, same publication
//! word           per block: resident? overlay? raw?
//! bytes          header (64 B, not looked at) + rows at fixed stride
//! raw: copy      row = block bytes [64 + row_in_block * row_bytes ..]
//! else: decode   with the coder of the word's generation, built once per handle (decode.rs)
//! ```
//!
//! No system call, no lock and no allocation from the guard to its end; counters are words of the client page.
//! Row numbers are checked before anything is read, so that a call that fails for one leaves the output untouched.

use std::cell::Cell;
use std::ops::{Deref, Range};
use std::slice::ChunksExactMut;

use tierpack_kernels::codec::{self, Rows, Scratch};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::prefetch;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::layout::page::ACCESS_SAMPLE;
use tierpack_shm::page::Counter;
use tierpack_shm::publish::load_word;
use tierpack_shm::sync::AtomicU64;
use tierpack_shm::types::{BlockWord, CodecId, index};

use crate::decode::{self, coder, decode_whole, with_scratch};
use crate::error::{Error, Result};
use crate::handle::{Fault, Handle, Opened};
use crate::row_id::RowId;
use crate::tensor::Tensor;

/// Rows that are found and read one after the other: looking ahead would not be worth its start.
const FEW: usize = 8;

/// How many rows before its turn a row is found.
const AHEAD: usize = 8;

/// Bytes of a row that are asked for before its turn: what comes after them, the processor foresees.
const MOST_AHEAD: usize = 1024;

impl Handle {
    /// Gets the whole tensor.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it was removed, [`Error::Replaced`] when its name holds another dtype or shape now,
    /// [`Error::Lost`] when the daemon was restarted, [`Error::NoDaemon`] when there is none,
    /// [`Error::TooManyLeases`], [`Error::Forked`], [`Error::Memory`].
    pub fn get(&self) -> Result<Tensor> {
        // Before the queues of buffers: a fork must not touch them.
        self.client().shared.check_here()?;
        let buffer = self.client().shared.buffers.take(self.raw_bytes())?;
        let mut tensor = Tensor::new(self.dtype(), self.shape(), buffer);
        self.get_into(tensor.as_mut_bytes())?;
        Ok(tensor)
    }

    /// Gets the whole tensor into `out`, which has [`Handle::raw_bytes`] bytes.
    ///
    /// After an error `out` holds anything.
    ///
    /// # Errors
    /// [`Error::BufferLength`]; else as [`Handle::get`].
    pub fn get_into(&self, out: &mut [u8]) -> Result<()> {
        check_len(out, u128::from(self.raw_bytes()))?;
        self.attempt(|opened| {
            let guard = opened.guard()?;
            if !out.is_empty() {
                copy_blocks(&guard, opened, out)?;
            }
            guard.count(Counter::Gets, 1);
            guard.count(Counter::Bytes, out.len() as u64);
            Ok(())
        })
    }

    /// Gathers rows along the leading dimension, in the order and as often as `rows` names them.
    ///
    /// The result has the tensor's shape with `rows.len()` in front.
    /// A tensor of rank 1 is one row, or rows of the length that it was put with.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::NotGatherable`]; else as [`Handle::get`].
    pub fn gather<I: RowId>(&self, rows: &[I]) -> Result<Tensor> {
        self.client().shared.check_here()?;
        let bytes = self.check_rows(rows)?;
        let len = u64::try_from(bytes).map_err(|_| Error::Memory { bytes })?;
        let buffer = self.client().shared.buffers.take(len)?;
        let mut shape = vec![rows.len() as u64];
        match self.shape_ref() {
            [_, inner @ ..] if !inner.is_empty() => shape.extend(inner),
            _ => shape.push(self.geometry().row_elems()),
        }
        let mut tensor = Tensor::new(self.dtype(), shape, buffer);
        self.gather_checked(rows, tensor.as_mut_bytes())?;
        Ok(tensor)
    }

    /// Gathers rows into `out`, which has `rows.len()` times [`Handle::row_bytes`] bytes.
    ///
    /// # Errors
    /// [`Error::BufferLength`]; else as [`Handle::gather`].
    /// A row out of range leaves `out` untouched; after another error it holds anything.
    pub fn gather_into<I: RowId>(&self, rows: &[I], out: &mut [u8]) -> Result<()> {
        let needed = self.check_rows(rows)?;
        check_len(out, needed)?;
        self.gather_checked(rows, out)
    }

    /// Checks every row number; gives the bytes of all rows.
    #[inline]
    fn check_rows<I: RowId>(&self, rows: &[I]) -> Result<u128> {
        let geometry = self.geometry();
        if !geometry.is_gatherable() {
            return Err(Error::NotGatherable { dtype: self.dtype(), shape: self.shape() });
        }
        let n_rows = geometry.n_rows();
        match rows.iter().position(|row| row.row().is_none_or(|row| row >= n_rows)) {
            Some(position) => Err(Error::RowOutOfRange { position, row: rows[position].value(), n_rows }),
            None => Ok(rows.len() as u128 * u128::from(geometry.row_bytes())),
        }
    }

    /// The rows are in range and `out` has their length.
    #[inline]
    fn gather_checked<I: RowId>(&self, rows: &[I], out: &mut [u8]) -> Result<()> {
        self.attempt(|opened| {
            let guard = opened.guard()?;
            if !out.is_empty() {
                copy_rows(&guard, opened, rows, out)?;
            }
            guard.count(Counter::Gathers, 1);
            guard.count(Counter::Rows, rows.len() as u64);
            guard.count(Counter::Bytes, out.len() as u64);
            Ok(())
        })
    }
}

fn check_len(out: &[u8], needed: u128) -> Result<()> {
    let got = out.len() as u64;
    if u128::from(got) == needed { Ok(()) } else { Err(Error::BufferLength { needed, got }) }
}

/// Copies the whole tensor, which is not empty: the blocks lie one behind the other in it.
fn copy_blocks<A>(guard: &Guard<A>, opened: &Opened, out: &mut [u8]) -> core::result::Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    copy_run(guard, opened, 0..opened.geometry.n_blocks(), out)
}

/// Copies neighboring blocks: all of a tensor, or the pieces of a row that is longer than a block.
fn copy_run<A>(
    guard: &Guard<A>,
    opened: &Opened,
    blocks: Range<u64>,
    out: &mut [u8],
) -> core::result::Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = guard.words()?;
    let mut rest = out;
    for block_idx in blocks {
        let raw_bytes = opened.geometry.block(block_idx).raw_bytes;
        let (target, left) = rest.split_at_mut_checked(index(raw_bytes)).ok_or(NoGuard::Corrupt)?;
        let word = word(words, block_idx)?;
        if word.is_raw() {
            let block = block_bytes(guard, word, block_idx, raw_bytes)?;
            target.copy_from_slice(codec::raw_payload(block, raw_bytes).ok_or(NoGuard::Corrupt)?);
        } else {
            check_readable(guard, word, block_idx)?;
            decode_whole(guard, coder(guard, opened, word)?, word, target)?;
        }
        rest = left;
    }
    Ok(())
}

/// Copies rows; the caller has checked their numbers, and that they have bytes and `out` room for them.
fn copy_rows<A, I: RowId>(
    guard: &Guard<A>,
    opened: &Opened,
    rows: &[I],
    out: &mut [u8],
) -> core::result::Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let geometry = &opened.geometry;
    let mut targets = rows.iter().zip(out.chunks_exact_mut(index(geometry.row_bytes())));
    if geometry.pieces_per_row() > 1 {
        return targets.try_for_each(|(row, target)| {
            let (first, _) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
            copy_run(guard, opened, first..first + geometry.pieces_per_row(), target)
        });
    }
    if opened.codec == CodecId::Raw {
        return copy_raw_rows(guard, geometry, rows, out);
    }
    with_scratch(|scratch| decode_rows(guard, opened, rows, out, scratch))
}

/// Where a row is.
#[derive(Clone, Copy)]
enum Found<'a> {
    /// Its bytes.
    Raw(&'a [u8]),
    /// The rows of its block, and its number there.
    Coded(Rows<'a>, u64),
}

/// Decodes rows of a tensor that is not raw as a whole.
fn decode_rows<A, I: RowId>(
    guard: &Guard<A>,
    opened: &Opened,
    rows: &[I],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> core::result::Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = guard.words()?;
    let out = out.chunks_exact_mut(index(opened.geometry.row_bytes()));
    let find = |row: &I| {
        let found = find_row(guard, opened, words, row)?;
        found.prefetch();
        Ok(found)
    };
    each_row(rows, out, Found::Raw(&[]), find, Found::prefetch_overflow, |found, target| {
        found.read(target, scratch)
    })
}

/// Finds each row some rows before its turn, so that its cache lines are on their way while others are read.
///
/// `ahead` is called half of the way between the two.
fn each_row<I: RowId, T: Copy>(
    rows: &[I],
    out: ChunksExactMut<'_, u8>,
    nothing: T,
    mut find: impl FnMut(&I) -> core::result::Result<T, Fault>,
    ahead: impl Fn(&T),
    mut read: impl FnMut(&T, &mut [u8]) -> core::result::Result<(), NoGuard>,
) -> core::result::Result<(), Fault> {
    if rows.len() < FEW {
        return rows.iter().zip(out).try_for_each(|(row, target)| Ok(read(&find(row)?, target)?));
    }
    let (first, later) = rows.split_at(rows.len().min(AHEAD));
    let mut ring = [nothing; AHEAD];
    for (row, found) in first.iter().zip(&mut ring) {
        *found = find(row)?;
    }
    let mut later = later.iter();
    for (i, target) in out.enumerate() {
        ahead(&ring[(i + AHEAD / 2) % AHEAD]);
        let found = &mut ring[i % AHEAD];
        read(found, target)?;
        if let Some(row) = later.next() {
            *found = find(row)?;
        }
    }
    Ok(())
}

impl Found<'_> {
    /// Asks for the cache lines of the row.
    #[inline]
    fn prefetch(&self) {
        match self {
            Self::Raw(bytes) => prefetch(&bytes[..bytes.len().min(MOST_AHEAD)]),
            Self::Coded(rows, row) => rows.prefetch(*row),
        }
    }

    /// Asks for the cache lines of the row's overflow, if it has any.
    #[inline]
    fn prefetch_overflow(&self) {
        if let Self::Coded(rows, row) = self {
            rows.prefetch_overflow(*row);
        }
    }

    #[inline]
    fn read(&self, target: &mut [u8], scratch: &mut Scratch) -> core::result::Result<(), NoGuard> {
        match self {
            Self::Raw(bytes) => target.copy_from_slice(bytes),
            Self::Coded(rows, row) => rows.decode(*row, target, scratch).map_err(|_| NoGuard::Corrupt)?,
        }
        Ok(())
    }
}

/// Finds one row of a tensor that is not raw as a whole.
#[inline]
fn find_row<'a, A, I: RowId>(
    guard: &'a Guard<A>,
    opened: &'a Opened,
    words: &[AtomicU64],
    row: &I,
) -> core::result::Result<Found<'a>, Fault>
where
    A: Deref<Target = Attachment>,
{
    let geometry = &opened.geometry;
    let (block_idx, row_in_block) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
    let word = word(words, block_idx)?;
    if word.is_raw() {
        let block = block_bytes(guard, word, block_idx, geometry.block(block_idx).raw_bytes)?;
        let row = codec::raw_row(block, geometry.row_bytes(), row_in_block).ok_or(NoGuard::Corrupt)?;
        return Ok(Found::Raw(row));
    }
    check_readable(guard, word, block_idx)?;
    let rows = decode::rows(guard, coder(guard, opened, word)?, word, block_idx)?;
    Ok(Found::Coded(rows, row_in_block))
}

/// Copies rows of a tensor that is raw as a whole.
fn copy_raw_rows<A, I: RowId>(
    guard: &Guard<A>,
    geometry: &Geometry,
    rows: &[I],
    out: &mut [u8],
) -> core::result::Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = guard.words()?;
    // Neighbors in a batch often share a block: its word is looked at once.
    let (mut last_idx, mut block) = (u64::MAX, &[][..]);
    let find = |row: &I| {
        let (block_idx, row_in_block) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
        if block_idx != last_idx {
            let raw_bytes = geometry.block(block_idx).raw_bytes;
            block = block_bytes(guard, word(words, block_idx)?, block_idx, raw_bytes)?;
            last_idx = block_idx;
        }
        let row = codec::raw_row(block, geometry.row_bytes(), row_in_block).ok_or(NoGuard::Corrupt)?;
        prefetch(&row[..row.len().min(MOST_AHEAD)]);
        Ok(row)
    };
    let out = out.chunks_exact_mut(index(geometry.row_bytes()));
    each_row(
        rows,
        out,
        &[][..],
        find,
        |_| (),
        |row, target| {
            target.copy_from_slice(row);
            Ok(())
        },
    )
}

/// The word of a block.
#[inline]
pub(crate) fn word(words: &[AtomicU64], block_idx: u64) -> core::result::Result<BlockWord, NoGuard> {
    words.get(index(block_idx)).map(load_word).ok_or(NoGuard::Corrupt)
}

/// The stored bytes of a raw block of `raw_bytes`, header first.
#[inline]
pub(crate) fn block_bytes<A>(
    guard: &Guard<A>,
    word: BlockWord,
    block_idx: u64,
    raw_bytes: u64,
) -> core::result::Result<&[u8], Fault>
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
fn check_readable<A>(guard: &Guard<A>, word: BlockWord, block_idx: u64) -> core::result::Result<(), Fault>
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
