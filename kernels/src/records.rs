//! Blocks of the codecs with records: heads, front and overflow around what a codec packs.
//!
//! A record is one string of bytes: its head, then its packed words, or its raw bytes where packing does not
//! shorten them.
//! The first bytes of the string, as many as the stride says, are in the front; the rest is in the overflow.
//! Records of `planes:4` have neither head nor rest: the overflow is one list of the block's escapes.
//! Source: FORMAT.md, section "Records".

pub(crate) mod planes;

use tierpack_shm::types::{Access, CodecId, UNIT_BYTES, index};

use crate::block::{self, Block, HEADER_BYTES, Layout};
use crate::codec::Encoded;
use crate::coder::{Coder, Form, Ibp};
use crate::cpu::Split;
use crate::cut::{Grid, HEAD_BYTES, MAX_RECORD_BYTES, Place};
use crate::error::{Error, Result};
use crate::escapes;
use crate::geometry::BlockShape;
use crate::planes::{Planes, Schedule};
use crate::scalar::planes::{Body, Escape};
use crate::scalar::{
    self,
    ibp::{Packed, SLACK_BYTES, max_packed},
};
use crate::sparse::Sparse;

use self::planes::Position;

/// In a head: the record's bytes are raw.
pub(crate) const RAW_RECORD: u32 = 1 << 31;

/// In a head: no part of the record is in the overflow.
pub(crate) const NO_OVERFLOW: u32 = (1 << 31) - 1;

/// The most bytes of one packed record of any codec, and room for the backends.
pub(crate) const MAX_BODY_BYTES: usize = MAX_RECORD_BYTES + MAX_RECORD_BYTES / 4 + SLACK_BYTES;

const _: () = assert!(MAX_BODY_BYTES >= max_packed(MAX_RECORD_BYTES, 2) + SLACK_BYTES);
const _: () = assert!(MAX_BODY_BYTES >= scalar::planes::MAX_PACKED + SLACK_BYTES);
const _: () = assert!(MAX_BODY_BYTES >= scalar::sparse::MAX_PACKED + SLACK_BYTES);

/// Room to decode rows in: make one per gather, outside the loop over rows.
pub struct Scratch {
    /// A record that is not all in the front.
    body: [u8; MAX_BODY_BYTES],
    /// A decoded record of which a row is a part.
    words: [u8; MAX_RECORD_BYTES],
}

impl Scratch {
    /// Empty room of 18 KiB, on the stack.
    pub const fn new() -> Self {
        Self { body: [0; MAX_BODY_BYTES], words: [0; MAX_RECORD_BYTES] }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// Writes the block of `raw` into `out`, as `raw` where encoding does not save a unit of the pool.
pub(crate) fn encode(coder: &Coder, shape: &BlockShape, raw: &[u8], out: &mut Vec<u8>) -> Encoded {
    let grid = coder.grid(shape);
    let mut writer = Writer::new(coder, &grid);
    for (run, bytes) in raw.chunks(index(grid.run_bytes())).enumerate() {
        for (record, bytes) in bytes.chunks(index(grid.record_bytes())).enumerate() {
            writer.push(&grid, run as u64, record as u64, bytes);
        }
    }
    let body_len = (writer.front.len() + writer.overflow.len()) as u64;
    let Writer { front, overflow, chunks, participating, unfit, .. } = writer;
    let codec = if unfit || stays_raw(shape, body_len) {
        scalar::raw::encode(coder.geometry().dtype(), shape, raw, out);
        CodecId::Raw
    } else {
        write_coded(coder, shape, &grid, &front, &overflow, out);
        coder.codec()
    };
    Encoded { codec, escapes: chunks - participating, participating }
}

/// Whether a block of so many bytes of front and overflow does not save a unit of the pool.
pub(crate) const fn stays_raw(shape: &BlockShape, body_len: u64) -> bool {
    let units = (HEADER_BYTES + body_len).div_ceil(UNIT_BYTES);
    units >= (HEADER_BYTES + shape.raw_bytes).div_ceil(UNIT_BYTES)
}

/// Writes header, front and overflow into `out`.
pub(crate) fn write_coded(
    coder: &Coder,
    shape: &BlockShape,
    grid: &Grid,
    front: &[u8],
    overflow: &[u8],
    out: &mut Vec<u8>,
) {
    let layout = Layout {
        codec: coder.codec(),
        dtype: coder.geometry().dtype(),
        generation: coder.generation(),
        rows: shape.rows,
        columns: shape.columns,
        records: grid.runs.total_records(),
        record_stride: grid.record_stride,
        tail_stride: grid.tail_stride,
        overflow_len: overflow.len() as u64,
        access: Some(coder.geometry().access()),
    };
    block::write(&layout, front, overflow, out);
}

/// Collects the front and the overflow of a block.
struct Writer<'a> {
    coder: &'a Coder,
    front: Vec<u8>,
    overflow: Vec<u8>,
    words: Vec<u8>,
    packed: Vec<u8>,
    escapes: Vec<Escape>,
    chunks: u64,
    participating: u64,
    /// A record cannot be written by this codec.
    unfit: bool,
}

impl<'a> Writer<'a> {
    fn new(coder: &'a Coder, grid: &Grid) -> Self {
        Self {
            coder,
            front: vec![0; index(grid.front_len())],
            overflow: Vec::new(),
            words: Vec::new(),
            packed: vec![0; MAX_BODY_BYTES],
            escapes: Vec::new(),
            chunks: 0,
            participating: 0,
            unfit: false,
        }
    }

