//! Gathering: rows from wherever their blocks are, each asked for some rows before its turn.
//!
//! A row of a raw block is copied; one of an encoded block is decoded straight into the caller's buffer.
//! Rows of a tensor that was raw when it was opened are copied by a shorter loop, until one is found whose block is
//! not: from there on the loop for all blocks goes on.

use std::ops::Deref;
use std::slice::ChunksExactMut;

use tierpack_kernels::codec::{self, Rows, Scratch};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::prefetch;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::sync::AtomicU64;
use tierpack_shm::types::{BlockWord, CodecId, index};

use crate::blocks::{block_bytes, check_readable, copy_run, word};
use crate::decode::{self, Coders, with_scratch};
use crate::handle::{Fault, Opened};
use crate::overlays::{Place, chain};
use crate::row_id::RowId;

/// Rows that are found and read one after the other: looking ahead would not be worth its start.
const FEW: usize = 8;

/// How many rows before its turn a row is found.
const AHEAD: usize = 8;

/// Bytes of a row that are asked for before its turn: what comes after them, the processor foresees.
const MOST_AHEAD: usize = 1024;

/// Copies rows; the caller has checked their numbers, and that they have bytes and `out` room for them.
pub(crate) fn copy_rows<A, I: RowId>(
    guard: &Guard<A>,
    opened: &Opened,
    rows: &[I],
    out: &mut [u8],
) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let geometry = &opened.geometry;
    let row_bytes = index(geometry.row_bytes());
    if geometry.pieces_per_row() > 1 {
        let coders = Coders::new(guard, opened);
        return rows.iter().zip(out.chunks_exact_mut(row_bytes)).try_for_each(|(row, target)| {
            let (first, _) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
            copy_run(&coders, first..first + geometry.pieces_per_row(), target)
        });
    }
    // What the tensor was when it was opened is a hint: the words decide.
    let copied = match opened.codec {
        CodecId::Raw => copy_raw_rows(guard, geometry, rows, out)?,
        _ => 0,
    };
    let (rows, out) = (&rows[copied..], &mut out[copied * row_bytes..]);
    if rows.is_empty() {
        return Ok(());
    }
    with_scratch(|scratch| decode_rows(&Coders::new(guard, opened), rows, out, scratch))
}

