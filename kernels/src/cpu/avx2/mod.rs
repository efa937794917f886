//! Codecs `planes` with AVX2, 64 elements at a time.
//!
//! Only what is common is here: `BF16`, `F16`, `F32`, and `F32` that holds `BF16`; [`Kind::of`] says which.
//! `planes:2-2-2` moves its tiers with `pext` and `pdep` too.
#![expect(unsafe_code, reason = "loads and stores of vectors, and dispatch to functions that need AVX2")]

mod decode;
mod encode;

use core::arch::x86_64::{
    __m256i, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_slli_epi16, _mm256_storeu_si256,
};

use super::Backend;
use crate::error::Error;
use crate::planes::{Dropped, GROUP_ELEMS, PlaneShape, Planes, Schedule};
use crate::records::Source;
use crate::records::planes::Position;
use crate::scalar::ibp::Packed;
use crate::scalar::planes::Escape;

/// Words that have a path of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bf16,
    F16,
    F32,
    /// `F32` whose lower 16 bits are zero.
    F32Short,
}

impl Kind {
    const fn of(planes: &Planes) -> Option<Self> {
        let Dropped { first, bits, value } = planes.dropped;
        match (planes.parts.word_bits, planes.parts.exponent_bits, bits) {
            (16, 8, 0) => Some(Self::Bf16),
            (16, 5, 0) => Some(Self::F16),
            (32, 8, 0) => Some(Self::F32),
            (32, 8, 16) if first == 1 && value == 0 => Some(Self::F32Short),
            _ => None,
        }
    }
}

macro_rules! dispatch {
    ($function:ident, $kind:expr, $schedule:expr, $arguments:tt) => {
        match $kind {
            Kind::Bf16 => dispatch!(@ $function, BF16, 128, $schedule, $arguments),
            Kind::F16 => dispatch!(@ $function, F16, 128, $schedule, $arguments),
            Kind::F32 => dispatch!(@ $function, F32, 256, $schedule, $arguments),
            Kind::F32Short => dispatch!(@ $function, F32_SHORT, 256, $schedule, $arguments),
        }
    };
    (@ $function:ident, $kind:ident, $bytes:literal, $schedule:expr, ($($argument:expr),*)) => {
        match $schedule {
            // SAFETY: a `Backend` of this level is only made where the machine has the instructions.
            Schedule::Four => unsafe { $function::four::<{ $kind }, $bytes>($($argument),*) },
            // SAFETY: as above.
            Schedule::Three => unsafe { $function::three::<{ $kind }, $bytes>($($argument),*) },
            // SAFETY: as above; with `pext` and `pdep`, because `encode` and `decode` check for them.
            Schedule::Tiers => unsafe { $function::tiers::<{ $kind }, $bytes>($($argument),*) },
        }
    };
}

/// A [`Kind`] as a parameter.
const BF16: u8 = 0;
const F16: u8 = 1;
const F32: u8 = 2;
const F32_SHORT: u8 = 3;

/// Bits of the exponent.
const fn exponent_bits(kind: u8) -> u32 {
    if kind == F16 { 5 } else { 8 }
}

/// Bytes of a word.
const fn word_bytes(kind: u8) -> usize {
    if kind == F32 || kind == F32_SHORT { 4 } else { 2 }
}

/// Byte planes of a word.
const fn byte_planes(kind: u8) -> usize {
    if kind == F32 { 3 } else { 1 }
}

/// Bit planes of a word.
const fn bit_planes(kind: u8) -> u32 {
    if kind == F16 { 3 } else { 0 }
}

/// The shape of a kind's records, as [`Planes::shape`].
const fn shape_of(kind: u8, schedule: Schedule) -> PlaneShape {
    PlaneShape { schedule, byte_planes: byte_planes(kind), bit_planes: bit_planes(kind) }
}

/// Whether this level has a path for these planes.
fn kind(backend: Backend, planes: &Planes) -> Option<Kind> {
    if planes.schedule == Schedule::Tiers && !backend.has_fast_deposit() { None } else { Kind::of(planes) }
}

/// As [`Backend::encode_planes`]; `None` where there is no path for these words.
#[inline]
pub(super) fn encode(
    backend: Backend,
    planes: &Planes,
    first: usize,
    words: &[u8],
    out: &mut [u8],
    escapes: &mut Vec<Escape>,
) -> Option<Option<Packed>> {
    let kind = kind(backend, planes)?;
    Some(dispatch!(encode, kind, planes.schedule, (planes, first, words, out, escapes)))
}

/// As [`Backend::decode_planes`]; `None` where there is no path for these words.
#[inline]
pub(super) fn decode(
    backend: Backend,
    planes: &Planes,
    source: &Source<'_>,
    position: Position,
    words: &mut [u8],
    room: &mut [u8],
) -> Option<Result<(), Error>> {
    let kind = kind(backend, planes)?;
    Some(dispatch!(decode, kind, planes.schedule, (planes, source, position, words, room)))
}

/// 32 bytes from byte `at`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes = &bytes[at..at + 32];
    // SAFETY: there are 32 bytes; the load has no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Stores 32 bytes at byte `at`.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn store(bytes: &mut [u8], at: usize, vector: __m256i) {
    let bytes = &mut bytes[at..at + 32];
    // SAFETY: there are 32 bytes; the store has no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

/// Bit 7 - `LEFT` of 64 bytes.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn plane_of<const LEFT: i32>(bytes: [__m256i; 2]) -> u64 {
    join([
        _mm256_movemask_epi8(_mm256_slli_epi16::<LEFT>(bytes[0])),
        _mm256_movemask_epi8(_mm256_slli_epi16::<LEFT>(bytes[1])),
    ])
}

/// The halves of a word.
#[inline(always)]
const fn join([low, high]: [i32; 2]) -> u64 {
    low.cast_unsigned() as u64 | (high.cast_unsigned() as u64) << 32
}

/// The lowest `n` bits, of at most 64.
#[inline(always)]
const fn low_of(n: usize) -> u64 {
    u64::MAX >> (GROUP_ELEMS - n)
}