    fn push(&mut self, grid: &Grid, run: u64, record: u64, raw: &[u8]) {
        let start = index(record * grid.record_bytes());
        let place = grid.place(run, record);
        let packed = match self.coder.form() {
            Form::Ibp(ibp) => Some(self.pack_ibp(ibp, start, raw)),
            Form::Planes(planes) => self.pack_planes(planes, start / planes.word_bytes(), raw),
            Form::Sparse(sparse) => Some(self.coder.backend().encode_sparse(sparse, raw, &mut self.packed)),
        };
        if let Form::Planes(planes) = self.coder.form()
            && planes.schedule == Schedule::Four
        {
            let first = index(run * grid.run_bytes() + record * grid.record_bytes()) / planes.word_bytes();
            self.push_headless(&place, first, packed);
        } else {
            self.push_headed(&place, raw, packed);
        }
    }

    fn pack_ibp(&mut self, ibp: &Ibp, start: usize, raw: &[u8]) -> Packed {
        self.words.clear();
        self.words.extend_from_slice(raw);
        let room = max_packed(raw.len(), ibp.chunk_bytes) + SLACK_BYTES;
        let out = &mut self.packed[..room];
        self.coder.backend().encode(&ibp.window, start, &mut self.words, &ibp.masks(start), out)
    }

    fn pack_planes(&mut self, planes: &Planes, first: usize, raw: &[u8]) -> Option<Packed> {
        let room = planes.max_packed(raw.len() / planes.word_bytes()) + SLACK_BYTES;
        let out = &mut self.packed[..room];
        let packed = self.coder.backend().encode_planes(planes, first, raw, out, &mut self.escapes);
        if packed.is_none() {
            self.chunks += (raw.len() / planes.word_bytes()) as u64;
        }
        packed
    }

    /// Adds a record without head, whose escapes join the block's list.
    fn push_headless(&mut self, place: &Place, first: usize, packed: Option<Packed>) {
        let Some(packed) = packed else {
            self.unfit = true;
            return;
        };
        self.chunks += packed.chunks;
        self.participating += packed.participating;
        self.front[index(place.offset)..][..packed.bytes].copy_from_slice(&self.packed[..packed.bytes]);
        for &(elem, exponent) in &self.escapes {
            self.overflow.extend_from_slice(&escapes::entry(first + elem, exponent));
        }
    }

