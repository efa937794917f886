//! How a tensor is cut into rows and blocks: arithmetic only, checked once in [`Geometry::new`].
//!
//! Daemon and clients compute the same geometry from dtype, shape, access and row length, so block numbers
//! and row addresses never travel.
//! All sizes are 64-bit; a tensor whose bits do not fit 64 bits is refused, so nothing after the constructor
//! can overflow.
//! Source: FORMAT.md, section "Geometry".

use tierpack_shm::types::{Access, Dtype};

use crate::error::{Error, Result};

/// Raw bytes of a block never exceed this: a piece of the widest elements.
pub const MAX_BLOCK_RAW_BYTES: u64 = PIECE_ELEMS * 8;

/// Dimensions of a shape never exceed this.
pub const MAX_RANK: usize = 64;

/// Under access by rows, as many rows share a block as fit this; a longer row is cut into pieces.
const ROWS_BLOCK_BYTES: u64 = 256 << 10;

/// Elements of a piece, and of a block under access `whole`; a multiple of 8, so that pieces of 4-bit and
/// 6-bit elements are whole bytes.
const PIECE_ELEMS: u64 = 128 << 10;

/// How one tensor is cut into rows and blocks.
///
/// A row of at most 256 KiB shares its block with as many rows as the access allows; a longer one is cut into
/// pieces, and block = row x pieces + piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    dtype: Dtype,
    access: Access,
    n_rows: u64,
    row_elems: u64,
    row_bytes: u64,
    raw_bytes: u64,
    n_blocks: u64,
    cut: Cut,
    gatherable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Blocks of `1 << shift` rows: the usual case, which locates a row without a division.
    Shift(u32),
    /// Blocks of this many rows.
    Rows(u64),
    /// This many blocks per row.
    Pieces(u64),
}

/// Where one block lies in its tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockShape {
    /// Rows of the block; 1 where it is a piece of a row.
    pub rows: u64,
    /// Elements per row in this block.
    pub columns: u64,
    /// Bytes per row in this block: the stride of codec `raw`.
    pub row_bytes: u64,
    /// Raw bytes of the block: `rows * row_bytes`, at most [`MAX_BLOCK_RAW_BYTES`].
    pub raw_bytes: u64,
    /// The tensor's row that the block's first row is, or is a piece of.
    pub first_row: u64,
    /// Where the block starts in the tensor's raw bytes.
    pub byte_offset: u64,
}

impl Geometry {
    /// Cuts a tensor.
    ///
    /// `row_elems` sets the row length of a tensor of rank 0 or 1, which is otherwise one row.
    /// A tensor without elements has zero blocks; one of rank 1 then has no row either, as has any tensor whose
    /// leading dimension is zero.
    /// Where rows of 4-bit or 6-bit elements are not whole bytes, the tensor is one row and cannot be gathered.
    ///
    /// # Errors
    /// [`Error::Rank`], [`Error::ShapeOverflow`] and [`Error::PartialByte`] for tensors that cannot be stored;
    /// [`Error::RowLength`] and [`Error::RowLengthFixed`] for a row length that does not suit the shape.
    pub fn new(dtype: Dtype, shape: &[u64], access: Access, row_elems: Option<u64>) -> Result<Self> {
        if shape.len() > MAX_RANK {
            return Err(Error::Rank { rank: shape.len() });
        }
        let overflow = || Error::ShapeOverflow { dtype, shape: shape.to_vec() };
        let n_elems = product(shape).ok_or_else(overflow)?;
        let raw_bits = n_elems.checked_mul(u64::from(dtype.bits())).ok_or_else(overflow)?;
        if raw_bits % 8 != 0 {
            return Err(Error::PartialByte { dtype, n_elems });
        }
        let (n_rows, row_elems) = rows_of(shape, n_elems, row_elems, overflow)?;
        let row_bits = row_elems.checked_mul(u64::from(dtype.bits())).ok_or_else(overflow)?;
        let gatherable = row_bits % 8 == 0;
        let (n_rows, row_elems, row_bytes) = if gatherable {
            (n_rows, row_elems, row_bits / 8)
        } else {
            (n_elems.min(1), n_elems, raw_bits / 8)
        };
        let (cut, n_blocks) = if n_elems == 0 {
            (Cut::Rows(1), 0)
        } else {
            Cut::of(access, row_elems, row_bytes).with_blocks(n_rows)
        };
        let raw_bytes = raw_bits / 8;
        Ok(Self { dtype, access, n_rows, row_elems, row_bytes, raw_bytes, n_blocks, cut, gatherable })
    }

    /// Element type.
    #[inline]
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// What the blocks are cut for.
    #[inline]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Bytes of the tensor, not encoded.
    #[inline]
    pub const fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Gather rows; may be more than 0 where a row has no bytes.
    #[inline]
    pub const fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Elements of a gather row.
    #[inline]
    pub const fn row_elems(&self) -> u64 {
        self.row_elems
    }

    /// Bytes of a gather row, not encoded.
    #[inline]
    pub const fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Blocks of the tensor; 0 where it has no elements.
    #[inline]
    pub const fn n_blocks(&self) -> u64 {
        self.n_blocks
    }