/// Where a row is.
#[derive(Clone, Copy)]
enum Found<'a> {
    /// Its bytes.
    Raw(&'a [u8]),
    /// The rows of its block, and its number there.
    Coded(Rows<'a>, u64),
}

/// Gives rows of a tensor whose blocks may be raw, encoded, or changed by overlays.
fn decode_rows<A, I: RowId>(
    coders: &Coders<'_, A>,
    rows: &[I],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = coders.guard.words()?;
    let out = out.chunks_exact_mut(index(coders.opened.geometry.row_bytes()));
    let find = |row: &I| {
        let found = find_row(coders, words, row)?;
        found.prefetch();
        Ok(found)
    };
    each_row(rows, out, Found::Raw(&[]), find, Found::prefetch_overflow, |found, target| {
        Ok(found.read(target, scratch)?)
    })
}

/// Finds each row some rows before its turn, so that its cache lines are on their way while others are read.
///
/// `ahead` is called half of the way between the two.
fn each_row<I: RowId, T: Copy, E>(
    rows: &[I],
    out: ChunksExactMut<'_, u8>,
    nothing: T,
    mut find: impl FnMut(&I) -> Result<T, E>,
    ahead: impl Fn(&T),
    mut read: impl FnMut(&T, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    if rows.len() < FEW {
        return rows.iter().zip(out).try_for_each(|(row, target)| read(&find(row)?, target));
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
        reach(Point::GatherBetweenRows);
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
    fn read(&self, target: &mut [u8], scratch: &mut Scratch) -> Result<(), NoGuard> {
        match self {
            Self::Raw(bytes) => target.copy_from_slice(bytes),
            Self::Coded(rows, row) => rows.decode(*row, target, scratch).map_err(|_| NoGuard::Corrupt)?,
        }
        Ok(())
    }
}

/// Finds one row of a tensor whose blocks may be anything.
#[inline]
fn find_row<'a, A, I: RowId>(coders: &Coders<'a, A>, words: &[AtomicU64], row: &I) -> Result<Found<'a>, Fault>
where
    A: Deref<Target = Attachment>,
{
    let (block_idx, row_in_block) = coders.opened.geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
    let word = word(words, block_idx)?;
    reach(Point::GatherWordLoaded);
    if word.is_overlay() {
        return find_changed(coders, word, block_idx, row_in_block);
    }
    find_in_block(coders, word, block_idx, row_in_block)
}

/// Finds one row of a block that has overlays.
#[cold]
fn find_changed<'a, A>(
    coders: &Coders<'a, A>,
    word: BlockWord,
    block_idx: u64,
    row_in_block: u64,
) -> Result<Found<'a>, Fault>
where
    A: Deref<Target = Attachment>,
{
    match chain(coders.guard, word, coders.opened.geometry.row_bytes()).find(row_in_block)? {
        Place::Overlay(row) => Ok(Found::Raw(row)),
        Place::Block(word) => find_in_block(coders, word, block_idx, row_in_block),
    }
}

/// Finds one row of a block as it was last stored as a whole.
#[inline]
fn find_in_block<'a, A>(
    coders: &Coders<'a, A>,
    word: BlockWord,
    block_idx: u64,
    row_in_block: u64,
) -> Result<Found<'a>, Fault>
where
    A: Deref<Target = Attachment>,
{
    let geometry = &coders.opened.geometry;
    if word.is_raw() {
        let block = block_bytes(coders.guard, word, block_idx, geometry.block(block_idx).raw_bytes)?;
        let row = codec::raw_row(block, geometry.row_bytes(), row_in_block).ok_or(NoGuard::Corrupt)?;
        return Ok(Found::Raw(row));
    }
    check_readable(coders.guard, word, block_idx)?;
    Ok(Found::Coded(decode::rows(coders, word, block_idx)?, row_in_block))
}

/// Why copying raw rows ended early.
enum End {
    /// The next row's block is not raw, or no longer only raw.
    NotRaw,
    Fault(Fault),
}

impl<F: Into<Fault>> From<F> for End {
    fn from(fault: F) -> Self {
        Self::Fault(fault.into())
    }
}

/// Copies rows until one is found whose block is not raw; says how many it has copied.
fn copy_raw_rows<A, I: RowId>(
    guard: &Guard<A>,
    geometry: &Geometry,
    rows: &[I],
    out: &mut [u8],
) -> Result<usize, Fault>
where
    A: Deref<Target = Attachment>,
{
    let words = guard.words()?;
    // Neighbors in a batch often share a block: its word is looked at once.
    let (mut last_idx, mut block) = (u64::MAX, &[][..]);
    let find = |row: &I| {
        let (block_idx, row_in_block) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
        if block_idx != last_idx {
            let word = word(words, block_idx)?;
            reach(Point::GatherWordLoaded);
            if !word.is_raw() {
                return Err(End::NotRaw);
            }
            block = block_bytes(guard, word, block_idx, geometry.block(block_idx).raw_bytes)?;
            last_idx = block_idx;
        }
        let row = codec::raw_row(block, geometry.row_bytes(), row_in_block).ok_or(NoGuard::Corrupt)?;
        prefetch(&row[..row.len().min(MOST_AHEAD)]);
        Ok(row)
    };
    let mut copied = 0;
    let read = |row: &&[u8], target: &mut [u8]| {
        target.copy_from_slice(row);
        copied += 1;
        Ok(())
    };
    let out = out.chunks_exact_mut(index(geometry.row_bytes()));
    match each_row(rows, out, &[][..], find, |_| (), read) {
        Ok(()) | Err(End::NotRaw) => Ok(copied),
        Err(End::Fault(fault)) => Err(fault),
    }
}
