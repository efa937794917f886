//! What a record has besides its fixed part, and the exponents of its escapes.
#![expect(unsafe_code, reason = "deposits, of which one loop is compiled with AVX2 alone")]

use core::arch::x86_64::{__m256i, _mm256_blendv_epi8, _pdep_u64};

use super::super::{F16, exponent_bits, load, store, word_bytes};
use super::group::{GroupExponents, broadcast, bytes_of_4, take};
use crate::scalar::planes::Body;

/// Bytes after the fixed part that vectors may read.
pub(super) const SLACK_BYTES: usize = 72;

const VECTOR_BYTES: usize = 32;

/// What follows a record's fixed part, in one piece: tiers and exponents.
pub(super) struct Tail<'a> {
    body: &'a Body<'a>,
    /// Byte of the body at which the tail starts.
    start: usize,
    /// Bytes of the front among the tail's.
    front_len: usize,
    /// The first bytes of the tail, in front of room for the others.
    room: &'a mut [u8],
    /// How many of them.
    len: usize,
    /// They lie in the body in one piece.
    in_place: bool,
}

impl<'a> Tail<'a> {
    /// The tail that starts at bit `start` of the body of a record of `n` elements; still to be filled.
    #[inline(always)]
    pub(super) fn new(body: &'a Body<'a>, start: usize, n: usize, room: &'a mut [u8]) -> Option<Self> {
        let start = start / 8;
        let front_len = body.front_len.checked_sub(start)?;
        // More than this is rare.
        let len = (front_len + n / 8 + 64).next_multiple_of(VECTOR_BYTES);
        let in_place = body.rest_at.is_none() && body.bytes.len() >= start + len;
        Some(Self { body, start, front_len, room, len, in_place })
    }

    /// Puts the first bytes together, if they are in two pieces.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn fill(&mut self) -> Option<()> {
        if self.in_place {
            return Some(());
        }
        // The rest, shifted to where it belongs, so that each store is whole: a load of parts of two would wait.
        let shifted = self.body.rest_at.map_or(self.start, |at| at.saturating_sub(self.front_len));
        let bytes = self.body.bytes;
        if let (Some(front), Some(rest)) = (bytes.get(self.start..), bytes.get(shifted..))
            && let (Some(front), Some(rest)) = (front.get(..self.len), rest.get(..self.len))
            && let Some(room) = self.room.get_mut(..self.len)
        {
            let (front, rest) = (front.as_chunks::<VECTOR_BYTES>().0, rest.as_chunks::<VECTOR_BYTES>().0);
            let (split, blend) = (self.front_len / VECTOR_BYTES, after(self.front_len % VECTOR_BYTES));
            let room = room.as_chunks_mut::<VECTOR_BYTES>().0;
            for (i, (room, (front, rest))) in room.iter_mut().zip(front.iter().zip(rest)).enumerate() {
                if i == split {
                    store(room, 0, _mm256_blendv_epi8(load(front, 0), load(rest, 0), blend));
                } else {
                    *room = *if i < split { front } else { rest };
                }
            }
            return Some(());
        }
        self.extend()
    }

    /// Puts all of the tail together; what is missing is zero.
    #[cold]
    #[inline(never)]
    pub(super) fn extend(&mut self) -> Option<()> {
        let front = &self.body.front()[self.start..];
        let (inside, room) = self.room.split_at_mut_checked(self.front_len)?;
        inside.copy_from_slice(front);
        let rest = self.body.rest().unwrap_or(&[]);
        let len = rest.len().min(room.len());
        room[..len].copy_from_slice(&rest[..len]);
        room[len..].fill(0);
        (self.len, self.in_place) = (self.room.len(), false);
        Some(())
    }

    /// The bytes of the tail that are in one piece.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        if self.in_place { &self.body.bytes[self.start..][..self.len] } else { &self.room[..self.len] }
    }

    /// Whether the record has all bits before `end`; `None` where bits that it lacks count as zero.
    #[inline(always)]
    pub(super) fn check_end(&self, end: usize) -> Option<Result<(), usize>> {
        let needed = end.div_ceil(8).saturating_sub(self.front_len);
        match self.body.rest() {
            Some(rest) if rest.len() < needed => Some(Err(needed)),
            None if needed > 0 => None,
            _ => Some(Ok(())),
        }
    }
}

/// Writes the exponents of the escapes of a group, which start at bit `at` of the tail, over those of their codes;
/// returns the bit after them, or `None` where the tail is too short.
#[inline(always)]
pub(super) fn patch<const KIND: u8, const AT_ONCE: usize>(
    tail: &[u8],
    group: &mut GroupExponents,
    escaped: u64,
    at: usize,
) -> Option<usize> {
    let bits = exponent_bits(KIND) as usize;
    let (mut left, mut exponents) = (escaped, bits_at(tail, at)?);
    // As many as most groups have are written whether there are any or not, because branches that depend on data
    // cost more: where none is left, the place is 64, after the group.
    for _ in 0..AT_ONCE {
        group[left.trailing_zeros() as usize] = exponent::<KIND>(exponents);
        exponents >>= bits;
        left &= left.wrapping_sub(1);
    }
    let mut later = at + AT_ONCE * bits;
    while left != 0 {
        group[left.trailing_zeros() as usize] = exponent::<KIND>(bits_at(tail, later)?);
        later += bits;
        left &= left - 1;
    }
    Some(at + escaped.count_ones() as usize * bits)
}

