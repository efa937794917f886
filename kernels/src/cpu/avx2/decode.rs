//! Decoding: codes to exponents, exponents and low bits to words.

mod group;
mod tail;

use core::arch::x86_64::{
    __m256i, _mm256_add_epi8, _mm256_and_si256, _mm256_blendv_epi8, _mm256_cmpeq_epi8, _mm256_max_epu8,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi16, _pdep_u64,
};

use self::group::{
    Columns, broadcast, bytes_of_3, bytes_of_4, ordered, top_bits, write_16, write_f32, write_group, write_half,
};
use self::tail::{SLACK_BYTES, Tail, after, patch_word};
use super::{F16, F32, byte_planes, join, load, shape_of, word_bytes};
use crate::error::Error;
use crate::escapes::Escapes;
use crate::planes::{GROUP_ELEMS, Planes, Schedule};
use crate::records::Source;
use crate::records::planes::{Kernel, Position, Record};
use crate::scalar;
use crate::scalar::planes::Body;

/// The most bytes of a fixed part, and the slack.
const MAX_FIXED_BYTES: usize = 4096;

/// Groups of a record.
const MAX_GROUPS: usize = 16;

/// The kernel of one codec and kind, and the function that decodes records with it.
macro_rules! kernel {
    ($name:ident, $function:ident, $record:ident, $walk:ident, $features:literal) => {
        /// Only made where the machine has the instructions.
        struct $name<const KIND: u8, const BYTES: usize>;

        impl<const KIND: u8, const BYTES: usize> Kernel for $name<KIND, BYTES> {
            #[inline(always)]
            fn decode(
                &self,
                planes: &Planes,
                record: &Record<'_>,
                words: &mut [u8],
                escapes: &mut Escapes<'_>,
                room: &mut [u8],
            ) -> Result<(), usize> {
                // SAFETY: the kernel is only made by the function below, which needs the same instructions.
                let decoded = unsafe { $record::<KIND, BYTES>(planes, record, words, escapes, room) };
                decoded.unwrap_or_else(|| by_reference(planes, record, words, escapes))
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn $function<const KIND: u8, const BYTES: usize>(
            planes: &Planes,
            source: &Source<'_>,
            position: Position,
            words: &mut [u8],
            room: &mut [u8],
        ) -> Result<(), Error> {
            source.$walk(planes, &$name::<KIND, BYTES>, position, words, room)
        }
    };
}

kernel!(Four, four, record_four, headless, "avx2,bmi1,popcnt");
kernel!(Three, three, record_three, headed, "avx2,bmi1,popcnt");
kernel!(Tiers, tiers, record_tiers, headed, "avx2,bmi1,popcnt,bmi2");

/// A record whose parts are too far apart, or too short.
#[cold]
fn by_reference(
    planes: &Planes,
    record: &Record<'_>,
    words: &mut [u8],
    escapes: &mut Escapes<'_>,
) -> Result<(), usize> {
    let words = &mut words[..record.n * planes.word_bytes()];
    scalar::planes::decode(planes, record.first, &record.body, words, escapes)
}

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

/// A record of `planes:4`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn record_four<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    record: &Record<'_>,
    words: &mut [u8],
    escapes: &mut Escapes<'_>,
    room: &mut [u8],
) -> Option<Result<(), usize>> {
    let (shape, n) = (const { shape_of(KIND, Schedule::Four) }, record.n);
    let fixed = fixed_part(&record.body, shape.fixed_bits(n), room)?;
    let columns = Columns::new::<KIND>(planes, record.first, fixed, n);
    let (n_wholes, n_part) = (n / GROUP_ELEMS, n % GROUP_ELEMS);
    let codes_at = byte_planes(KIND) * n;
    let (mut at, mut elem) = (codes_at, 0);
    let mut most = _mm256_setzero_si256();
    for words in &mut words.as_chunks_mut::<BYTES>().0[..n_wholes] {
        let codes = nibbles(ordered::<KIND>(load(fixed, at)));
        most = _mm256_max_epu8(most, _mm256_max_epu8(codes[0], codes[1]));
        let low_planes = [word_at(fixed, at + 32), word_at(fixed, at + 40), word_at(fixed, at + 48)];
        write_group!(KIND, columns, elem, codes, low_planes, words);
        elem += GROUP_ELEMS;
        at += shape.group_bits(GROUP_ELEMS) / 8;
    }
    let mut escaped = 0;
    if n_part != 0 {
        let codes = part_nibbles(fixed, at, n_part);
        escaped = escaped_nibbles(codes) & low_of(n_part);
        let codes = [ordered::<KIND>(codes[0]), ordered::<KIND>(codes[1])];
        let bit = 8 * at + shape.code_bits(n_part);
        let low_planes = planes_of::<KIND>(fixed, bit, n_part);
        with_part!(&mut words[n_wholes * BYTES..], n_part, KIND, |whole| {
            write_group!(KIND, columns, elem, codes, low_planes, whole);
        });
    }
    if escaped_nibbles([most; 2]) | escaped != 0 {
        let mut at = codes_at;
        for group in 0..n_wholes {
            let escaped = escaped_nibbles(nibbles(load(fixed, at)));
            patch_group::<KIND>(words, group * GROUP_ELEMS, escaped, escapes);
            at += shape.group_bits(GROUP_ELEMS) / 8;
        }
        patch_group::<KIND>(words, n_wholes * GROUP_ELEMS, escaped, escapes);
    }
    Some(Ok(()))
}

/// Patches the escapes of a group that starts with element `first`.
#[inline]
fn patch_group<const KIND: u8>(words: &mut [u8], first: usize, escaped: u64, escapes: &mut Escapes<'_>) {
    let mut left = escaped;
    while left != 0 {
        let elem = first + left.trailing_zeros() as usize;
        patch_word::<KIND>(words, elem, escapes.exponent(elem));
        left &= left - 1;
    }
}

/// A record of `planes:3`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn record_three<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    record: &Record<'_>,
    words: &mut [u8],
    _escapes: &mut Escapes<'_>,
    room: &mut [u8],
) -> Option<Result<(), usize>> {
    let (shape, n) = (const { shape_of(KIND, Schedule::Three) }, record.n);
    let (fixed_room, tail_room) = room.split_at_mut_checked(MAX_FIXED_BYTES)?;
    let start = shape.fixed_bits(n);
    let fixed = fixed_part(&record.body, start, fixed_room)?;
    let tail = tail_of(&record.body, start, n, tail_room)?;
    let columns = Columns::new::<KIND>(planes, record.first, fixed, n);
    let (n_wholes, n_part) = (n / GROUP_ELEMS, n % GROUP_ELEMS);
    let (mut at, mut elem, mut exponents_at) = (byte_planes(KIND) * n, 0, start % 8);
    for words in &mut words.as_chunks_mut::<BYTES>().0[..n_wholes] {
        let [a, b, c] = [word_at(fixed, at), word_at(fixed, at + 8), word_at(fixed, at + 16)];
        let codes = bytes_of_3::<KIND>(broadcast(a), broadcast(b), broadcast(c));
        let low_planes = [word_at(fixed, at + 24), word_at(fixed, at + 32), word_at(fixed, at + 40)];
        write_group!(KIND, columns, elem, codes, low_planes, words);
        exponents_at = tail.patch::<KIND, BYTES>(words, a & b & c, exponents_at)?;
        elem += GROUP_ELEMS;
        at += shape.group_bits(GROUP_ELEMS) / 8;
    }
    if n_part != 0 {
        let [a, b, c] = planes_at(fixed, 8 * at, n_part);
        let codes = bytes_of_3::<KIND>(broadcast(a), broadcast(b), broadcast(c));
        let low_planes = planes_of::<KIND>(fixed, 8 * at + 3 * n_part, n_part);
        with_part!(&mut words[n_wholes * BYTES..], n_part, KIND, |whole| {
            write_group!(KIND, columns, elem, codes, low_planes, whole);
            exponents_at = tail.patch::<KIND, BYTES>(whole, a & b & c & low_of(n_part), exponents_at)?;
        });
    }
    tail.check_end(exponents_at)
}

