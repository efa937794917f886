//! Blocks of codecs `ibp` and `ibp:window`: heads, front and overflow around the packed records.
//!
//! A record is one string of bytes: its head, then its packed words, or its raw bytes where packing does not
//! shorten them.
//! The first bytes of the string, as many as the stride says, stand in the front; the rest is in the overflow.
//! Source: FORMAT.md, sections "Records" and "Codec ibp".

use tierpack_shm::types::{Access, CodecId, UNIT_BYTES, index};

use crate::block::{self, Block, HEADER_BYTES, Layout};
use crate::codec::Encoded;
use crate::coder::Coder;
use crate::cpu::Split;
use crate::cut::{Grid, HEAD_BYTES, MAX_RECORD_BYTES, Place};
use crate::error::{Error, Result};
use crate::geometry::BlockShape;
use crate::scalar::{
    self,
    ibp::{SLACK_BYTES, max_packed},
};

/// In a head: the record's bytes are raw.
pub(crate) const RAW_RECORD: u32 = 1 << 31;

/// In a head: no part of the record is in the overflow.
pub(crate) const NO_OVERFLOW: u32 = (1 << 31) - 1;

/// The most bytes of one packed record, and room for the backends.
const MAX_BODY_BYTES: usize = max_packed(MAX_RECORD_BYTES, 2) + SLACK_BYTES;

/// Room to decode rows in: make one per gather, outside the loop over rows.
pub struct Scratch {
    /// A record that is not all in the front.
    body: [u8; MAX_BODY_BYTES],
    /// A decoded record of which a row is a part.
    words: [u8; MAX_RECORD_BYTES],
}

impl Scratch {
    /// Empty room of 17 KiB, on the stack.
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
            let start = record as u64 * grid.record_bytes();
            writer.push(&grid.place(run as u64, record as u64), start, bytes);
        }
    }
    let units = |body_len: u64| (HEADER_BYTES + body_len).div_ceil(UNIT_BYTES);
    let body_len = (writer.front.len() + writer.overflow.len()) as u64;
    let Writer { front, overflow, chunks, participating, .. } = writer;
    if units(body_len) >= units(shape.raw_bytes) {
        scalar::raw::encode(coder.geometry().dtype(), shape, raw, out);
        return Encoded { codec: CodecId::Raw, escapes: chunks - participating, participating };
    }
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
    block::write(&layout, &front, &overflow, out);
    Encoded { codec: coder.codec(), escapes: chunks - participating, participating }
}

/// Collects the front and the overflow of a block.
struct Writer<'a> {
    coder: &'a Coder,
    front: Vec<u8>,
    overflow: Vec<u8>,
    words: Vec<u8>,
    packed: Vec<u8>,
    chunks: u64,
    participating: u64,
}

impl<'a> Writer<'a> {
    fn new(coder: &'a Coder, grid: &Grid) -> Self {
        Self {
            coder,
            front: vec![0; index(grid.front_len())],
            overflow: Vec::new(),
            words: Vec::new(),
            packed: vec![0; MAX_BODY_BYTES],
            chunks: 0,
            participating: 0,
        }
    }

