//! Codec `raw`: the block's rows, verbatim, behind the header.
//!
//! One record per row whatever its length, no padding, no overflow, no metadata.
//! A row's address is arithmetic on its number, so a gather needs no look at the header.
//! Source: FORMAT.md, section "Codec raw".

use tierpack_shm::types::{CodecId, Dtype, index};

use crate::block::{self, Block, HEADER_BYTES, Layout};
use crate::codec::Encoded;
use crate::geometry::BlockShape;

/// Writes the block of `raw` into `out`; the caller has checked that `raw` has the block's length.
pub(crate) fn encode(dtype: Dtype, shape: &BlockShape, raw: &[u8], out: &mut Vec<u8>) -> Encoded {
    block::write(
        &Layout {
            codec: CodecId::Raw,
            dtype,
            generation: 0,
            rows: shape.rows,
            columns: shape.columns,
            records: shape.rows,
            record_stride: 0,
            tail_stride: shape.row_bytes,
            overflow_len: 0,
            access: None,
        },
        raw,
        &[],
        out,
    );
    Encoded { codec: CodecId::Raw, escapes: 0, participating: 0 }
}

/// Copies the block's values to `out`; the caller has checked that `out` has the block's raw length.
pub(crate) fn decode(block: &Block<'_>, out: &mut [u8]) {
    out.copy_from_slice(block.front());
}

/// The first `raw_len` bytes behind the header.
#[inline]
pub(crate) fn payload(block_bytes: &[u8], raw_len: u64) -> Option<&[u8]> {
    let end = HEADER_BYTES.checked_add(raw_len)?;
    block_bytes.get(index(HEADER_BYTES)..index(end))
}

/// The bytes of one row, by arithmetic alone.
#[inline]
pub(crate) fn row(block_bytes: &[u8], row_bytes: u64, row_in_block: u64) -> Option<&[u8]> {
    let start = row_in_block.checked_mul(row_bytes)?.checked_add(HEADER_BYTES)?;
    let end = start.checked_add(row_bytes)?;
    block_bytes.get(index(start)..index(end))
}
