//! The words of one group, from their codes and their low bits.
//!
//! Vectors are unpacked lane by lane, so that words would come out of order.
//! Their bytes are [`ordered`] first instead, which costs nothing for bytes that are made from bit planes.

use core::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8,
    _mm256_or_si256, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_set1_epi8,
    _mm256_set1_epi64x, _mm256_setr_epi8, _mm256_setr_epi32, _mm256_setr_epi64x, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32,
    _mm256_sub_epi8, _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8,
    _mm256_unpacklo_epi16,
};

use super::super::{F16, F32_SHORT, store, word_bytes};
use crate::planes::Planes;

/// What a record's groups share.
pub(super) struct Columns<'a> {
    /// The exponents by code; of `F16` above three bits that fill no byte plane.
    pub(super) table: __m256i,
    /// The bases of the record's columns, and more.
    pub(super) bases: Option<&'a [u8]>,
    /// The fixed part, and [`super::tail::SLACK_BYTES`].
    pub(super) fixed: &'a [u8],
    pub(super) n: usize,
}

impl<'a> Columns<'a> {
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn new<const KIND: u8>(planes: &'a Planes, first: usize, fixed: &'a [u8], n: usize) -> Self {
        // SAFETY: the table has 16 bytes; the load has no alignment.
        let table = unsafe { _mm_loadu_si128(planes.code_table.as_ptr().cast()) };
        let table = top_bits::<KIND>(_mm256_broadcastsi128_si256(table));
        Self { table, bases: planes.bases_from(first), fixed, n }
    }
}

/// Writes the 64 words of a group, by their codes and their three bit planes, if they have any.
///
/// Macros, because a function would get its vectors through memory, as would a loop over the halves.
macro_rules! write_group {
    ($kind:ident, $columns:expr, $elem:expr, $codes:expr, $low_planes:expr, $words:expr) => {
        let (columns, words): (&Columns<'_>, &mut [u8; BYTES]) = (&$columns, $words);
        let [low_codes, high_codes] = $codes;
        let elem = $elem;
        if $kind == F16 {
            let [a, b, c] = $low_planes;
            let [low, high] = bytes_of_3::<$kind>(broadcast(a), broadcast(b), broadcast(c));
            write_half!($kind, columns, elem, low_codes, low, &mut words[..BYTES / 2]);
            write_half!($kind, columns, elem + 32, high_codes, high, &mut words[BYTES / 2..]);
        } else {
            let none = _mm256_setzero_si256();
            write_half!($kind, columns, elem, low_codes, none, &mut words[..BYTES / 2]);
            write_half!($kind, columns, elem + 32, high_codes, none, &mut words[BYTES / 2..]);
        }
    };
}

/// Writes 32 words, which start with element `$elem` of the record.
macro_rules! write_half {
    ($kind:ident, $columns:ident, $elem:expr, $codes:ident, $low_bits:ident, $words:expr) => {
        let mut exponents = _mm256_shuffle_epi8($columns.table, $codes);
        if let Some(bases) = $columns.bases {
            let bases = top_bits::<$kind>(ordered::<$kind>(load(bases, $elem)));
            exponents = _mm256_add_epi8(exponents, bases);
        }
        if $kind == F16 {
            exponents = _mm256_or_si256(exponents, $low_bits);
        }
        let low = ordered::<$kind>(load($columns.fixed, $elem));
        if $kind == F32 {
            let middle = ordered::<$kind>(load($columns.fixed, $columns.n + $elem));
            let high = ordered::<$kind>(load($columns.fixed, 2 * $columns.n + $elem));
            write_f32($words, [low, middle, high, exponents]);
        } else {
            write_16::<$kind>($words, low, exponents);
        }
    };
}

pub(super) use {write_group, write_half};

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

/// 32 bytes so that unpacking them, once for words of 16 bits and twice for 32, gives words in order.
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

/// A byte of ones for each bit that is set of a plane, [`ordered`].
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn spread<const KIND: u8>(plane: __m256i) -> [__m256i; 2] {
    let (bytes, bit) = if word_bytes(KIND) == 4 {
        let bytes = _mm256_setr_epi8(
            0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
        );
        let (low, high) = (0x0804_0201_0804_0201_u64, 0x8040_2010_8040_2010_u64);
        let (low, high) = (low.cast_signed(), high.cast_signed());
        (bytes, _mm256_setr_epi64x(low, low, high, high))
    } else {
        let bytes = _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3,
        );
        (bytes, _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed()))
    };
    let high = _mm256_or_si256(bytes, _mm256_set1_epi8(4));
    let low = _mm256_and_si256(_mm256_shuffle_epi8(plane, bytes), bit);
    let high = _mm256_and_si256(_mm256_shuffle_epi8(plane, high), bit);
    [_mm256_cmpeq_epi8(low, bit), _mm256_cmpeq_epi8(high, bit)]
}

/// 64 numbers of three bits, [`ordered`], from their bit planes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn bytes_of_3<const KIND: u8>(a: __m256i, b: __m256i, c: __m256i) -> [__m256i; 2] {
    let (two, four) = (_mm256_set1_epi8(2), _mm256_set1_epi8(4));
    let ([a_low, a_high], [b_low, b_high]) = (spread::<KIND>(a), spread::<KIND>(b));
    let [c_low, c_high] = spread::<KIND>(c);
    let low = _mm256_or_si256(_mm256_and_si256(b_low, two), _mm256_and_si256(c_low, four));
    let high = _mm256_or_si256(_mm256_and_si256(b_high, two), _mm256_and_si256(c_high, four));
    // A byte of ones is -1.
    [_mm256_sub_epi8(low, a_low), _mm256_sub_epi8(high, a_high)]
}

/// 64 numbers of four bits, [`ordered`], from their bit planes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn bytes_of_4<const KIND: u8>(
    a: __m256i,
    b: __m256i,
    c: __m256i,
    d: __m256i,
) -> [__m256i; 2] {
    let eight = _mm256_set1_epi8(8);
    let ([low, high], [d_low, d_high]) = (bytes_of_3::<KIND>(a, b, c), spread::<KIND>(d));
    let low = _mm256_or_si256(low, _mm256_and_si256(d_low, eight));
    [low, _mm256_or_si256(high, _mm256_and_si256(d_high, eight))]
}

/// The words of vectors, with their lowest bit moved to the top.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn unrotate_16(words: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_srli_epi16::<1>(words), _mm256_slli_epi16::<15>(words))
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
pub(super) fn write_16<const KIND: u8>(words: &mut [u8], low: __m256i, high: __m256i) {
    let a = unrotate_16(_mm256_unpacklo_epi8(low, high));
    let b = unrotate_16(_mm256_unpackhi_epi8(low, high));
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
