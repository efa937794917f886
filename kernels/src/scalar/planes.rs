//! Codecs `planes`, one record at a time: the specification in code.
//!
//! A record's body is a string of bits: the byte planes, the groups with their codes and bit planes, then what
//! only some elements have, first the tiers of every group, then the exponents of the escapes.
//! Source: FORMAT.md, section "Codecs planes".

use super::ibp::Packed;
use crate::bits::{low, put, read_word, take};
use crate::cut::MAX_RECORD_BYTES;
use crate::escapes::Escapes;
use crate::planes::{ESCAPE, GROUP_ELEMS, Planes, Schedule};

/// The most elements of a record.
const MAX_ELEMS: usize = 1024;

/// The most bytes that a record of `planes` packs to: raw bytes, and every code escaped through every tier.
pub(crate) const MAX_PACKED: usize = MAX_RECORD_BYTES + MAX_ELEMS;

/// An element whose exponent has no code: its number in the record, and the exponent.
pub(crate) type Escape = (usize, u16);

/// Packs the words of one record, which start at element `first` of their run, into `out`, which holds at least
/// [`Planes::max_packed`] bytes.
///
/// The exponents that have no code are in `escapes` after it, in their order; `planes:4` does not store them.
/// `None` where a word's dropped bits have another value, so that the record cannot be packed.
pub(crate) fn encode(
    planes: &Planes,
    first: usize,
    words: &[u8],
    out: &mut [u8],
    escapes: &mut Vec<Escape>,
) -> Option<Packed> {
    out.fill(0);
    let n = words.len() / planes.word_bytes();
    let shape = &planes.shape;
    let mut codes = [0; MAX_ELEMS];
    escapes.clear();
    let mut at = 8 * n * shape.byte_planes;
    let mut tiers_at = shape.fixed_bits(n);
    for (group, words) in words.chunks(GROUP_ELEMS * planes.word_bytes()).enumerate() {
        let n_group = words.len() / planes.word_bytes();
        for (i, word) in words.chunks_exact(planes.word_bytes()).enumerate() {
            let elem = group * GROUP_ELEMS + i;
            let rotated = planes.parts.rotated(read_word(word));
            let exponent = exponent(rotated >> planes.parts.low_bits());
            let kept = planes.dropped.shrink(rotated & low(planes.parts.low_bits()))?;
            for plane in 0..shape.byte_planes {
                put(out, 8 * (plane * n + elem), kept >> (8 * plane), 8);
            }
            for plane in 0..shape.bit_planes as usize {
                let bit = kept >> (8 * shape.byte_planes + plane);
                put(out, at + shape.code_bits(n_group) + plane * n_group + i, bit, 1);
            }
            let reduced = exponent.wrapping_sub(planes.base(first + elem));
            let rank = planes.ranks[usize::from(reduced) & (planes.ranks.len() - 1)];
            if rank == ESCAPE {
                escapes.push((elem, exponent));
            }
            codes[i] = rank;
        }
        put_codes(planes.schedule, &codes[..n_group], out, at);
        at += shape.group_bits(n_group);
        if planes.schedule == Schedule::Tiers {
            tiers_at = put_tiers(&codes[..n_group], out, tiers_at);
        }
    }
    if planes.schedule != Schedule::Four {
        for &(_, exponent) in escapes.iter() {
            put(out, tiers_at, exponent.into(), planes.parts.exponent_bits);
            tiers_at += planes.parts.exponent_bits as usize;
        }
    }
    let n_escapes = escapes.len() as u64;
    Some(Packed { bytes: tiers_at.div_ceil(8), chunks: n as u64, participating: n as u64 - n_escapes })
}

/// An exponent of at most 11 bits.
#[expect(clippy::cast_possible_truncation, reason = "exponents have at most 11 bits")]
const fn exponent(bits: u64) -> u16 {
    bits as u16
}

