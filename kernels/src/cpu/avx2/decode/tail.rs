//! What a record has besides its fixed part, and the exponents of its escapes.

use core::arch::x86_64::_mm256_blendv_epi8;

use super::super::{exponent_bits, load, store, word_bytes};
use crate::planes::GROUP_ELEMS;
use crate::scalar::planes::Body;

/// Bytes after the fixed part, and after what follows it, that vectors may read.
pub(super) const SLACK_BYTES: usize = 72;

/// Escapes of a group that are patched whether there are any or not: a branch that depends on data costs more.
const AT_ONCE: usize = 4;

/// What follows a record's fixed part, in one piece: tiers and exponents.
pub(super) struct Tail<'a> {
    pub(super) bytes: &'a [u8],
    /// Bits of `bytes` that are the record's; more than it has where all after its end is zero.
    valid_bits: usize,
    /// Bytes of the rest; `None` where there is no rest.
    rest_len: Option<usize>,
    /// Bytes of the front among `bytes`.
    front_len: usize,
}

impl<'a> Tail<'a> {
    /// What stands from bit `start` on; `None` where the record's own bits are not enough to tell.
    #[inline(always)]
    pub(super) fn new(body: &Body<'a>, start: usize) -> Option<Self> {
        let (bytes, front_len) = (&body.bytes[start / 8..], body.front_len.checked_sub(start / 8)?);
        match body.rest() {
            None if bytes.len() >= front_len + SLACK_BYTES => {
                Some(Self { bytes, valid_bits: 8 * front_len, rest_len: None, front_len })
            }
            Some(rest) if front_len == 0 && rest.len() >= 2 * SLACK_BYTES => {
                Some(Self { bytes: rest, valid_bits: 8 * rest.len(), rest_len: Some(rest.len()), front_len })
            }
            _ => None,
        }
    }

    /// As [`Tail::new`], where the pieces must be put together; `n` are the record's elements.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn joined(body: &Body<'a>, start: usize, n: usize, room: &'a mut [u8]) -> Option<Self> {
        let front = &body.front()[(start / 8).min(body.front_len)..];
        let front_len = front.len();
        let rest = body.rest().unwrap_or(&[]);
        // More than this is rare.
        let most = n / 2 + 64;
        let rest_len = body.rest_at.map(|_| rest.len());
        if let Some(rest_at) = body.rest_at
            && front_len <= 32
            && rest_at >= front_len
            && rest.len() >= most + SLACK_BYTES + 32
        {
            let len = front_len + most + SLACK_BYTES;
            let room = room.get_mut(..len.next_multiple_of(32))?;
            // The rest shifted to where it belongs, so that each store is whole: loads wait for others.
            let shifted = rest_at - front_len;
            let first = load(body.bytes, start / 8);
            store(room, 0, _mm256_blendv_epi8(first, load(body.bytes, shifted), after(front_len)));
            for at in (32..len).step_by(32) {
                store(room, at, load(body.bytes, shifted + at));
            }
            return Some(Self { bytes: room, valid_bits: 8 * (front_len + most), rest_len, front_len });
        }
        let taken = rest.len().min(most);
        let len = front_len + taken;
        let bytes = room.get_mut(..len + SLACK_BYTES)?;
        bytes[..front_len].copy_from_slice(front);
        bytes[front_len..len].copy_from_slice(&rest[..taken]);
        bytes[len..].fill(0);
        let is_all = body.rest_at.is_some() && taken == rest.len();
        let valid_bits = 8 * if is_all { bytes.len() } else { len };
        Some(Self { bytes, valid_bits, rest_len, front_len })
    }

    /// Patches the escapes of a group, whose exponents start at bit `at`; gives the bit after them.
    #[inline(always)]
    pub(super) fn patch<const KIND: u8, const BYTES: usize>(
        &self,
        words: &mut [u8; BYTES],
        escaped: u64,
        mut at: usize,
    ) -> Option<usize> {
        let bits = exponent_bits(KIND) as usize;
        let exponents = self.bits(at)?;
        let n = escaped.count_ones() as usize;
        let mut left = escaped;
        patch_first::<KIND, BYTES>(words, left, exponents);
        left &= left.wrapping_sub(1);
        patch_first::<KIND, BYTES>(words, left, exponents >> bits);
        left &= left.wrapping_sub(1);
        patch_first::<KIND, BYTES>(words, left, exponents >> (2 * bits));
        left &= left.wrapping_sub(1);
        patch_first::<KIND, BYTES>(words, left, exponents >> (3 * bits));
        let end = at + n * bits;
        if n > AT_ONCE {
            at += AT_ONCE * bits;
            left &= left.wrapping_sub(1);
            while left != 0 {
                patch_first::<KIND, BYTES>(words, left, self.bits(at)?);
                at += bits;
                left &= left - 1;
            }
        }
        Some(end)
    }

    /// At least 57 bits from bit `at`.
    #[inline(always)]
    pub(super) fn bits(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes.get(at / 8..)?.first_chunk()?) >> (at % 8))
    }

    /// Whether the record has all bits before `end`; `None` where that cannot be told.
    #[inline(always)]
    pub(super) fn check_end(&self, end: usize) -> Option<Result<(), usize>> {
        if end > self.valid_bits && self.rest_len.is_none_or(|len| self.front_len + len > self.valid_bits / 8) {
            return None;
        }
        let needed = end.div_ceil(8).saturating_sub(self.front_len);
        match self.rest_len {
            Some(len) if len < needed => Some(Err(needed)),
            _ => Some(Ok(())),
        }
    }
}

/// Gives the first word that is left the first of the exponents; none where none is left.
#[inline(always)]
fn patch_first<const KIND: u8, const BYTES: usize>(words: &mut [u8; BYTES], left: u64, exponents: u64) {
    let place = left.trailing_zeros() as usize % GROUP_ELEMS;
    let mask = exponent_mask(KIND) * u16::from(left != 0);
    let at = (place + 1) * word_bytes(KIND) - 2;
    patch(&mut words[at..], mask, low_16(exponents << (15 - exponent_bits(KIND))));
}

/// Gives word `place` another exponent.
#[inline(always)]
pub(super) fn patch_word<const KIND: u8>(words: &mut [u8], place: usize, exponent: u16) {
    let at = (place + 1) * word_bytes(KIND) - 2;
    patch(&mut words[at..], exponent_mask(KIND), exponent << (15 - exponent_bits(KIND)));
}

/// The exponent's bits, which stand below the sign in the upper 16 bits of every word.
const fn exponent_mask(kind: u8) -> u16 {
    ((1 << exponent_bits(kind)) - 1) << (15 - exponent_bits(kind))
}

#[inline(always)]
fn patch(upper: &mut [u8], mask: u16, bits: u16) {
    if let Some(upper) = upper.first_chunk_mut() {
        *upper = (u16::from_le_bytes(*upper) & !mask | bits & mask).to_le_bytes();
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the bits asked for are the low ones")]
const fn low_16(bits: u64) -> u16 {
    bits as u16
}

/// A vector whose first `n` bytes are zero and the others ones; `n` is at most 32.
#[inline]
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) fn after(n: usize) -> core::arch::x86_64::__m256i {
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
