//! Tables, dropped bits and bases for `planes`, and what they store.

use tierpack_shm::types::index;

use super::measure::{Measured, each_record, measure as measure_lens};
use super::search::Words;
use crate::bits::{low, read_word};
use crate::cut::{Grid, HEAD_BYTES, RECORD_ELEMS, Runs};
use crate::escapes::ENTRY_BYTES;
use crate::geometry::Geometry;
use crate::metadata::{self, Form, Lengths, bases_may_be_per_column};
use crate::planes::{Dropped, ESCAPE, Parts, Planes, Schedule};

/// Bits that a run must have to be dropped: fewer may be alike by chance.
const LEAST_DROPPED: u32 = 2;

/// Columns whose exponents are counted side by side: their counts stay in the cache.
const TILE_COLUMNS: usize = 64;

/// What a sample says about its words, whatever the schedule.
pub(super) struct Statistics {
    dropped: Dropped,
    /// Elements by their exponent.
    counts: Vec<u64>,
    /// A base per column, and the elements by their exponent less it; `None` where the tensor has no columns.
    by_column: Option<(Box<[u16]>, Vec<u64>)>,
}

impl Statistics {
    pub(super) fn of(parts: Parts, words: &[Words], geometry: &Geometry) -> Self {
        match parts.word_bits {
            8 => Self::of_words::<1>(parts, words, geometry),
            16 => Self::of_words::<2>(parts, words, geometry),
            32 => Self::of_words::<4>(parts, words, geometry),
            _ => Self::of_words::<8>(parts, words, geometry),
        }
    }

    fn of_words<const BYTES: usize>(parts: Parts, words: &[Words], geometry: &Geometry) -> Self {
        let dropped = dropped::<BYTES>(parts, words);
        if bases_may_be_per_column(geometry) && geometry.n_rows() > 1 {
            return Self::of_columns::<BYTES>(parts, dropped, words, geometry);
        }
        let mut counts = vec![0; 1 << parts.exponent_bits];
        for block in words {
            for word in block.bytes.as_chunks::<BYTES>().0 {
                counts[exponent_of(parts, word)] += 1;
            }
        }
        Self { dropped, counts, by_column: None }
    }

    /// Counts by column: the base of each is the lower median of its exponents.
    fn of_columns<const BYTES: usize>(
        parts: Parts,
        dropped: Dropped,
        words: &[Words],
        geometry: &Geometry,
    ) -> Self {
        let n_exponents = 1 << parts.exponent_bits;
        let (mut counts, mut reduced) = (vec![0; n_exponents], vec![0; n_exponents]);
        let mut bases = Vec::with_capacity(index(geometry.row_elems()));
        let row_bytes = index(geometry.row_bytes());
        let mut tile = vec![0_u32; TILE_COLUMNS * n_exponents];
        for start in (0..row_bytes).step_by(TILE_COLUMNS * BYTES) {
            let end = row_bytes.min(start + TILE_COLUMNS * BYTES);
            tile.fill(0);
            // Rows of one block lie one behind the other, and pieces have no bases.
            for row in words.iter().flat_map(|block| block.bytes.chunks_exact(row_bytes)) {
                let columns = tile.chunks_exact_mut(n_exponents);
                for (word, counts) in row[start..end].as_chunks::<BYTES>().0.iter().zip(columns) {
                    counts[exponent_of(parts, word)] += 1;
                }
            }
            for column in tile.chunks_exact(n_exponents).take((end - start) / BYTES) {
                let base = median(column);
                for (exponent, &count) in column.iter().enumerate().filter(|&(_, &count)| count > 0) {
                    counts[exponent] += u64::from(count);
                    reduced[exponent.wrapping_sub(base) & (n_exponents - 1)] += u64::from(count);
                }
                bases.push(exponent(base));
            }
        }
        Self { dropped, counts, by_column: Some((bases.into(), reduced)) }
    }

