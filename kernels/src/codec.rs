//! Encoding and decoding of blocks and rows: one function each, dispatched on the codec.
//!
//! The caller owns every buffer.
//! Decoding takes a checked [`Block`], so that damage is found once, by the parser.
//! The exceptions are [`raw_row`], [`raw_payload`] and [`decode_row`]: the hot path of `gather` and `view` reads
//! blocks that its own daemon wrote under a lease, and finds their bytes by bounds-checked arithmetic without a
//! parse.

use tierpack_shm::types::{CodecId, index};

use crate::block::{Block, HEADER_BYTES};
use crate::coder::{BlockGrid, Coder};
use crate::error::{Error, Result};
use crate::geometry::{BlockShape, Geometry};
use crate::prefetch::prefetch;
use crate::records::{self, Source};
use crate::scalar;

pub use crate::records::Scratch;

/// How the blocks of a tensor are encoded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Encoding<'a> {
    /// Verbatim.
    Raw,
    /// With the metadata of this coder, by its codec; a block that does not shrink becomes `raw`.
    Coded(&'a Coder),
}

/// What an encoder did with one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoded {
    /// The codec in the block's header: `raw` where encoding did not shorten the block.
    pub codec: CodecId,
    /// Chunks that did not fit the metadata; 0 where the encoding is `raw`, which has none.
    pub escapes: u64,
    /// Chunks that the metadata shortened; 0 where the encoding is `raw`.
    pub participating: u64,
}

/// The most bytes that a block of this shape takes, whatever the codec: its raw bytes and a header.
#[inline]
pub const fn max_encoded_len(shape: &BlockShape) -> u64 {
    HEADER_BYTES + shape.raw_bytes
}

/// Encodes block `block_idx` of a tensor and replaces the content of `out` with it.
///
/// Shapes: `raw` holds the block's raw bytes, `geometry.block(block_idx).raw_bytes` of them.
/// `out` ends up with at most [`max_encoded_len`] bytes and keeps its capacity, so one buffer serves many
/// blocks; after an error it is unchanged.
///
/// # Errors
/// [`Error::NoSuchBlock`] and [`Error::RawLength`] where `block_idx` or `raw` do not belong to the tensor;
/// [`Error::MetadataField`] where the coder was made for another geometry.
pub fn encode_block(
    encoding: Encoding<'_>,
    geometry: &Geometry,
    block_idx: u64,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<Encoded> {
    let shape = shape_of(geometry, block_idx)?;
    let got = raw.len() as u64;
    if got != shape.raw_bytes {
        return Err(Error::RawLength { block_idx, needed: shape.raw_bytes, got });
    }
    match encoding {
        Encoding::Raw => Ok(scalar::raw::encode(geometry.dtype(), &shape, raw, out)),
        Encoding::Coded(coder) if coder.geometry() == geometry => {
            Ok(records::encode(coder, &shape, raw, out))
        }
        Encoding::Coded(coder) => Err(Error::MetadataField {
            field: "row_bytes",
            found: coder.geometry().row_bytes(),
            expected: "that of the tensor: the coder was made for another",
        }),
    }
}

/// Decodes a whole block into `out`.
///
/// Shapes: `out` holds `block.raw_bytes()` bytes, row-major, native dtype.
/// `coder` is that of the block's generation; a `raw` block needs none.
///
/// # Errors
/// [`Error::OutputLength`] where `out` has another length; [`Error::NoMetadata`] and
/// [`Error::WrongGeneration`] where `coder` is not the block's; [`Error::Field`], [`Error::Overflow`] and
/// [`Error::NoEscape`] where the block is damaged, and `out` then holds anything.
pub fn decode_block(block: &Block<'_>, coder: Option<&Coder>, out: &mut [u8]) -> Result<()> {
    let got = out.len() as u64;
    if got != block.raw_bytes() {
        return Err(Error::OutputLength { needed: block.raw_bytes(), got });
    }
    match (block.codec(), coder) {
        (CodecId::Raw, _) => {
            scalar::raw::decode(block, out);
            Ok(())
        }
        (codec, None) => Err(Error::NoMetadata { codec, generation: block.generation() }),
        (_, Some(coder)) => Source::of_block(coder, block)?.decode_all(out, &mut Scratch::new()),
    }
}

/// The rows of one encoded block, read without a look at its header.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    coder: &'a Coder,
    block: &'a BlockGrid,
    /// What follows the header.
    bytes: &'a [u8],
}

