//! Encoding: words to exponents and low bits, exponents to codes.

use core::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_packus_epi16, _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setr_epi32,
    _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32,
    _mm256_sub_epi8, _mm256_subs_epu8, _mm256_testz_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256, _pext_u64,
};

use super::{
    F16, F32, F32_SHORT, bit_planes, byte_planes, exponent_bits, join, load, low_of, plane_of, shape_of,
    store, word_bytes,
};
use crate::planes::{GROUP_ELEMS, Planes, Schedule};
use crate::scalar::ibp::Packed;
use crate::scalar::planes::Escape;

/// Bytes of a group of the longest words.
const GROUP_BYTES: usize = 256;

/// Groups of a record.
const MAX_GROUPS: usize = 16;

/// A group of words taken apart.
struct Split {
    /// The byte planes, as many as the words have.
    low: [[__m256i; 2]; 3],
    /// Three bits that fill no byte plane, of `F16`.
    bits: [__m256i; 2],
    /// The exponents.
    exponents: [__m256i; 2],
}

/// What a record's groups share.
struct Writer<'a> {
    bases: Option<&'a [u8]>,
    /// The exponents that have a code, by rank.
    table: [u8; 16],
    /// The rank of each, inverted; 0 where it is in the table before.
    inverted: [u8; 16],
    out: &'a mut [u8],
    escapes: &'a mut Vec<Escape>,
    n: usize,
}

/// Records of `planes:4`.
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn four<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    first: usize,
    words: &[u8],
    out: &mut [u8],
    escapes: &mut Vec<Escape>,
) -> Option<Packed> {
    let shape = const { shape_of(KIND, Schedule::Four) };
    let mut writer = Writer::new::<KIND>(planes, first, words, out, escapes);
    let mut at = byte_planes(KIND) * writer.n;
    for (group, words) in words.chunks(BYTES).enumerate() {
        let n = words.len() / word_bytes(KIND);
        let parts = writer.parts::<KIND>(group, words)?;
        let ranks = writer.ranks::<KIND, 15>(group, n, &parts.exponents);
        writer.put_nibbles(at, n, at_most(ranks, 15));
        if bit_planes(KIND) == 3 {
            let mut bits = Bits::new(at + shape.code_bits(n) / 8);
            bits.put_planes(writer.out, n, bit_planes_of(&parts));
        }
        at += shape.group_bits(GROUP_ELEMS) / 8;
    }
    let end = shape.fixed_bits(writer.n);
    Some(writer.finish(end))
}

/// Records of `planes:3`.
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn three<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    first: usize,
    words: &[u8],
    out: &mut [u8],
    escapes: &mut Vec<Escape>,
) -> Option<Packed> {
    let mut writer = Writer::new::<KIND>(planes, first, words, out, escapes);
    let mut bits = Bits::new(byte_planes(KIND) * writer.n);
    for (group, words) in words.chunks(BYTES).enumerate() {
        let n = words.len() / word_bytes(KIND);
        let parts = writer.parts::<KIND>(group, words)?;
        let codes = at_most(writer.ranks::<KIND, 7>(group, n, &parts.exponents), 7);
        bits.put_planes(writer.out, n, [plane_of::<7>(codes), plane_of::<6>(codes), plane_of::<5>(codes)]);
        if bit_planes(KIND) == 3 {
            bits.put_planes(writer.out, n, bit_planes_of(&parts));
        }
    }
    Some(writer.put_exponents::<KIND>(bits))
}

