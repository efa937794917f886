//! Which parts of a tensor make a sample.
//!
//! The blocks are cut into as many equal parts as the sample has pieces, and of each part the piece is taken that holds
//! one of its bytes: the byte that a hash of the seed and of the part's number names.
//! So the sample covers the tensor evenly, every byte is as likely as every other, and data that repeat are not met in
//! the same phase each time, as the middles of equal parts would meet them.
//! The same seed leads to the same sample on every machine.
//!
//! A piece is a few rows of one block, or some records of one run where columns have no meaning: what a codec makes of
//! it is what the codec makes of these bytes in their block, the header aside.

use core::ops::Range;

use tierpack_shm::types::{Access, index};

use crate::cut::{RECORD_ELEMS, bytes_of};
use crate::geometry::{BlockShape, Geometry};
use crate::metadata::MAX_COLUMNS_ROW_BYTES;

/// Raw bytes that a sample has, at most.
pub const SAMPLE_BYTES: u64 = 4 << 20;

/// Raw bytes of a piece, where rows and records allow it: small, so that there are many.
const PIECE_BYTES: u64 = 32 << 10;

/// A part of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    block_idx: u64,
    /// Where it starts in its block.
    offset: u64,
    /// As if it were a block.
    shape: BlockShape,
}

impl Piece {
    /// A whole block; nothing where the tensor has no such block.
    pub fn block(geometry: &Geometry, block_idx: u64) -> Self {
        Self { block_idx, offset: 0, shape: geometry.block(block_idx) }
    }

    /// The block that it is a part of.
    pub const fn block_idx(&self) -> u64 {
        self.block_idx
    }

    /// Where its bytes lie in the raw bytes of its block.
    pub fn in_block(&self) -> Range<usize> {
        index(self.offset)..index(self.offset + self.shape.raw_bytes)
    }

    /// Where its bytes lie in the raw bytes of the tensor.
    pub fn in_tensor(&self) -> Range<usize> {
        index(self.shape.byte_offset)..index(self.shape.byte_offset + self.shape.raw_bytes)
    }

    /// As if it were a block.
    pub(super) const fn shape(&self) -> BlockShape {
        self.shape
    }

    /// Whether it is a part of this block.
    pub(super) fn is_in(&self, block: &BlockShape) -> bool {
        self.shape.byte_offset == block.byte_offset + self.offset
            && self.offset + self.shape.raw_bytes <= block.raw_bytes
            && (self.shape.rows == 1 || self.shape.row_bytes == block.row_bytes)
    }
}

/// How blocks are cut into pieces.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// So many rows: columns have a meaning.
    Rows(u64),
    /// So many bytes of a run: whole records.
    Bytes(u64),
}

impl Cut {
    fn of(geometry: &Geometry) -> Self {
        let row_bytes = geometry.row_bytes();
        if row_bytes > MAX_COLUMNS_ROW_BYTES {
            let record_bytes = bytes_of(geometry.dtype(), RECORD_ELEMS);
            return Self::Bytes((PIECE_BYTES / record_bytes).max(1) * record_bytes);
        }
        // Under access `whole` records and chunks are counted from the start of the block: where that takes few rows, a
        // piece has whole records; it always has whole chunks.
        let multiple = match geometry.access() {
            Access::Rows => 1,
            Access::Whole => match RECORD_ELEMS / common_power_of_two(geometry.row_elems(), RECORD_ELEMS) {
                rows if rows * row_bytes <= 2 * PIECE_BYTES => rows,
                _ => 8 / common_power_of_two(row_bytes, 8),
            },
        };
        Self::Rows((PIECE_BYTES / (multiple * row_bytes)).max(1) * multiple)
    }

