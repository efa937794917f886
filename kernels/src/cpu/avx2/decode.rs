//! Decoding: codes to exponents, exponents and low bits to words.

use core::arch::x86_64::{
    __m256i, _mm256_add_epi8, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_setr_epi64x, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32,
    _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8, _mm256_unpacklo_epi16, _pdep_u64,
};

use super::{F16, F32, F32_SHORT, byte_planes, bytes_of, exponent_bits, join, load, store, word_bytes};
use crate::escapes::Escapes;
use crate::planes::{GROUP_ELEMS, Planes};
use crate::scalar::planes::Body;

/// Bytes after the fixed part that vectors may read.
const SLACK_BYTES: usize = 72;

/// The most bytes of a fixed part, and the slack.
const MAX_FIXED_BYTES: usize = 4096;

/// Groups of a record.
const MAX_GROUPS: usize = 16;

/// Places of escapes: of every element, and those that are written whether there are any or not.
const MAX_PLACES: usize = MAX_GROUPS * GROUP_ELEMS + 8;

/// What a record's groups share.
struct Record<'a> {
    /// The exponents by code.
    table: __m256i,
    /// The bases of the record's columns, and more.
    bases: Option<&'a [u8]>,
    /// The fixed part, and at least [`SLACK_BYTES`].
    fixed: &'a [u8],
    n: usize,
}

/// Writes the 64 words of a group, by their codes and their bit planes, if they have any.
///
/// Macros, because a function would get its vectors through memory, as would a loop over the halves.
macro_rules! write_group {
    ($kind:ident, $record:expr, $group:expr, $codes:expr, $low_planes:expr, $words:expr) => {
        let (record, words): (&Record<'_>, &mut [u8; BYTES]) = (&$record, $words);
        let [low_codes, high_codes] = $codes;
        let elem = $group * GROUP_ELEMS;
        if $kind == F16 {
            let [low, high] = bytes_of::<3>($low_planes);
            write_half!($kind, record, elem, low_codes, low, &mut words[..BYTES / 2]);
            write_half!($kind, record, elem + 32, high_codes, high, &mut words[BYTES / 2..]);
        } else {
            let none = _mm256_setzero_si256();
            write_half!($kind, record, elem, low_codes, none, &mut words[..BYTES / 2]);
            write_half!($kind, record, elem + 32, high_codes, none, &mut words[BYTES / 2..]);
        }
    };
}

/// Writes 32 words, which start with element `$elem` of the record.
macro_rules! write_half {
    ($kind:ident, $record:ident, $elem:expr, $codes:ident, $low_bits:ident, $words:expr) => {
        let mut exponents = _mm256_shuffle_epi8($record.table, $codes);
        if let Some(bases) = $record.bases {
            exponents = _mm256_add_epi8(exponents, load(bases, $elem));
        }
        if $kind == F16 {
            // Five bits above the three that fill no byte plane.
            let five = _mm256_set1_epi8(0xF8_u8.cast_signed());
            let top = _mm256_and_si256(_mm256_slli_epi16::<3>(exponents), five);
            exponents = _mm256_or_si256(top, $low_bits);
        }
        let low = load($record.fixed, $elem);
        if $kind == F32 {
            let middle = load($record.fixed, $record.n + $elem);
            let high = load($record.fixed, 2 * $record.n + $elem);
            write_f32($words, [low, middle, high, exponents]);
        } else {
            write_16::<$kind>($words, low, exponents);
        }
    };
}

/// Records of `planes:4`.
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn four<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    first: usize,
    body: &Body<'_>,
    words: &mut [u8],
    escapes: &mut Escapes<'_>,
    room: &mut [u8],
) -> Option<Result<(), usize>> {
    let n = words.len() / word_bytes(KIND);
    let (fixed_room, places) = room.split_at_mut_checked(MAX_FIXED_BYTES)?;
    let fixed = fixed_part(planes, body, n, fixed_room);
    let record = Record::new(planes, first, fixed, n);
    let mut escaped = [0; MAX_GROUPS];
    let (mut at, mut any) = (byte_planes(KIND) * n, 0);
    let (wholes, part) = words.as_chunks_mut::<BYTES>();
    let n_wholes = wholes.len();
    for ((group, words), escaped) in wholes.iter_mut().enumerate().zip(&mut escaped) {
        let codes = nibbles(load(fixed, at));
        write_group!(KIND, record, group, codes, load(fixed, at + GROUP_ELEMS / 2), words);
        *escaped = escaped_nibbles(codes);
        any |= *escaped;
        at += planes.shape.group_bits(GROUP_ELEMS) / 8;
    }
    if !part.is_empty() {
        let n = part.len() / word_bytes(KIND);
        let codes = part_nibbles(fixed, at, n);
        let mut whole = [0; BYTES];
        let low_planes = planes_of(fixed, 8 * at + planes.shape.code_bits(n), n);
        write_group!(KIND, record, n_wholes, codes, low_planes, &mut whole);
        part.copy_from_slice(&whole[..part.len()]);
        escaped[n_wholes] = escaped_nibbles(codes) & low_of(n);
        any |= escaped[n_wholes];
    }
    if any != 0 {
        for &place in places_of(&escaped[..n.div_ceil(GROUP_ELEMS)], places) {
            let place = u16::from_le_bytes(place);
            patch::<KIND>(words, place, escapes.exponent(place.into()));
        }
    }
    Some(Ok(()))
}