/// A record of `planes:2-2-2`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn record_tiers<const KIND: u8, const BYTES: usize>(
    planes: &Planes,
    record: &Record<'_>,
    words: &mut [u8],
    _escapes: &mut Escapes<'_>,
    room: &mut [u8],
) -> Option<Result<(), usize>> {
    let (shape, n) = (const { shape_of(KIND, Schedule::Tiers) }, record.n);
    let (fixed_room, tail_room) = room.split_at_mut_checked(MAX_FIXED_BYTES)?;
    let start = shape.fixed_bits(n);
    let fixed = fixed_part(&record.body, start, fixed_room)?;
    let tail = tail_of(&record.body, start, n, tail_room)?;
    let columns = Columns::new::<KIND>(planes, record.first, fixed, n);
    let (n_wholes, n_part) = (n / GROUP_ELEMS, n % GROUP_ELEMS);
    let (mut at, mut elem, mut tiers_at) = (byte_planes(KIND) * n, 0, start % 8);
    let mut escaped = [0; MAX_GROUPS];
    for (words, escaped) in words.as_chunks_mut::<BYTES>().0[..n_wholes].iter_mut().zip(&mut escaped) {
        let (p0, p1) = (word_at(fixed, at), word_at(fixed, at + 8));
        let codes;
        (codes, *escaped, tiers_at) = tier_codes::<KIND>(p0, p1, tail.bytes, tiers_at)?;
        let low_planes = [word_at(fixed, at + 16), word_at(fixed, at + 24), word_at(fixed, at + 32)];
        write_group!(KIND, columns, elem, codes, low_planes, words);
        elem += GROUP_ELEMS;
        at += shape.group_bits(GROUP_ELEMS) / 8;
    }
    if n_part != 0 {
        let [p0, p1, _] = planes_at(fixed, 8 * at, n_part);
        let (p0, p1) = (p0 & low_of(n_part), p1 & low_of(n_part));
        let codes;
        (codes, escaped[n_wholes], tiers_at) = tier_codes::<KIND>(p0, p1, tail.bytes, tiers_at)?;
        let low_planes = planes_of::<KIND>(fixed, 8 * at + 2 * n_part, n_part);
        // The exponents come after the tiers of all groups.
        let mut exponents_at = tiers_at;
        for (words, &escaped) in words.as_chunks_mut::<BYTES>().0[..n_wholes].iter_mut().zip(&escaped) {
            exponents_at = tail.patch::<KIND, BYTES>(words, escaped, exponents_at)?;
        }
        with_part!(&mut words[n_wholes * BYTES..], n_part, KIND, |whole| {
            write_group!(KIND, columns, elem, codes, low_planes, whole);
            exponents_at = tail.patch::<KIND, BYTES>(whole, escaped[n_wholes], exponents_at)?;
        });
        return tail.check_end(exponents_at);
    }
    for (words, &escaped) in words.as_chunks_mut::<BYTES>().0[..n_wholes].iter_mut().zip(&escaped) {
        tiers_at = tail.patch::<KIND, BYTES>(words, escaped, tiers_at)?;
    }
    tail.check_end(tiers_at)
}

