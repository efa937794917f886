//! The container of one block: a 64-byte header, the front, the overflow.
//!
//! [`Block::parse`] is the only parser of the format.
//! It is total: it allocates nothing, and whatever the bytes say, it returns an error or a block whose lengths
//! agree with each other and with the bytes that are there.
//! The checksum is a step of its own, [`Block::verify_crc`], because reads of pool memory do not pay for it.
//! Source: FORMAT.md, sections "Block" and "What a reader must reject".

use core::fmt;
use core::mem::{offset_of, size_of};

use tierpack_shm::types::{Access, CodecId, Dtype, index};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cut::{Grid, Runs, STRIDE_UNIT, bytes_of, max_stride};
use crate::error::{Error, Result};
use crate::escapes::ENTRY_BYTES;
use crate::geometry::MAX_BLOCK_RAW_BYTES;

/// The version of the format in FORMAT.md that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes of a block's header.
pub const HEADER_BYTES: u64 = 64;

const MAGIC: [u8; 4] = *b"TPB1";

/// The header's bytes; alignment 1, because a block may lie anywhere in a file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: U16,
    codec: u8,
    dtype: u8,
    generation: U32,
    rows: U32,
    columns: U32,
    records: U32,
    record_stride: U32,
    tail_stride: U32,
    overflow_len: U32,
    total_len: U32,
    crc32c: U32,
    access: u8,
    reserved: [u8; 19],
}

const _: () = {
    assert!(size_of::<Header>() == 64 && HEADER_BYTES == 64);
    assert!(offset_of!(Header, magic) == 0);
    assert!(offset_of!(Header, version) == 4);
    assert!(offset_of!(Header, codec) == 6);
    assert!(offset_of!(Header, dtype) == 7);
    assert!(offset_of!(Header, generation) == 8);
    assert!(offset_of!(Header, rows) == 12);
    assert!(offset_of!(Header, columns) == 16);
    assert!(offset_of!(Header, records) == 20);
    assert!(offset_of!(Header, record_stride) == 24);
    assert!(offset_of!(Header, tail_stride) == 28);
    assert!(offset_of!(Header, overflow_len) == 32);
    assert!(offset_of!(Header, total_len) == 36);
    assert!(offset_of!(Header, crc32c) == 40);
    assert!(offset_of!(Header, access) == 44);
    assert!(offset_of!(Header, reserved) == 45);
};

/// One encoded block whose header has been checked.
///
/// Its lengths agree with each other and with the bytes; the bytes themselves are vouched for by
/// [`Block::verify_crc`] only.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    bytes: &'a [u8],
    checked: Checked,
}

