//! Puts: begin, chunks, commit; nothing is visible before the commit, and nothing is left without one.
//!
//! Each chunk holds whole blocks, so that chunks are encoded side by side and in any order.
//! A block goes from the client's sealed memory file through one small buffer into its extent.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crc32c::crc32c;
use parking_lot::Mutex;
use tierpack_kernels::codec::{Encoded, encode_block, max_encoded_len};
use tierpack_kernels::geometry::{BlockShape, Geometry};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{Entry, ErrorCode, MAX_CHUNK_BYTES, MAX_NAME_BYTES, PutBegin, Refusal};
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::types::{CodecChoice, CodecId, Extent, UNIT_BYTES, index};

use super::access::{Caller, Right};
use super::budget::Charge;
use super::coding::Coding;
use super::content::{Content, Description, StoredBlock};
use super::file_metadata::SharedText;
use super::namespace::quota::{Place, table_bytes};
use super::namespace::{Namespace, directory_need};
use super::shares::User;
use super::transaction::Transaction;
use super::{Outcome, Store, heap};

mod chunk_data;
mod sample;
mod table;

pub(crate) use chunk_data::ChunkData;
pub(crate) use table::Transfers;

#[derive(Debug)]
struct Progress {
    blocks: Vec<Option<StoredBlock>>,
    filled: u64,
    stored_bytes: u64,
    /// Bytes of the budget still promised to blocks that have not come.
    reserved_bytes: u64,
    /// The heap of the put, and then of the tensor.
    charge: Option<Charge>,
    ended: bool,
    last_used: Instant,
}

/// One put under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    session: u64,
    user: User,
    namespace: Arc<Namespace>,
    name: String,
    overwrite: bool,
    transaction: Option<Arc<Transaction>>,
    shape: Vec<u64>,
    row_elems: Option<u64>,
    geometry: Geometry,
    choice: CodecChoice,
    coding: OnceLock<Outcome<Coding>>,
    file_metadata: Option<SharedText>,
    progress: Mutex<Progress>,
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Invalid, text)
}

/// The answer to a commit of a put that was ended meanwhile.
fn ended() -> Refusal {
    invalid("the put ended before it was committed: begin it again")
}

impl Transfers {
    pub(crate) fn begin(
        &self,
        store: &Store,
        session: u64,
        caller: &Caller,
        begin: PutBegin,
        file_metadata: Option<Vec<u8>>,
    ) -> Outcome<u64> {
        if begin.name.len() > MAX_NAME_BYTES {
            let len = begin.name.len();
            return Err(invalid(format!("tensor name has {len} bytes, the limit is {MAX_NAME_BYTES}")));
        }
        let what = || format!("tensor {:?}", begin.name);
        let geometry = Geometry::new(begin.dtype, &begin.shape, begin.access, begin.row_elems)
            .map_err(|error| invalid(format!("{} is refused: {error}", what())))?;
        let directory_bytes = directory_need(geometry.n_blocks()).ok_or_else(|| {
            invalid(format!("{} has {} blocks, more than one table holds", what(), geometry.n_blocks()))
        })?;
        let (user, n_blocks) = (User::from(caller), geometry.n_blocks());
        self.check(user, session)?;
        // The right before the room: who may not write learns nothing of the pool.
        if let Ok(found) = store.namespace(&begin.namespace) {
            found.check(caller, Right::Write)?;
        }
        let stored_bytes = match begin.codec {
            CodecChoice::Only(CodecId::Raw) => stored_raw(&geometry),
            // What its values come to shows when they come; every block takes a unit at least.
            _ => n_blocks.saturating_mul(UNIT_BYTES),
        };
        let heap_bytes = heap::of_tensor(&begin.name, begin.shape.len(), n_blocks);
        let needed = stored_bytes.saturating_add(directory_bytes).saturating_add(heap_bytes);
        store.check_room(user, needed)?;
        let transaction =
            begin.transaction.map(|id| store.transactions.get((session, caller), id)).transpose()?;
        let namespace = match &transaction {
            Some(transaction) => Arc::clone(&transaction.namespace),
            None => store.namespace_for_put(&begin.namespace, caller)?,
        };
        namespace.check(caller, Right::Write)?;
        match &transaction {
            Some(transaction)
                if namespace.name != begin.namespace || !transaction.has_claimed(&begin.name) =>
            {
                let name = &begin.name;
                return Err(invalid(format!(
                    "tensor {name:?} was not claimed by its put of several tensors"
                )));
            }
            Some(transaction) => transaction.touch(),
            None => namespace.check_free(&begin.name, begin.overwrite)?,
        }
        let at_least = n_blocks.saturating_mul(UNIT_BYTES).saturating_add(table_bytes(n_blocks));
        let (place, at_least) = (Place::Tensor(&begin.name), at_least.saturating_add(heap_bytes));
        store.within_quota(&namespace, |namespace| namespace.check_quota(place, at_least))?;
        let charge_text = |len| store.charge(&Arc::default(), user, len);
        let file_metadata =
            file_metadata.map(|text| store.file_metadata.intern(text, user, charge_text)).transpose()?;
        // Before what it represents is allocated.
        let charge = store.charge(&namespace.heap, user, heap_bytes)?;
        let progress = Progress {
            blocks: (0..n_blocks).map(|_| None).collect(),
            filled: 0,
            stored_bytes: 0,
            // Before it is in the table, from where it may be aborted at any moment.
            reserved_bytes: store.reserve(&namespace, &begin.name, user, stored_bytes),
            charge: Some(charge),
            ended: false,
            last_used: Instant::now(),
        };
        let transfer = Transfer {
            session,
            user,
            namespace,
            name: begin.name,
            overwrite: transaction.as_ref().map_or(begin.overwrite, |transaction| transaction.overwrite),
            transaction,
            shape: begin.shape,
            row_elems: begin.row_elems,
            geometry,
            choice: begin.codec,
            coding: OnceLock::new(),
            file_metadata,
            progress: Mutex::new(progress),
        };
        transfer.namespace.count_put(true);
        let transfer = Arc::new(transfer);
        self.insert(Arc::clone(&transfer)).inspect_err(|_| drop(transfer.end(store)))
    }

