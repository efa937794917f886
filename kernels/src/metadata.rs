//! Metadata of codec `ibp`: mask, bit values, bases and strides, as one numbered generation.
//!
//! A generation encodes many blocks of one tensor and never changes once a block names it.
//! [`Metadata::parse`] is the only parser: it is total, its allocations are bounded by the tensor's row, and
//! it checks every field against the tensor that the metadata are for.
//! Source: FORMAT.md, section "Metadata".

use core::mem::{offset_of, size_of};

use tierpack_shm::types::{Access, CodecId, Dtype, index};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::FORMAT_VERSION;
use crate::cut::{RECORD_ELEMS, Runs, STRIDE_UNIT, bytes_of, max_stride, min_stride};
use crate::error::{Error, Result};
use crate::geometry::Geometry;

/// Bytes of a metadata header.
pub const METADATA_HEADER_BYTES: u64 = 48;

/// Rows of more bytes than this have one mask and one base for all columns.
pub const MAX_COLUMNS_ROW_BYTES: u64 = 64 << 10;

/// The most bytes that metadata take: mask, bit values and bases of the longest row.
pub const MAX_METADATA_BYTES: u64 = METADATA_HEADER_BYTES + 3 * MAX_COLUMNS_ROW_BYTES;

const MAGIC: [u8; 4] = *b"TPM1";

/// What has one mask, or one base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Granularity {
    /// The tensor.
    Tensor = 1,
    /// Each position of a row.
    Column = 2,
}

/// One generation of metadata, checked against the tensor that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub(crate) codec: CodecId,
    pub(crate) dtype: Dtype,
    pub(crate) access: Access,
    pub(crate) generation: u32,
    /// 2, 4 or 8.
    pub(crate) chunk_bytes: u8,
    pub(crate) masks: Granularity,
    /// `None`: words are not reduced.
    pub(crate) base: Option<Granularity>,
    /// Whether words are rotated left by one bit.
    pub(crate) rotate: bool,
    pub(crate) row_bytes: u64,
    pub(crate) record_stride: u32,
    pub(crate) tail_stride: u32,
    pub(crate) mask: Box<[u8]>,
    pub(crate) bitval: Box<[u8]>,
    pub(crate) bases: Box<[u8]>,
}

/// The header's bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    version: U16,
    codec: u8,
    dtype: u8,
    generation: U32,
    access: u8,
    chunk_bytes: u8,
    masks: u8,
    rotate: u8,
    base: u8,
    reserved: [u8; 3],
    record_stride: U32,
    row_bytes: U64,
    tail_stride: U32,
    total_len: U32,
    crc32c: U32,
    reserved_end: [u8; 4],
}

const _: () = {
    assert!(size_of::<Header>() == 48 && METADATA_HEADER_BYTES == 48);
    assert!(offset_of!(Header, generation) == 8);
    assert!(offset_of!(Header, access) == 12);
    assert!(offset_of!(Header, base) == 16);
    assert!(offset_of!(Header, record_stride) == 20);
    assert!(offset_of!(Header, row_bytes) == 24);
    assert!(offset_of!(Header, tail_stride) == 32);
    assert!(offset_of!(Header, total_len) == 36);
    assert!(offset_of!(Header, crc32c) == 40);
    assert!(offset_of!(Header, reserved_end) == 44);
};