    fn push_headed(&mut self, place: &Place, raw: &[u8], packed: Option<Packed>) {
        self.chunks += packed.map_or(0, |packed| packed.chunks);
        let (flag, body) = match packed {
            Some(packed) if packed.bytes < raw.len() => {
                self.participating += packed.participating;
                (0, &self.packed[..packed.bytes])
            }
            _ => (RAW_RECORD, raw),
        };
        let front = &mut self.front[index(place.offset)..][..index(place.stride)];
        let (head, front) = front.split_at_mut(index(HEAD_BYTES));
        let (inside, rest) = body.split_at(body.len().min(front.len()));
        front[..inside.len()].copy_from_slice(inside);
        let offset = if rest.is_empty() { NO_OVERFLOW } else { overflow_offset(self.overflow.len()) };
        head.copy_from_slice(&(flag | offset).to_le_bytes());
        self.overflow.extend_from_slice(rest);
    }
}

/// An offset in the overflow as a head stores it.
fn overflow_offset(offset: usize) -> u32 {
    u32::try_from(offset).expect("the overflow of a block is shorter than its raw bytes and its heads")
}

/// Front and overflow of one block, as a reader has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    coder: &'a Coder,
    grid: Grid,
    /// What follows the header: the front, then as much overflow as is there.
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    /// All of a parsed block that this coder may decode.
    pub(crate) fn of_block(coder: &'a Coder, block: &Block<'a>) -> Result<Self> {
        let grid = coder.check_block(block.checked())?;
        Ok(Self::new(coder, grid, &block.bytes()[index(HEADER_BYTES)..]))
    }

    /// What follows the header of a block: at least its front.
    #[inline]
    pub(crate) const fn new(coder: &'a Coder, grid: Grid, bytes: &'a [u8]) -> Self {
        Self { coder, grid, bytes }
    }

    /// Decodes all of the block; `out` has its raw length.
    pub(crate) fn decode_all(&self, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        self.records(Position { run: 0, record: 0 }, out, &mut scratch.body)
    }

    /// Decodes one row of the block; `out` has its length.
    #[inline]
    pub(crate) fn decode_row(&self, row: u64, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        if self.coder.geometry().access() == Access::Rows {
            return self.records(Position { run: row, record: 0 }, out, &mut scratch.body);
        }
        let record_bytes = self.grid.record_bytes();
        let (mut at, mut left) = (row * out.len() as u64, out);
        while !left.is_empty() {
            let (record, skip) = (at / record_bytes, at % record_bytes);
            let record_len = self.grid.place(0, record).raw_bytes;
            let len = index(record_len - skip).min(left.len());
            let (now, later) = left.split_at_mut(len);
            let position = Position { run: 0, record };
            if now.len() as u64 == record_len {
                self.records(position, now, &mut scratch.body)?;
            } else {
                let words = &mut scratch.words[..index(record_len)];
                self.records(position, words, &mut scratch.body)?;
                now.copy_from_slice(&words[index(skip)..][..len]);
            }
            (at, left) = (at + len as u64, later);
        }
        Ok(())
    }