/// Writes the codes of one group at bit `at`.
fn put_codes(schedule: Schedule, ranks: &[u8], out: &mut [u8], at: usize) {
    let half = ranks.len().div_ceil(2);
    for (i, &rank) in ranks.iter().enumerate() {
        match schedule {
            Schedule::Four => {
                // The second half of the elements has the upper half of the bytes.
                let at = at + if i < half { 8 * i } else { 8 * (i - half) + 4 };
                put(out, at, rank.min(15).into(), 4);
            }
            Schedule::Three => {
                put_bits(out, at, ranks.len(), i, rank.min(7), 3);
            }
            Schedule::Tiers => {
                put_bits(out, at, ranks.len(), i, tier(rank, 0), 2);
            }
        }
    }
}

/// Writes bit `plane` of the code of element `i` into plane `plane` of `n` bits.
fn put_bits(out: &mut [u8], at: usize, n: usize, i: usize, code: u8, n_planes: usize) {
    for plane in 0..n_planes {
        put(out, at + plane * n + i, u64::from(code >> plane), 1);
    }
}

/// What a rank is in tier `tier`: 0 to 2, or 3 where it goes on.
const fn tier(rank: u8, tier: u8) -> u8 {
    if rank / 3 == tier { rank % 3 } else { 3 }
}

/// Writes the second and third tier of one group at bit `at`; returns the bit after them.
fn put_tiers(ranks: &[u8], out: &mut [u8], mut at: usize) -> usize {
    for number in 1..3 {
        let n = ranks.iter().filter(|&&rank| rank >= 3 * number).count();
        for (i, &rank) in ranks.iter().filter(|&&rank| rank >= 3 * number).enumerate() {
            put_bits(out, at, n, i, tier(rank, number), 2);
        }
        at += 2 * n;
    }
    at
}

/// A record's body: what the front holds, and what follows in the overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    /// What is in the front, all of the fixed part at least, and the bytes of the block after it.
    pub(crate) bytes: &'a [u8],
    /// How many of them are the record's.
    pub(crate) front_len: usize,
    /// Where the others start in `bytes`; `None`: the body ends in the front, and what is missing there counts as
    /// zero.
    pub(crate) rest_at: Option<usize>,
}

impl<'a> Body<'a> {
    /// What is in the front.
    #[inline]
    pub(crate) fn front(&self) -> &'a [u8] {
        &self.bytes[..self.front_len]
    }

    /// What is in the overflow, and the bytes after it.
    #[inline]
    pub(crate) fn rest(&self) -> Option<&'a [u8]> {
        self.rest_at.map(|at| &self.bytes[at..])
    }

    /// Reads up to 64 bits from bit `at` of the string.
    pub(crate) fn take(&self, at: usize, n_bits: u32) -> u64 {
        let front_bits = 8 * self.front_len;
        let inside = take(self.front(), at, n_bits);
        let rest = self.rest().unwrap_or(&[]);
        let bits = match front_bits.saturating_sub(at) {
            0 => take(rest, at - front_bits, n_bits),
            n_inside @ 1..64 => inside | take(rest, 0, n_bits) << n_inside,
            _ => inside,
        };
        bits & low(n_bits)
    }

    /// Whether the string has all bits before `end`; else how many bytes the rest must have.
    pub(crate) fn check_end(&self, end: usize) -> Result<(), usize> {
        let needed = end.div_ceil(8).saturating_sub(self.front_len);
        match self.rest() {
            Some(rest) if rest.len() < needed => Err(needed),
            _ => Ok(()),
        }
    }
}