/// Records of `planes:2-2-2`.
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
pub(super) fn tiers<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    first: usize,
    words: &[u8],
    out: &mut [u8],
    escapes: &mut Vec<Escape>,
) -> Option<Packed> {
    let mut writer = Writer::new::<KIND>(planes, first, words, out, escapes);
    let mut bits = Bits::new(byte_planes(KIND) * writer.n);
    let mut tiers = [[(0, [0; 2]); 2]; MAX_GROUPS];
    for ((group, words), tiers) in words.chunks(BYTES).enumerate().zip(&mut tiers) {
        let n = words.len() / word_bytes(KIND);
        let parts = writer.parts::<KIND>(group, words)?;
        let ranks = writer.ranks::<KIND, 9>(group, n, &parts.exponents);
        let [p0, p1] = two_planes(at_most(ranks, 3));
        let (p0, p1) = (p0 & low_of(n), p1 & low_of(n));
        bits.put(writer.out, n, p0);
        bits.put(writer.out, n, p1);
        if bit_planes(KIND) == 3 {
            bits.put_planes(writer.out, n, bit_planes_of(&parts));
        }
        let mut goes_on = p0 & p1;
        for (start, tier) in [3, 6].into_iter().zip(tiers) {
            // What a rank is in a tier: itself less the codes of those before, and 3 where it goes on.
            let start = _mm256_set1_epi8(start);
            let ranks = [_mm256_subs_epu8(ranks[0], start), _mm256_subs_epu8(ranks[1], start)];
            let planes = two_planes(at_most(ranks, 3));
            *tier = (goes_on, planes);
            goes_on &= planes[0] & planes[1];
        }
    }
    // The tiers after the first come after all groups.
    for &(goes_on, planes) in tiers[..writer.n.div_ceil(GROUP_ELEMS)].as_flattened() {
        let n = goes_on.count_ones() as usize;
        bits.put(writer.out, n, _pext_u64(planes[0], goes_on));
        bits.put(writer.out, n, _pext_u64(planes[1], goes_on));
    }
    Some(writer.put_exponents::<KIND>(bits))
}

/// Bits that are written one after the other, over whatever is there.
///
/// Nothing is read back, because a load of bytes from several stores waits for them.
struct Bits {
    /// The byte that is not whole yet.
    at: usize,
    /// Its bits.
    bits: u64,
    n_bits: usize,
}

impl Bits {
    /// From byte `at` on.
    #[inline(always)]
    const fn new(at: usize) -> Self {
        Self { at, bits: 0, n_bits: 0 }
    }

    /// Writes the `n` bits of `value`, at most 64, and zeros after them.
    #[inline(always)]
    fn put(&mut self, out: &mut [u8], n: usize, value: u64) {
        let bits = u128::from(self.bits) | u128::from(value) << self.n_bits;
        out[self.at..self.at + 16].copy_from_slice(&bits.to_le_bytes());
        let n_bits = self.n_bits + n;
        self.at += n_bits / 8;
        self.bits = low_64(bits >> (n_bits / 8 * 8));
        self.n_bits = n_bits % 8;
    }

    /// Writes the lowest `n` bits of three planes.
    #[inline(always)]
    fn put_planes(&mut self, out: &mut [u8], n: usize, [a, b, c]: [u64; 3]) {
        self.put(out, n, a & low_of(n));
        self.put(out, n, b & low_of(n));
        self.put(out, n, c & low_of(n));
    }

    /// The bit after the last.
    const fn end(&self) -> usize {
        8 * self.at + self.n_bits
    }
}

#[expect(clippy::cast_possible_truncation, reason = "fewer than 8 bits are left")]
const fn low_64(bits: u128) -> u64 {
    bits as u64
}

/// Bytes that are no more than `most`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn at_most(bytes: [__m256i; 2], most: i8) -> [__m256i; 2] {
    let most = _mm256_set1_epi8(most);
    [_mm256_min_epu8(bytes[0], most), _mm256_min_epu8(bytes[1], most)]
}

/// The two lowest bits of 64 bytes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn two_planes(bytes: [__m256i; 2]) -> [u64; 2] {
    [plane_of::<7>(bytes), plane_of::<6>(bytes)]
}

/// The bit planes of a group's low bits.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn bit_planes_of(parts: &Split) -> [u64; 3] {
    let bits = parts.bits;
    [plane_of::<7>(bits), plane_of::<6>(bits), plane_of::<5>(bits)]
}

impl<'a> Writer<'a> {
    #[inline(always)]
    fn new<const KIND: u8>(
        planes: &'a Planes,
        first: usize,
        words: &[u8],
        out: &'a mut [u8],
        escapes: &'a mut Vec<Escape>,
    ) -> Self {
        escapes.clear();
        let (mut table, mut inverted) = ([0; 16], [0; 16]);
        let slots = table.iter_mut().zip(&mut inverted).zip(&planes.table);
        for ((rank, ((slot, inverted), exponent)), _) in (0_u8..).zip(slots).zip(0..planes.schedule.n_codes())
        {
            *slot = exponent.to_le_bytes()[0];
            if planes.ranks_by_byte[usize::from(*slot)] == rank {
                *inverted = !rank;
            }
        }
        let n = words.len() / word_bytes(KIND);
        Self { bases: planes.bases_from(first), table, inverted, out, escapes, n }
    }