impl<'a> Rows<'a> {
    /// The rows of block `block_idx`.
    ///
    /// `bytes` are the whole block, as long as [`crate::block::stored_len`] says; the front at least.
    ///
    /// # Errors
    /// [`Error::NoSuchBlock`] where the tensor has no such block; [`Error::BlockTruncated`] where `bytes` end
    /// within the front.
    #[inline]
    pub fn new(coder: &'a Coder, block_idx: u64, bytes: &'a [u8]) -> Result<Self> {
        let n_blocks = coder.geometry().n_blocks();
        let block = coder.block(block_idx).ok_or(Error::NoSuchBlock { block_idx, n_blocks })?;
        let (needed, got) = (HEADER_BYTES + block.grid.front_len(), bytes.len() as u64);
        match bytes.get(index(HEADER_BYTES)..) {
            Some(bytes) if got >= needed => Ok(Self { coder, block, bytes }),
            _ => Err(Error::BlockTruncated { needed, got }),
        }
    }

    #[inline]
    const fn source(&self) -> Source<'a> {
        Source::new(self.coder, self.block.grid, self.bytes)
    }

    /// Asks for the cache lines of what the front holds of one row.
    #[inline]
    pub fn prefetch(&self, row_in_block: u64) {
        prefetch(self.front_of(row_in_block));
    }

    /// Asks for the cache lines where a row's overflow starts; waits for the row's own first line.
    #[inline]
    pub fn prefetch_overflow(&self, row_in_block: u64) {
        const EXPECTED_BYTES: usize = 64;
        if let Some(rest) = self.source().rest_of(self.front_of(row_in_block)) {
            prefetch(&rest[..rest.len().min(EXPECTED_BYTES)]);
        }
    }

    /// At most as many bytes as a processor can have under way.
    #[inline]
    fn front_of(&self, row_in_block: u64) -> &'a [u8] {
        const MOST_BYTES: usize = 1024;
        let row = row_in_block.min(self.block.rows - 1);
        let front = self.source().front_of(row, self.block.row_bytes);
        &front[..front.len().min(MOST_BYTES)]
    }

    /// Decodes one row, or its piece of a row, into `out`, which holds [`BlockShape::row_bytes`] bytes.
    ///
    /// # Errors
    /// [`Error::NoSuchRow`] and [`Error::OutputLength`] where the arguments do not belong to the block;
    /// [`Error::Overflow`] and [`Error::NoEscape`] where the block is damaged, and `out` then holds anything.
    #[inline]
    pub fn decode(&self, row_in_block: u64, out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        if row_in_block >= self.block.rows {
            return Err(Error::NoSuchRow { row_in_block, rows: self.block.rows });
        }
        let got = out.len() as u64;
        if got != self.block.row_bytes {
            return Err(Error::OutputLength { needed: self.block.row_bytes, got });
        }
        self.source().decode_row(row_in_block, out, scratch)
    }
}

