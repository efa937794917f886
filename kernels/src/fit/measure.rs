//! Stored bytes of a sample whose records have these lengths, with the strides that suit them.

use tierpack_shm::types::{UNIT_BYTES, index};

use super::search::Words;
use crate::block::HEADER_BYTES;
use crate::cut::{Grid, RECORD_ELEMS, Runs, STRIDE_UNIT, StrideRules, bytes_of, max_stride};
use crate::geometry::{BlockShape, Geometry};
use crate::metadata::Lengths;

/// Padding that a stride may cost, in thousandths of the raw bytes, to keep rows out of the overflow.
const PADDING_PER_MILLE: u64 = 1;

/// What the pieces of a sample take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) record_stride: u64,
    pub(super) tail_stride: u64,
    /// As if each piece were a block: headers and rounding included.
    pub(super) stored_bytes: u64,
    /// Without them.
    pub(super) body_bytes: u64,
}

impl Measured {
    /// With nothing measured yet.
    pub(super) fn new(record_stride: u64, tail_stride: u64) -> Self {
        Self { record_stride, tail_stride, ..Self::default() }
    }

    /// Adds a piece whose front and overflow take `body_len` bytes: never more than as `raw`.
    pub(super) fn add(&mut self, shape: &BlockShape, body_len: u64) {
        let body_len = body_len.min(shape.raw_bytes);
        self.stored_bytes += (HEADER_BYTES + body_len).next_multiple_of(UNIT_BYTES);
        self.body_bytes += body_len;
    }
}

/// Measures a sample whose records take these bytes, head included, in their order.
pub(super) fn measure(words: &[Words], geometry: &Geometry, rules: &StrideRules, lens: &[u32]) -> Measured {
    let strides = Strides::new(words, geometry, rules, lens);
    let mut lens = lens.iter();
    let mut measured = Measured::new(strides.record_stride, strides.tail_stride);
    for block in words {
        let grid = strides.grid(geometry, block);
        let mut overflow_len = 0;
        for_each_record(&grid, |_, record| {
            let stride = grid.place(0, record).stride;
            let len = lens.next().copied().map_or(0, u64::from);
            overflow_len += len.saturating_sub(stride);
        });
        measured.add(&block.shape, grid.front_len() + overflow_len);
    }
    measured
}

/// Calls `each` with the bytes of every record of the sample, and where they start in their run.
pub(super) fn each_record(words: &[Words], geometry: &Geometry, mut each: impl FnMut(&[u8], usize)) {
    for block in words {
        let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
        let grid = Grid::new(runs, geometry.dtype(), 0, 0);
        for run in block.bytes.chunks(index(grid.run_bytes())) {
            for (record, words) in run.chunks(index(grid.record_bytes())).enumerate() {
                each(words, record * index(grid.record_bytes()));
            }
        }
    }
}

fn for_each_record(grid: &Grid, mut each: impl FnMut(u64, u64)) {
    for run in 0..grid.runs.count {
        for record in 0..grid.runs.records {
            each(run, record);
        }
    }
}

/// The strides that suit the records of a sample.
struct Strides {
    record_stride: u64,
    tail_stride: u64,
    tail_elems: u64,
    rules: StrideRules,
}

impl Strides {
    fn new(words: &[Words], geometry: &Geometry, rules: &StrideRules, lens: &[u32]) -> Self {
        let lengths = Lengths::of(geometry).unwrap_or(Lengths { has_full: false, tail_elems: 1 });
        let dtype = geometry.dtype();
        let mut full = Histogram::new(geometry, RECORD_ELEMS, rules);
        let mut tail = Histogram::new(geometry, lengths.tail_elems, rules);
        let mut lens = lens.iter();
        for block in words {
            let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
            for_each_record(&Grid::new(runs, dtype, 0, 0), |_, record| {
                let n_elems = if record + 1 == runs.records { runs.tail_elems } else { RECORD_ELEMS };
                let len = lens.next().copied().unwrap_or(0);
                if n_elems == RECORD_ELEMS {
                    full.add(len);
                } else if n_elems == lengths.tail_elems {
                    tail.add(len);
                }
            });
        }
        let record_stride = if lengths.has_full { full.stride() } else { 0 };
        let tail_stride = match lengths.tail_elems {
            RECORD_ELEMS => record_stride,
            n_elems if tail.n == 0 => rules.share_of(record_stride, n_elems),
            _ => tail.stride(),
        };
        Self { record_stride, tail_stride, tail_elems: lengths.tail_elems, rules: *rules }
    }

    /// The grid of a block, as [`crate::Coder`] makes it.
    fn grid(&self, geometry: &Geometry, block: &Words) -> Grid {
        let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
        let dtype = geometry.dtype();
        let tail_stride = match runs.tail_elems {
            n_elems if n_elems == self.tail_elems => self.tail_stride,
            RECORD_ELEMS => self.record_stride,
            n_elems => self.rules.share_of(self.record_stride, n_elems),
        };
        Grid::new(runs, dtype, self.record_stride, tail_stride)
    }
}

/// How many records of one raw length are how long.
struct Histogram {
    raw_bytes: u64,
    least: u64,
    counts: Vec<u64>,
    n: u64,
}

impl Histogram {
    fn new(geometry: &Geometry, n_elems: u64, rules: &StrideRules) -> Self {
        let raw_bytes = bytes_of(geometry.dtype(), n_elems);
        let counts = vec![0; index(max_stride(raw_bytes)) + 1];
        Self { raw_bytes, least: *rules.range(n_elems).start(), counts, n: 0 }
    }

    fn add(&mut self, len: u32) {
        if let Some(count) = self.counts.get_mut(len as usize) {
            *count += 1;
            self.n += 1;
        }
    }

    /// The largest stride whose padding is worth it; a larger one than the longest record never is.
    ///
    /// Stored bytes grow with the stride: bytes in the overflow cost no more than bytes in the front.
    fn stride(&self) -> u64 {
        let allowed = self.n * self.raw_bytes * PADDING_PER_MILLE / 1000;
        let (mut padding, mut shorter, mut best) = (0, 0, self.least);
        for (stride, &count) in self.counts.iter().enumerate() {
            // Records shorter than `stride`, and the bytes that they lack.
            let stride = stride as u64;
            if stride >= self.least && stride.is_multiple_of(STRIDE_UNIT) {
                if padding > allowed {
                    break;
                }
                best = stride;
                if shorter + count == self.n {
                    break;
                }
            }
            shorter += count;
            padding += shorter;
        }
        best
    }
}
