//! How one block is cut into records, and where each record is.
//!
//! A *run* is what records are counted in: a row of the block, or under access `whole` all of it.
//! Every record of a run has [`RECORD_ELEMS`] elements, except the last, which has the rest.
//! Source: FORMAT.md, section "Records".

use core::ops::RangeInclusive;

use tierpack_shm::types::{Access, Dtype, index};

use crate::planes::{PlaneShape, Schedule};
use crate::sparse;

/// Elements of a full record.
pub const RECORD_ELEMS: u64 = 1024;

/// Bytes of a record's head.
pub(crate) const HEAD_BYTES: u64 = 4;

/// Every stride is a multiple of this.
pub(crate) const STRIDE_UNIT: u64 = 4;

/// The most raw bytes that a record has: 1024 elements of 8 bytes.
pub(crate) const MAX_RECORD_BYTES: usize = 8192;

/// The runs of one block and their records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    /// Runs of the block.
    pub(crate) count: u64,
    /// Records of each run.
    pub(crate) records: u64,
    /// Elements of the last record of each run, 1 to 1024.
    pub(crate) tail_elems: u64,
}

impl Runs {
    /// Cuts a block; `rows` and `columns` are at least 1.
    #[inline]
    pub(crate) const fn of(access: Access, rows: u64, columns: u64) -> Self {
        let (count, elems) = match access {
            Access::Rows => (rows, columns),
            Access::Whole => (1, rows.saturating_mul(columns)),
        };
        let records = elems.div_ceil(RECORD_ELEMS);
        Self { count, records, tail_elems: elems - (records - 1) * RECORD_ELEMS }
    }

    /// Records of the block.
    #[inline]
    pub(crate) const fn total_records(&self) -> u64 {
        self.count.saturating_mul(self.records)
    }
}

/// The runs of a block and the strides of its front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grid {
    /// The runs.
    pub(crate) runs: Runs,
    /// Bytes from one full record of a run to the next; 0 where a run has one record.
    pub(crate) record_stride: u64,
    /// Bytes of the last record of a run.
    pub(crate) tail_stride: u64,
    /// Raw bytes of a full record.
    record_bytes: u64,
    /// Raw bytes of the last record of a run.
    tail_bytes: u64,
}

/// Where one record is in the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Offset in the front.
    pub(crate) offset: u64,
    /// Bytes in the front.
    pub(crate) stride: u64,
    /// Raw bytes of the record.
    pub(crate) raw_bytes: u64,
}

impl Grid {
    pub(crate) const fn new(runs: Runs, dtype: Dtype, record_stride: u64, tail_stride: u64) -> Self {
        Self {
            runs,
            record_stride: if runs.records > 1 { record_stride } else { 0 },
            tail_stride,
            record_bytes: bytes_of(dtype, RECORD_ELEMS),
            tail_bytes: bytes_of(dtype, runs.tail_elems),
        }
    }

    /// Bytes of the front.
    #[inline]
    pub(crate) const fn front_len(&self) -> u64 {
        self.runs.count * self.run_stride()
    }

    /// Bytes of one run in the front.
    #[inline]
    pub(crate) const fn run_stride(&self) -> u64 {
        (self.runs.records - 1) * self.record_stride + self.tail_stride
    }

    /// Raw bytes of one run.
    #[inline]
    pub(crate) const fn run_bytes(&self) -> u64 {
        (self.runs.records - 1) * self.record_bytes + self.tail_bytes
    }

    /// Raw bytes of a full record.
    #[inline]
    pub(crate) const fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Where record `record` of run `run` is.
    #[inline]
    pub(crate) const fn place(&self, run: u64, record: u64) -> Place {
        let last = record + 1 == self.runs.records;
        Place {
            offset: run * self.run_stride() + record * self.record_stride,
            stride: if last { self.tail_stride } else { self.record_stride },
            raw_bytes: if last { self.tail_bytes } else { self.record_bytes },
        }
    }
}

/// Bytes of some elements of one record; whole, because rows and full records are.
#[inline]
pub(crate) const fn bytes_of(dtype: Dtype, n_elems: u64) -> u64 {
    n_elems * dtype.bits() as u64 / 8
}

/// What the strides of a codec's records may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StrideRules {
    /// `ibp` and `ibp:window`: the head and a participation bit per chunk are in the front.
    Chunks { dtype: Dtype, chunk_bytes: u64 },
    /// `planes`: the planes of every element are in the front; of `planes:4`, which has no head, nothing else.
    Planes { dtype: Dtype, shape: PlaneShape },
    /// `sparse`: the head, the bit that names the form, and a bit per group are in the front.
    Sparse { dtype: Dtype, group_elems: u64 },
}