/// Decodes one row of an encoded block, or its piece of a row: [`Rows`] for a single one.
///
/// Shapes: `block_idx` and `row_in_block` come from [`Geometry::locate`]; the others are those of [`Rows`].
///
/// # Errors
/// Those of [`Rows::new`] and [`Rows::decode`].
#[inline]
pub fn decode_row(
    coder: &Coder,
    block_idx: u64,
    row_in_block: u64,
    bytes: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<()> {
    Rows::new(coder, block_idx, bytes)?.decode(row_in_block, out, scratch)
}

#[inline]
fn shape_of(geometry: &Geometry, block_idx: u64) -> Result<BlockShape> {
    if block_idx < geometry.n_blocks() {
        Ok(geometry.block(block_idx))
    } else {
        Err(Error::NoSuchBlock { block_idx, n_blocks: geometry.n_blocks() })
    }
}

/// The bytes of row `row_in_block` of a `raw` block, without a look at its header.
///
/// `block_bytes` start with the header; `row_bytes` is [`BlockShape::row_bytes`] of the block, and
/// `row_in_block` comes from [`Geometry::locate`].
/// `None` where the row ends after `block_bytes` do.
#[inline]
pub fn raw_row(block_bytes: &[u8], row_bytes: u64, row_in_block: u64) -> Option<&[u8]> {
    scalar::raw::row(block_bytes, row_bytes, row_in_block)
}

/// The raw bytes of a `raw` block, without a look at its header.
///
/// `block_bytes` start with the header; `raw_len` is [`BlockShape::raw_bytes`] of the block.
/// `None` where they end after `block_bytes` do.
#[inline]
pub fn raw_payload(block_bytes: &[u8], raw_len: u64) -> Option<&[u8]> {
    scalar::raw::payload(block_bytes, raw_len)
}

#[cfg(test)]
mod tests {
    use tierpack_shm::types::{Access, Dtype};

    use super::*;

    fn geometry(dtype: Dtype, shape: &[u64]) -> Geometry {
        Geometry::new(dtype, shape, Access::Rows, None).expect("a valid shape")
    }

    #[test]
    fn encode_refuses_what_does_not_belong_to_the_tensor() {
        let geometry = geometry(Dtype::U8, &[2, 3]);
        let mut out = vec![7];
        let result = encode_block(Encoding::Raw, &geometry, 1, &[0; 6], &mut out);
        assert_eq!(result, Err(Error::NoSuchBlock { block_idx: 1, n_blocks: 1 }));
        let result = encode_block(Encoding::Raw, &geometry, 0, &[0; 5], &mut out);
        assert_eq!(result, Err(Error::RawLength { block_idx: 0, needed: 6, got: 5 }));
        assert_eq!(out, [7], "a failed call changes nothing");
    }

    #[test]
    fn encode_replaces_what_the_buffer_held() {
        let geometry = geometry(Dtype::U8, &[2, 3]);
        let mut out = vec![0xA5; 1000];
        let encoded = encode_block(Encoding::Raw, &geometry, 0, &[1, 2, 3, 4, 5, 6], &mut out);
        assert_eq!(encoded, Ok(Encoded { codec: CodecId::Raw, escapes: 0, participating: 0 }));
        assert_eq!(out.len() as u64, max_encoded_len(&geometry.block(0)));
        assert_eq!(out[64..], [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn decode_refuses_an_output_of_another_length() {
        let geometry = geometry(Dtype::U8, &[2, 3]);
        let mut bytes = Vec::new();
        encode_block(Encoding::Raw, &geometry, 0, &[9; 6], &mut bytes).unwrap();
        let block = Block::parse(&bytes).unwrap();
        for got in [0, 5, 7] {
            let result = decode_block(&block, None, &mut vec![0; got]);
            assert_eq!(result, Err(Error::OutputLength { needed: 6, got: got as u64 }));
        }
    }

    #[test]
    fn raw_arithmetic_is_bounds_checked() {
        let bytes: Vec<u8> = (0..70).collect();
        assert_eq!(raw_payload(&bytes, 6), Some(&bytes[64..]));
        assert_eq!(raw_payload(&bytes, 7), None);
        assert_eq!(raw_payload(&bytes, u64::MAX), None);
        assert_eq!(raw_payload(&bytes[..63], 0), None);
        assert_eq!(raw_row(&bytes, 3, 1), Some(&bytes[67..70]));
        assert_eq!(raw_row(&bytes, 3, 2), None);
        assert_eq!(raw_row(&bytes, 0, u64::MAX), Some(&[][..]));
        for hostile in [1 << 31, 1 << 32, u64::MAX - 63, u64::MAX] {
            assert_eq!(raw_row(&bytes, hostile, 1), None);
            assert_eq!(raw_row(&bytes, 3, hostile), None);
            assert_eq!(raw_row(&bytes, hostile, hostile), None);
        }
    }
}
