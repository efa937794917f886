//! The words of groups, from their exponents and their low bits.
//!
//! Vectors are unpacked lane by lane, so that words would come out of order: their bytes are [`ordered`] first.

use core::arch::x86_64::{
    __m256i, _mm256_add_epi8, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_mullo_epi16, _mm256_or_si256,
    _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi64x, _mm256_setr_epi8, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32, _mm256_sub_epi8,
    _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8, _mm256_unpacklo_epi16,
};

use core::hint::black_box;

use super::super::{F16, F32, F32_SHORT, byte_planes, load, shape_of, store, word_bytes};
use crate::planes::{GROUP_ELEMS, Planes, Schedule};

/// Exponents of a group, and room after them for those that [`super::tail`] writes where there are none.
pub(super) type GroupExponents = [u8; 96];

/// What the exponents of a record's groups share.
pub(super) struct Columns<'a> {
    /// The exponents by code; of `F16` above three bits that fill no byte plane.
    pub(super) table: __m256i,
    /// The bases of the record's columns, and more.
    pub(super) bases: Option<&'a [u8]>,
}

impl<'a> Columns<'a> {
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn new<const KIND: u8>(planes: &'a Planes, first: usize) -> Self {
        let table = top_bits::<KIND>(load(&planes.code_table, 0));
        Self { table, bases: planes.bases_from(first) }
    }

    /// Writes the exponents of a group that starts with element `elem`, by their codes.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn write<const KIND: u8>(&self, codes: [__m256i; 2], elem: usize, out: &mut GroupExponents) {
        let mut low = _mm256_shuffle_epi8(self.table, codes[0]);
        let mut high = _mm256_shuffle_epi8(self.table, codes[1]);
        if let Some(bases) = self.bases {
            let bases = &bases[elem..elem + GROUP_ELEMS];
            low = _mm256_add_epi8(low, top_bits::<KIND>(load(bases, 0)));
            high = _mm256_add_epi8(high, top_bits::<KIND>(load(bases, 32)));
        }
        store(out, 0, low);
        store(out, 32, high);
    }
}

/// The low bits of a record.
#[derive(Clone, Copy)]
pub(super) struct LowBits<'a> {
    /// The fixed part, and [`super::tail::SLACK_BYTES`].
    pub(super) fixed: &'a [u8],
    /// Elements of the record.
    pub(super) n: usize,
    /// Times this, a word of 16 bits has its lowest bit at the top.
    ///
    /// A product, because shifts share their ports with all else that is done here; the compiler must not see that
    /// it is one.
    pub(super) to_top: __m256i,
}

impl<'a> LowBits<'a> {
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn new(fixed: &'a [u8], n: usize) -> Self {
        Self { fixed, n, to_top: _mm256_set1_epi16(black_box(i16::MIN)) }
    }
}

/// Writes the 64 words of a group that starts with element `$elem`.
///
/// A macro, because a function would get its vectors through memory, as would a loop over the halves.
/// `$exponents` are [`ordered`], and `$planes` the bit planes of the low bits, if there are any.
macro_rules! write_group {
    ($kind:ident, $low_bits:expr, $elem:expr, $exponents:expr, $planes:expr, $words:expr) => {
        let &LowBits { fixed, n, to_top } = &$low_bits;
        let elem: usize = $elem;
        let words: &mut [u8; BYTES] = $words;
        let (low_words, high_words) = words.split_at_mut(BYTES / 2);
        let [mut low_exponents, mut high_exponents]: [__m256i; 2] = $exponents;
        if $kind == F16 {
            let [a, b, c]: [u64; 3] = $planes;
            let [low, high] = bytes_of_3::<true>(broadcast(a), broadcast(b), broadcast(c));
            low_exponents = _mm256_or_si256(low_exponents, low);
            high_exponents = _mm256_or_si256(high_exponents, high);
        }
        let bytes = &fixed[elem..elem + GROUP_ELEMS];
        let (low, high) = (ordered::<$kind>(load(bytes, 0)), ordered::<$kind>(load(bytes, 32)));
        if $kind == F32 {
            let (middle, top) = (&fixed[n + elem..][..GROUP_ELEMS], &fixed[2 * n + elem..][..GROUP_ELEMS]);
            let (low_middle, high_middle) = (load(middle, 0), load(middle, 32));
            let (low_middle, high_middle) = (ordered::<$kind>(low_middle), ordered::<$kind>(high_middle));
            let (low_top, high_top) = (ordered::<$kind>(load(top, 0)), ordered::<$kind>(load(top, 32)));
            write_f32(low_words, [low, low_middle, low_top, low_exponents]);
            write_f32(high_words, [high, high_middle, high_top, high_exponents]);
        } else {
            write_16::<$kind>(low_words, low, low_exponents, to_top);
            write_16::<$kind>(high_words, high, high_exponents, to_top);
        }
    };
}