impl Metadata {
    /// Reads the metadata that start at the first byte, for the tensor of this geometry.
    ///
    /// `bytes` may go on after the metadata: an extent is rounded up.
    ///
    /// # Errors
    /// A variant of [`Error`] for each rule of FORMAT.md, section "What a reader must reject".
    pub fn parse(bytes: &[u8], geometry: &Geometry) -> Result<Self> {
        let got = bytes.len() as u64;
        let truncated = |needed| Error::MetadataTruncated { needed, got };
        let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| truncated(METADATA_HEADER_BYTES))?;
        let (codec, dtype) = header.identify()?;
        let metadata = header.describe(codec, dtype)?;
        metadata.check(geometry)?;
        let (mask_len, bases_len) = (metadata.mask_len(), metadata.bases_len());
        let total_len = METADATA_HEADER_BYTES + 2 * mask_len + bases_len;
        let found = u64::from(header.total_len.get());
        expect("total_len", found, found == total_len, "the length of its parts")?;
        let body =
            rest.get(..index(total_len - METADATA_HEADER_BYTES)).ok_or_else(|| truncated(total_len))?;
        let (stored, computed) = (header.crc32c.get(), checksum(header, body));
        if stored != computed {
            return Err(Error::MetadataChecksum { stored, computed });
        }
        let (mask, body) = body.split_at(index(mask_len));
        let (bitval, bases) = body.split_at(index(mask_len));
        let stray = mask.iter().zip(bitval).position(|(mask, value)| value & !mask != 0);
        expect("bit values", stray.unwrap_or(0) as u64, stray.is_none(), "bits of the mask only")?;
        Ok(Self { mask: mask.into(), bitval: bitval.into(), bases: bases.into(), ..metadata })
    }

    /// The bytes that [`Metadata::parse`] reads.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = [&*self.mask, &*self.bitval, &*self.bases].concat();
        let mut header = Header {
            magic: MAGIC,
            version: U16::new(FORMAT_VERSION),
            codec: self.codec as u8,
            dtype: self.dtype as u8,
            generation: U32::new(self.generation),
            access: self.access as u8,
            chunk_bytes: self.chunk_bytes,
            masks: self.masks as u8,
            rotate: u8::from(self.rotate),
            base: self.base.map_or(0, |base| base as u8),
            reserved: [0; 3],
            record_stride: U32::new(self.record_stride),
            row_bytes: U64::new(self.row_bytes),
            tail_stride: U32::new(self.tail_stride),
            total_len: U32::ZERO,
            crc32c: U32::ZERO,
            reserved_end: [0; 4],
        };
        header.total_len = length(self.len_bytes());
        header.crc32c = U32::new(checksum(header, &body));
        [header.as_bytes(), &body].concat()
    }

    /// Bytes that [`Metadata::to_bytes`] gives, at most [`MAX_METADATA_BYTES`].
    pub fn len_bytes(&self) -> u64 {
        METADATA_HEADER_BYTES + (self.mask.len() + self.bitval.len() + self.bases.len()) as u64
    }

    /// The same metadata under another number; numbers start at 1.
    #[must_use]
    pub fn with_generation(self, generation: u32) -> Self {
        Self { generation, ..self }
    }

    /// Number of the generation.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// The codec that these metadata are for.
    pub const fn codec(&self) -> CodecId {
        self.codec
    }

    /// Bytes of a chunk: 2, 4 or 8.
    pub const fn chunk_bytes(&self) -> u8 {
        self.chunk_bytes
    }

    /// What has one mask.
    pub const fn masks(&self) -> Granularity {
        self.masks
    }

    /// What has one base; `None` where words are not reduced.
    pub const fn base(&self) -> Option<Granularity> {
        self.base
    }

    fn mask_len(&self) -> u64 {
        match self.masks {
            Granularity::Tensor => u64::from(self.chunk_bytes),
            Granularity::Column => self.row_bytes,
        }
    }

    fn bases_len(&self) -> u64 {
        match self.base {
            None => 0,
            Some(Granularity::Tensor) => word_bytes(self.dtype),
            Some(Granularity::Column) => self.row_bytes,
        }
    }
}

/// The least and the longest record of a tensor, in elements: what the two strides are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Whether some record has [`RECORD_ELEMS`] elements.
    pub(crate) has_full: bool,
    /// Elements of the last record of the last block of the first row; of the first block where blocks hold
    /// rows.
    pub(crate) tail_elems: u64,
}

