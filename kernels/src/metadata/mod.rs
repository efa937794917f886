//! Metadata: what a codec needs to know about a tensor, with the strides of its records, as one numbered generation.
//!
//! A generation encodes many blocks of one tensor and never changes once a block names it.
//! [`Metadata::parse`] is the only parser: it is total, its allocations are bounded by the tensor's row, and
//! it checks every field against the tensor that the metadata are for.
//! Source: FORMAT.md, section "Metadata".

mod ibp;
mod planes;
mod sparse;

use core::mem::{offset_of, size_of};

use tierpack_shm::types::{Access, CodecId, Dtype, index};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::FORMAT_VERSION;
use crate::cut::{RECORD_ELEMS, Runs, STRIDE_UNIT, StrideRules};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::planes::{Parts, PlaneShape};

pub(crate) use ibp::{Ibp, has_sign_and_exponent, masks_may_be_per_column};
pub(crate) use planes::Planes;
pub(crate) use sparse::Sparse;

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
    pub(crate) row_bytes: u64,
    pub(crate) record_stride: u32,
    pub(crate) tail_stride: u32,
    pub(crate) form: Form,
}

/// What differs from codec to codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `ibp` and `ibp:window`.
    Ibp(Ibp),
    /// `planes:4`, `planes:3` and `planes:2-2-2`.
    Planes(Planes),
    /// `sparse`.
    Sparse(Sparse),
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
    /// Those of the codec.
    form: [u8; 4],
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
    assert!(offset_of!(Header, form) == 13);
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
        let total_len = METADATA_HEADER_BYTES + metadata.form.body_len(geometry);
        let found = u64::from(header.total_len.get());
        expect("total_len", found, found == total_len, "the length of its parts")?;
        let body =
            rest.get(..index(total_len - METADATA_HEADER_BYTES)).ok_or_else(|| truncated(total_len))?;
        let (stored, computed) = (header.crc32c.get(), checksum(header, body));
        if stored != computed {
            return Err(Error::MetadataChecksum { stored, computed });
        }
        Ok(Self { form: metadata.form.read(geometry, body)?, ..metadata })
    }

    /// The bytes that [`Metadata::parse`] reads.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = self.form.body(self.dtype);
        let mut header = Header {
            magic: MAGIC,
            version: U16::new(FORMAT_VERSION),
            codec: self.codec as u8,
            dtype: self.dtype as u8,
            generation: U32::new(self.generation),
            access: self.access as u8,
            form: self.form.fields(),
            reserved: [0; 3],
            record_stride: U32::new(self.record_stride),
            row_bytes: U64::new(self.row_bytes),
            tail_stride: U32::new(self.tail_stride),
            total_len: U32::ZERO,
            crc32c: U32::ZERO,
            reserved_end: [0; 4],
        };
        header.total_len = length(METADATA_HEADER_BYTES + body.len() as u64);
        header.crc32c = U32::new(checksum(header, &body));
        [header.as_bytes(), &body].concat()
    }

    /// Bytes that [`Metadata::to_bytes`] returns, at most [`MAX_METADATA_BYTES`].
    pub fn len_bytes(&self) -> u64 {
        METADATA_HEADER_BYTES + self.form.body(self.dtype).len() as u64
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

    /// Bytes of a chunk of `ibp` and `ibp:window`: 2, 4 or 8.
    pub const fn chunk_bytes(&self) -> Option<u8> {
        match &self.form {
            Form::Ibp(ibp) => Some(ibp.chunk_bytes),
            Form::Planes(_) | Form::Sparse(_) => None,
        }
    }

    /// What has one mask, for `ibp` and `ibp:window`.
    pub const fn masks(&self) -> Option<Granularity> {
        match &self.form {
            Form::Ibp(ibp) => Some(ibp.masks),
            Form::Planes(_) | Form::Sparse(_) => None,
        }
    }

    /// What has one base; `None` where words are not reduced.
    pub fn base(&self) -> Option<Granularity> {
        match &self.form {
            Form::Ibp(ibp) => ibp.base,
            Form::Planes(planes) => planes.bases.as_ref().map(|_| Granularity::Column),
            Form::Sparse(_) => None,
        }
    }

    /// The rules of this codec's strides.
    pub(crate) fn stride_rules(&self) -> StrideRules {
        self.form.stride_rules(self.dtype)
    }
}

impl Form {
    fn describe(codec: CodecId, dtype: Dtype, fields: [u8; 4]) -> Result<Self> {
        match codec {
            CodecId::Ibp | CodecId::IbpWindow => Ibp::describe(codec, dtype, fields).map(Self::Ibp),
            CodecId::Sparse => Sparse::describe(fields).map(Self::Sparse),
            _ => Planes::describe(codec, dtype, fields).map(Self::Planes),
        }
    }