pub(super) use write_group;

/// The words of a group that is not whole: those that follow may be changed, where there are enough.
macro_rules! with_part {
    ($words:expr, $n:expr, $kind:ident, |$whole:ident| $write:block) => {
        let rest: &mut [u8] = $words;
        if let Some($whole) = rest.first_chunk_mut::<BYTES>() {
            $write
        } else {
            let mut room = [0; BYTES];
            let $whole = &mut room;
            $write
            let len = $n * word_bytes($kind);
            rest[..len].copy_from_slice(&room[..len]);
        }
    };
}

pub(super) use with_part;

/// Writes a record's words from its exponents; the first bit plane of its low bits is at bit `planes_at`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn write_words<const KIND: u8, const BYTES: usize>(
    schedule: Schedule,
    low_bits: &LowBits<'_>,
    exponents: &[GroupExponents],
    words: &mut [u8],
) {
    let shape = shape_of(KIND, schedule);
    let (n_wholes, n_part) = (low_bits.n / GROUP_ELEMS, low_bits.n % GROUP_ELEMS);
    let (mut elem, mut at) = (0, byte_planes(KIND) * low_bits.n);
    let wholes = &mut words.as_chunks_mut::<BYTES>().0[..n_wholes];
    for (words, exponents) in wholes.iter_mut().zip(exponents) {
        let exponents = [ordered::<KIND>(load(exponents, 0)), ordered::<KIND>(load(exponents, 32))];
        let planes = planes_of::<KIND>(low_bits.fixed, 8 * at + shape.code_bits(GROUP_ELEMS), GROUP_ELEMS);
        write_group!(KIND, *low_bits, elem, exponents, planes, words);
        elem += GROUP_ELEMS;
        at += shape.group_bits(GROUP_ELEMS) / 8;
    }
    if n_part != 0 {
        let exponents = &exponents[n_wholes];
        let exponents = [ordered::<KIND>(load(exponents, 0)), ordered::<KIND>(load(exponents, 32))];
        let planes = planes_of::<KIND>(low_bits.fixed, 8 * at + shape.code_bits(n_part), n_part);
        with_part!(&mut words[n_wholes * BYTES..], n_part, KIND, |whole| {
            write_group!(KIND, *low_bits, elem, exponents, planes, whole);
        });
    }
}

/// The bit planes of a group's low bits, of the only kind that has some.
#[inline(always)]
pub(super) fn planes_of<const KIND: u8>(fixed: &[u8], at: usize, n: usize) -> [u64; 3] {
    if KIND == F16 { planes_at(fixed, at, n) } else { [0; 3] }
}

/// Three planes of `n` bits from bit `at` on; bits after the first `n` of each are anything.
#[inline(always)]
pub(super) fn planes_at(bytes: &[u8], at: usize, n: usize) -> [u64; 3] {
    [take(bytes, at), take(bytes, at + n), take(bytes, at + 2 * n)]
}

/// 64 bits from bit `at`.
#[inline(always)]
pub(super) fn take(bytes: &[u8], at: usize) -> u64 {
    let bytes = &bytes[at / 8..at / 8 + 9];
    let low = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // Two shifts, because one of 64 has no meaning.
    low >> (at % 8) | u64::from(bytes[8]) << 1 << (63 - at % 8)
}

/// Exponents of five bits moved above the three bits that fill no byte plane; others as they are.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn top_bits<const KIND: u8>(exponents: __m256i) -> __m256i {
    if KIND == F16 {
        let five = _mm256_set1_epi8(0xF8_u8.cast_signed());
        _mm256_and_si256(_mm256_slli_epi16::<3>(exponents), five)
    } else {
        exponents
    }
}

