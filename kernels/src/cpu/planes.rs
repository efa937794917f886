//! Codecs `planes` for every word without vectors, a group at a time: what `avx2` has no path for.
//!
//! The reference code reads bit by bit; here the planes of a group are words of 64 bits.

use crate::bits::{deposit, extract, low, put, read_word, take};
use crate::escapes::Escapes;
use crate::planes::{ESCAPE, GROUP_ELEMS, Planes, Schedule};
use crate::records::planes::{Kernel, Record};
use crate::scalar::ibp::Packed;
use crate::scalar::planes::{Body, Escape};
use crate::window::Word;

/// The most groups of a record.
const MAX_GROUPS: usize = 16;

/// The most planes that fill no byte.
const MAX_BIT_PLANES: usize = 7;

/// Decodes groups of any words.
pub(super) struct Groups;

impl Kernel for Groups {
    fn decode(
        &self,
        planes: &Planes,
        record: &Record<'_>,
        words: &mut [u8],
        escapes: &mut Escapes<'_>,
        _room: &mut [u8],
    ) -> Result<(), usize> {
        let words = &mut words[..record.n * planes.word_bytes()];
        match planes.word_bytes() {
            1 => decode::<u8>(planes, record, words, escapes),
            2 => decode::<u16>(planes, record, words, escapes),
            4 => decode::<u32>(planes, record, words, escapes),
            _ => decode::<u64>(planes, record, words, escapes),
        }
    }
}

/// The columns of a record, one after the other.
struct Columns<'a> {
    bases: Option<&'a [u16]>,
    next: usize,
}

impl<'a> Columns<'a> {
    fn new(planes: &'a Planes, first: usize) -> Self {
        let bases = planes.bases.as_deref();
        Self { bases, next: bases.map_or(0, |bases| first % bases.len().max(1)) }
    }

    /// The base of the next element.
    #[inline]
    fn base(&mut self) -> u16 {
        let Some(bases) = self.bases else { return 0 };
        let base = bases[self.next];
        self.next = if self.next + 1 == bases.len() { 0 } else { self.next + 1 };
        base
    }
}

fn decode<W: Word>(
    planes: &Planes,
    record: &Record<'_>,
    words: &mut [u8],
    escapes: &mut Escapes<'_>,
) -> Result<(), usize> {
    let (shape, body, n) = (&planes.shape, &record.body, record.n);
    let low_bits = planes.parts.low_bits();
    let front = body.front();
    let mut columns = Columns::new(planes, record.first);
    let mut escaped = [0_u64; MAX_GROUPS];
    let (mut at, mut tiers_at) = (8 * n * shape.byte_planes, shape.fixed_bits(n));
    for (group, words) in words.chunks_mut(GROUP_ELEMS * W::BYTES).enumerate() {
        let n_group = words.len() / W::BYTES;
        let mut ranks = [0; GROUP_ELEMS];
        escaped[group] = take_ranks(planes.schedule, body, at, &mut tiers_at, &mut ranks[..n_group]);
        let mut bits = [0; MAX_BIT_PLANES];
        let mut plane_at = at + shape.code_bits(n_group);
        for bits in &mut bits[..shape.bit_planes as usize] {
            *bits = take(front, plane_at, bits_of(n_group));
            plane_at += n_group;
        }
        let start = group * GROUP_ELEMS;
        for (i, word) in words.chunks_exact_mut(W::BYTES).enumerate() {
            let mut kept = 0;
            for plane in 0..shape.byte_planes {
                kept |= u64::from(front[plane * n + start + i]) << (8 * plane);
            }
            for (plane, bits) in bits[..shape.bit_planes as usize].iter().enumerate() {
                kept |= (bits >> i & 1) << (8 * shape.byte_planes + plane);
            }
            let exponent = planes.table[usize::from(ranks[i])].wrapping_add(columns.base());
            let rotated = u64::from(exponent) << low_bits | planes.dropped.grow(kept);
            W::from_bits(planes.parts.unrotated(rotated & low(planes.parts.word_bits))).write(word);
        }
        at += shape.group_bits(n_group);
    }
    for (start, mut left) in (0..).step_by(GROUP_ELEMS).zip(escaped) {
        while left != 0 {
            let elem = start + left.trailing_zeros() as usize;
            let exponent = if planes.schedule == Schedule::Four {
                u64::from(escapes.exponent(elem))
            } else {
                tiers_at += planes.parts.exponent_bits as usize;
                let at = tiers_at - planes.parts.exponent_bits as usize;
                body.take(at, planes.parts.exponent_bits)
            };
            patch::<W>(planes, &mut words[elem * W::BYTES..][..W::BYTES], exponent);
            left &= left - 1;
        }
    }
    body.check_end(tiers_at)
}

/// Replaces the exponent of a word.
#[inline]
fn patch<W: Word>(planes: &Planes, word: &mut [u8], exponent: u64) {
    // The exponent is below the sign.
    let shift = planes.parts.low_bits() - 1;
    let mask = low(planes.parts.exponent_bits) << shift;
    W::from_bits(read_word(word) & !mask | exponent << shift & mask).write(word);
}

/// At most 64.
fn bits_of(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u64::BITS)
}