    fn fields(&self) -> [u8; 4] {
        match self {
            Self::Ibp(ibp) => ibp.fields(),
            Self::Planes(planes) => planes.fields(),
            Self::Sparse(sparse) => sparse.fields(),
        }
    }

    fn check(&self, geometry: &Geometry) -> Result<()> {
        match self {
            Self::Ibp(ibp) => ibp.check(geometry),
            Self::Planes(planes) => planes.check(geometry),
            Self::Sparse(_) => Ok(()),
        }
    }

    /// Bytes behind the header.
    fn body_len(&self, geometry: &Geometry) -> u64 {
        match self {
            Self::Ibp(ibp) => ibp.body_len(geometry),
            Self::Planes(planes) => planes.body_len(geometry),
            Self::Sparse(sparse) => sparse.body_len(geometry.dtype()),
        }
    }

    /// Reads a body of [`Form::body_len`] bytes.
    fn read(self, geometry: &Geometry, body: &[u8]) -> Result<Self> {
        match self {
            Self::Ibp(ibp) => ibp.read(geometry, body).map(Self::Ibp),
            Self::Planes(planes) => planes.read(geometry, body).map(Self::Planes),
            Self::Sparse(sparse) => Ok(Self::Sparse(sparse.read(geometry.dtype(), body))),
        }
    }

    fn body(&self, dtype: Dtype) -> Vec<u8> {
        match self {
            Self::Ibp(ibp) => ibp.body(),
            Self::Planes(planes) => planes.body(dtype),
            Self::Sparse(sparse) => sparse.body(dtype),
        }
    }

    /// The rules of this codec's strides.
    pub(crate) fn stride_rules(&self, dtype: Dtype) -> StrideRules {
        match self {
            Self::Ibp(ibp) => StrideRules::Chunks { dtype, chunk_bytes: u64::from(ibp.chunk_bytes) },
            Self::Planes(planes) => match Parts::under(dtype, planes.schedule) {
                Some(parts) => StrideRules::Planes {
                    dtype,
                    shape: PlaneShape::new(planes.schedule, parts, planes.dropped.bits),
                },
                // Not made by `describe`.
                None => StrideRules::Chunks { dtype, chunk_bytes: 1 },
            },
            Self::Sparse(sparse) => StrideRules::Sparse { dtype, group_elems: u64::from(sparse.group_elems) },
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
        self.form.check(geometry)
    }

    /// Whether the strides are possible for the records of the tensor.
    fn check_strides(&self, geometry: &Geometry) -> Result<()> {
        let n_blocks = geometry.n_blocks();
        let lengths = Lengths::of(geometry).ok_or(Error::NoSuchBlock { block_idx: 0, n_blocks })?;
        let strides = self.stride_rules();
        let check = |field, stride: u32, n_elems| {
            let stride = u64::from(stride);
            let fits = strides.range(n_elems).contains(&stride) && stride.is_multiple_of(STRIDE_UNIT);
            expect(field, stride, fits, "a multiple of 4 that holds what every record has")
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
            None | Some(CodecId::Raw) => return Err(Error::UnknownCodec { number: self.codec }),
            Some(codec) => codec,
        };
        let dtype = Dtype::from_number(self.dtype).ok_or(Error::UnknownDtype { number: self.dtype })?;
        let reserved = self.reserved.iter().chain(&self.reserved_end).copied().max().unwrap_or(0);
        expect("a reserved byte", u64::from(reserved), reserved == 0, "0")?;
        Ok((codec, dtype))
    }

    /// The fields that choose the form, without the parts behind the header.
    fn describe(&self, codec: CodecId, dtype: Dtype) -> Result<Metadata> {
        let access = match self.access {
            1 => Access::Rows,
            2 => Access::Whole,
            other => return Err(field("access", u64::from(other), "1 or 2")),
        };
        let generation = self.generation.get();
        expect("generation", u64::from(generation), generation != 0, "at least 1")?;
        Ok(Metadata {
            codec,
            dtype,
            access,
            generation,
            row_bytes: self.row_bytes.get(),
            record_stride: self.record_stride.get(),
            tail_stride: self.tail_stride.get(),
            form: Form::describe(codec, dtype, self.form)?,
        })
    }
}

fn granularity(name: &'static str, number: u8) -> Result<Granularity> {
    match number {
        1 => Ok(Granularity::Tensor),
        2 => Ok(Granularity::Column),
        other => Err(field(name, u64::from(other), "1 or 2")),
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