impl Lengths {
    /// `None` for a tensor without blocks.
    pub(crate) fn of(geometry: &Geometry) -> Option<Self> {
        let runs_of = |block_idx| {
            let shape = geometry.block(block_idx);
            Runs::of(geometry.access(), shape.rows, shape.columns)
        };
        if geometry.n_blocks() == 0 {
            return None;
        }
        let (first, tail) = (runs_of(0), runs_of(geometry.pieces_per_row() - 1));
        let has_full = first.records > 1 || first.tail_elems == RECORD_ELEMS;
        Some(Self { has_full, tail_elems: tail.tail_elems })
    }
}

/// Bytes of the word that rotation and base work on: the float, where elements are floats of whole bytes.
pub(crate) const fn word_bytes(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::C64 => 4,
        other => {
            if other.bits() < 8 {
                1
            } else {
                other.bits() as u64 / 8
            }
        }
    }
}

/// Whether words of this dtype may be rotated: they are floats with a sign bit in front.
pub(crate) const fn has_sign_and_exponent(dtype: Dtype) -> bool {
    use Dtype::{Bf16, C64, F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz, F16, F32, F64};
    matches!(dtype, F8E5m2 | F8E4m3 | F8E4m3Fnuz | F8E5m2Fnuz | F16 | Bf16 | F32 | C64 | F64)
}

/// Whether a mask per column is defined: positions in a row are those of its chunks.
pub(crate) const fn masks_may_be_per_column(geometry: &Geometry, chunk_bytes: u64) -> bool {
    let aligned = match geometry.access() {
        Access::Rows => true,
        Access::Whole => geometry.row_bytes().is_multiple_of(chunk_bytes),
    };
    aligned && geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES
}

/// Whether a base per column is defined.
pub(crate) const fn bases_may_be_per_column(geometry: &Geometry) -> bool {
    geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES
}

impl Metadata {
    /// Whether the metadata are for this tensor.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<()> {
        self.check_tensor(geometry)?;
        self.check_strides(geometry)
    }

    /// Whether the metadata are for a tensor of this dtype, access and row.
    fn check_tensor(&self, geometry: &Geometry) -> Result<()> {
        let (found, needed) = (self.dtype, geometry.dtype());
        expect("dtype", found as u64, found == needed, "the dtype of the tensor")?;
        let (found, needed) = (self.access, geometry.access());
        expect("access", found as u64, found == needed, "the access of the tensor")?;
        let (found, needed) = (self.row_bytes, geometry.row_bytes());
        expect("row_bytes", found, found == needed, "the bytes of the tensor's rows")?;
        let fits = self.masks == Granularity::Tensor
            || masks_may_be_per_column(geometry, u64::from(self.chunk_bytes));
        expect("masks", self.masks as u64, fits, "1: rows of this length have no mask per column")?;
        let base = self.base.map_or(0, |base| base as u64);
        let fits = self.base != Some(Granularity::Column) || bases_may_be_per_column(geometry);
        expect("base", base, fits, "0 or 1: rows of this length have no base per column")
    }

    /// Whether the strides are possible for the records of the tensor.
    fn check_strides(&self, geometry: &Geometry) -> Result<()> {
        let n_blocks = geometry.n_blocks();
        let lengths = Lengths::of(geometry).ok_or(Error::NoSuchBlock { block_idx: 0, n_blocks })?;
        let check = |field, stride: u32, n_elems| {
            let raw_bytes = bytes_of(self.dtype, n_elems);
            let range = min_stride(raw_bytes, u64::from(self.chunk_bytes))..=max_stride(raw_bytes);
            let stride = u64::from(stride);
            let fits = range.contains(&stride) && stride.is_multiple_of(STRIDE_UNIT);
            expect(field, stride, fits, "a multiple of 4 that holds the head and fits the record")
        };
        if lengths.has_full {
            check("record_stride", self.record_stride, RECORD_ELEMS)?;
        } else {
            let found = u64::from(self.record_stride);
            expect("record_stride", found, found == 0, "0: the tensor has no full record")?;
        }
        check("tail_stride", self.tail_stride, lengths.tail_elems)?;
        let equal = lengths.tail_elems != RECORD_ELEMS || self.record_stride == self.tail_stride;
        expect("tail_stride", u64::from(self.tail_stride), equal, "record_stride: every record is full")
    }
}