/// What the tiers of a group of `planes:2-2-2` hold.
pub(super) struct Tiers {
    /// The bit planes of each element's code in its last tier.
    pub(super) places: (u64, u64),
    /// The elements of the second tier and of the third.
    pub(super) tiers: (u64, u64),
    pub(super) escaped: u64,
    /// The bit after them.
    pub(super) end: usize,
}

impl Tiers {
    /// Codes of 4 x tier + what the tier holds.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn codes(&self) -> [__m256i; 2] {
        let (a, b) = (broadcast(self.places.0), broadcast(self.places.1));
        bytes_of_4(a, b, broadcast(self.tiers.0), broadcast(self.tiers.1))
    }
}

/// Reads the tiers of a group after the first, whose planes are passed; they start at bit `at` of the tail, and are
/// not all in it where it is `None`.
///
/// # Safety
/// The machine must have BMI2.
#[inline(always)]
pub(super) unsafe fn tiers_at(tail: &[u8], p0: u64, p1: u64, at: usize) -> Option<Tiers> {
    // A group's tiers have at most 256 bits, and a load takes 64 more.
    let bytes: &[u8; 48] = tail.get(at / 8..)?.first_chunk()?;
    let second = p0 & p1;
    let n_second = second.count_ones() as usize;
    let (a0, a1, b0, b1) = if n_second <= 57 {
        // SAFETY: the machine has the instructions.
        unsafe { tiers::<false>(bytes, at % 8, second) }
    } else {
        // SAFETY: as above.
        unsafe { long_tiers(bytes, at % 8, second) }
    };
    let third = a0 & a1;
    let places = (p0 & !second | a0 & !third | b0, p1 & !second | a1 & !third | b1);
    let end = at + 2 * n_second + 2 * third.count_ones() as usize;
    Some(Tiers { places, tiers: (second & !third, third), escaped: b0 & b1, end })
}

/// At least 57 bits from bit `at`.
#[inline(always)]
fn bits_at(tail: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*tail.get(at / 8..)?.first_chunk()?) >> (at % 8))
}

/// The planes of the second tier, of those elements that it has, and of the third.
///
/// # Safety
/// The machine must have BMI2.
#[inline(always)]
unsafe fn tiers<const LONG: bool>(bytes: &[u8; 48], bit: usize, second: u64) -> (u64, u64, u64, u64) {
    let n_second = second.count_ones() as usize;
    // SAFETY: the machine has the instructions.
    let a0 = unsafe { _pdep_u64(plane::<LONG>(bytes, bit), second) };
    // SAFETY: as above.
    let a1 = unsafe { _pdep_u64(plane::<LONG>(bytes, bit + n_second), second) };
    let (third, bit) = (a0 & a1, bit + 2 * n_second);
    // SAFETY: as above.
    let b0 = unsafe { _pdep_u64(plane::<LONG>(bytes, bit), third) };
    // SAFETY: as above.
    let b1 = unsafe { _pdep_u64(plane::<LONG>(bytes, bit + third.count_ones() as usize), third) };
    (a0, a1, b0, b1)
}

/// As [`tiers`] of more elements than one load has bits of.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn long_tiers(bytes: &[u8; 48], bit: usize, second: u64) -> (u64, u64, u64, u64) {
    // SAFETY: this function has the instructions.
    unsafe { tiers::<true>(bytes, bit, second) }
}

/// 57 bits from bit `at`, or 64.
#[inline(always)]
fn plane<const LONG: bool>(bytes: &[u8; 48], at: usize) -> u64 {
    if LONG {
        return take(bytes, at);
    }
    bytes[at / 8..at / 8 + 8].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) >> (at % 8)
}

/// The lowest exponent as [`super::group`] holds it.
#[inline(always)]
const fn exponent<const KIND: u8>(bits: u64) -> u8 {
    let byte = bits.to_le_bytes()[0];
    if KIND == F16 { byte << 3 } else { byte }
}

/// Replaces the exponent of word `place`, which is below the sign in the upper 16 bits of every word.
#[inline(always)]
pub(super) fn patch_word<const KIND: u8>(words: &mut [u8], place: usize, exponent: u16) {
    let bits = exponent_bits(KIND);
    let mask = ((1 << bits) - 1) << (15 - bits);
    if let Some(upper) = words[(place + 1) * word_bytes(KIND) - 2..].first_chunk_mut() {
        let others = u16::from_le_bytes(*upper) & !mask;
        *upper = (others | exponent << (15 - bits) & mask).to_le_bytes();
    }
}

/// A vector whose first `n` bytes are zero and the others ones; `n` is at most 32.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn after(n: usize) -> __m256i {
    const BYTES: [u8; 64] = {
        let mut bytes = [0; 64];
        let mut i = 32;
        while i < 64 {
            bytes[i] = 0xFF;
            i += 1;
        }
        bytes
    };
    load(&BYTES, 32 - n)
}
