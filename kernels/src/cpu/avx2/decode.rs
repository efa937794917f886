//! Decoding: codes to exponents, exponents and low bits to words.
#![expect(unsafe_code, reason = "calls of functions that need AVX2 and BMI2")]

mod group;
mod tail;

use core::arch::x86_64::{
    __m256i, _mm256_add_epi8, _mm256_and_si256, _mm256_blendv_epi8, _mm256_cmpeq_epi8, _mm256_max_epu8,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi16,
};

use self::group::{
    Columns, GroupExponents, LowBits, broadcast, bytes_of_3, ordered, planes_at, planes_of, take, top_bits,
    with_part, write_16, write_f32, write_group, write_words,
};
use self::tail::{SLACK_BYTES, Tail, after, patch, patch_word, tiers_at};
use super::{F16, F32, byte_planes, join, load, low_of, shape_of, word_bytes};
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

/// The exponents of a group that starts with element `$elem`, by their codes, which are [`ordered`] as they are.
macro_rules! exponents_of {
    ($kind:ident, $columns:ident, $elem:ident, $codes:ident) => {{
        let mut low = _mm256_shuffle_epi8($columns.table, $codes[0]);
        let mut high = _mm256_shuffle_epi8($columns.table, $codes[1]);
        if let Some(bases) = $columns.bases {
            let bases = &bases[$elem..$elem + GROUP_ELEMS];
            let (low_bases, high_bases) =
                (ordered::<$kind>(load(bases, 0)), ordered::<$kind>(load(bases, 32)));
            low = _mm256_add_epi8(low, top_bits::<$kind>(low_bases));
            high = _mm256_add_epi8(high, top_bits::<$kind>(high_bases));
        }
        [low, high]
    }};
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
    let (columns, low_bits) = (Columns::new::<KIND>(planes, record.first), LowBits::new(fixed, n));
    let (n_wholes, n_part) = (n / GROUP_ELEMS, n % GROUP_ELEMS);
    let codes_at = byte_planes(KIND) * n;
    let (mut at, mut elem) = (codes_at, 0);
    let mut most = _mm256_setzero_si256();
    for words in &mut words.as_chunks_mut::<BYTES>().0[..n_wholes] {
        let bytes = &fixed[at..at + GROUP_ELEMS];
        let codes = nibbles(ordered::<KIND>(load(bytes, 0)));
        most = _mm256_max_epu8(most, _mm256_max_epu8(codes[0], codes[1]));
        let low_planes = [word_at(bytes, 32), word_at(bytes, 40), word_at(bytes, 48)];
        let exponents = exponents_of!(KIND, columns, elem, codes);
        write_group!(KIND, low_bits, elem, exponents, low_planes, words);
        elem += GROUP_ELEMS;
        at += shape.group_bits(GROUP_ELEMS) / 8;
    }
    let mut escaped = 0;
    if n_part != 0 {
        let codes = part_nibbles(fixed, at, n_part);
        escaped = escaped_nibbles(codes) & low_of(n_part);
        let codes = [ordered::<KIND>(codes[0]), ordered::<KIND>(codes[1])];
        let exponents = exponents_of!(KIND, columns, elem, codes);
        let low_planes = planes_of::<KIND>(fixed, 8 * at + shape.code_bits(n_part), n_part);
        with_part!(&mut words[n_wholes * BYTES..], n_part, KIND, |whole| {
            write_group!(KIND, low_bits, elem, exponents, low_planes, whole);
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

/// A record of a codec whose exponents are made first, for all groups, and then the words.
macro_rules! exponents_first {
    ($record:ident, $exponents:ident, $schedule:expr, $features:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        fn $record<const KIND: u8, const BYTES: usize>(
            planes: &Planes,
            record: &Record<'_>,
            words: &mut [u8],
            _escapes: &mut Escapes<'_>,
            room: &mut [u8],
        ) -> Option<Result<(), usize>> {
            let n = record.n;
            let start = const { shape_of(KIND, $schedule) }.fixed_bits(n);
            let Pieces { fixed, mut tail, exponents } = Pieces::new(&record.body, start, n, room)?;
            tail.fill()?;
            let columns = Columns::new::<KIND>(planes, record.first);
            let low_bits = LowBits::new(fixed, n);
            let mut end = $exponents::<KIND>(&columns, &low_bits, tail.bytes(), exponents);
            if end.is_none() {
                tail.extend()?;
                end = $exponents::<KIND>(&columns, &low_bits, tail.bytes(), exponents);
            }
            write_words::<KIND, BYTES>($schedule, &low_bits, exponents, words);
            tail.check_end(end?)
        }
    };
}

exponents_first!(record_three, exponents_three, Schedule::Three, "avx2,bmi1,popcnt");
exponents_first!(record_tiers, exponents_tiers, Schedule::Tiers, "avx2,bmi1,popcnt,bmi2");

/// The exponents of a record of `planes:3`; returns the bit of the tail after them, or `None` where it is too short.
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn exponents_three<const KIND: u8>(
    columns: &Columns<'_>,
    &LowBits { fixed, n, .. }: &LowBits<'_>,
    tail: &[u8],
    exponents: &mut [GroupExponents],
) -> Option<usize> {
    let shape = const { shape_of(KIND, Schedule::Three) };
    let (n_wholes, n_part) = (n / GROUP_ELEMS, n % GROUP_ELEMS);
    let (mut elem, mut exponents_at) = (0, shape.fixed_bits(n) % 8);
    let groups = fixed[byte_planes(KIND) * n..].chunks_exact(shape.group_bits(GROUP_ELEMS) / 8);
    for (group, bytes) in exponents[..n_wholes].iter_mut().zip(groups) {
        let [a, b, c] = [word_at(bytes, 0), word_at(bytes, 8), word_at(bytes, 16)];
        let codes = bytes_of_3::<false>(broadcast(a), broadcast(b), broadcast(c));
        columns.write::<KIND>(codes, elem, group);
        exponents_at = patch::<KIND, 4>(tail, group, a & b & c, exponents_at)?;
        elem += GROUP_ELEMS;
    }
    if n_part != 0 {
        let at = shape.fixed_bits(n) - shape.group_bits(n_part);
        let [a, b, c] = planes_at(fixed, at, n_part);
        let codes = bytes_of_3::<false>(broadcast(a), broadcast(b), broadcast(c));
        columns.write::<KIND>(codes, elem, &mut exponents[n_wholes]);
        let escaped = a & b & c & low_of(n_part);
        exponents_at = patch::<KIND, 4>(tail, &mut exponents[n_wholes], escaped, exponents_at)?;
    }
    Some(exponents_at)
}

/// As [`exponents_three`], of `planes:2-2-2`.
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn exponents_tiers<const KIND: u8>(
    columns: &Columns<'_>,
    &LowBits { fixed, n, .. }: &LowBits<'_>,
    tail: &[u8],
    exponents: &mut [GroupExponents],
) -> Option<usize> {
    let shape = const { shape_of(KIND, Schedule::Tiers) };
    let (n_wholes, n_part) = (n / GROUP_ELEMS, n % GROUP_ELEMS);
    let (mut elem, mut tail_at) = (0, shape.fixed_bits(n) % 8);
    let exponents = &mut exponents[..n.div_ceil(GROUP_ELEMS)];
    let mut escaped = [0; MAX_GROUPS];
    let groups = fixed[byte_planes(KIND) * n..].chunks_exact(shape.group_bits(GROUP_ELEMS) / 8);
    for ((group, bytes), escaped) in exponents[..n_wholes].iter_mut().zip(groups).zip(&mut escaped) {
        // SAFETY: this function has the instructions.
        let tiers = unsafe { tiers_at(tail, word_at(bytes, 0), word_at(bytes, 8), tail_at) }?;
        (*escaped, tail_at) = (tiers.escaped, tiers.end);
        columns.write::<KIND>(tiers.codes(), elem, group);
        elem += GROUP_ELEMS;
    }
    if n_part != 0 {
        let at = shape.fixed_bits(n) - shape.group_bits(n_part);
        let [p0, p1] = [take(fixed, at) & low_of(n_part), take(fixed, at + n_part) & low_of(n_part)];
        // SAFETY: this function has the instructions.
        let tiers = unsafe { tiers_at(tail, p0, p1, tail_at) }?;
        (escaped[n_wholes], tail_at) = (tiers.escaped, tiers.end);
        columns.write::<KIND>(tiers.codes(), elem, &mut exponents[n_wholes]);
    }
    // The exponents of escapes come after the tiers of all groups.
    for (group, &escaped) in exponents.iter_mut().zip(&escaped) {
        tail_at = patch::<KIND, 2>(tail, group, escaped, tail_at)?;
    }
    Some(tail_at)
}

/// What a record is decoded from, and room for its exponents.
struct Pieces<'a> {
    fixed: &'a [u8],
    tail: Tail<'a>,
    exponents: &'a mut [GroupExponents],
}

impl<'a> Pieces<'a> {
    /// Compiled into its callers, because a structure that is returned goes through memory, and waits there.
    #[inline(always)]
    fn new(body: &'a Body<'a>, start: usize, n: usize, room: &'a mut [u8]) -> Option<Self> {
        let (fixed_room, room) = room.split_at_mut_checked(MAX_FIXED_BYTES)?;
        let (exponents, tail_room) = room.split_at_mut_checked(MAX_GROUPS * size_of::<GroupExponents>())?;
        let fixed = fixed_part(body, start, fixed_room)?;
        let tail = Tail::new(body, start, n, tail_room)?;
        Some(Self { fixed, tail, exponents: exponents.as_chunks_mut().0 })
    }
}

/// 8 bytes from byte `at`.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
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