    /// Whether rows can be gathered: rows of the tensor's own length are whole bytes.
    #[inline]
    pub const fn is_gatherable(&self) -> bool {
        self.gatherable
    }

    /// Rows of every block but the last; 1 where a row is cut into pieces.
    #[inline]
    pub const fn block_rows(&self) -> u64 {
        match self.cut {
            Cut::Shift(shift) => 1 << shift,
            Cut::Rows(rows) => rows,
            Cut::Pieces(_) => 1,
        }
    }

    /// Blocks that hold one row: 1, or more where a row is longer than a block.
    #[inline]
    pub const fn pieces_per_row(&self) -> u64 {
        match self.cut {
            Cut::Pieces(pieces) => pieces,
            _ => 1,
        }
    }

    /// Where block `block_idx` lies; an empty shape from [`Geometry::n_blocks`] on.
    pub fn block(&self, block_idx: u64) -> BlockShape {
        if block_idx >= self.n_blocks {
            return BlockShape::default();
        }
        let (first_row, rows, first_column, columns) = if let Cut::Pieces(pieces) = self.cut {
            let first_column = block_idx % pieces * PIECE_ELEMS;
            (block_idx / pieces, 1, first_column, PIECE_ELEMS.min(self.row_elems - first_column))
        } else {
            let first_row = block_idx * self.block_rows();
            (first_row, self.block_rows().min(self.n_rows - first_row), 0, self.row_elems)
        };
        let row_bytes = self.bytes_of(columns);
        BlockShape {
            rows,
            columns,
            row_bytes,
            raw_bytes: rows * row_bytes,
            first_row,
            byte_offset: first_row * self.row_bytes + self.bytes_of(first_column),
        }
    }

    /// The block that holds row `row`, and the row's number in it.
    ///
    /// Where a row is cut into pieces, this is its first piece, and the others are the next
    /// `pieces_per_row() - 1` blocks.
    /// `row` is below [`Geometry::n_rows`], and the tensor has blocks: the caller has checked both.
    #[inline]
    pub const fn locate(&self, row: u64) -> (u64, u64) {
        match self.cut {
            Cut::Shift(shift) => (row >> shift, row & ((1 << shift) - 1)),
            Cut::Rows(rows) => (row / rows, row % rows),
            Cut::Pieces(pieces) => (row.wrapping_mul(pieces), 0),
        }
    }

    /// Bytes of some elements of one row, a multiple of 8 or a whole row.
    const fn bytes_of(&self, n_elems: u64) -> u64 {
        n_elems * self.dtype.bits() as u64 / 8
    }
}

impl Cut {
    /// The cut of a tensor that has elements, by the length of its rows.
    const fn of(access: Access, row_elems: u64, row_bytes: u64) -> Self {
        let block_rows = match access {
            Access::Rows => match ROWS_BLOCK_BYTES / row_bytes {
                0 => 0,
                rows => 1 << rows.ilog2(),
            },
            Access::Whole => PIECE_ELEMS / row_elems,
        };
        match block_rows {
            0 => Self::Pieces(row_elems.div_ceil(PIECE_ELEMS)),
            rows if rows.is_power_of_two() => Self::Shift(rows.ilog2()),
            rows => Self::Rows(rows),
        }
    }

    /// Adds the number of blocks; it cannot overflow, because every block has at least one element.
    const fn with_blocks(self, n_rows: u64) -> (Self, u64) {
        let n_blocks = match self {
            Self::Shift(shift) => n_rows.div_ceil(1 << shift),
            Self::Rows(rows) => n_rows.div_ceil(rows),
            Self::Pieces(pieces) => n_rows * pieces,
        };
        (self, n_blocks)
    }
}

/// Gather rows and elements of each, by the shape or by the caller's row length.
fn rows_of(
    shape: &[u64],
    n_elems: u64,
    row_elems: Option<u64>,
    overflow: impl Fn() -> Error,
) -> Result<(u64, u64)> {
    match (shape, row_elems) {
        ([] | [_], None) => Ok((n_elems.min(1), n_elems)),
        ([] | [_], Some(row_elems)) => {
            if row_elems == 0 || !n_elems.is_multiple_of(row_elems) {
                return Err(Error::RowLength { row_elems, n_elems });
            }
            Ok((n_elems / row_elems, row_elems))
        }
        ([n_rows, inner @ ..], given) => {
            let own_elems = product(inner).ok_or_else(overflow)?;
            match given {
                Some(row_elems) if row_elems != own_elems => {
                    Err(Error::RowLengthFixed { row_elems, own_elems, shape: shape.to_vec() })
                }
                _ => Ok((*n_rows, own_elems)),
            }
        }
    }
}

/// Product of dimensions, `None` past 64 bits; a zero wins wherever it is.
fn product(dimensions: &[u64]) -> Option<u64> {
    if dimensions.contains(&0) {
        return Some(0);
    }
    dimensions.iter().try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))
}

#[cfg(test)]
mod tests;