/// Records of `planes:3`.
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn three<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    first: usize,
    body: &Body<'_>,
    words: &mut [u8],
    _escapes: &mut Escapes<'_>,
    room: &mut [u8],
) -> Option<Result<(), usize>> {
    let n = words.len() / word_bytes(KIND);
    let (fixed_room, room) = room.split_at_mut_checked(MAX_FIXED_BYTES)?;
    let (places, tail_room) = room.split_at_mut_checked(2 * MAX_PLACES)?;
    let fixed = fixed_part(planes, body, n, fixed_room);
    let record = Record::new(planes, first, fixed, n);
    let mut escaped = [0; MAX_GROUPS];
    let mut at = byte_planes(KIND) * n;
    let (wholes, part) = words.as_chunks_mut::<BYTES>();
    let n_wholes = wholes.len();
    for ((group, words), escaped) in wholes.iter_mut().enumerate().zip(&mut escaped) {
        let codes = load(fixed, at);
        write_group!(KIND, record, group, bytes_of::<3>(codes), load(fixed, at + 24), words);
        *escaped = word_at(fixed, at) & word_at(fixed, at + 8) & word_at(fixed, at + 16);
        at += planes.shape.group_bits(GROUP_ELEMS) / 8;
    }
    let mut at = 8 * at;
    if !part.is_empty() {
        let n = part.len() / word_bytes(KIND);
        let [a, b, c] = [take(fixed, at), take(fixed, at + n), take(fixed, at + 2 * n)];
        let codes = bytes_of::<3>(_mm256_setr_epi64x(signed(a), signed(b), signed(c), 0));
        let mut whole = [0; BYTES];
        write_group!(KIND, record, n_wholes, codes, planes_of(fixed, at + 3 * n, n), &mut whole);
        part.copy_from_slice(&whole[..part.len()]);
        escaped[n_wholes] = a & b & c & low_of(n);
        at += planes.shape.group_bits(n);
    }
    let tail = Tail::new(body, at, n, tail_room)?;
    tail.exponents::<KIND>(words, &escaped[..n.div_ceil(GROUP_ELEMS)], places, at % 8)
}

