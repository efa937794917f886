//! Gathering: rows from wherever their blocks are, each asked for some rows before its turn.
//!
//! A row of a raw block is copied; one of an encoded block is decoded straight into the caller's buffer.
//! Rows of a batch whose blocks are all raw are copied by a shorter loop.

use std::ops::Deref;
use std::slice::ChunksExactMut;

use tierpack_kernels::codec::{self, Rows, Scratch};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::prefetch;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::types::{BlockWord, index};

use crate::blocks::{CallGuard, block_bytes, check_readable, copy_run, look_up_coder, word};
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

/// Rows that one lease covers.
const BATCH: usize = 128;

/// Copies rows; the caller has checked their numbers, and that they have bytes and `out` room for them.
///
/// Returns the last guard. Each batch has a lease of its own, as in [`copy_run`].
pub(crate) fn copy_rows<'o, I: RowId>(
    opened: &'o Opened,
    rows: &[I],
    out: &mut [u8],
) -> Result<CallGuard<'o>, Fault> {
    let geometry = &opened.geometry;
    if geometry.pieces_per_row() > 1 {
        let mut last = None;
        for (row, target) in rows.iter().zip(out.chunks_exact_mut(index(geometry.row_bytes()))) {
            let (first, _) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
            drop(last.take());
            last = Some(copy_run(opened, first..first + geometry.pieces_per_row(), target)?);
        }
        return last.ok_or(NoGuard::Corrupt.into());
    }
    if rows.len() < FEW {
        copy_batches::<FEW, _>(opened, rows, out)
    } else {
        copy_batches::<BATCH, _>(opened, rows, out)
    }
}

fn copy_batches<'o, const N: usize, I: RowId>(
    opened: &'o Opened,
    mut rows: &[I],
    mut out: &mut [u8],
) -> Result<CallGuard<'o>, Fault> {
    let row_bytes = index(opened.geometry.row_bytes());
    let mut found = [BlockWord::from_bits(0); N];
    loop {
        let guard = opened.guard()?;
        let (batch, later) = rows.split_at(rows.len().min(N));
        let found = &mut found[..batch.len()];
        let (target, left) = out.split_at_mut_checked(batch.len() * row_bytes).ok_or(NoGuard::Corrupt)?;
        let coders = Coders::new(&guard, opened);
        let are_raw = look_up_rows(&coders, batch, found)?;
        guard.finish();
        if are_raw {
            copy_raw_rows(&guard, &opened.geometry, (batch, found), target)?;
        } else {
            with_scratch(|scratch| decode_rows(&coders, (batch, found), target, scratch))?;
        }
        (rows, out) = (later, left);
        if rows.is_empty() {
            return Ok(guard);
        }
        drop(guard);
        reach(Point::GatherBetweenRows);
    }
}

/// Loads the words of the blocks of some rows, and all that reading them takes from the tables; says whether every
/// block is raw.
///
/// A row that no overlay holds gets the word of the block itself.
#[inline]
fn look_up_rows<A, I: RowId>(
    coders: &Coders<'_, A>,
    rows: &[I],
    found: &mut [BlockWord],
) -> Result<bool, Fault>
where
    A: Deref<Target = Attachment>,
{
    let (words, geometry) = (coders.guard.words()?, &coders.opened.geometry);
    let mut are_raw = true;
    for (row, found) in rows.iter().zip(found) {
        let (block_idx, row_in_block) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
        *found = word(words, block_idx)?;
        reach(Point::GatherWordLoaded);
        if !found.is_raw() {
            are_raw = false;
            if found.is_overlay() {
                look_up_changed(coders, found, block_idx, row_in_block)?;
            } else if found.is_resident() {
                coders.get(*found)?;
            }
        }
    }
    Ok(are_raw)
}

