//! Stored bytes of a sample under given masks, with the strides that suit them.

use tierpack_shm::types::{Dtype, UNIT_BYTES, index};

use super::count::Bits;
use super::search::Words;
use crate::block::HEADER_BYTES;
use crate::coder::read_word;
use crate::cut::{
    Grid, HEAD_BYTES, RECORD_ELEMS, Runs, STRIDE_UNIT, bytes_of, max_stride, min_stride, share_of,
};
use crate::geometry::Geometry;
use crate::metadata::{Granularity, Lengths};
use crate::window::Word;

/// Padding that a stride may cost, in thousandths of the raw bytes, to keep rows out of the overflow.
const PADDING_PER_MILLE: u64 = 1;

/// What the blocks of a sample take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) record_stride: u64,
    pub(super) tail_stride: u64,
    pub(super) stored_bytes: u64,
}

/// Masks laid out for a walk over records.
struct Table {
    mask: Vec<u8>,
    bitval: Vec<u8>,
    /// Bits that each chunk saves where it participates.
    saved: Vec<u32>,
    /// Whether a record starts in the table where it starts in its run; else at the table's start.
    by_column: bool,
}

/// Measures a sample, already transformed, under masks of one chunk size.
pub(super) fn measure(
    words: &[Words],
    geometry: &Geometry,
    masks: Granularity,
    chunk_bytes: u8,
    bits: &Bits,
) -> Measured {
    let table = Table::new(geometry, masks, usize::from(chunk_bytes), bits);
    let lens = match chunk_bytes {
        2 => record_lens::<u16>(words, geometry, &table),
        4 => record_lens::<u32>(words, geometry, &table),
        _ => record_lens::<u64>(words, geometry, &table),
    };
    let strides = Strides::new(words, geometry, u64::from(chunk_bytes), &lens);
    let mut lens = lens.iter();
    let mut stored_bytes = 0;
    for block in words {
        let grid = strides.grid(geometry, block);
        let mut overflow_len = 0;
        for_each_record(&grid, |_, record| {
            let stride = grid.place(0, record).stride;
            let len = lens.next().copied().map_or(0, u64::from);
            overflow_len += len.saturating_sub(stride);
        });
        let body_len = (grid.front_len() + overflow_len).min(block.shape.raw_bytes);
        stored_bytes += (HEADER_BYTES + body_len).next_multiple_of(UNIT_BYTES);
    }
    let Strides { record_stride, tail_stride, .. } = strides;
    Measured { record_stride, tail_stride, stored_bytes }
}

fn for_each_record(grid: &Grid, mut each: impl FnMut(u64, u64)) {
    for run in 0..grid.runs.count {
        for record in 0..grid.runs.records {
            each(run, record);
        }
    }
}

/// Bytes of every record of the sample, head included, in their order.
fn record_lens<W: Word>(words: &[Words], geometry: &Geometry, table: &Table) -> Vec<u32> {
    let mut lens = Vec::new();
    for block in words {
        let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
        let grid = Grid::new(runs, geometry.dtype(), 0, 0);
        for run in block.bytes.chunks(index(grid.run_bytes())) {
            for (record, words) in run.chunks(index(grid.record_bytes())).enumerate() {
                lens.push(table.record_len::<W>(words, record * index(grid.record_bytes())));
            }
        }
    }
    lens
}

impl Table {
    fn new(geometry: &Geometry, masks: Granularity, chunk_bytes: usize, bits: &Bits) -> Self {
        let by_column = masks == Granularity::Column;
        let len = if by_column { bits.mask.len() } else { index(bytes_of(geometry.dtype(), RECORD_ELEMS)) };
        let times = len.div_ceil(bits.mask.len());
        let padded = |bytes: &[u8]| {
            let mut bytes = bytes.repeat(times);
            bytes.resize(len.next_multiple_of(chunk_bytes), 0);
            bytes
        };
        let mask = padded(&bits.mask);
        let saved = mask.chunks(chunk_bytes).map(|mask| read_word(mask).count_ones()).collect();
        Self { mask, bitval: padded(&bits.bitval), saved, by_column }
    }

    /// Bytes of one record that starts at byte `start` of its run.
    fn record_len<W: Word>(&self, words: &[u8], start: usize) -> u32 {
        let raw_bytes = words.len();
        let (mut at, mut left, mut saved) =
            (if self.by_column { start % self.mask.len() } else { 0 }, words, 0);
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(self.mask.len() - at));
            saved += self.saved_bits::<W>(now, at);
            (at, left) = (0, later);
        }
        let n_bits = 8 * raw_bytes - saved + raw_bytes.div_ceil(W::BYTES);
        let len = index(HEAD_BYTES) + n_bits.div_ceil(8).min(raw_bytes);
        u32::try_from(len).expect("a record has at most 8 KiB and a head")
    }

    /// Bits that the chunks of `words` save, under the masks from byte `at` on.
    fn saved_bits<W: Word>(&self, words: &[u8], at: usize) -> usize {
        let (mask, bitval) = (&self.mask[at..][..], &self.bitval[at..][..]);
        let saved = &self.saved[at / W::BYTES..];
        let chunks = words.chunks_exact(W::BYTES);
        let short = chunks.remainder();
        let masks = mask.chunks_exact(W::BYTES).zip(bitval.chunks_exact(W::BYTES));
        let mut sum = 0_u32;
        for ((word, (mask, bitval)), &saved) in chunks.zip(masks).zip(saved) {
            let fits = W::read(word).fits(W::read(mask), W::read(bitval));
            sum += if fits { saved } else { 0 };
        }
        if !short.is_empty() {
            let at = words.len() - short.len();
            let mask = read_word(&mask[at..][..short.len()]);
            let bitval = read_word(&bitval[at..][..short.len()]);
            if (read_word(short) ^ bitval) & mask == 0 {
                sum += mask.count_ones();
            }
        }
        sum as usize
    }
}

/// The strides that suit the records of a sample.
struct Strides {
    record_stride: u64,
    tail_stride: u64,
    tail_elems: u64,
    chunk_bytes: u64,
}

impl Strides {
    fn new(words: &[Words], geometry: &Geometry, chunk_bytes: u64, lens: &[u32]) -> Self {
        let lengths = Lengths::of(geometry).unwrap_or(Lengths { has_full: false, tail_elems: 1 });
        let dtype = geometry.dtype();
        let mut full = Histogram::new(dtype, RECORD_ELEMS, chunk_bytes);
        let mut tail = Histogram::new(dtype, lengths.tail_elems, chunk_bytes);
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
            n_elems if tail.n == 0 => share_of(record_stride, n_elems, bytes_of(dtype, n_elems), chunk_bytes),
            _ => tail.stride(),
        };
        Self { record_stride, tail_stride, tail_elems: lengths.tail_elems, chunk_bytes }
    }

    /// The grid of a block, as [`crate::Coder`] makes it.
    fn grid(&self, geometry: &Geometry, block: &Words) -> Grid {
        let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
        let dtype = geometry.dtype();
        let tail_stride = match runs.tail_elems {
            n_elems if n_elems == self.tail_elems => self.tail_stride,
            RECORD_ELEMS => self.record_stride,
            n_elems => share_of(self.record_stride, n_elems, bytes_of(dtype, n_elems), self.chunk_bytes),
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
    fn new(dtype: Dtype, n_elems: u64, chunk_bytes: u64) -> Self {
        let raw_bytes = bytes_of(dtype, n_elems);
        let counts = vec![0; index(max_stride(raw_bytes)) + 1];
        Self { raw_bytes, least: min_stride(raw_bytes, chunk_bytes), counts, n: 0 }
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