    fn push(&mut self, place: &Place, start: u64, raw: &[u8]) {
        let coder = self.coder;
        self.words.clear();
        self.words.extend_from_slice(raw);
        let room = max_packed(raw.len(), coder.chunk_bytes()) + SLACK_BYTES;
        let packed = coder.backend().encode(
            coder.window(),
            index(start),
            &mut self.words,
            &coder.masks(start),
            &mut self.packed[..room],
        );
        self.chunks += packed.chunks;
        let (flag, body) = if packed.bytes < raw.len() {
            self.participating += packed.participating;
            (0, &self.packed[..packed.bytes])
        } else {
            (RAW_RECORD, raw)
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
pub(crate) struct Source<'a> {
    coder: &'a Coder,
    grid: Grid,
    /// What follows the header: the front, then as much overflow as is there.
    bytes: &'a [u8],
}

/// The overflow of a record is not among the bytes.
pub(crate) struct Missing {
    offset: u64,
    end: u64,
    there: u64,
}

impl From<Missing> for Error {
    fn from(Missing { offset, end, there }: Missing) -> Self {
        Self::Overflow { offset, end, overflow_len: there }
    }
}

impl<'a> Source<'a> {
    /// All of a parsed block that this coder may decode.
    pub(crate) fn of_block(coder: &'a Coder, block: &Block<'a>) -> Result<Self> {
        let grid = coder.check_block(block)?;
        Ok(Self { coder, grid, bytes: &block.bytes()[index(HEADER_BYTES)..] })
    }

    /// The block's bytes from the header on, at least as far as the front goes; the header is not read.
    #[inline]
    pub(crate) fn of_front(coder: &'a Coder, shape: &BlockShape, bytes: &'a [u8]) -> Result<Self> {
        let grid = coder.grid(shape);
        let needed = HEADER_BYTES + grid.front_len();
        let got = bytes.len() as u64;
        match bytes.get(index(HEADER_BYTES)..) {
            Some(bytes) if got >= needed => Ok(Self { coder, grid, bytes }),
            _ => Err(Error::BlockTruncated { needed, got }),
        }
    }

    /// Decodes all of the block; `out` has its raw length.
    pub(crate) fn decode_all(&self, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        for (run, words) in out.chunks_mut(index(self.grid.run_bytes())).enumerate() {
            for (record, words) in words.chunks_mut(index(self.grid.record_bytes())).enumerate() {
                self.record(run as u64, record as u64, words, &mut scratch.body)?;
            }
        }
        Ok(())
    }

    /// Decodes one row of the block; `out` has its length.
    #[inline]
    pub(crate) fn decode_row(
        &self,
        row: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> core::result::Result<(), Missing> {
        let record_bytes = self.grid.record_bytes();
        if self.coder.geometry().access() == Access::Rows {
            for (record, words) in out.chunks_mut(index(record_bytes)).enumerate() {
                self.record(row, record as u64, words, &mut scratch.body)?;
            }
            return Ok(());
        }
        let (mut at, mut left) = (row * out.len() as u64, out);
        while !left.is_empty() {
            let (record, skip) = (at / record_bytes, at % record_bytes);
            let record_len = self.grid.place(0, record).raw_bytes;
            let len = index(record_len - skip).min(left.len());
            let (now, later) = left.split_at_mut(len);
            if now.len() as u64 == record_len {
                self.record(0, record, now, &mut scratch.body)?;
            } else {
                let words = &mut scratch.words[..index(record_len)];
                self.record(0, record, words, &mut scratch.body)?;
                now.copy_from_slice(&words[index(skip)..][..len]);
            }
            (at, left) = (at + len as u64, later);
        }
        Ok(())
    }

    /// Decodes one record into `words`, which has its raw length.
    #[inline]
    fn record(
        &self,
        run: u64,
        record: u64,
        words: &mut [u8],
        scratch: &mut [u8; MAX_BODY_BYTES],
    ) -> core::result::Result<(), Missing> {
        let place = self.grid.place(run, record);
        let (head, at) = self.head(&place);
        let start = record * self.grid.record_bytes();
        let masks = self.coder.masks(start);
        let backend = self.coder.backend();
        let front = &self.bytes[at..][..index(place.stride - HEAD_BYTES)];
        if head & RAW_RECORD != 0 {
            return self.raw_record(head, front, words);
        }
        let window = self.coder.window();
        if head & NO_OVERFLOW != NO_OVERFLOW {
            let body = Split { front, rest: self.overflow(head)?, scratch };
            let missing = |len| self.missing(head, len);
            return backend.decode_split(window, index(start), body, &masks, words).map_err(missing);
        }
        let room = max_packed(words.len(), self.coder.chunk_bytes()) + SLACK_BYTES;
        let bits = if let Some(bits) = self.bytes[at..].get(..room) {
            bits
        } else {
            let len = front.len().min(room);
            scratch[..len].copy_from_slice(&front[..len]);
            scratch[len..room].fill(0);
            &scratch[..room]
        };
        backend.decode(window, index(start), bits, &masks, words);
        Ok(())
    }

    /// A record's head, and where its body starts.
    #[inline]
    fn head(&self, place: &Place) -> (u32, usize) {
        let offset = index(place.offset);
        let head = self.bytes[offset..].first_chunk().map_or(NO_OVERFLOW, |head| u32::from_le_bytes(*head));
        (head, offset + index(HEAD_BYTES))
    }

    /// Copies a record that was not packed.
    fn raw_record(&self, head: u32, front: &[u8], words: &mut [u8]) -> core::result::Result<(), Missing> {
        let (inside, outside) = words.split_at_mut(words.len().min(front.len()));
        inside.copy_from_slice(&front[..inside.len()]);
        if !outside.is_empty() {
            let (rest, len) = (self.overflow(head)?, outside.len());
            outside.copy_from_slice(rest.get(..len).ok_or_else(|| self.missing(head, len))?);
        }
        Ok(())
    }

    /// The overflow from where a head says.
    #[inline]
    fn overflow(&self, head: u32) -> core::result::Result<&'a [u8], Missing> {
        let overflow = &self.bytes[index(self.grid.front_len())..];
        let offset = (head & NO_OVERFLOW) as usize;
        overflow.get(offset..).ok_or_else(|| self.missing(head, 0))
    }

    /// What a record with this head lacks, whose rest has `len` bytes.
    fn missing(&self, head: u32, len: usize) -> Missing {
        let offset = u64::from(head & NO_OVERFLOW);
        let there = self.bytes.len() as u64 - self.grid.front_len();
        Missing { offset, end: offset + len as u64, there }
    }
}

#[cfg(test)]
mod tests;
