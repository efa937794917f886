//! Encoding and decoding of blocks: one function each, dispatched on the codec.
//!
//! The caller owns every buffer.
//! Decoding takes a checked [`Block`], so that damage is found once, by the parser.
//! The exceptions are [`raw_row`] and [`raw_payload`]: the hot path of `gather` and `view` reads blocks that
//! its own daemon wrote under a lease, and finds their bytes by bounds-checked arithmetic without a parse.

use tierpack_shm::types::CodecId;

use crate::block::{Block, HEADER_BYTES};
use crate::error::{Error, Result};
use crate::geometry::{BlockShape, Geometry};
use crate::scalar;

/// What an encoder did with one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoded {
    /// The codec in the block's header.
    pub codec: CodecId,
    /// Elements that did not fit the metadata; 0 for `raw`, which has none.
    pub escapes: u64,
    /// Elements that the metadata shortened; 0 for `raw`.
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
/// [`Error::UnknownCodec`] for a codec without an encoder.
pub fn encode_block(
    codec: CodecId,
    geometry: &Geometry,
    block_idx: u64,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<Encoded> {
    if block_idx >= geometry.n_blocks() {
        return Err(Error::NoSuchBlock { block_idx, n_blocks: geometry.n_blocks() });
    }
    let shape = geometry.block(block_idx);
    let got = raw.len() as u64;
    if got != shape.raw_bytes {
        return Err(Error::RawLength { block_idx, needed: shape.raw_bytes, got });
    }
    match codec {
        CodecId::Raw => Ok(scalar::raw::encode(geometry.dtype(), &shape, raw, out)),
        other => Err(Error::UnknownCodec { number: other as u8 }),
    }
}

/// Decodes a whole block into `out`.
///
/// Shapes: `out` holds `block.raw_bytes()` bytes, row-major, native dtype.
///
/// # Errors
/// [`Error::OutputLength`] where `out` has another length; [`Error::UnknownCodec`] for a codec without a
/// decoder.
pub fn decode_block(block: &Block<'_>, out: &mut [u8]) -> Result<()> {
    let got = out.len() as u64;
    if got != block.raw_bytes() {
        return Err(Error::OutputLength { needed: block.raw_bytes(), got });
    }
    match block.codec() {
        CodecId::Raw => scalar::raw::decode(block, out),
        other => return Err(Error::UnknownCodec { number: other as u8 }),
    }
    Ok(())
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
        let result = encode_block(CodecId::Raw, &geometry, 1, &[0; 6], &mut out);
        assert_eq!(result, Err(Error::NoSuchBlock { block_idx: 1, n_blocks: 1 }));
        let result = encode_block(CodecId::Raw, &geometry, 0, &[0; 5], &mut out);
        assert_eq!(result, Err(Error::RawLength { block_idx: 0, needed: 6, got: 5 }));
        assert_eq!(out, [7], "a failed call changes nothing");
    }

    #[test]
    fn encode_replaces_what_the_buffer_held() {
        let geometry = geometry(Dtype::U8, &[2, 3]);
        let mut out = vec![0xA5; 1000];
        let encoded = encode_block(CodecId::Raw, &geometry, 0, &[1, 2, 3, 4, 5, 6], &mut out);
        assert_eq!(encoded, Ok(Encoded { codec: CodecId::Raw, escapes: 0, participating: 0 }));
        assert_eq!(out.len() as u64, max_encoded_len(&geometry.block(0)));
        assert_eq!(out[64..], [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn decode_refuses_an_output_of_another_length() {
        let geometry = geometry(Dtype::U8, &[2, 3]);
        let mut bytes = Vec::new();
        encode_block(CodecId::Raw, &geometry, 0, &[9; 6], &mut bytes).unwrap();
        let block = Block::parse(&bytes).unwrap();
        for got in [0, 5, 7] {
            let result = decode_block(&block, &mut vec![0; got]);
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
