//! Tables, dropped bits and bases for `planes`, and what they store.

use tierpack_shm::types::index;

use super::measure::{Measured, each_record, measure as measure_lens, stored};
use super::search::Words;
use crate::bits::{low, read_word};
use crate::cut::{Grid, HEAD_BYTES, RECORD_ELEMS, Runs};
use crate::escapes::ENTRY_BYTES;
use crate::geometry::Geometry;
use crate::metadata::{self, Form, Lengths, bases_may_be_per_column};
use crate::planes::{Dropped, ESCAPE, Parts, Planes, Schedule};

/// Bits that a run must have to be dropped: fewer may be alike by chance.
const LEAST_DROPPED: u32 = 2;

/// Without bases, and with one per column where the tensor has columns.
pub(super) fn candidates(
    schedule: Schedule,
    parts: Parts,
    words: &[Words],
    geometry: &Geometry,
) -> Vec<metadata::Planes> {
    let dropped = dropped(parts, words);
    let form = |bases: Option<Box<[u16]>>| {
        let table = table(schedule, parts, words, geometry, bases.as_deref());
        metadata::Planes::new(schedule, parts, dropped, table, bases)
    };
    let mut forms = vec![form(None)];
    if bases_may_be_per_column(geometry) && geometry.n_rows() > 1 {
        forms.push(form(Some(bases(parts, words, geometry))));
    }
    forms
}

/// The longest run of low bits that are the same in all words.
fn dropped(parts: Parts, words: &[Words]) -> Dropped {
    let word_bytes = (parts.word_bits / 8) as usize;
    let mut rotated = words
        .iter()
        .flat_map(|block| block.bytes.chunks_exact(word_bytes))
        .map(|word| parts.rotated(read_word(word)));
    let Some(model) = rotated.next() else { return Dropped::default() };
    let constant = !rotated.fold(0, |changed, word| changed | word ^ model) & low(parts.low_bits());
    let (mut best, mut left) = (Dropped::default(), constant);
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

/// Calls `each` with every exponent and its column.
fn each_exponent(parts: Parts, words: &[Words], geometry: &Geometry, mut each: impl FnMut(usize, usize)) {
    let word_bytes = (parts.word_bits / 8) as usize;
    let (shift, mask) = (parts.low_bits() - 1, low(parts.exponent_bits));
    // Rows of one block stand one behind the other, and pieces have no bases.
    for block in words {
        for row in block.bytes.chunks(index(geometry.row_bytes())) {
            for (column, word) in row.chunks_exact(word_bytes).enumerate() {
                each(column, index(read_word(word) >> shift & mask));
            }
        }
    }
}

/// The lower median of each column's exponents.
fn bases(parts: Parts, words: &[Words], geometry: &Geometry) -> Box<[u16]> {
    let n_exponents = 1 << parts.exponent_bits;
    let mut counts = vec![0_u32; index(geometry.row_elems()) * n_exponents];
    each_exponent(parts, words, geometry, |column, exponent| counts[column * n_exponents + exponent] += 1);
    let median = |counts: &[u32]| {
        let half = counts.iter().map(|&count| u64::from(count)).sum::<u64>().div_ceil(2);
        let mut below = 0;
        let reaches = |&count: &u32| {
            below += u64::from(count);
            below >= half
        };
        exponent(counts.iter().position(reaches).unwrap_or(0))
    };
    counts.chunks_exact(n_exponents).map(median).collect()
}

fn exponent(number: usize) -> u16 {
    u16::try_from(number).expect("an exponent has at most 11 bits")
}

/// The most frequent exponents, less their bases, the most frequent first and the smaller of equal ones.
fn table(
    schedule: Schedule,
    parts: Parts,
    words: &[Words],
    geometry: &Geometry,
    bases: Option<&[u16]>,
) -> Box<[u16]> {
    let mut counts = vec![0_u64; 1 << parts.exponent_bits];
    let mask = counts.len() - 1;
    each_exponent(parts, words, geometry, |column, exponent| {
        let base = bases.map_or(0, |bases| usize::from(bases[column]));
        counts[exponent.wrapping_sub(base) & mask] += 1;
    });
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&exponent| (u64::MAX - counts[exponent], exponent));
    (0..schedule.n_codes()).map(|rank| order.get(rank).copied().map_or(0, exponent)).collect()
}