    /// What is in the front for one row: its records, or under access `whole` those that it is a part of.
    #[inline]
    pub(crate) fn front_of(&self, row: u64, row_bytes: u64) -> &'a [u8] {
        let (run, first, last) = match self.coder.geometry().access() {
            Access::Rows => (row, 0, self.grid.runs.records - 1),
            Access::Whole => {
                let (start, record_bytes) = (row * row_bytes, self.grid.record_bytes());
                (0, start / record_bytes, (start + row_bytes - 1) / record_bytes)
            }
        };
        let (first, last) = (self.grid.place(run, first), self.grid.place(run, last));
        self.bytes.get(index(first.offset)..index(last.offset + last.stride)).unwrap_or(&[])
    }

    /// Where the overflow of one row starts, if its first record has any; reads that record's head.
    #[inline]
    pub(crate) fn rest_of(&self, front: &[u8]) -> Option<&'a [u8]> {
        if self.coder.has_heads() {
            let head = u32::from_le_bytes(*front.first_chunk()?);
            if head & NO_OVERFLOW != NO_OVERFLOW {
                return self.overflow(head).ok();
            }
        }
        None
    }

    /// Decodes the records from `position` on that `words` has room for; it ends with a record.
    #[inline]
    fn records(&self, position: Position, words: &mut [u8], room: &mut [u8; MAX_BODY_BYTES]) -> Result<()> {
        if let Form::Planes(planes) = self.coder.form() {
            return self.coder.backend().decode_planes(planes, self, position, words, room);
        }
        let Position { mut run, mut record } = position;
        let mut left = words;
        while !left.is_empty() {
            let place = self.grid.place(run, record);
            let (now, later) = left.split_at_mut(index(place.raw_bytes));
            match self.coder.form() {
                Form::Ibp(ibp) => {
                    self.ibp_record(ibp, &place, index(record * self.grid.record_bytes()), now, room)?;
                }
                Form::Sparse(sparse) => self.sparse_record(sparse, &place, now, room)?,
                Form::Planes(_) => {}
            }
            left = later;
            record += 1;
            if record == self.grid.runs.records {
                (run, record) = (run + 1, 0);
            }
        }
        Ok(())
    }

    fn sparse_record(
        &self,
        sparse: &Sparse,
        place: &Place,
        words: &mut [u8],
        room: &mut [u8; MAX_BODY_BYTES],
    ) -> Result<()> {
        let (head, body) = self.body(place)?;
        if head & RAW_RECORD != 0 {
            return self.raw_record(head, body.front(), words);
        }
        let decoded = self.coder.backend().decode_sparse(sparse, &body, words, room);
        decoded.map_err(|needed| self.missing(head, needed))
    }

    fn ibp_record(
        &self,
        ibp: &Ibp,
        place: &Place,
        start: usize,
        words: &mut [u8],
        room: &mut [u8; MAX_BODY_BYTES],
    ) -> Result<()> {
        let (head, at) = self.head(place);
        let masks = ibp.masks(start);
        let backend = self.coder.backend();
        let front = &self.bytes[at..][..index(place.stride - HEAD_BYTES)];
        if head & RAW_RECORD != 0 {
            return self.raw_record(head, front, words);
        }
        if head & NO_OVERFLOW != NO_OVERFLOW {
            let body = Split { front, rest: self.overflow(head)?, scratch: room };
            let missing = |len| self.missing(head, len);
            return backend.decode_split(&ibp.window, start, body, &masks, words).map_err(missing);
        }
        let needed = max_packed(words.len(), ibp.chunk_bytes) + SLACK_BYTES;
        let bits = if let Some(bits) = self.bytes[at..].get(..needed) {
            bits
        } else {
            let len = front.len().min(needed);
            room[..len].copy_from_slice(&front[..len]);
            room[len..needed].fill(0);
            &room[..needed]
        };
        backend.decode(&ibp.window, start, bits, &masks, words);
        Ok(())
    }

    /// A record's head, and where its body starts.
    #[inline]
    fn head(&self, place: &Place) -> (u32, usize) {
        let offset = index(place.offset);
        let head = self.bytes[offset..].first_chunk().map_or(NO_OVERFLOW, |head| u32::from_le_bytes(*head));
        (head, offset + index(HEAD_BYTES))
    }

    /// A record's head and body.
    #[inline(always)]
    fn body(&self, place: &Place) -> Result<(u32, Body<'a>)> {
        let (head, at) = self.head(place);
        let bytes = &self.bytes[at..];
        let mut body = Body { bytes, front_len: index(place.stride - HEAD_BYTES), rest_at: None };
        if head & NO_OVERFLOW != NO_OVERFLOW {
            body.rest_at = Some(bytes.len() - self.overflow(head)?.len());
        }
        Ok((head, body))
    }

    /// Copies a record that was not packed.
    fn raw_record(&self, head: u32, front: &[u8], words: &mut [u8]) -> Result<()> {
        let rest = if head & NO_OVERFLOW == NO_OVERFLOW { &[] } else { self.overflow(head)? };
        let (inside, outside) = words.split_at_mut(words.len().min(front.len()));
        inside.copy_from_slice(&front[..inside.len()]);
        let len = outside.len();
        outside.copy_from_slice(rest.get(..len).ok_or_else(|| self.missing(head, len))?);
        Ok(())
    }

    /// The overflow from where a head says.
    #[inline]
    fn overflow(&self, head: u32) -> Result<&'a [u8]> {
        let overflow = &self.bytes[index(self.grid.front_len())..];
        let offset = (head & NO_OVERFLOW) as usize;
        overflow.get(offset..).ok_or_else(|| self.missing(head, 0))
    }

    /// What a record with this head lacks, whose rest has `len` bytes.
    #[cold]
    fn missing(&self, head: u32, len: usize) -> Error {
        let offset = u64::from(head & NO_OVERFLOW);
        let there = self.bytes.len() as u64 - self.grid.front_len();
        Error::Overflow { offset, end: offset + len as u64, overflow_len: there }
    }
}

#[cfg(test)]
mod tests;