/// Takes [`encode`] back; `escapes` are those of `planes:4`.
///
/// # Errors
/// The bytes that the rest must have.
pub(crate) fn decode(
    planes: &Planes,
    first: usize,
    body: &Body<'_>,
    words: &mut [u8],
    escapes: &mut Escapes<'_>,
) -> Result<(), usize> {
    let n = words.len() / planes.word_bytes();
    let shape = &planes.shape;
    let mut ranks = [0; MAX_ELEMS];
    let mut at = 8 * n * shape.byte_planes;
    let mut tiers_at = shape.fixed_bits(n);
    for ranks in ranks[..n].chunks_mut(GROUP_ELEMS) {
        take_codes(planes.schedule, body, at, ranks);
        at += shape.group_bits(ranks.len());
        if planes.schedule == Schedule::Tiers {
            tiers_at = take_tiers(body, tiers_at, ranks);
        }
    }
    for (elem, word) in words.chunks_exact_mut(planes.word_bytes()).enumerate() {
        let exponent = match (ranks[elem], planes.schedule) {
            (ESCAPE, Schedule::Four) => escapes.exponent(elem),
            (ESCAPE, _) => {
                let bits = body.take(tiers_at, planes.parts.exponent_bits);
                tiers_at += planes.parts.exponent_bits as usize;
                exponent(bits)
            }
            (rank, _) => planes.table[usize::from(rank)].wrapping_add(planes.base(first + elem)),
        };
        let kept = kept_bits(planes, body, n, elem);
        let rotated = u64::from(exponent) << planes.parts.low_bits() | planes.dropped.grow(kept);
        let value = planes.parts.unrotated(rotated & low(planes.parts.word_bits));
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
    body.check_end(tiers_at)
}

/// The kept low bits of element `elem` of `n`.
pub(crate) fn kept_bits(planes: &Planes, body: &Body<'_>, n: usize, elem: usize) -> u64 {
    let shape = &planes.shape;
    let mut kept = 0;
    for plane in 0..shape.byte_planes {
        kept |= take(body.front(), 8 * (plane * n + elem), 8) << (8 * plane);
    }
    let (group, i) = (elem / GROUP_ELEMS, elem % GROUP_ELEMS);
    let n_group = (n - group * GROUP_ELEMS).min(GROUP_ELEMS);
    let at = 8 * n * shape.byte_planes + group * shape.group_bits(GROUP_ELEMS) + shape.code_bits(n_group);
    for plane in 0..shape.bit_planes as usize {
        kept |= take(body.front(), at + plane * n_group + i, 1) << (8 * shape.byte_planes + plane);
    }
    kept
}

/// Reads the ranks of one group from bit `at`; [`ESCAPE`] for those that go on.
fn take_codes(schedule: Schedule, body: &Body<'_>, at: usize, ranks: &mut [u8]) {
    let (n, half) = (ranks.len(), ranks.len().div_ceil(2));
    for (i, rank) in ranks.iter_mut().enumerate() {
        let (code, escape) = match schedule {
            Schedule::Four => {
                let at = at + if i < half { 8 * i } else { 8 * (i - half) + 4 };
                (code(take(body.front(), at, 4)), 15)
            }
            Schedule::Three => (take_bits(body, at, n, i, 3), 7),
            Schedule::Tiers => (take_bits(body, at, n, i, 2), 3),
        };
        *rank = if code == escape { ESCAPE } else { code };
    }
}

#[expect(clippy::cast_possible_truncation, reason = "codes have at most 4 bits")]
const fn code(bits: u64) -> u8 {
    bits as u8
}

/// The code of element `i`, from planes of `n` bits.
fn take_bits(body: &Body<'_>, at: usize, n: usize, i: usize, n_planes: usize) -> u8 {
    (0..n_planes).fold(0, |bits, plane| bits | code(body.take(at + plane * n + i, 1)) << plane)
}

/// Reads the second and third tier of one group from bit `at`; returns the bit after them.
fn take_tiers(body: &Body<'_>, mut at: usize, ranks: &mut [u8]) -> usize {
    for number in 1..3 {
        let n = ranks.iter().filter(|&&rank| rank == ESCAPE).count();
        for (i, rank) in ranks.iter_mut().filter(|rank| **rank == ESCAPE).enumerate() {
            let code = take_bits(body, at, n, i, 2);
            if code != 3 {
                *rank = 3 * number + code;
            }
        }
        at += 2 * n;
    }
    at
}