/// Measures a sample under this form.
pub(super) fn measure(form: &metadata::Planes, words: &[Words], geometry: &Geometry) -> Measured {
    let dtype = geometry.dtype();
    let rules = Form::Planes(form.clone()).stride_rules(dtype);
    let Some(planes) = Planes::new(form, dtype) else {
        return Measured { record_stride: 0, tail_stride: 0, stored_bytes: u64::MAX };
    };
    let escape_bits = match form.schedule {
        Schedule::Four => 8 * ENTRY_BYTES,
        _ => planes.parts.exponent_bits as usize,
    };
    // Bits beyond the fixed part, by rank.
    let extra_of = |rank: u8| match (rank, form.schedule) {
        (ESCAPE, Schedule::Tiers) => 4 + escape_bits,
        (ESCAPE, _) => escape_bits,
        (rank, Schedule::Tiers) => 2 * usize::from(rank / 3),
        _ => 0,
    };
    let extra: Vec<usize> = planes.ranks.iter().map(|&rank| extra_of(rank)).collect();
    let mut lens = Vec::new();
    each_record(words, geometry, |words, start| lens.push(record_len(&planes, &extra, words, start)));
    if form.schedule != Schedule::Four {
        return measure_lens(words, geometry, &rules, &lens);
    }
    let stride = |n_elems| *rules.range(n_elems).start();
    let lengths = Lengths::of(geometry);
    let record_stride =
        if lengths.is_some_and(|lengths| lengths.has_full) { stride(RECORD_ELEMS) } else { 0 };
    let tail_stride = lengths.map_or(0, |lengths| stride(lengths.tail_elems));
    let (mut lens, mut stored_bytes) = (lens.iter(), 0);
    for block in words {
        let runs = Runs::of(geometry.access(), block.shape.rows, block.shape.columns);
        let front_len = Grid::new(runs, dtype, record_stride, stride(runs.tail_elems)).front_len();
        let n_records = index(runs.total_records());
        let escapes: u64 = lens.by_ref().take(n_records).map(|&len| u64::from(len)).sum();
        stored_bytes += stored(&block.shape, front_len.saturating_add(escapes));
    }
    Measured { record_stride, tail_stride, stored_bytes }
}

/// Bytes of one record, head included; of `planes:4`, bytes of its escapes.
fn record_len(planes: &Planes, extra: &[usize], words: &[u8], start: usize) -> u32 {
    let word_bytes = planes.word_bytes();
    let (first, n) = (start / word_bytes, words.len() / word_bytes);
    let (shift, mask) = (planes.parts.low_bits() - 1, extra.len() - 1);
    let (mut bits, mut fits) = (0, true);
    for (i, word) in words.chunks_exact(word_bytes).enumerate() {
        let word = read_word(word);
        let low_bits = planes.parts.rotated(word) & low(planes.parts.low_bits());
        fits &= planes.dropped.bits == 0 || planes.dropped.shrink(low_bits).is_some();
        bits += extra[index(word >> shift).wrapping_sub(usize::from(planes.base(first + i))) & mask];
    }
    let len = match planes.schedule {
        Schedule::Four if fits => bits / 8,
        // The whole block becomes raw.
        Schedule::Four => 1 << 20,
        _ if fits => index(HEAD_BYTES) + (planes.shape.fixed_bits(n) + bits).div_ceil(8).min(words.len()),
        _ => index(HEAD_BYTES) + words.len(),
    };
    u32::try_from(len).expect("a record has at most 8 KiB and a head")
}