impl<'a> Block<'a> {
    /// Checks the header of the block that starts at the first byte.
    ///
    /// `bytes` may go on after the block: an extent is rounded up.
    ///
    /// # Errors
    /// A variant of [`Error`] for each rule of FORMAT.md, section "What a reader must reject";
    /// [`Error::UnknownVersion`], [`Error::UnknownCodec`] and [`Error::UnknownDtype`] where a newer TierPack
    /// may have written the block.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let checked = Checked::of(bytes)?;
        let (needed, got) = (checked.total_len, bytes.len() as u64);
        let bytes = bytes.get(..index(needed)).ok_or(Error::BlockTruncated { needed, got })?;
        Ok(Self { bytes, checked })
    }

    /// Compares the header's CRC32C with that of the bytes.
    ///
    /// For promote, restore and verify; `get` and `gather` read memory that only the daemon writes.
    ///
    /// # Errors
    /// [`Error::Checksum`] where they differ.
    pub fn verify_crc(&self) -> Result<()> {
        let header = self.checked.header;
        let stored = header.crc32c.get();
        let computed = checksum(header, &self.bytes[index(HEADER_BYTES)..]);
        if stored == computed { Ok(()) } else { Err(Error::Checksum { stored, computed }) }
    }

    /// How the values are encoded.
    #[inline]
    pub const fn codec(&self) -> CodecId {
        self.checked.codec
    }

    /// Element type.
    #[inline]
    pub const fn dtype(&self) -> Dtype {
        self.checked.dtype
    }

    /// Number of the metadata that decodes the block; 0 for `raw`, which needs none.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.checked.header.generation.get()
    }

    /// Rows of the block; 1 where it is a piece of a row.
    #[inline]
    pub fn rows(&self) -> u32 {
        self.checked.header.rows.get()
    }

    /// Elements per row in this block.
    #[inline]
    pub fn columns(&self) -> u32 {
        self.checked.header.columns.get()
    }

    /// Records of the block.
    #[inline]
    pub fn records(&self) -> u32 {
        self.checked.header.records.get()
    }

    /// Bytes that the block decodes to, at most [`MAX_BLOCK_RAW_BYTES`].
    #[inline]
    pub const fn raw_bytes(&self) -> u64 {
        self.checked.raw_bytes
    }

    /// How records were cut; `None` for `raw`, which has one per row.
    #[inline]
    pub fn access(&self) -> Option<Access> {
        self.checked.access()
    }

    /// What its header says.
    #[inline]
    pub(crate) const fn checked(&self) -> &Checked {
        &self.checked
    }

    /// What the records did not hold, in their order; empty for `raw`.
    #[inline]
    pub fn overflow(&self) -> &'a [u8] {
        let start = self.bytes.len() - index(u64::from(self.checked.header.overflow_len.get()));
        &self.bytes[start..]
    }

    /// The whole block, header included, without what follows it.
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The records at their strides.
    #[inline]
    pub fn front(&self) -> &'a [u8] {
        let end = self.bytes.len() - index(u64::from(self.checked.header.overflow_len.get()));
        &self.bytes[index(HEADER_BYTES)..end]
    }
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("header", &self.checked.header).finish_non_exhaustive()
    }
}

/// Bytes of the whole block whose first [`HEADER_BYTES`] bytes are passed: a reader that has only the header
/// and the front learns how far the overflow goes.
///
/// At most [`HEADER_BYTES`] + [`MAX_BLOCK_RAW_BYTES`].
///
/// # Errors
/// Those of [`Block::parse`], except that bytes after the header may be missing.
pub fn needed_len(header: &[u8]) -> Result<u64> {
    Checked::of(header).map(|checked| checked.total_len)
}

/// Bytes of the block that starts with this header, by the one field that says so, for reads of memory that only
/// the daemon writes; those of a header alone where the field says less, and at most those of the largest block.
#[inline]
pub fn stored_len(header: &[u8]) -> u64 {
    let field = header.get(offset_of!(Header, total_len)..).and_then(|bytes| bytes.first_chunk());
    let len = field.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
    len.clamp(HEADER_BYTES, HEADER_BYTES + MAX_BLOCK_RAW_BYTES)
}

/// A header whose fields agree with each other.
#[derive(Clone, Copy)]
pub(crate) struct Checked {
    header: Header,
    pub(crate) codec: CodecId,
    pub(crate) dtype: Dtype,
    /// Bytes that the block decodes to.
    pub(crate) raw_bytes: u64,
    /// Where the records lie; `None` for `raw`.
    pub(crate) grid: Option<Grid>,
    /// Bytes of header, front and overflow.
    pub(crate) total_len: u64,
}

impl Checked {
    /// Checks the header that starts `bytes`, whatever follows it.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self> {
        let got = bytes.len() as u64;
        let truncated = |_| Error::BlockTruncated { needed: HEADER_BYTES, got };
        let (header, _) = Header::read_from_prefix(bytes).map_err(truncated)?;
        let (codec, dtype) = header.identify()?;
        let row_bytes = header.row_bytes(dtype)?;
        let raw_bytes = u64::from(header.rows.get()) * row_bytes;
        let (grid, body_len) = match codec {
            CodecId::Raw => (None, header.check_raw(row_bytes, raw_bytes)?),
            codec => {
                let (grid, body_len) = header.check_records(codec, dtype, raw_bytes)?;
                (Some(grid), body_len)
            }
        };
        let total_len = HEADER_BYTES + body_len;
        expect_field("total_len", header.total_len.get(), total_len)?;
        Ok(Self { header, codec, dtype, raw_bytes, grid, total_len })
    }

    pub(crate) const fn generation(&self) -> u32 {
        self.header.generation.get()
    }

    pub(crate) const fn rows(&self) -> u32 {
        self.header.rows.get()
    }

    pub(crate) const fn columns(&self) -> u32 {
        self.header.columns.get()
    }

    pub(crate) fn access(&self) -> Option<Access> {
        self.header.access()
    }
}