    /// Chooses the codec of a put by parts of the whole tensor, before its first chunk.
    pub(crate) fn sample(
        &self,
        store: &Store,
        (session, caller): (u64, &Caller),
        id: u64,
        data: &ChunkData,
    ) -> Outcome<()> {
        let transfer = self.get(id, session)?;
        transfer.namespace.check(caller, Right::Write)?;
        transfer.sample(store, data)
    }

    /// Stores the blocks of a chunk from its block `done` on, and counts them there.
    ///
    /// Says whether that were all; if `may_wait`, the others may find room once segments have come back or were emptied.
    pub(crate) fn chunk(
        &self,
        store: &Store,
        (session, caller): (u64, &Caller),
        (id, first_block): (u64, u64),
        data: &ChunkData,
        (done, may_wait): (&mut u64, bool),
    ) -> Outcome<bool> {
        let transfer = self.get(id, session)?;
        // Each time: a right may have been taken away since the put began.
        transfer.namespace.check(caller, Right::Write)?;
        transfer.transaction.iter().for_each(|transaction| transaction.touch());
        let result = match transfer.chunk(store, first_block, data, done) {
            Ok(None) => Ok(true),
            Ok(Some(needed)) if may_wait && store.may_make_room(needed) => Ok(false),
            Ok(Some(needed)) => Err(transfer.explain(store.no_room(transfer.user, needed))),
            Err(refusal) => Err(refusal),
        };
        let code = result.as_ref().err().and_then(Refusal::code);
        if matches!(code, Some(ErrorCode::Quota | ErrorCode::PoolFull)) {
            // It cannot be finished: what it has stored is of use to nobody.
            let _ = self.take(id, session).is_ok();
            transfer.abort(store);
        }
        result
    }

    pub(crate) fn commit(&self, store: &Store, (session, caller): (u64, &Caller), id: u64) -> Outcome<Entry> {
        let transfer = self.get(id, session)?;
        let _committing = if transfer.transaction.is_none() {
            // It is tried again.
            transfer.namespace.check_claim(&transfer.name)?;
            Some(transfer.namespace.begin_commit()?)
        } else {
            None
        };
        let transfer = self.take(id, session)?;
        if let Err(refusal) = transfer.namespace.check(caller, Right::Write) {
            transfer.abort(store);
            return Err(refusal);
        }
        transfer.commit(store)
    }

    pub(crate) fn abort(&self, store: &Store, session: u64, id: u64) -> Outcome<()> {
        self.take(id, session)?.abort(store);
        Ok(())
    }
}