    /// Takes the words of one group apart and writes their byte planes; `None` where dropped bits are not zero.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    fn parts<const KIND: u8>(&mut self, group: usize, words: &[u8]) -> Option<Split> {
        let n = words.len() / word_bytes(KIND);
        let start = group * GROUP_ELEMS;
        if n == GROUP_ELEMS {
            let parts = split::<KIND>(words)?;
            for (plane, low) in parts.low.iter().enumerate().take(byte_planes(KIND)) {
                store(self.out, plane * self.n + start, low[0]);
                store(self.out, plane * self.n + start + 32, low[1]);
            }
            return Some(parts);
        }
        let mut whole = [0; GROUP_BYTES];
        whole[..words.len()].copy_from_slice(words);
        let parts = split::<KIND>(&whole)?;
        for (plane, low) in parts.low.iter().enumerate().take(byte_planes(KIND)) {
            let mut bytes = [0; GROUP_ELEMS];
            store(&mut bytes, 0, low[0]);
            store(&mut bytes, 32, low[1]);
            self.out[plane * self.n + start..][..n].copy_from_slice(&bytes[..n]);
        }
        Some(parts)
    }

    /// The ranks of a group's exponents, in a table of `N`; notes the escapes.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    fn ranks<const KIND: u8, const N: usize>(
        &mut self,
        group: usize,
        n: usize,
        exponents: &[__m256i; 2],
    ) -> [__m256i; 2] {
        let start = group * GROUP_ELEMS;
        let [mut low, mut high] = *exponents;
        if let Some(bases) = self.bases {
            low = _mm256_sub_epi8(low, load(bases, start));
            high = _mm256_sub_epi8(high, load(bases, start + 32));
        }
        if KIND == F16 {
            let five = _mm256_set1_epi8(0x1F);
            (low, high) = (_mm256_and_si256(low, five), _mm256_and_si256(high, five));
        }
        let zero = _mm256_set1_epi8(0);
        let (mut low_ranks, mut high_ranks) = (zero, zero);
        for (exponent, inverted) in self.table[..N].iter().zip(&self.inverted[..N]) {
            let exponent = _mm256_set1_epi8(exponent.cast_signed());
            let inverted = _mm256_set1_epi8(inverted.cast_signed());
            let low_is = _mm256_cmpeq_epi8(low, exponent);
            let high_is = _mm256_cmpeq_epi8(high, exponent);
            low_ranks = _mm256_or_si256(low_ranks, _mm256_and_si256(low_is, inverted));
            high_ranks = _mm256_or_si256(high_ranks, _mm256_and_si256(high_is, inverted));
        }
        let ones = _mm256_set1_epi8(-1);
        let ranks = [_mm256_xor_si256(low_ranks, ones), _mm256_xor_si256(high_ranks, ones)];
        // Only escapes have the top bit.
        let mut left = join([_mm256_movemask_epi8(ranks[0]), _mm256_movemask_epi8(ranks[1])]) & low_of(n);
        if left != 0 {
            let mut bytes = [0; GROUP_ELEMS];
            store(&mut bytes, 0, exponents[0]);
            store(&mut bytes, 32, exponents[1]);
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                self.escapes.push((start + i, bytes[i].into()));
                left &= left - 1;
            }
        }
        ranks
    }

    /// Writes the codes of `n` elements as nibbles from byte `at` on.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    fn put_nibbles(&mut self, at: usize, n: usize, [low, high]: [__m256i; 2]) {
        let half = n.div_ceil(2);
        if n == GROUP_ELEMS {
            store(self.out, at, _mm256_or_si256(low, _mm256_slli_epi16::<4>(high)));
            return;
        }
        let mut nibbles = [0; 32];
        // The second half starts where the first ends.
        let mut codes = [0; GROUP_ELEMS + 32];
        store(&mut codes, 0, low);
        store(&mut codes, 32, high);
        codes[n..].fill(0);
        let (low, high) = (load(&codes, 0), load(&codes, half));
        store(&mut nibbles, 0, _mm256_or_si256(low, _mm256_slli_epi16::<4>(high)));
        self.out[at..at + half].copy_from_slice(&nibbles[..half]);
    }

    /// Writes the exponents of the escapes after the other bits.
    #[inline(always)]
    fn put_exponents<const KIND: u8>(self, mut bits: Bits) -> Packed {
        for &(_, exponent) in self.escapes.iter() {
            bits.put(self.out, exponent_bits(KIND) as usize, exponent.into());
        }
        self.finish(bits.end())
    }

    #[inline]
    fn finish(self, end: usize) -> Packed {
        let (n, n_escapes) = (self.n as u64, self.escapes.len() as u64);
        Packed { bytes: end.div_ceil(8), chunks: n, participating: n - n_escapes }
    }
}