/// Reads the ranks of one group from bit `at`, and from `tiers_at` on, which is moved; returns which are escapes.
fn take_ranks(schedule: Schedule, body: &Body<'_>, at: usize, tiers_at: &mut usize, ranks: &mut [u8]) -> u64 {
    let n = ranks.len();
    let plane = |plane: usize| take(body.front(), at + plane * n, bits_of(n));
    let bit = |bits: u64, i: usize| (bits >> i).to_le_bytes()[0] & 1;
    match schedule {
        Schedule::Four => {
            let bytes = &body.front()[at / 8..][..n.div_ceil(2)];
            let (first, second) = ranks.split_at_mut(n.div_ceil(2));
            first.iter_mut().zip(bytes).for_each(|(rank, byte)| *rank = byte & 15);
            second.iter_mut().zip(bytes).for_each(|(rank, byte)| *rank = byte >> 4);
            let is_escape = |escaped, (i, rank): (usize, &u8)| escaped | u64::from(*rank == 15) << i;
            ranks.iter().enumerate().fold(0, is_escape)
        }
        Schedule::Three => {
            let [a, b, c] = [plane(0), plane(1), plane(2)];
            for (i, rank) in ranks.iter_mut().enumerate() {
                *rank = bit(a, i) | bit(b, i) << 1 | bit(c, i) << 2;
            }
            a & b & c
        }
        Schedule::Tiers => {
            let mut tiers = [(plane(0), plane(1)), (0, 0), (0, 0)];
            let mut goes_on = tiers[0].0 & tiers[0].1;
            for tier in &mut tiers[1..] {
                let n = goes_on.count_ones();
                let both = [0, n as usize].map(|skip| deposit(body.take(*tiers_at + skip, n), goes_on));
                *tier = (both[0], both[1]);
                *tiers_at += 2 * n as usize;
                goes_on = both[0] & both[1];
            }
            for (i, rank) in ranks.iter_mut().enumerate() {
                let code = |tier: usize| bit(tiers[tier].0, i) | bit(tiers[tier].1, i) << 1;
                *rank = match (code(0), code(1)) {
                    (3, 3) => 6 + code(2),
                    (3, code) => 3 + code,
                    (code, _) => code,
                };
            }
            goes_on
        }
    }
}

/// As [`crate::scalar::planes::encode`].
pub(super) fn encode(
    planes: &Planes,
    first: usize,
    words: &[u8],
    out: &mut [u8],
    escapes: &mut Vec<Escape>,
) -> Option<Packed> {
    out.fill(0);
    escapes.clear();
    let (shape, n) = (&planes.shape, words.len() / planes.word_bytes());
    let mut columns = Columns::new(planes, first);
    let (mut at, mut tiers_at) = (8 * n * shape.byte_planes, shape.fixed_bits(n));
    for (group, words) in words.chunks(GROUP_ELEMS * planes.word_bytes()).enumerate() {
        let n_group = words.len() / planes.word_bytes();
        let (mut ranks, mut bits) = ([0; GROUP_ELEMS], [0; MAX_BIT_PLANES]);
        for (i, word) in words.chunks_exact(planes.word_bytes()).enumerate() {
            let elem = group * GROUP_ELEMS + i;
            let rotated = planes.parts.rotated(read_word(word));
            let kept = planes.dropped.shrink(rotated & low(planes.parts.low_bits()))?;
            for (plane, byte) in kept.to_le_bytes().into_iter().enumerate().take(shape.byte_planes) {
                out[plane * n + elem] = byte;
            }
            for (plane, bits) in bits[..shape.bit_planes as usize].iter_mut().enumerate() {
                *bits |= (kept >> (8 * shape.byte_planes + plane) & 1) << i;
            }
            let exponent = u16::try_from(rotated >> planes.parts.low_bits()).ok()?;
            let reduced = exponent.wrapping_sub(columns.base());
            ranks[i] = planes.ranks[usize::from(reduced) & (planes.ranks.len() - 1)];
            if ranks[i] == ESCAPE {
                escapes.push((elem, exponent));
            }
        }
        put_ranks(planes.schedule, &ranks[..n_group], out, at, &mut tiers_at);
        let mut plane_at = at + shape.code_bits(n_group);
        for bits in &bits[..shape.bit_planes as usize] {
            put(out, plane_at, *bits, bits_of(n_group));
            plane_at += n_group;
        }
        at += shape.group_bits(n_group);
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

/// Writes the codes of one group at bit `at`, and its tiers at `tiers_at`, which is moved.
fn put_ranks(schedule: Schedule, ranks: &[u8], out: &mut [u8], at: usize, tiers_at: &mut usize) {
    let n = ranks.len();
    // Bit `bit` of what each rank is, less `start` and at most `most`.
    let plane = |start: u8, most: u8, bit: u8| {
        let of = |plane, (i, rank): (usize, &u8)| {
            plane | u64::from(rank.saturating_sub(start).min(most) >> bit & 1) << i
        };
        ranks.iter().enumerate().fold(0, of)
    };
    match schedule {
        Schedule::Four => {
            let (first, second) = ranks.split_at(n.div_ceil(2));
            for (i, rank) in first.iter().enumerate() {
                let upper = second.get(i).map_or(0, |rank| rank.min(&15) << 4);
                out[at / 8 + i] = rank.min(&15) | upper;
            }
        }
        Schedule::Three => {
            for bit in 0..3 {
                put(out, at + usize::from(bit) * n, plane(0, 7, bit), bits_of(n));
            }
        }
        Schedule::Tiers => {
            let mut both = [plane(0, 3, 0), plane(0, 3, 1)];
            put(out, at, both[0], bits_of(n));
            put(out, at + n, both[1], bits_of(n));
            let mut goes_on = both[0] & both[1];
            for start in [3, 6] {
                both = [plane(start, 3, 0), plane(start, 3, 1)];
                for bits in both {
                    put(out, *tiers_at, extract(bits, goes_on), goes_on.count_ones());
                    *tiers_at += goes_on.count_ones() as usize;
                }
                goes_on &= both[0] & both[1];
            }
        }
    }
}