/// 32 bytes so that unpacking them, once for words of 16 bits and twice for 32, leads to words in order.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn ordered<const KIND: u8>(bytes: __m256i) -> __m256i {
    if word_bytes(KIND) == 4 {
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))
    } else {
        _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes)
    }
}

/// A bit plane as [`spread`] takes it.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn broadcast(plane: u64) -> __m256i {
    _mm256_set1_epi64x(plane.cast_signed())
}

/// A byte of ones for each bit that is set of a plane, or these [`ordered`] for words of 16 bits.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn spread<const ORDERED: bool>(plane: __m256i) -> [__m256i; 2] {
    let bytes = if ORDERED {
        _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3,
        )
    } else {
        _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
        )
    };
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let high = _mm256_or_si256(bytes, _mm256_set1_epi8(4));
    let low = _mm256_and_si256(_mm256_shuffle_epi8(plane, bytes), bit);
    let high = _mm256_and_si256(_mm256_shuffle_epi8(plane, high), bit);
    [_mm256_cmpeq_epi8(low, bit), _mm256_cmpeq_epi8(high, bit)]
}

/// 64 numbers of three bits from their bit planes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn bytes_of_3<const ORDERED: bool>(a: __m256i, b: __m256i, c: __m256i) -> [__m256i; 2] {
    let (two, four) = (_mm256_set1_epi8(2), _mm256_set1_epi8(4));
    let ([a_low, a_high], [b_low, b_high]) = (spread::<ORDERED>(a), spread::<ORDERED>(b));
    let [c_low, c_high] = spread::<ORDERED>(c);
    let low = _mm256_or_si256(_mm256_and_si256(b_low, two), _mm256_and_si256(c_low, four));
    let high = _mm256_or_si256(_mm256_and_si256(b_high, two), _mm256_and_si256(c_high, four));
    // A byte of ones is -1.
    [_mm256_sub_epi8(low, a_low), _mm256_sub_epi8(high, a_high)]
}

/// 64 numbers of four bits from their bit planes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn bytes_of_4(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 2] {
    let eight = _mm256_set1_epi8(8);
    let ([low, high], [d_low, d_high]) = (bytes_of_3::<false>(a, b, c), spread::<false>(d));
    let low = _mm256_or_si256(low, _mm256_and_si256(d_low, eight));
    [low, _mm256_or_si256(high, _mm256_and_si256(d_high, eight))]
}

/// The words of vectors, with their lowest bit moved to the top.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn unrotate_16(words: __m256i, to_top: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_srli_epi16::<1>(words), _mm256_mullo_epi16(words, to_top))
}

/// As [`unrotate_16`], of words of 32 bits.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn unrotate_32(words: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_srli_epi32::<1>(words), _mm256_slli_epi32::<31>(words))
}

/// Writes 32 words of 16 bits, or of 32 bits whose lower half is zero.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn write_16<const KIND: u8>(words: &mut [u8], low: __m256i, high: __m256i, to_top: __m256i) {
    let a = unrotate_16(_mm256_unpacklo_epi8(low, high), to_top);
    let b = unrotate_16(_mm256_unpackhi_epi8(low, high), to_top);
    if KIND == F32_SHORT {
        let zero = _mm256_setzero_si256();
        store(words, 0, _mm256_unpacklo_epi16(zero, a));
        store(words, 32, _mm256_unpackhi_epi16(zero, a));
        store(words, 64, _mm256_unpacklo_epi16(zero, b));
        store(words, 96, _mm256_unpackhi_epi16(zero, b));
    } else {
        store(words, 0, a);
        store(words, 32, b);
    }
}

/// Writes 32 words from their bytes, the exponents last.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn write_f32(words: &mut [u8], [b0, b1, b2, b3]: [__m256i; 4]) {
    let (low_a, low_b) = (_mm256_unpacklo_epi8(b0, b1), _mm256_unpackhi_epi8(b0, b1));
    let (high_a, high_b) = (_mm256_unpacklo_epi8(b2, b3), _mm256_unpackhi_epi8(b2, b3));
    store(words, 0, unrotate_32(_mm256_unpacklo_epi16(low_a, high_a)));
    store(words, 32, unrotate_32(_mm256_unpackhi_epi16(low_a, high_a)));
    store(words, 64, unrotate_32(_mm256_unpacklo_epi16(low_b, high_b)));
    store(words, 96, unrotate_32(_mm256_unpackhi_epi16(low_b, high_b)));
}
