//! Counts of ones per bit position, and the masks that a threshold makes of them.

use tierpack_shm::types::{Access, index};

use super::search::Words;
use crate::coder::GROUP_BYTES;
use crate::geometry::Geometry;
use crate::metadata::MAX_COLUMNS_ROW_BYTES;

/// Bytes that one pass adds up side by side, at least: wide enough for vector instructions.
const LANE_BYTES: usize = 512;

/// Ones at each bit of a period of bytes, and how often each byte was seen.
pub(super) struct Counts {
    /// `ones[byte][bit]`.
    pub(super) ones: Vec<[u64; 8]>,
    /// Words seen at each byte.
    pub(super) seen: Vec<u64>,
}

/// Mask and bit values, a byte for each byte of the period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) mask: Vec<u8>,
    pub(super) bitval: Vec<u8>,
}

impl Counts {
    /// Counts by position in the row.
    pub(super) fn by_column(words: &[Words], geometry: &Geometry) -> Self {
        let mut counts = Self::new(index(geometry.row_bytes()));
        for block in words {
            counts.add(&block.bytes);
        }
        counts
    }

    /// Counts by position in a group of 8 bytes of a run.
    pub(super) fn by_group(words: &[Words], geometry: &Geometry) -> Self {
        let mut counts = Self::new(GROUP_BYTES);
        if geometry.access() != Access::Rows || geometry.row_bytes().is_multiple_of(8) {
            words.iter().for_each(|block| counts.add(&block.bytes));
        } else if geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES {
            counts.merge(&Self::by_column(words, geometry));
        } else {
            for block in words {
                block.bytes.chunks(index(block.shape.row_bytes)).for_each(|row| counts.add(row));
            }
        }
        counts
    }

    fn new(period: usize) -> Self {
        Self { ones: vec![[0; 8]; period], seen: vec![0; period] }
    }

    /// Adds bytes that start at the start of a period.
    fn add(&mut self, bytes: &[u8]) {
        let period = self.ones.len();
        let width = period * LANE_BYTES.div_ceil(period);
        let mut sums: [Vec<u8>; 8] = std::array::from_fn(|_| vec![0; width]);
        // A byte counts up to 255 rows.
        for rows in bytes.chunks(width * 255) {
            sums.iter_mut().for_each(|sum| sum.fill(0));
            for row in rows.chunks(width) {
                for (bit, sum) in sums.iter_mut().enumerate() {
                    for (sum, byte) in sum.iter_mut().zip(row) {
                        *sum += byte >> bit & 1;
                    }
                }
            }
            for (bit, sum) in sums.iter().enumerate() {
                for (i, &sum) in sum.iter().enumerate() {
                    self.ones[i % period][bit] += u64::from(sum);
                }
            }
        }
        let (times, rest) = (bytes.len() / period, bytes.len() % period);
        for (i, seen) in self.seen.iter_mut().enumerate() {
            *seen += times as u64 + u64::from(i < rest);
        }
    }

    /// Adds counts of a longer period, of which this one's repeats from its start on.
    fn merge(&mut self, longer: &Self) {
        let period = self.ones.len();
        for (i, (ones, seen)) in longer.ones.iter().zip(&longer.seen).enumerate() {
            let to = &mut self.ones[i % period];
            to.iter_mut().zip(ones).for_each(|(to, ones)| *to += ones);
            self.seen[i % period] += seen;
        }
    }

    /// The same counts by position in a chunk, which divides the period.
    pub(super) fn folded(&self, chunk_bytes: usize) -> Self {
        let mut counts = Self::new(chunk_bytes);
        counts.merge(self);
        counts
    }

    /// The bits whose more frequent value covers at least `percent` of the words.
    ///
    /// A byte that was never seen is invariant zero.
    pub(super) fn invariant(&self, percent: u64) -> Bits {
        let byte = |(ones, &seen): (&[u64; 8], &u64)| {
            let needed = percent * seen;
            let bits = |covers: &dyn Fn(u64) -> bool| {
                ones.iter().enumerate().fold(0, |byte, (bit, &ones)| byte | u8::from(covers(ones)) << bit)
            };
            let zeros = bits(&|ones| (seen - ones) * 100 >= needed);
            let ones = bits(&|ones| ones * 100 >= needed) & !zeros;
            (zeros | ones, ones)
        };
        let (mask, bitval) = self.ones.iter().zip(&self.seen).map(byte).unzip();
        Bits { mask, bitval }
    }
}