/// Records of `planes:2-2-2`.
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
pub(super) fn tiers<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    first: usize,
    body: &Body<'_>,
    words: &mut [u8],
    _escapes: &mut Escapes<'_>,
    room: &mut [u8],
) -> Option<Result<(), usize>> {
    let n = words.len() / word_bytes(KIND);
    let (fixed_room, room) = room.split_at_mut_checked(MAX_FIXED_BYTES)?;
    let (places, tail_room) = room.split_at_mut_checked(2 * MAX_PLACES)?;
    let fixed = fixed_part(planes, body, n, fixed_room);
    let record = Record::new(planes, first, fixed, n);
    let mut escaped = [0; MAX_GROUPS];
    let start = planes.shape.fixed_bits(n);
    let tail = Tail::new(body, start, n, tail_room)?;
    let (mut at, mut tiers_at) = (byte_planes(KIND) * n, start % 8);
    let (wholes, part) = words.as_chunks_mut::<BYTES>();
    let n_wholes = wholes.len();
    for ((group, words), escaped) in wholes.iter_mut().enumerate().zip(&mut escaped) {
        let (p0, p1) = (word_at(fixed, at), word_at(fixed, at + 8));
        let codes;
        (codes, *escaped, tiers_at) = tier_codes(p0, p1, tail.bytes, tiers_at)?;
        write_group!(KIND, record, group, codes, load(fixed, at + 16), words);
        at += planes.shape.group_bits(GROUP_ELEMS) / 8;
    }
    if !part.is_empty() {
        let n = part.len() / word_bytes(KIND);
        let at = 8 * at;
        let (p0, p1) = (take(fixed, at) & low_of(n), take(fixed, at + n) & low_of(n));
        let codes;
        (codes, escaped[n_wholes], tiers_at) = tier_codes(p0, p1, tail.bytes, tiers_at)?;
        let mut whole = [0; BYTES];
        write_group!(KIND, record, n_wholes, codes, planes_of(fixed, at + 2 * n, n), &mut whole);
        part.copy_from_slice(&whole[..part.len()]);
    }
    tail.exponents::<KIND>(words, &escaped[..n.div_ceil(GROUP_ELEMS)], places, tiers_at)
}

/// The codes of a group of `planes:2-2-2`, 4 x tier + what the tier holds; its escapes; the bit after its tiers.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn tier_codes(p0: u64, p1: u64, bytes: &[u8], at: usize) -> Option<([__m256i; 2], u64, usize)> {
    // A group's tiers have at most 256 bits, and a load takes 64 more.
    let bytes: &[u8; 48] = bytes.get(at / 8..)?.first_chunk()?;
    let second = p0 & p1;
    let n_second = second.count_ones() as usize;
    let bit = at % 8;
    let a0 = _pdep_u64(take(bytes, bit), second);
    let a1 = _pdep_u64(take(bytes, bit + n_second), second);
    let third = a0 & a1;
    let n_third = third.count_ones() as usize;
    let bit = bit + 2 * n_second;
    let b0 = _pdep_u64(take(bytes, bit), third);
    let b1 = _pdep_u64(take(bytes, bit + n_third), third);
    let c0 = p0 & !second | a0 & !third | b0;
    let c1 = p1 & !second | a1 & !third | b1;
    let planes = [signed(c0), signed(c1), signed(second & !third), signed(third)];
    let codes = bytes_of::<4>(_mm256_setr_epi64x(planes[0], planes[1], planes[2], planes[3]));
    Some((codes, b0 & b1, at + 2 * n_second + 2 * n_third))
}

/// The lowest `n` bits, of at most 64.
#[inline(always)]
fn low_of(n: usize) -> u64 {
    u64::MAX >> (GROUP_ELEMS - n)
}

/// 8 bytes from byte `at`.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// 64 bits from bit `at`.
#[inline(always)]
fn take(bytes: &[u8], at: usize) -> u64 {
    let bytes = &bytes[at / 8..at / 8 + 9];
    let low = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // Two shifts, because one of 64 has no meaning.
    low >> (at % 8) | u64::from(bytes[8]) << 1 << (63 - at % 8)
}

/// A record's fixed part, with bytes after it that vectors may read.
#[inline(always)]
fn fixed_part<'a>(planes: &Planes, body: &Body<'a>, n: usize, room: &'a mut [u8]) -> &'a [u8] {
    let len = planes.shape.fixed_bits(n).div_ceil(8);
    if body.bytes.len() >= len + SLACK_BYTES {
        return body.bytes;
    }
    let there = len.min(body.front_len);
    room[..there].copy_from_slice(&body.bytes[..there]);
    room[there..len + SLACK_BYTES].fill(0);
    &room[..len + SLACK_BYTES]
}

/// The codes of 64 elements.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn nibbles(bytes: __m256i) -> [__m256i; 2] {
    let nibble = _mm256_set1_epi8(15);
    [_mm256_and_si256(bytes, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble)]
}