    /// Without bases, and with one per column where the tensor has columns.
    pub(super) fn candidates(&self, schedule: Schedule, parts: Parts) -> Vec<metadata::Planes> {
        let form = |counts: &[u64], bases: Option<Box<[u16]>>| {
            metadata::Planes::new(schedule, parts, self.dropped, table(schedule, counts), bases)
        };
        let by_column = self.by_column.as_ref().map(|(bases, reduced)| form(reduced, Some(bases.clone())));
        std::iter::once(form(&self.counts, None)).chain(by_column).collect()
    }
}

/// The exponent of a word.
#[inline(always)]
fn exponent_of<const BYTES: usize>(parts: Parts, word: &[u8; BYTES]) -> usize {
    index(read_word(word) >> (parts.low_bits() - 1) & low(parts.exponent_bits))
}

/// The longest run of low bits that are the same in all words.
fn dropped<const BYTES: usize>(parts: Parts, words: &[Words]) -> Dropped {
    let all = || words.iter().flat_map(|block| block.bytes.as_chunks::<BYTES>().0);
    let Some(model) = all().next().map(|word| read_word(word)) else { return Dropped::default() };
    let mut changed = 0;
    for block in words {
        for word in block.bytes.as_chunks::<BYTES>().0 {
            changed |= read_word(word) ^ model;
        }
    }
    dropped_of(parts, model, changed)
}

/// The longest run of low bits that are the same in all words: those of `model` that are not in `changed`.
fn dropped_of(parts: Parts, model: u64, changed: u64) -> Dropped {
    let (model, changed) = (parts.rotated(model), parts.rotated(changed));
    let (mut best, mut left) = (Dropped::default(), !changed & low(parts.low_bits()));
    while left != 0 {
        let first = left.trailing_zeros();
        let bits = (left >> first).trailing_ones();
        if bits > best.bits {
            best = Dropped { first, bits, value: model >> first & low(bits) };
        }
        left &= !(low(bits) << first);
    }
    if best.bits < LEAST_DROPPED { Dropped::default() } else { best }
}

/// The lower median of counted exponents.
fn median(counts: &[u32]) -> usize {
    let half = counts.iter().map(|&count| u64::from(count)).sum::<u64>().div_ceil(2);
    let mut below = 0;
    let reaches = |&count: &u32| {
        below += u64::from(count);
        below >= half
    };
    counts.iter().position(reaches).unwrap_or(0)
}

fn exponent(number: usize) -> u16 {
    u16::try_from(number).expect("an exponent has at most 11 bits")
}

/// The most frequent exponents, the most frequent first and the smaller of equal ones.
fn table(schedule: Schedule, counts: &[u64]) -> Box<[u16]> {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&exponent| (u64::MAX - counts[exponent], exponent));
    (0..schedule.n_codes()).map(|rank| order.get(rank).copied().map_or(0, exponent)).collect()
}

/// Measures a sample under this form.
pub(super) fn measure(form: &metadata::Planes, words: &[Words], geometry: &Geometry) -> Measured {
    let dtype = geometry.dtype();
    let rules = Form::Planes(form.clone()).stride_rules(dtype);
    let Some(planes) = Planes::new(form, dtype) else {
        return Measured { stored_bytes: u64::MAX, body_bytes: u64::MAX, ..Measured::default() };
    };
    let ruler = Ruler::new(&planes);
    let mut lens = Vec::new();
    each_record(words, geometry, |words, start| lens.push(ruler.record_len(words, start)));
    if form.schedule != Schedule::Four {
        return measure_lens(words, geometry, &rules, &lens);
    }
    let stride = |n_elems| *rules.range(n_elems).start();
    let lengths = Lengths::of(geometry);
    let record_stride =
        if lengths.is_some_and(|lengths| lengths.has_full) { stride(RECORD_ELEMS) } else { 0 };
    let tail_stride = lengths.map_or(0, |lengths| stride(lengths.tail_elems));
    let (mut lens, mut measured) = (lens.iter(), Measured::new(record_stride, tail_stride));
    for block in words {
        let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
        let front_len = Grid::new(runs, dtype, record_stride, stride(runs.tail_elems)).front_len();
        let n_records = index(runs.total_records());
        let escapes: u64 = lens.by_ref().take(n_records).map(|&len| u64::from(len)).sum();
        measured.add(&block.shape, front_len.saturating_add(escapes));
    }
    measured
}