impl Header {
    /// Magic, version, codec, dtype, reserved bytes.
    fn identify(&self) -> Result<(CodecId, Dtype)> {
        if self.magic != MAGIC {
            return Err(Error::NotMetadata { found: self.magic });
        }
        let version = self.version.get();
        if version > FORMAT_VERSION {
            return Err(Error::UnknownMetadataVersion { found: version });
        }
        expect("version", u64::from(version), version == FORMAT_VERSION, "1")?;
        let codec = match CodecId::from_number(self.codec) {
            Some(codec @ (CodecId::Ibp | CodecId::IbpWindow)) => codec,
            _ => return Err(Error::UnknownCodec { number: self.codec }),
        };
        let dtype = Dtype::from_number(self.dtype).ok_or(Error::UnknownDtype { number: self.dtype })?;
        let reserved = self.reserved.iter().chain(&self.reserved_end).copied().max().unwrap_or(0);
        expect("a reserved byte", u64::from(reserved), reserved == 0, "0")?;
        Ok((codec, dtype))
    }

    /// The fields that choose the form, without the parts behind the header.
    fn describe(&self, codec: CodecId, dtype: Dtype) -> Result<Metadata> {
        let byte = |field, value: u8, fits, expected| expect(field, u64::from(value), fits, expected);
        let access = match self.access {
            1 => Access::Rows,
            2 => Access::Whole,
            other => return Err(field("access", u64::from(other), "1 or 2")),
        };
        let granularity = |name, number| match number {
            1 => Ok(Granularity::Tensor),
            2 => Ok(Granularity::Column),
            other => Err(field(name, u64::from(other), "1 or 2")),
        };
        let generation = self.generation.get();
        expect("generation", u64::from(generation), generation != 0, "at least 1")?;
        byte("chunk_bytes", self.chunk_bytes, matches!(self.chunk_bytes, 2 | 4 | 8), "2, 4 or 8")?;
        let window = codec == CodecId::IbpWindow;
        let rotates = window && has_sign_and_exponent(dtype);
        byte("rotate", self.rotate, self.rotate == u8::from(rotates), "1 for floats of ibp:window, else 0")?;
        byte("base", self.base, window || self.base == 0, "0 for ibp")?;
        let base = if self.base == 0 { None } else { Some(granularity("base", self.base)?) };
        Ok(Metadata {
            codec,
            dtype,
            access,
            generation,
            chunk_bytes: self.chunk_bytes,
            masks: granularity("masks", self.masks)?,
            base,
            rotate: rotates,
            row_bytes: self.row_bytes.get(),
            record_stride: self.record_stride.get(),
            tail_stride: self.tail_stride.get(),
            mask: Box::default(),
            bitval: Box::default(),
            bases: Box::default(),
        })
    }
}

fn field(field: &'static str, found: u64, expected: &'static str) -> Error {
    Error::MetadataField { field, found, expected }
}

fn expect(name: &'static str, found: u64, fits: bool, expected: &'static str) -> Result<()> {
    if fits { Ok(()) } else { Err(field(name, found, expected)) }
}

/// CRC32C of the header, its own field zero, and of what follows.
fn checksum(mut header: Header, body: &[u8]) -> u32 {
    header.crc32c = U32::ZERO;
    crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), body)
}

#[expect(clippy::cast_possible_truncation, reason = "metadata are at most MAX_METADATA_BYTES long")]
fn length(value: u64) -> U32 {
    debug_assert!(value <= MAX_METADATA_BYTES);
    U32::new(value as u32)
}