/// The codes of a group of `planes:2-2-2`, 4 x tier + what the tier holds; its escapes; the bit after its tiers.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn tier_codes<const KIND: u8>(
    p0: u64,
    p1: u64,
    bytes: &[u8],
    at: usize,
) -> Option<([__m256i; 2], u64, usize)> {
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
    let [c0, c1] = [broadcast(c0), broadcast(c1)];
    let codes = bytes_of_4::<KIND>(c0, c1, broadcast(second & !third), broadcast(third));
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

/// Three planes of `n` bits from bit `at` on; bits after the first `n` of each are anything.
#[inline(always)]
fn planes_at(bytes: &[u8], at: usize, n: usize) -> [u64; 3] {
    [take(bytes, at), take(bytes, at + n), take(bytes, at + 2 * n)]
}

/// The bit planes of a group's low bits, of the only kind that has some.
#[inline(always)]
fn planes_of<const KIND: u8>(bytes: &[u8], at: usize, n: usize) -> [u64; 3] {
    if KIND == F16 { planes_at(bytes, at, n) } else { [0; 3] }
}

/// A record's fixed part, with bytes after it that vectors may read.
#[inline(always)]
fn fixed_part<'a>(body: &Body<'a>, bits: usize, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = bits.div_ceil(8);
    if body.bytes.len() >= len + SLACK_BYTES {
        return Some(body.bytes);
    }
    let there = len.min(body.front_len);
    let room = room.get_mut(..len + SLACK_BYTES)?;
    room[..there].copy_from_slice(&body.bytes[..there]);
    room[there..].fill(0);
    Some(room)
}

/// What follows the fixed part.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn tail_of<'a>(body: &Body<'a>, start: usize, n: usize, room: &'a mut [u8]) -> Option<Tail<'a>> {
    match Tail::new(body, start) {
        Some(tail) => Some(tail),
        None => Tail::joined(body, start, n, room),
    }
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
    // The second half of the elements starts where the first ends: its bytes are read that much earlier, which
    // is within the byte planes.
    let half = n.div_ceil(2);
    let [low, _] = nibbles(load(fixed, at));
    let [_, high] = nibbles(load(fixed, at - half));
    let [_, last] = nibbles(load(fixed, at - half + 32));
    [_mm256_blendv_epi8(low, high, after(half)), last]
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