/// The put is gone by then: asking for its commit again would not help.
fn not_repeatable(refusal: Refusal) -> Refusal {
    match refusal.code() {
        Some(ErrorCode::Busy) => invalid(refusal.text),
        _ => refusal,
    }
}

/// The bytes that the blocks of a tensor take when they are stored raw, rounding included; they never take more.
fn stored_raw(geometry: &Geometry) -> u64 {
    // Every block but the last of a row or of the tensor has the shape of the first.
    let rounded = |shape: &BlockShape| max_encoded_len(shape).next_multiple_of(UNIT_BYTES);
    match geometry.n_blocks() {
        0 => 0,
        blocks => rounded(&geometry.block(0)).saturating_mul(blocks),
    }
}

impl Transfer {
    /// Stores blocks until one finds no room; returns the bytes that it needs.
    fn chunk(
        &self,
        store: &Store,
        first_block: u64,
        data: &ChunkData,
        done: &mut u64,
    ) -> Outcome<Option<u64>> {
        thread_local! {
            /// Raw and encoded bytes of one block.
            static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
        }
        if data.len() > MAX_CHUNK_BYTES {
            return Err(invalid(format!(
                "chunk of {} bytes is over the limit of {MAX_CHUNK_BYTES}",
                data.len()
            )));
        }
        let coding = self.coding(store, || self.first_chunk(first_block, data))?;
        let (mut block_idx, mut at) = (first_block, 0);
        while at < data.len() {
            let shape = self.block_in(block_idx, data.len() - at)?;
            if block_idx - first_block < *done {
                (at, block_idx) = (at + shape.raw_bytes, block_idx + 1);
                continue;
            }
            let stored = BUFFERS.with_borrow_mut(|(raw, encoded)| {
                raw.resize(index(shape.raw_bytes), 0);
                data.read_at(at, raw)?;
                let told = encode_block(coding.encoding(), &self.geometry, block_idx, raw, encoded);
                let told = told.map_err(|error| self.refused(block_idx, &error))?;
                let extent = store.try_store_bytes(&self.namespace, encoded, self.place())?;
                Ok(extent.map(|extent| (extent, (told, crc32c(raw)))).ok_or(encoded.len() as u64))
            })?;
            let (extent, told) = match stored {
                Ok(stored) => stored,
                Err(needed) => return Ok(Some(needed)),
            };
            reach(Point::PutEncoded);
            self.fill(store, block_idx, extent, told)?;
            *done += 1;
            at += shape.raw_bytes;
            block_idx += 1;
        }
        Ok(None)
    }