/// The codes of `n` elements, fewer than 64, at byte `at`; the others are anything.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn part_nibbles(fixed: &[u8], at: usize, n: usize) -> [__m256i; 2] {
    let [low, high] = nibbles(load(fixed, at));
    // The second half starts where the first ends.
    let mut codes = [0; GROUP_ELEMS + 32];
    store(&mut codes, 0, low);
    store(&mut codes, n.div_ceil(2), high);
    [load(&codes, 0), load(&codes, 32)]
}

/// Which codes are escapes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn escaped_nibbles(codes: [__m256i; 2]) -> u64 {
    let escape = _mm256_set1_epi8(15);
    join([
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(codes[0], escape)),
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(codes[1], escape)),
    ])
}

/// The elements that the bits mark, in their order.
///
/// Four are written for each group, whether there are any or not: branches that depend on data cost more.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn places_of<'a>(escaped: &[u64], room: &'a mut [u8]) -> &'a [[u8; 2]] {
    const AT_ONCE: usize = 4;
    let places = room.as_chunks_mut().0;
    let mut n = 0;
    for (start, &escaped) in (0_u16..).step_by(GROUP_ELEMS).zip(escaped) {
        let mut left = escaped;
        let end = n + escaped.count_ones() as usize;
        for place in &mut places[n..n + AT_ONCE] {
            *place = place_of(start, left);
            left &= left.wrapping_sub(1);
        }
        if end > n + AT_ONCE {
            for place in &mut places[n + AT_ONCE..end] {
                *place = place_of(start, left);
                left &= left.wrapping_sub(1);
            }
        }
        n = end;
    }
    &places[..n]
}

/// The first element that is left, of the group that starts at `start`.
#[inline(always)]
fn place_of(start: u16, left: u64) -> [u8; 2] {
    (start + u16::from(left.trailing_zeros().to_le_bytes()[0])).to_le_bytes()
}

impl<'a> Record<'a> {
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    fn new(planes: &'a Planes, first: usize, fixed: &'a [u8], n: usize) -> Self {
        let bases = planes.bases_from(first);
        Self { table: load(&planes.code_table, 0), bases, fixed, n }
    }
}

/// Three planes of `n` bits from bit `at` on; bits after the first `n` of each are anything.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn planes_of(bytes: &[u8], at: usize, n: usize) -> __m256i {
    let [a, b, c] = [take(bytes, at), take(bytes, at + n), take(bytes, at + 2 * n)];
    _mm256_setr_epi64x(signed(a), signed(b), signed(c), 0)
}

#[inline(always)]
const fn signed(bits: u64) -> i64 {
    bits.cast_signed()
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
fn write_16<const KIND: u8>(words: &mut [u8], low: __m256i, high: __m256i) {
    // Elements 0 to 7 and 16 to 23, then the others: lanes of vectors are unpacked each for itself.
    let a = unrotate_16(_mm256_unpacklo_epi8(low, high));
    let b = unrotate_16(_mm256_unpackhi_epi8(low, high));
    if KIND == F32_SHORT {
        let zero = _mm256_setzero_si256();
        let quarters = [
            _mm256_unpacklo_epi16(zero, a),
            _mm256_unpackhi_epi16(zero, a),
            _mm256_unpacklo_epi16(zero, b),
            _mm256_unpackhi_epi16(zero, b),
        ];
        write_quarters(words, quarters);
    } else {
        store(words, 0, _mm256_permute2x128_si256::<0x20>(a, b));
        store(words, 32, _mm256_permute2x128_si256::<0x31>(a, b));
    }
}

/// Writes 32 words from their bytes, the exponents last.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn write_f32(words: &mut [u8], [b0, b1, b2, b3]: [__m256i; 4]) {
    let (low_a, low_b) = (_mm256_unpacklo_epi8(b0, b1), _mm256_unpackhi_epi8(b0, b1));
    let (high_a, high_b) = (_mm256_unpacklo_epi8(b2, b3), _mm256_unpackhi_epi8(b2, b3));
    let quarters = [
        unrotate_32(_mm256_unpacklo_epi16(low_a, high_a)),
        unrotate_32(_mm256_unpackhi_epi16(low_a, high_a)),
        unrotate_32(_mm256_unpacklo_epi16(low_b, high_b)),
        unrotate_32(_mm256_unpackhi_epi16(low_b, high_b)),
    ];
    write_quarters(words, quarters);
}