impl Header {
    /// Magic, version, codec, dtype, reserved bytes.
    fn identify(&self) -> Result<(CodecId, Dtype)> {
        if self.magic != MAGIC {
            return Err(Error::NotABlock { found: self.magic });
        }
        let version = self.version.get();
        if version > FORMAT_VERSION {
            return Err(Error::UnknownVersion { found: version });
        }
        expect_field("version", u32::from(version), u64::from(FORMAT_VERSION))?;
        let codec = CodecId::from_number(self.codec).ok_or(Error::UnknownCodec { number: self.codec })?;
        let dtype = Dtype::from_number(self.dtype).ok_or(Error::UnknownDtype { number: self.dtype })?;
        match self.reserved.iter().position(|&byte| byte != 0) {
            None => Ok((codec, dtype)),
            Some(i) => {
                Err(Error::Reserved { offset: offset_of!(Self, reserved) + i, found: self.reserved[i] })
            }
        }
    }

    /// Raw bytes of one row, where the block has elements, whole bytes, and no more than a block may have.
    fn row_bytes(&self, dtype: Dtype) -> Result<u64> {
        let (rows, columns) = (self.rows.get(), self.columns.get());
        if rows == 0 || columns == 0 {
            return Err(Error::EmptyBlock { rows, columns });
        }
        // Cannot overflow: 32 bits times at most 64.
        let row_bits = u64::from(columns) * u64::from(dtype.bits());
        if row_bits % 8 != 0 {
            return Err(Error::PartialByte { dtype, n_elems: u64::from(columns) });
        }
        match (row_bits / 8).checked_mul(u64::from(rows)) {
            Some(raw_bytes) if raw_bytes <= MAX_BLOCK_RAW_BYTES => Ok(row_bits / 8),
            _ => Err(Error::BlockTooLarge { rows, columns, dtype }),
        }
    }

    fn access(&self) -> Option<Access> {
        match self.access {
            1 => Some(Access::Rows),
            2 => Some(Access::Whole),
            _ => None,
        }
    }

    /// Codecs with records: counts and strides that follow from the shape, and fewer bytes than `raw` takes;
    /// returns the grid and the length of front and overflow.
    fn check_records(&self, codec: CodecId, dtype: Dtype, raw_bytes: u64) -> Result<(Grid, u64)> {
        let Some(access) = self.access() else {
            return Err(Error::Field { field: "access", found: u32::from(self.access), expected: 1 });
        };
        let generation = self.generation.get();
        if generation == 0 {
            return Err(Error::Field { field: "generation", found: generation, expected: 1 });
        }
        let runs = Runs::of(access, u64::from(self.rows.get()), u64::from(self.columns.get()));
        expect_field("records", self.records.get(), runs.total_records())?;
        let full_bytes = bytes_of(dtype, if runs.records > 1 { crate::cut::RECORD_ELEMS } else { 0 });
        let record_stride = expect_stride("record_stride", self.record_stride.get(), full_bytes)?;
        let tail_bytes = bytes_of(dtype, runs.tail_elems);
        let tail_stride = expect_stride("tail_stride", self.tail_stride.get(), tail_bytes)?;
        let grid = Grid::new(runs, dtype, record_stride, tail_stride);
        let body_len = grid.front_len() + u64::from(self.overflow_len.get());
        if body_len >= raw_bytes {
            let expected = raw_bytes.saturating_sub(grid.front_len() + 1);
            let found = self.overflow_len.get();
            return Err(Error::Field { field: "overflow_len", found, expected });
        }
        if codec == CodecId::Planes4 {
            let found = self.overflow_len.get();
            expect_field("overflow_len", found, u64::from(found) / ENTRY_BYTES as u64 * ENTRY_BYTES as u64)?;
        }
        Ok((grid, body_len))
    }

