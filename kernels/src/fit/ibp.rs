//! Lengths of records under some masks.

use tierpack_shm::types::index;

use super::count::Bits;
use super::measure::each_record;
use super::search::Words;
use crate::bits::read_word;
use crate::cut::{HEAD_BYTES, RECORD_ELEMS, bytes_of};
use crate::geometry::Geometry;
use crate::metadata::Granularity;
use crate::window::Word;

/// Masks laid out for a walk over records.
struct Table {
    mask: Vec<u8>,
    bitval: Vec<u8>,
    /// Bits that each chunk saves where it participates.
    saved: Vec<u32>,
    /// Whether a record starts in the table where it starts in its run; else at the table's start.
    by_column: bool,
}

/// Bytes of every record of a sample that is already transformed, under masks of one chunk size.
pub(super) fn record_lens(
    words: &[Words],
    geometry: &Geometry,
    masks: Granularity,
    chunk_bytes: u8,
    bits: &Bits,
) -> Vec<u32> {
    let table = Table::new(geometry, masks, usize::from(chunk_bytes), bits);
    let mut lens = Vec::new();
    each_record(words, geometry, |words, start| {
        lens.push(match chunk_bytes {
            2 => table.record_len::<u16>(words, start),
            4 => table.record_len::<u32>(words, start),
            _ => table.record_len::<u64>(words, start),
        });
    });
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