    /// Bytes of a piece that nothing cuts short.
    const fn piece_bytes(self, geometry: &Geometry) -> u64 {
        match self {
            Self::Rows(rows) => rows * geometry.row_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// The piece that holds a byte of the tensor.
    fn piece_at(self, geometry: &Geometry, byte: u64) -> Piece {
        let block_idx = block_at(geometry, byte);
        let block = geometry.block(block_idx);
        let at = byte - block.byte_offset;
        let (offset, rows, row_bytes) = match self {
            Self::Rows(rows) => {
                let row = at / block.row_bytes;
                let first = row - row % rows;
                (first * block.row_bytes, rows.min(block.rows - first), block.row_bytes)
            }
            Self::Bytes(bytes) => {
                let run_bytes = match geometry.access() {
                    Access::Rows => block.row_bytes,
                    Access::Whole => block.raw_bytes,
                };
                let in_run = at % run_bytes;
                let first = in_run - in_run % bytes;
                (at - in_run + first, 1, bytes.min(run_bytes - first))
            }
        };
        let shape = BlockShape {
            rows,
            columns: row_bytes * 8 / u64::from(geometry.dtype().bits()),
            row_bytes,
            raw_bytes: rows * row_bytes,
            first_row: block.first_row + offset / block.row_bytes,
            byte_offset: block.byte_offset + offset,
        };
        Piece { block_idx, offset, shape }
    }
}

/// The largest power of two that divides both; `power` is one.
const fn common_power_of_two(value: u64, power: u64) -> u64 {
    let (zeros, most) = (value.trailing_zeros(), power.trailing_zeros());
    1 << if zeros < most { zeros } else { most }
}

/// The block that holds a byte of the tensor.
fn block_at(geometry: &Geometry, byte: u64) -> u64 {
    let row_bytes = geometry.row_bytes();
    let (first, _) = geometry.locate(byte / row_bytes);
    match geometry.pieces_per_row() {
        1 => first,
        _ => first + byte % row_bytes / geometry.block(0).raw_bytes,
    }
}

/// The pieces of some blocks that make a sample, in their order: all of few bytes, else as many as [`SAMPLE_BYTES`]
/// hold, at places that the seed decides.
pub fn pieces(geometry: &Geometry, blocks: Range<u64>, seed: u64) -> Vec<Piece> {
    let blocks = blocks.start..blocks.end.min(geometry.n_blocks());
    if blocks.is_empty() {
        return Vec::new();
    }
    let (first, last) = (geometry.block(blocks.start), geometry.block(blocks.end - 1));
    let len = last.byte_offset + last.raw_bytes - first.byte_offset;
    if len <= SAMPLE_BYTES {
        return blocks.map(|block_idx| Piece::block(geometry, block_idx)).collect();
    }
    let cut = Cut::of(geometry);
    let n = SAMPLE_BYTES / cut.piece_bytes(geometry).min(first.raw_bytes);
    let mut pieces: Vec<_> =
        places(len, n, seed).map(|at| cut.piece_at(geometry, first.byte_offset + at)).collect();
    // One that lies in two parts may be taken for both.
    pieces.dedup();
    pieces
}

/// At most `most` of `n` blocks, in ascending order, at places that the seed decides.
pub fn some_blocks(n: u64, most: u64, seed: u64) -> Vec<u64> {
    places(n, most.min(n), seed).collect()
}

/// A number in each of `n` equal parts of the numbers below `len`; `n` is at most `len`.
fn places(len: u64, n: u64, seed: u64) -> impl Iterator<Item = u64> {
    (0..n).map(move |i| {
        let (start, end) = (share(len, i, n), share(len, i + 1, n));
        start + mixed(seed, i) % (end - start)
    })
}

/// `len * i / n`, where `i` is at most `n`.
#[expect(clippy::cast_possible_truncation, reason = "the quotient is at most len")]
const fn share(len: u64, i: u64, n: u64) -> u64 {
    (len as u128 * i as u128 / n as u128) as u64
}

/// The seed of a tensor's sample: another one once it has changed.
pub fn seed(name: &str, revision: u64) -> u64 {
    name.bytes().fold(mixed(revision, 0), |seed, byte| mixed(seed, byte.into()))
}

/// Output `n` of the generator `SplitMix64` that `seed` starts.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
const fn mixed(seed: u64, n: u64) -> u64 {
    let mut bits = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use tierpack_shm::types::Dtype;

    use super::*;

    fn geometry(dtype: Dtype, shape: &[u64], access: Access) -> Geometry {
        Geometry::new(dtype, shape, access, None).unwrap()
    }

    #[test]
    fn pieces_are_whole_rows_or_whole_records_of_their_blocks() {
        for (dtype, shape) in [
            (Dtype::Bf16, &[100_000_u64, 384][..]),
            (Dtype::Bf16, &[16, 2, 4096, 384]),
            (Dtype::U8, &[100_000, 1433]),
            (Dtype::U8, &[300, 70_001]),
            (Dtype::F6E2m3, &[1 << 24]),
            (Dtype::F64, &[3, 1 << 40]),
            (Dtype::F32, &[1000, 16_384]),
            (Dtype::U8, &[1 << 60]),
        ] {
            for access in [Access::Rows, Access::Whole] {
                let geometry = geometry(dtype, shape, access);
                let pieces = pieces(&geometry, 0..geometry.n_blocks(), 7);
                assert!(pieces.is_sorted_by_key(|piece| piece.shape.byte_offset), "{geometry:?}");
                let bytes: u64 = pieces.iter().map(|piece| piece.shape.raw_bytes).sum();
                assert!(bytes <= SAMPLE_BYTES && bytes > SAMPLE_BYTES / 2, "{bytes} of {geometry:?}");
                assert!(pieces.len() > 30, "{} of {geometry:?}", pieces.len());
                for piece in pieces {
                    let (block, Piece { offset, shape, .. }) = (geometry.block(piece.block_idx), piece);
                    assert!(piece.is_in(&block) && shape.rows > 0, "{piece:?} of {block:?}");
                    assert_eq!(bytes_of(dtype, shape.columns), shape.row_bytes);
                    assert!(offset.is_multiple_of(8) || access == Access::Rows, "{piece:?}");
                    let has_rows = geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES;
                    let unit = if has_rows { block.row_bytes } else { bytes_of(dtype, RECORD_ELEMS) };
                    let run = if access == Access::Rows { block.row_bytes } else { block.raw_bytes };
                    let at = if has_rows { offset } else { offset % run };
                    assert!(at.is_multiple_of(unit), "{piece:?} of {geometry:?}");
                }
            }
        }
    }

    #[test]
    fn few_bytes_are_sampled_whole_and_nothing_not_at_all() {
        let small = geometry(Dtype::F32, &[100, 1000], Access::Rows);
        let whole = (0..small.n_blocks()).map(|block_idx| Piece::block(&small, block_idx));
        assert_eq!(pieces(&small, 0..u64::MAX, 1), whole.collect::<Vec<_>>());
        assert_eq!(pieces(&small, 1..2, 1), [Piece::block(&small, 1)]);
        let empty = geometry(Dtype::F32, &[0, 3], Access::Rows);
        assert_eq!((pieces(&empty, 0..1, 1), some_blocks(0, 16, 1)), (vec![], vec![]));
        assert_eq!(some_blocks(3, 16, 1), [0, 1, 2]);
    }

    #[test]
    fn every_phase_of_a_period_is_met() {
        // Blocks in turn of 16 kinds: a sample at even distances meets one or two of them.
        let geometry = geometry(Dtype::U8, &[256 << 10, 1024], Access::Rows);
        for seed in 0..20 {
            let mut met = [0; 16];
            for piece in pieces(&geometry, 0..geometry.n_blocks(), seed) {
                met[index(piece.block_idx % 16)] += 1;
            }
            assert!(met.iter().filter(|&&n| n > 0).count() >= 14, "{met:?}");
            let kinds =
                some_blocks(geometry.n_blocks(), 16, seed).into_iter().map(|block_idx| block_idx % 16);
            assert!(kinds.collect::<std::collections::BTreeSet<_>>().len() >= 6);
        }
    }

    #[test]
    fn a_sample_depends_on_name_and_revision_alone() {
        let geometry = geometry(Dtype::U8, &[64 << 10, 1024], Access::Rows);
        let of = |name, revision| pieces(&geometry, 0..geometry.n_blocks(), seed(name, revision));
        assert_eq!(of("a", 1), of("a", 1));
        assert_ne!(of("a", 1), of("a", 2));
        assert_ne!(of("a", 1), of("b", 1));
    }
}
