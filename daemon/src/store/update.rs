//! Updates: new values for rows of a visible tensor.
//!
//! A few rows of a block become an overlay over it; many of them, or one overlay too many, and the block is encoded
//! again in the same publication. Background folding does the same later: see the module `refit`.
//! The blocks of an update are prepared first and stored in one go, so that a refused update changes nothing.
//!
//! Blocks of a tensor are stored under its `writing` lock: updates are visible in the order of their revisions.

use std::collections::BTreeMap;
use std::time::Instant;

use crc32c::crc32c;
use tierpack_kernels::codec::{Encoded, Encoding, encode_block};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::overlay::MAX_CHAIN;
use tierpack_shm::message::{ErrorCode, MAX_CHUNK_BYTES, Refusal, Update};
use tierpack_shm::overlay;
use tierpack_shm::types::{BlockWord, index};

use super::access::{Caller, Right};
use super::content::{StoredBlock, StoredOverlay};
use super::decoding::Coders;
use super::namespace::quota::Place;
use super::namespace::{Change, Intent, Namespace, Stored, Target};
use super::shares::User;
use super::transfer::ChunkData;
use super::{Outcome, Store, heap};

mod rewrite;

pub(super) use rewrite::Longer;

/// Overlays of a block hold at most one row in so many; beyond that the block is encoded again.
const OVERLAY_SHARE: u64 = 4;

/// Raw bytes of blocks from which on a request folds no more: it must not keep a worker long.
const FOLD_BYTES: u64 = 4 << 20;

/// The pieces of an update that lie in one block: each row's bytes by its number within the block.
type Rows<'a> = BTreeMap<u32, &'a [u8]>;

/// What a block is encoded with: index and number of a generation, or nothing.
type Form = Option<(u8, u32)>;

/// Room that the blocks of one request are worked on in.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    coders: Coders,
    raw: Vec<u8>,
    encoded: Vec<u8>,
    /// Whether blocks are encoded to be moved: nothing grows for them then.
    pub(super) is_moving: bool,
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Invalid, text)
}

impl Store {
    /// Carries out one request; returns the new revision.
    pub(crate) fn update(&self, caller: &Caller, update: &Update, data: &ChunkData) -> Outcome<u64> {
        let namespace = self.namespace(&update.namespace)?;
        namespace.check(caller, Right::Write)?;
        namespace.check_claim(&update.name)?;
        let target = namespace.target(&update.name, Some(update.slot))?;
        if !target.geometry.is_gatherable() {
            return Err(invalid(format!("tensor {:?} has no rows that could be updated", update.name)));
        }
        if data.len() > MAX_CHUNK_BYTES {
            let len = data.len();
            return Err(invalid(format!("update of {len} bytes is over the limit of {MAX_CHUNK_BYTES}")));
        }
        let mut bytes = vec![0; index(data.len())];
        data.read_at(0, &mut bytes)?;
        let blocks = by_block(&target.geometry, update.n_pieces, &bytes)
            .map_err(|fault| invalid(format!("update of tensor {:?}: {fault}", update.name)))?;
        // What it retires must find room before it is too late to refuse it.
        let user = User::from(caller);
        let _room = self.charge(&namespace.heap, user, heap::of_retired(blocks.len()))?;
        let _writing = target.writing.lock();
        let (mut changes, mut work) = (Vec::with_capacity(blocks.len()), Workspace::default());
        let mut replaced = 0;
        for (block_idx, rows) in &blocks {
            match self.change(&namespace, &target, (*block_idx, rows), &mut replaced, user, &mut work) {
                Ok(change) => changes.push(change),
                Err(refusal) => {
                    namespace.free(changes.into_iter().map(Change::into_extent));
                    self.note_freed();
                    return Err(refusal);
                }
            }
        }
        reach(Point::UpdatePrepared);
        let (revision, missed) = namespace.store_blocks(&target.key, changes, Intent::Update)?;
        assert!(missed.is_empty(), "only the holder of the writing lock stores blocks of a tensor");
        Ok(revision)
    }