    fn place(&self) -> Place<'_> {
        Place::Tensor(&self.name)
    }

    /// Reserves what the choice predicts, as far as there is room: nothing is refused by a prediction.
    fn reserve(&self, store: &Store, coding: &Coding) {
        let before = self.progress.lock().reserved_bytes;
        let more = coding.predicted_bytes.min(stored_raw(&self.geometry)).saturating_sub(before);
        let granted = store.reserve(&self.namespace, &self.name, self.user, more);
        let mut progress = self.progress.lock();
        if progress.ended {
            store.unreserve(&self.namespace, self.user, granted);
        } else {
            progress.reserved_bytes += granted;
        }
    }

    /// Adds to a refusal for want of room what else replaces values.
    fn explain(&self, refusal: Refusal) -> Refusal {
        if !self.overwrite || !self.namespace.has(&self.name) {
            return refusal;
        }
        let Refusal { code, text } = refusal;
        let text = format!(
            "{text}; tensor {:?} stays until the one that replaces it is whole: update its rows in place, or remove it \
             first",
            self.name
        );
        Refusal { code, text }
    }

    fn refused(&self, block_idx: u64, error: &tierpack_kernels::Error) -> Refusal {
        invalid(format!("block {block_idx} of tensor {:?}: {error}", self.name))
    }

    fn block_in(&self, block_idx: u64, left: u64) -> Outcome<BlockShape> {
        if block_idx >= self.geometry.n_blocks() {
            let n_blocks = self.geometry.n_blocks();
            return Err(invalid(format!(
                "chunk passes the end of tensor {:?} with {n_blocks} blocks",
                self.name
            )));
        }
        let shape = self.geometry.block(block_idx);
        if shape.raw_bytes > left {
            let text =
                format!("chunk ends inside block {block_idx}: {left} of {} bytes came", shape.raw_bytes);
            return Err(invalid(text));
        }
        Ok(shape)
    }

    fn fill(
        &self,
        store: &Store,
        block_idx: u64,
        extent: Extent,
        (told, raw_crc): (Encoded, u32),
    ) -> Outcome<()> {
        let mut progress = self.progress.lock();
        // A put that ended has no blocks any more.
        let taken = progress.blocks.get(index(block_idx)).is_some_and(Option::is_some);
        if progress.ended || taken {
            drop(progress);
            self.namespace.free([extent]);
            store.note_freed();
            let fault = if taken { "came twice" } else { "came after the put ended" };
            return Err(invalid(format!("block {block_idx} of tensor {:?} {fault}", self.name)));
        }
        let kept = extent.len_bytes().min(progress.reserved_bytes);
        progress.reserved_bytes -= kept;
        store.unreserve(&self.namespace, self.user, kept);
        progress.stored_bytes += extent.len_bytes();
        progress.filled += 1;
        progress.last_used = Instant::now();
        // The metadata of a put become the generation at index 0.
        progress.blocks[index(block_idx)] = Some(StoredBlock::new(extent, told, 0, raw_crc));
        Ok(())
    }

    /// Ends the transfer; returns the blocks that came, and the charge for them.
    fn end(&self, store: &Store) -> (Vec<StoredBlock>, Option<Charge>) {
        let mut progress = self.progress.lock();
        if !std::mem::replace(&mut progress.ended, true) {
            self.namespace.count_put(false);
        }
        store.unreserve(&self.namespace, self.user, std::mem::take(&mut progress.reserved_bytes));
        let blocks = std::mem::take(&mut progress.blocks).into_iter().flatten().collect();
        (blocks, progress.charge.take())
    }

    fn abort(&self, store: &Store) {
        let (blocks, _charge) = self.end(store);
        self.free(blocks);
        store.note_freed();
    }

    fn free(&self, blocks: Vec<StoredBlock>) {
        self.namespace.free(blocks.into_iter().map(|block| block.extent));
    }

    fn commit(&self, store: &Store) -> Outcome<Entry> {
        let filled = self.progress.lock().filled;
        let (blocks, charge) = self.end(store);
        let n_blocks = self.geometry.n_blocks();
        if filled < n_blocks {
            self.free(blocks);
            return Err(invalid(format!(
                "tensor {:?} is not whole: {filled} of {n_blocks} blocks came",
                self.name
            )));
        }
        let coding = self.coding.get().and_then(|coding| coding.as_ref().ok());
        let metadata = match coding.and_then(Coding::metadata) {
            Some((number, bytes)) if blocks.iter().any(|block| !block.is_raw) => {
                store.store_metadata(&self.namespace, number, bytes, (self.place(), self.user)).map(Some)
            }
            // No block needs any.
            _ => Ok(None),
        };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(refusal) => {
                self.free(blocks);
                return Err(refusal);
            }
        };
        let coded = coding.filter(|_| metadata.is_some());
        let described = Description {
            geometry: self.geometry,
            shape: self.shape.clone(),
            row_elems: self.row_elems,
            choice: self.choice,
            codec: coded.map_or(CodecId::Raw, |coding| coding.codec),
            predicted_bytes: coding.map(|coding| coding.predicted_bytes),
            runner_up: coding.and_then(|coding| coding.runner_up),
            file_metadata: self.file_metadata.as_ref().map(Arc::clone),
        };
        let content = Content::new(described, blocks, metadata);
        let check = |namespace: &Namespace| namespace.check_quota(self.place(), table_bytes(n_blocks));
        let charge = store.within_quota(&self.namespace, check).and_then(|()| charge.ok_or_else(ended));
        let charge = match charge {
            Ok(charge) => charge,
            Err(refusal) => {
                self.namespace.free(content.into_extents());
                return Err(refusal);
            }
        };
        reach(Point::PutBeforePublish);
        let mut tensor = (content, charge);
        loop {
            let done = match &self.transaction {
                Some(transaction) => transaction.prepare(&self.name, tensor)?,
                None => self.namespace.publish(&self.name, tensor, self.overwrite).map_err(not_repeatable)?,
            };
            tensor = match done {
                Ok(entry) => return Ok(entry),
                Err(tensor) => tensor,
            };
            let needed = directory_need(n_blocks).expect("checked when the put began");
            if let Err(refusal) = store.grow(&self.namespace, SegmentKind::Directory, needed, self.user) {
                self.namespace.free(tensor.0.into_extents());
                return Err(refusal);
            }
        }
    }
}