    /// Codec `raw`: one record per row, of the row's own length, and nothing else; returns the length of front
    /// and overflow.
    fn check_raw(&self, row_bytes: u64, raw_bytes: u64) -> Result<u64> {
        expect_field("access", u32::from(self.access), 0)?;
        expect_field("generation", self.generation.get(), 0)?;
        expect_field("records", self.records.get(), u64::from(self.rows.get()))?;
        expect_field("record_stride", self.record_stride.get(), 0)?;
        expect_field("tail_stride", self.tail_stride.get(), row_bytes)?;
        expect_field("overflow_len", self.overflow_len.get(), 0)?;
        Ok(raw_bytes)
    }
}

fn expect_field(field: &'static str, found: u32, expected: u64) -> Result<()> {
    if u64::from(found) == expected { Ok(()) } else { Err(Error::Field { field, found, expected }) }
}

/// A stride of records with this many raw bytes; 0 where there are none.
fn expect_stride(field: &'static str, found: u32, raw_bytes: u64) -> Result<u64> {
    let stride = u64::from(found);
    let (least, most) = match raw_bytes {
        0 => (0, 0),
        _ => (STRIDE_UNIT, max_stride(raw_bytes)),
    };
    if stride < least || !stride.is_multiple_of(STRIDE_UNIT) {
        return Err(Error::Field { field, found, expected: least.max(stride.next_multiple_of(STRIDE_UNIT)) });
    }
    if stride > most { Err(Error::Field { field, found, expected: most }) } else { Ok(stride) }
}

/// CRC32C of the header, its own field zero, and of what follows.
fn checksum(mut header: Header, rest: &[u8]) -> u32 {
    header.crc32c = U32::ZERO;
    crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), rest)
}

/// What an encoder says about the block that it writes; each field as in FORMAT.md.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) codec: CodecId,
    pub(crate) dtype: Dtype,
    pub(crate) generation: u32,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) records: u64,
    pub(crate) record_stride: u64,
    pub(crate) tail_stride: u64,
    pub(crate) overflow_len: u64,
    /// How records were cut; `None` for `raw`.
    pub(crate) access: Option<Access>,
}

/// Replaces the content of `out` with a block: header, front, overflow.
pub(crate) fn write(layout: &Layout, front: &[u8], overflow: &[u8], out: &mut Vec<u8>) {
    let body_len = front.len() + overflow.len();
    let mut header = Header {
        magic: MAGIC,
        version: U16::new(FORMAT_VERSION),
        codec: layout.codec as u8,
        dtype: layout.dtype as u8,
        generation: U32::new(layout.generation),
        rows: field(layout.rows),
        columns: field(layout.columns),
        records: field(layout.records),
        record_stride: field(layout.record_stride),
        tail_stride: field(layout.tail_stride),
        overflow_len: field(layout.overflow_len),
        total_len: field(HEADER_BYTES + body_len as u64),
        crc32c: U32::ZERO,
        access: layout.access.map_or(0, |access| access as u8),
        reserved: [0; 19],
    };
    header.crc32c = U32::new(crc32c::crc32c_append(checksum(header, front), overflow));
    out.clear();
    out.reserve_exact(index(HEADER_BYTES) + body_len);
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(front);
    out.extend_from_slice(overflow);
}

/// A count or length of a block as the header stores it.
#[expect(clippy::cast_possible_truncation, reason = "Geometry keeps a block within 1 MiB and a header")]
fn field(value: u64) -> U32 {
    debug_assert!(value <= HEADER_BYTES + MAX_BLOCK_RAW_BYTES);
    U32::new(value as u32)
}

#[cfg(test)]
mod tests;