impl StrideRules {
    /// Bytes of the string that every record of `n_elems` elements has: they lie in the front.
    pub(crate) const fn least_bytes(&self, n_elems: u64) -> u64 {
        match self {
            Self::Chunks { dtype, chunk_bytes } => {
                let chunks = bytes_of(*dtype, n_elems).div_ceil(*chunk_bytes);
                HEAD_BYTES + chunks.div_ceil(8)
            }
            Self::Planes { shape, .. } => {
                self.head_bytes() + shape.fixed_bits(index(n_elems)).div_ceil(8) as u64
            }
            Self::Sparse { dtype, group_elems } => {
                let n_words = bytes_of(*dtype, n_elems) / sparse::word_bytes(*dtype);
                HEAD_BYTES + (1 + n_words.div_ceil(*group_elems)).div_ceil(8)
            }
        }
    }

    /// Bytes of a record's head.
    pub(crate) const fn head_bytes(&self) -> u64 {
        match self {
            Self::Planes { shape, .. } if matches!(shape.schedule, Schedule::Four) => 0,
            _ => HEAD_BYTES,
        }
    }

    /// What the stride of records of `n_elems` elements may be; a multiple of [`STRIDE_UNIT`] too.
    pub(crate) const fn range(&self, n_elems: u64) -> RangeInclusive<u64> {
        let least = self.least_bytes(n_elems).next_multiple_of(STRIDE_UNIT);
        let (Self::Chunks { dtype, .. } | Self::Planes { dtype, .. } | Self::Sparse { dtype, .. }) = *self;
        if self.head_bytes() == 0 { least..=least } else { least..=max_stride(bytes_of(dtype, n_elems)) }
    }

    /// The stride of a shorter record whose length is not one that metadata hold: its share of a full one's.
    pub(crate) const fn share_of(&self, full_stride: u64, n_elems: u64) -> u64 {
        let share = (full_stride.saturating_sub(HEAD_BYTES) * n_elems).div_ceil(RECORD_ELEMS);
        let stride = (HEAD_BYTES + share).next_multiple_of(STRIDE_UNIT);
        let range = self.range(n_elems);
        let (least, most) = (*range.start(), *range.end());
        if stride < least {
            least
        } else if stride > most {
            most
        } else {
            stride
        }
    }
}

/// The most that a stride may be: a head and the raw bytes.
pub(crate) const fn max_stride(raw_bytes: u64) -> u64 {
    (HEAD_BYTES + raw_bytes).next_multiple_of(STRIDE_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_records_and_whole_blocks_do_not() {
        let runs = Runs::of(Access::Rows, 3, 1536);
        assert_eq!(runs, Runs { count: 3, records: 2, tail_elems: 512 });
        assert_eq!(runs.total_records(), 6);
        let runs = Runs::of(Access::Whole, 3, 1536);
        assert_eq!(runs, Runs { count: 1, records: 5, tail_elems: 512 });
        assert_eq!(Runs::of(Access::Rows, 7, 1024), Runs { count: 7, records: 1, tail_elems: 1024 });
    }

    #[test]
    fn places_tile_the_front() {
        let grid = Grid::new(Runs::of(Access::Rows, 2, 2500), Dtype::Bf16, 1000, 300);
        let mut end = 0;
        for run in 0..2 {
            for record in 0..3 {
                let place = grid.place(run, record);
                assert_eq!(place.offset, end);
                end += place.stride;
                assert_eq!(place.raw_bytes, if record == 2 { 904 } else { 2048 });
            }
        }
        assert_eq!(end, grid.front_len());
        assert_eq!(grid.run_bytes(), 5000);
        let short = Grid::new(Runs::of(Access::Rows, 2, 10), Dtype::Bf16, 1000, 16);
        assert_eq!((short.record_stride, short.front_len()), (0, 32));
    }

    #[test]
    fn strides_have_room_for_head_and_participation_bits() {
        let strides = |chunk_bytes| StrideRules::Chunks { dtype: Dtype::Bf16, chunk_bytes };
        assert_eq!(strides(2).range(1024), 4 + 128..=2052);
        assert_eq!(strides(8).range(1024), 4 + 32..=2052);
        assert_eq!(strides(8).range(1), 8..=8);
    }
}