/// Exponents of 11 bits.
const MAX_EXPONENTS: usize = 1 << 11;

/// Measures records under one form.
struct Ruler<'a> {
    planes: &'a Planes,
    /// Bits beyond the fixed part, by exponent less its base; shorter exponents repeat.
    extra: Box<[u8; MAX_EXPONENTS]>,
    /// The dropped bits of a word, as it is in the tensor, and their value.
    dropped_mask: u64,
    dropped_value: u64,
}

impl<'a> Ruler<'a> {
    fn new(planes: &'a Planes) -> Self {
        let escape_bits = match planes.schedule {
            Schedule::Four => 8 * ENTRY_BYTES,
            _ => planes.parts.exponent_bits as usize,
        };
        let extra_of = |rank: u8| match (rank, planes.schedule) {
            (ESCAPE, Schedule::Tiers) => 4 + escape_bits,
            (ESCAPE, _) => escape_bits,
            (rank, Schedule::Tiers) => 2 * usize::from(rank / 3),
            _ => 0,
        };
        let extra = |exponent: usize| {
            let bits = extra_of(planes.ranks[exponent & (planes.ranks.len() - 1)]);
            u8::try_from(bits).expect("an escape has at most 32 bits")
        };
        let Dropped { first, bits, value } = planes.dropped;
        Self {
            planes,
            extra: Box::new(std::array::from_fn(extra)),
            dropped_mask: planes.parts.unrotated(low(bits) << first),
            dropped_value: planes.parts.unrotated(value << first),
        }
    }

    /// Bytes of one record, head included; of `planes:4`, bytes of its escapes.
    fn record_len(&self, words: &[u8], start: usize) -> u32 {
        let planes = self.planes;
        let word_bytes = planes.word_bytes();
        let (first, n) = (start / word_bytes, words.len() / word_bytes);
        let (bits, fits) = match word_bytes {
            1 => self.extra_bits::<1>(words, first),
            2 => self.extra_bits::<2>(words, first),
            4 => self.extra_bits::<4>(words, first),
            _ => self.extra_bits::<8>(words, first),
        };
        let len = match planes.schedule {
            Schedule::Four if fits => bits / 8,
            // The whole block becomes raw.
            Schedule::Four => 1 << 20,
            _ if fits => index(HEAD_BYTES) + (planes.shape.fixed_bits(n) + bits).div_ceil(8).min(words.len()),
            _ => index(HEAD_BYTES) + words.len(),
        };
        u32::try_from(len).expect("a record has at most 8 KiB and a head")
    }

    /// Bits beyond the fixed part, and whether all dropped bits have their value.
    fn extra_bits<const BYTES: usize>(&self, words: &[u8], first: usize) -> (usize, bool) {
        let (mut left, shift) = (words.as_chunks::<BYTES>().0, self.planes.parts.low_bits() - 1);
        let (mut bits, mut missed) = (0, 0);
        let mut add = |word: &[u8; BYTES], base: usize| {
            let word = read_word(word);
            missed |= (word ^ self.dropped_value) & self.dropped_mask;
            let exponent = index(word >> shift).wrapping_sub(base);
            bits += usize::from(self.extra[exponent % MAX_EXPONENTS]);
        };
        let Some(bases) = self.planes.bases.as_deref() else {
            left.iter().for_each(|word| add(word, 0));
            return (bits, missed == 0);
        };
        let mut from = first % bases.len().max(1);
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(bases.len() - from));
            now.iter().zip(&bases[from..]).for_each(|(word, &base)| add(word, usize::from(base)));
            (left, from) = (later, 0);
        }
        (bits, missed == 0)
    }
}
