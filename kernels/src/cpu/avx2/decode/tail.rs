//! What a record has besides its fixed part, and the exponents of its escapes.

use core::arch::x86_64::{__m256i, _mm256_blendv_epi8, _pdep_u64};

use super::super::{F16, exponent_bits, load, store, word_bytes};
use super::group::{GroupExponents, broadcast, bytes_of_4, take};
use crate::scalar::planes::Body;

/// Bytes after the fixed part that vectors may read.
pub(super) const SLACK_BYTES: usize = 72;

const VECTOR_BYTES: usize = 32;

/// Escapes of a group that are written whether there are any or not.
const AT_ONCE: usize = 4;

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
}

impl<'a> Tail<'a> {
    /// The tail that starts at bit `start` of the body of a record of `n` elements; still to be filled.
    #[inline(always)]
    pub(super) fn new(body: &'a Body<'a>, start: usize, n: usize, room: &'a mut [u8]) -> Option<Self> {
        let start = start / 8;
        let front_len = body.front_len.checked_sub(start)?;
        // More than this is rare.
        let len = (front_len + n / 8 + 64).next_multiple_of(VECTOR_BYTES);
        Some(Self { body, start, front_len, room, len })
    }

    /// Copies the first bytes from wherever they stand: whether a record has a rest cannot be predicted.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn fill(&mut self) -> Option<()> {
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
    fn extend(&mut self) -> Option<()> {
        let front = &self.body.front()[self.start..];
        let (inside, room) = self.room.split_at_mut_checked(self.front_len)?;
        inside.copy_from_slice(front);
        let rest = self.body.rest().unwrap_or(&[]);
        let len = rest.len().min(room.len());
        room[..len].copy_from_slice(&rest[..len]);
        room[len..].fill(0);
        self.len = self.room.len();
        Some(())
    }

    /// Writes the exponents of the escapes of a group, which start at bit `at`, over those of their codes; gives the
    /// bit after them.
    #[inline(always)]
    pub(super) fn patch<const KIND: u8>(
        &mut self,
        group: &mut GroupExponents,
        escaped: u64,
        mut at: usize,
    ) -> Option<usize> {
        let bits = exponent_bits(KIND) as usize;
        let end = at + escaped.count_ones() as usize * bits;
        let (mut left, mut exponents) = (escaped, self.bits(at)?);
        // Four whether there are any or not, because branches that depend on data cost more: where none is left,
        // the place is 64, after the group.
        for _ in 0..AT_ONCE {
            group[left.trailing_zeros() as usize] = exponent::<KIND>(exponents);
            exponents >>= bits;
            left &= left.wrapping_sub(1);
        }
        while left != 0 {
            at += bits;
            group[left.trailing_zeros() as usize] =
                exponent::<KIND>(self.bits(at + (AT_ONCE - 1) * bits)?);
            left &= left - 1;
        }
        Some(end)
    }

    /// The codes of a group of `planes:2-2-2`, 4 x tier + what the tier holds, whose tiers after the first start at
    /// bit `at`; its escapes; the bit after its tiers.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
    pub(super) fn codes(&mut self, p0: u64, p1: u64, at: usize) -> Option<([__m256i; 2], u64, usize)> {
        // A group's tiers have at most 256 bits, and a load takes 64 more.
        let bytes: &[u8; 48] = self.bytes_from(at)?;
        let second = p0 & p1;
        let n_second = second.count_ones() as usize;
        let [a0, a1, b0, b1] =
            if n_second <= 57 { tiers::<false>(bytes, at % 8, second) } else { long_tiers(bytes, at % 8, second) };
        let third = a0 & a1;
        let c0 = p0 & !second | a0 & !third | b0;
        let c1 = p1 & !second | a1 & !third | b1;
        let [c0, c1] = [broadcast(c0), broadcast(c1)];
        let codes = bytes_of_4(c0, c1, broadcast(second & !third), broadcast(third));
        Some((codes, b0 & b1, at + 2 * n_second + 2 * third.count_ones() as usize))
    }

    /// At least 57 bits from bit `at`.
    #[inline(always)]
    fn bits(&mut self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes_from(at)?) >> (at % 8))
    }

    /// The bytes from that of bit `at` on; `None` where the room is too short.
    #[inline(always)]
    fn bytes_from<const N: usize>(&mut self, at: usize) -> Option<&[u8; N]> {
        if at / 8 + N > self.len {
            self.extend()?;
        }
        self.room.get(at / 8..)?.first_chunk()
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

/// The planes of the second tier, of those elements that it has, and of the third.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn tiers<const LONG: bool>(bytes: &[u8; 48], bit: usize, second: u64) -> [u64; 4] {
    let n_second = second.count_ones() as usize;
    let a0 = _pdep_u64(plane::<LONG>(bytes, bit), second);
    let a1 = _pdep_u64(plane::<LONG>(bytes, bit + n_second), second);
    let (third, bit) = (a0 & a1, bit + 2 * n_second);
    let b0 = _pdep_u64(plane::<LONG>(bytes, bit), third);
    let b1 = _pdep_u64(plane::<LONG>(bytes, bit + third.count_ones() as usize), third);
    [a0, a1, b0, b1]
}

/// As [`tiers`] of more elements than one load has bits of.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,popcnt,bmi2")]
fn long_tiers(bytes: &[u8; 48], bit: usize, second: u64) -> [u64; 4] {
    tiers::<true>(bytes, bit, second)
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

/// Gives word `place` another exponent, which stands below the sign in the upper 16 bits of every word.
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