/// Writes 32 words of 32 bits: each vector has four of the first 16 and four of the others.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn write_quarters(words: &mut [u8], [a, b, c, d]: [__m256i; 4]) {
    store(words, 0, _mm256_permute2x128_si256::<0x20>(a, b));
    store(words, 32, _mm256_permute2x128_si256::<0x20>(c, d));
    store(words, 64, _mm256_permute2x128_si256::<0x31>(a, b));
    store(words, 96, _mm256_permute2x128_si256::<0x31>(c, d));
}

/// Gives word `place` another exponent, which stands below the sign, in the upper 16 bits of every word.
#[inline(always)]
fn patch<const KIND: u8>(words: &mut [u8], place: u16, exponent: u16) {
    let bits = exponent_bits(KIND);
    let mask = ((1 << bits) - 1) << (15 - bits);
    let at = (usize::from(place) + 1) * word_bytes(KIND) - 2;
    if let Some(upper) = words[at..].first_chunk_mut() {
        let others = u16::from_le_bytes(*upper) & !mask;
        *upper = (others | exponent << (15 - bits) & mask).to_le_bytes();
    }
}

/// What follows a record's fixed part, in one piece: tiers and exponents.
struct Tail<'a> {
    bytes: &'a [u8],
    /// Bits of `bytes` that are the record's; more than it has where all after its end is zero.
    valid_bits: usize,
    /// Bytes that the rest lacks for each byte after `valid_bits`; `None` where there is no rest.
    rest_len: Option<usize>,
    /// Bytes of the front among `bytes`.
    front_len: usize,
}

impl<'a> Tail<'a> {
    /// Puts together what stands from bit `start` on; `None` where the record's own bits are not enough to tell.
    #[inline]
    fn new(body: &Body<'a>, start: usize, n: usize, room: &'a mut [u8]) -> Option<Self> {
        let front = &body.front()[(start / 8).min(body.front_len)..];
        let Some(rest) = body.rest else {
            let bytes = &body.bytes[start / 8..];
            let valid_bits = 8 * front.len();
            if bytes.len() >= front.len() + SLACK_BYTES {
                return Some(Self { bytes, valid_bits, rest_len: None, front_len: front.len() });
            }
            let bytes = room.get_mut(..front.len() + SLACK_BYTES)?;
            bytes[..front.len()].copy_from_slice(front);
            bytes[front.len()..].fill(0);
            return Some(Self { bytes, valid_bits, rest_len: None, front_len: front.len() });
        };
        // More than this is rare.
        let taken = rest.len().min(n / 2 + 64);
        let len = front.len() + taken;
        let bytes = room.get_mut(..len + SLACK_BYTES)?;
        bytes[..front.len()].copy_from_slice(front);
        bytes[front.len()..len].copy_from_slice(&rest[..taken]);
        bytes[len..].fill(0);
        let valid_bits = if taken == rest.len() { 8 * (len + SLACK_BYTES) } else { 8 * len };
        Some(Self { bytes, valid_bits, rest_len: Some(rest.len()), front_len: front.len() })
    }

    /// Reads the exponents of the escapes from bit `at` on, and patches their words.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    fn exponents<const KIND: u8>(
        &self,
        words: &mut [u8],
        escaped: &[u64],
        places: &mut [u8],
        mut at: usize,
    ) -> Option<Result<(), usize>> {
        let bits = exponent_bits(KIND);
        for &place in places_of(escaped, places) {
            let there = self.bytes.get(at / 8..)?.first_chunk()?;
            let exponent = u16::from_le_bytes(*there) >> (at % 8) & ((1 << bits) - 1);
            patch::<KIND>(words, u16::from_le_bytes(place), exponent);
            at += bits as usize;
        }
        if at > self.valid_bits {
            return None;
        }
        let needed = at.div_ceil(8).saturating_sub(self.front_len);
        match self.rest_len {
            Some(len) if len < needed => Some(Err(needed)),
            _ => Some(Ok(())),
        }
    }
}