/// Takes 64 words apart; `None` where dropped bits are not zero.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn split<const KIND: u8>(words: &[u8]) -> Option<Split> {
    if KIND == F32 {
        let [a, b] = [split_f32(words, 0), split_f32(words, 128)];
        let zero = _mm256_set1_epi8(0);
        let low = [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]]];
        return Some(Split { low, bits: [zero; 2], exponents: [a[3], b[3]] });
    }
    let (a, b) = if KIND == F32_SHORT {
        (split_16(upper_16(words, 0)?), split_16(upper_16(words, 128)?))
    } else {
        let a = split_16([load(words, 0), load(words, 32)]);
        (a, split_16([load(words, 64), load(words, 96)]))
    };
    let low = [[a[0], b[0]]; 3];
    let high = [a[1], b[1]];
    if KIND == F16 {
        let five = _mm256_set1_epi8(0x1F);
        let exponents = [
            _mm256_and_si256(_mm256_srli_epi16::<3>(high[0]), five),
            _mm256_and_si256(_mm256_srli_epi16::<3>(high[1]), five),
        ];
        return Some(Split { low, bits: high, exponents });
    }
    Some(Split { low, bits: high, exponents: high })
}

/// The low and the high bytes of 32 rotated words of 16 bits.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn split_16(words: [__m256i; 2]) -> [__m256i; 2] {
    let (a, b) = (rotate_16(words[0]), rotate_16(words[1]));
    let low = _mm256_set1_epi16(0xFF);
    [
        pack(_mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low))),
        pack(_mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b))),
    ]
}

#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn rotate_16(words: __m256i) -> __m256i {
    _mm256_or_si256(_mm256_slli_epi16::<1>(words), _mm256_srli_epi16::<15>(words))
}

/// Puts the quarters in the order of a packing of two vectors, which works on lanes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn pack(quarters: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(quarters)
}

/// The upper halves of 32 words of 32 bits; `None` where a lower half is not zero.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn upper_16(words: &[u8], at: usize) -> Option<[__m256i; 2]> {
    let (a, b) = (load(words, at), load(words, at + 32));
    let (c, d) = (load(words, at + 64), load(words, at + 96));
    let any = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    if _mm256_testz_si256(any, _mm256_set1_epi32(0xFFFF)) == 0 {
        return None;
    }
    Some([
        pack(_mm256_packus_epi32(_mm256_srli_epi32::<16>(a), _mm256_srli_epi32::<16>(b))),
        pack(_mm256_packus_epi32(_mm256_srli_epi32::<16>(c), _mm256_srli_epi32::<16>(d))),
    ])
}

/// The bytes of 32 rotated words of 32 bits, the lowest first.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn split_f32(words: &[u8], at: usize) -> [__m256i; 4] {
    let (a, b) = (by_byte(words, at), by_byte(words, at + 32));
    let (c, d) = (by_byte(words, at + 64), by_byte(words, at + 96));
    // Bytes 0 and 1 of the words, then bytes 2 and 3, of two vectors each.
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    [
        _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(ab, cd), order),
        _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(ab, cd), order),
        _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(ab_high, cd_high), order),
        _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(ab_high, cd_high), order),
    ]
}

/// Eight words, rotated: their lowest bytes, then the next, each lane for itself.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn by_byte(words: &[u8], at: usize) -> __m256i {
    let order = _mm256_setr_epi8(
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7,
        11, 15,
    );
    let word = load(words, at);
    let rotated = _mm256_or_si256(_mm256_slli_epi32::<1>(word), _mm256_srli_epi32::<31>(word));
    _mm256_shuffle_epi8(rotated, order)
}