/// As [`look_up_rows`] for one row of a block that has overlays.
#[cold]
fn look_up_changed<A>(
    coders: &Coders<'_, A>,
    found: &mut BlockWord,
    block_idx: u64,
    row_in_block: u64,
) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let row_bytes = coders.opened.geometry.row_bytes();
    if let Place::Block(word) = chain(coders.guard, *found, row_bytes).find(row_in_block)? {
        *found = word;
        look_up_coder(coders, word, block_idx)?;
    }
    Ok(())
}

/// Where a row is.
#[derive(Clone, Copy)]
enum Found<'a> {
    /// Its bytes.
    Raw(&'a [u8]),
    /// The rows of its block, and its number there.
    Coded(Rows<'a>, u64),
}

/// Reads rows of a tensor whose blocks may be raw, encoded, or changed by overlays.
fn decode_rows<A, I: RowId>(
    coders: &Coders<'_, A>,
    (rows, found): (&[I], &[BlockWord]),
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    let out = out.chunks_exact_mut(index(coders.opened.geometry.row_bytes()));
    let find = |(row, word): (&I, &BlockWord)| {
        let found = find_row(coders, *word, row)?;
        found.prefetch();
        Ok(found)
    };
    each_row(rows.iter().zip(found), out, Found::Raw(&[]), find, Found::prefetch_overflow, |found, target| {
        Ok(found.read(target, scratch)?)
    })
}

/// Finds each row some rows before its turn, so that its cache lines are on their way while others are read.
///
/// `ahead` is called half of the way between the two.
fn each_row<I, T: Copy, E>(
    mut rows: impl ExactSizeIterator<Item = I>,
    out: ChunksExactMut<'_, u8>,
    nothing: T,
    mut find: impl FnMut(I) -> Result<T, E>,
    ahead: impl Fn(&T),
    mut read: impl FnMut(&T, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    if rows.len() < FEW {
        return rows.zip(out).try_for_each(|(row, target)| read(&find(row)?, target));
    }
    let mut ring = [nothing; AHEAD];
    for (found, row) in ring.iter_mut().zip(rows.by_ref()) {
        *found = find(row)?;
    }
    for (i, target) in out.enumerate() {
        ahead(&ring[(i + AHEAD / 2) % AHEAD]);
        let found = &mut ring[i % AHEAD];
        read(found, target)?;
        reach(Point::GatherBetweenRows);
        if let Some(row) = rows.next() {
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

/// Finds one row, by the word that was looked up for it.
#[inline]
fn find_row<'a, A, I: RowId>(coders: &Coders<'a, A>, word: BlockWord, row: &I) -> Result<Found<'a>, Fault>
where
    A: Deref<Target = Attachment>,
{
    let (block_idx, row_in_block) = coders.opened.geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
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

/// Copies rows whose blocks are all raw.
fn copy_raw_rows<A, I: RowId>(
    guard: &Guard<A>,
    geometry: &Geometry,
    (rows, found): (&[I], &[BlockWord]),
    out: &mut [u8],
) -> Result<(), Fault>
where
    A: Deref<Target = Attachment>,
{
    // Neighbors in a batch often share a block: its word is looked at once.
    let (mut last, mut block) = (None, &[][..]);
    let find = |(row, word): (&I, &BlockWord)| {
        let (block_idx, row_in_block) = geometry.locate(row.row().ok_or(NoGuard::Corrupt)?);
        if last != Some((block_idx, *word)) {
            block = block_bytes(guard, *word, block_idx, geometry.block(block_idx).raw_bytes)?;
            last = Some((block_idx, *word));
        }
        let row = codec::raw_row(block, geometry.row_bytes(), row_in_block).ok_or(NoGuard::Corrupt)?;
        prefetch(&row[..row.len().min(MOST_AHEAD)]);
        Ok::<_, Fault>(row)
    };
    let read = |row: &&[u8], target: &mut [u8]| {
        target.copy_from_slice(row);
        Ok(())
    };
    let out = out.chunks_exact_mut(index(geometry.row_bytes()));
    each_row(rows.iter().zip(found), out, &[][..], find, |_| (), read)
}