    /// What a block is to become with these rows in it; adds to `replaced` what of it goes then.
    fn change(
        &self,
        namespace: &Namespace,
        target: &Target,
        (block_idx, rows): (u64, &Rows<'_>),
        replaced: &mut u64,
        user: User,
        work: &mut Workspace,
    ) -> Outcome<Change> {
        let shape = target.geometry.block(block_idx);
        let state = namespace.block_state(&target.key, block_idx)?;
        let (n_rows, from) = (rows.len() as u64, state.word);
        let overlaid = state.overlay_rows.saturating_add(n_rows);
        if state.overlays < MAX_CHAIN && overlaid.saturating_mul(OVERLAY_SHARE) <= shape.rows {
            let sorted = rows.iter().map(|(row, bytes)| (*row, *bytes));
            overlay::encode(from, state.overlays, shape.row_bytes, sorted, &mut work.encoded);
            let place = Place::Blocks(&target.key.name, *replaced);
            let extent = self.store_bytes(namespace, &work.encoded, place, user)?;
            let stored = StoredOverlay { extent, published: 0, n_rows };
            return Ok(Change { block_idx, from, to: Stored::Overlay(stored) });
        }
        if n_rows < shape.rows {
            namespace.read_block(target, block_idx, &mut work.coders, &mut work.raw)?;
        } else {
            work.raw.resize(index(shape.raw_bytes), 0);
        }
        let row_bytes = index(shape.row_bytes);
        for (row, bytes) in rows {
            work.raw[index(u64::from(*row)) * row_bytes..][..row_bytes].copy_from_slice(bytes);
        }
        *replaced += state.stored_bytes;
        let place = Place::Blocks(&target.key.name, *replaced);
        self.encode_anew(namespace, target, (block_idx, from), (place, user), work)
    }

    /// Encodes the raw bytes in `work` with the current generation and stores them, not yet visible; the caller holds
    /// the writing lock.
    fn encode_anew(
        &self,
        namespace: &Namespace,
        target: &Target,
        (block_idx, from): (u64, BlockWord),
        owner: (Place<'_>, User),
        work: &mut Workspace,
    ) -> Outcome<Change> {
        let form = namespace.current_generation(&target.key)?;
        // It ends only by the holder of the writing lock, or with the tensor.
        let gone = || namespace.damaged(target, block_idx, "its generation is gone");
        let told = work.encode(namespace, target, block_idx, form)?.ok_or_else(gone)?;
        self.store_encoded(namespace, (block_idx, from), (form, told), owner, work)
    }

    /// Stores the encoded bytes in `work`, not yet visible.
    fn store_encoded(
        &self,
        namespace: &Namespace,
        (block_idx, from): (u64, BlockWord),
        (form, told): (Form, Encoded),
        (place, user): (Place<'_>, User),
        work: &Workspace,
    ) -> Outcome<Change> {
        let extent = if work.is_moving {
            self.store_moved(namespace, &work.encoded)?
        } else {
            self.store_bytes(namespace, &work.encoded, place, user)?
        };
        let generation_idx = form.map_or(0, |(generation_idx, _)| generation_idx);
        let block = StoredBlock::new(extent, told, generation_idx, crc32c(&work.raw));
        Ok(Change { block_idx, from, to: Stored::Block(block) })
    }

    /// Puts overlays of a tensor into its blocks, for a caller who waits for it.
    ///
    /// Who may read may ask: a view needs it. So a request folds a few blocks at most, and none past its deadline;
    /// who finds more asks again.
    pub(crate) fn fold(
        &self,
        caller: &Caller,
        namespace: &str,
        name: &str,
        deadline: Instant,
    ) -> Outcome<()> {
        let namespace = self.readable(namespace, caller)?;
        let target = namespace.target(name, None)?;
        let (mut work, mut from, mut folded) = (Workspace::default(), 0, 0);
        while folded < FOLD_BYTES && Instant::now() < deadline {
            let Some(block_idx) = namespace.next_overlaid(&target.key, from)? else { break };
            folded += self.rewrite(&namespace, &target, (block_idx, Longer::Dropped), &mut work)?.raw_bytes;
            from = block_idx + 1;
        }
        self.reclaim_one(&namespace);
        Ok(())
    }
}

impl Workspace {
    /// Encodes the raw bytes in place of what was encoded before; `None` where the generation is gone.
    fn encode(
        &mut self,
        namespace: &Namespace,
        target: &Target,
        block_idx: u64,
        form: Form,
    ) -> Outcome<Option<Encoded>> {
        if let Some((_, number)) = form {
            match namespace.load_coder(target, number, &mut self.coders)? {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(fault) => return Err(namespace.damaged(target, block_idx, &fault)),
            }
        }
        let coder = form.and_then(|(_, number)| self.coders.get(number));
        let encoding = coder.map_or(Encoding::Raw, Encoding::Coded);
        encode_block(encoding, &target.geometry, block_idx, &self.raw, &mut self.encoded)
            .map(Some)
            .map_err(|error| namespace.damaged(target, block_idx, &error.to_string()))
    }
}

/// Sorts the pieces of an update into blocks; a piece that is named twice keeps its last value.
fn by_block<'a>(
    geometry: &Geometry,
    n_pieces: u64,
    bytes: &'a [u8],
) -> Result<BTreeMap<u64, Rows<'a>>, String> {
    let numbers_len = n_pieces.checked_mul(8).filter(|len| *len <= bytes.len() as u64);
    let numbers_len =
        numbers_len.ok_or_else(|| format!("{} bytes do not hold {n_pieces} row numbers", bytes.len()))?;
    let (numbers, mut rest) = bytes.split_at(index(numbers_len));
    let (pieces, n_rows) = (geometry.pieces_per_row().max(1), geometry.n_rows());
    let mut blocks: BTreeMap<u64, Rows<'a>> = BTreeMap::new();
    for (position, number) in numbers.as_chunks().0.iter().enumerate() {
        let number = u64::from_le_bytes(*number);
        if number / pieces >= n_rows {
            return Err(format!("row {} at position {position} is not below {n_rows}", number / pieces));
        }
        let (first_block, row_in_block) = geometry.locate(number / pieces);
        let block_idx = first_block + number % pieces;
        let len = index(geometry.block(block_idx).row_bytes);
        let (row, after) = rest
            .split_at_checked(len)
            .ok_or_else(|| format!("its bytes end within the row at position {position}"))?;
        rest = after;
        let row_in_block = u32::try_from(row_in_block).map_err(|_| "a block has too many rows".to_owned())?;
        blocks.entry(block_idx).or_default().insert(row_in_block, row);
    }
    if rest.is_empty() { Ok(blocks) } else { Err(format!("{} bytes are left over", rest.len())) }
}

#[cfg(test)]
mod tests;
