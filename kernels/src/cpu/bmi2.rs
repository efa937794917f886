//! Codec `ibp` with `pext` and `pdep`: 8 bytes of words at a time, whatever the chunk.
//!
//! The chunks of a group of 8 bytes lie one after the other in the packed bits, least significant first.
//! So one deposit fills the group: its mask has, for each chunk, the bits that the chunk stores, all of them or
//! those that are not invariant, as its participation bit says.
#![expect(unsafe_code, reason = "dispatch to functions that need instructions of this machine")]

use core::arch::x86_64::{_pdep_u64, _pext_u64};

use tierpack_shm::types::index;

use super::{Backend, Split};
use crate::bits::read_word;
use crate::coder::{Deposit, Deposits, GROUP_BYTES, Group, Masks, missing_bits};
use crate::scalar::ibp::{Packed, SLACK_BYTES, max_packed};
use crate::window::Window;

macro_rules! dispatch {
    ($function:ident, $chunk_bytes:expr, $($argument:expr),*) => {
        match $chunk_bytes {
            // SAFETY: a `Backend` of this level is only made where the machine has the instructions.
            2 => unsafe { $function::<2>($($argument),*) },
            // SAFETY: as above.
            4 => unsafe { $function::<4>($($argument),*) },
            // SAFETY: as above.
            _ => unsafe { $function::<8>($($argument),*) },
        }
    };
}

/// As [`Backend::encode`].
pub(super) fn encode(
    _backend: Backend,
    window: &Window,
    start: usize,
    words: &mut [u8],
    masks: &Masks<'_>,
    out: &mut [u8],
) -> Packed {
    dispatch!(encode_chunks, masks.chunk_bytes, window, start, words, masks, out)
}

/// As [`Backend::decode`].
pub(super) fn decode(
    _backend: Backend,
    window: &Window,
    start: usize,
    bits: &[u8],
    masks: &Masks<'_>,
    words: &mut [u8],
) {
    dispatch!(decode_chunks, masks.chunk_bytes, window, start, bits, masks, words);
}

/// As [`Backend::decode_split`].
pub(super) fn decode_split(
    _backend: Backend,
    window: &Window,
    start: usize,
    body: Split<'_>,
    masks: &Masks<'_>,
    words: &mut [u8],
) -> Result<(), usize> {
    dispatch!(decode_split_chunks, masks.chunk_bytes, window, start, body, masks, words)
}

/// All bits of the chunks that participate, by the participation bits of one group.
#[inline(always)]
fn participants<const CHUNK: usize>(bits: u64) -> u64 {
    /// Derivation: bit i of the index sets the 16 bits of chunk i.
    const PAIRS: [u64; 16] = {
        let mut table = [0; 16];
        let mut i = 0_u64;
        while i < 16 {
            let spread = (i & 1) | (i & 2) << 15 | (i & 4) << 30 | (i & 8) << 45;
            table[index(i)] = spread * 0xFFFF;
            i += 1;
        }
        table
    };
    match CHUNK {
        2 => PAIRS[index(bits & 15)],
        4 => (bits & 1 | (bits & 2) << 31) * 0xFFFF_FFFF,
        _ => (bits & 1).wrapping_neg(),
    }
}

/// Bytes of words that one turn of the decoder's loop fills: eight groups.
const LINE_BYTES: usize = 8 * GROUP_BYTES;

/// Bits that one load of 8 bytes has, whatever the bit that it starts with.
const NARROW_BITS: u32 = 57;

/// `n_bits` bits from bit `at % 8` of 9 bytes, and others after them.
///
/// The ninth byte is read where the bits reach it.
/// `WIDE` asks so exactly; else only `n_bits` counts, which costs less and is known before `at` is, but reads the
/// byte for every group of more than [`NARROW_BITS`] bits.
#[inline(always)]
fn load<const WIDE: bool>(nine: &[u8; 9], at: usize, n_bits: u32) -> u64 {
    let [first @ .., last] = *nine;
    let low = u64::from_le_bytes(first) >> (at % 8);
    let all = if WIDE { n_bits as usize + at % 8 <= 64 } else { n_bits <= NARROW_BITS };
    if all {
        return low;
    }
    // Keeps this a branch: a select would have every group wait for the ninth byte.
    core::hint::cold_path();
    low | u64::from(last) << 1 << (63 - at % 8)
}

#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn decode_chunks<const CHUNK: usize>(
    window: &Window,
    start: usize,
    bits: &[u8],
    masks: &Masks<'_>,
    words: &mut [u8],
) {
    unpack::<CHUNK>(bits, masks, words);
    window.inverse(start, words);
}

/// Puts front and rest together, as much of them as any record of this length may have, then decodes that.
///
/// How long the record is comes out at the end: to find out before would take a second walk over its groups.
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn decode_split_chunks<const CHUNK: usize>(
    window: &Window,
    start: usize,
    body: Split<'_>,
    masks: &Masks<'_>,
    words: &mut [u8],
) -> Result<(), usize> {
    let Split { front, rest, scratch } = body;
    let room = max_packed(words.len(), CHUNK) + SLACK_BYTES;
    let bits = &mut scratch[..room];
    let (inside, outside) = bits.split_at_mut(front.len().min(room));
    copy(inside, front);
    copy(outside, rest);
    let n_bits = unpack::<CHUNK>(bits, masks, words);
    let needed = n_bits.div_ceil(8).saturating_sub(front.len());
    if rest.len() < needed {
        return Err(needed);
    }
    window.inverse(start, words);
    Ok(())
}

/// Copies as many bytes as both have; inline, which for some hundred bytes is faster than a call.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn copy(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    let (to, from) = (&mut to[..len], &from[..len]);
    for (to, from) in to.chunks_exact_mut(64).zip(from.chunks_exact(64)) {
        to.copy_from_slice(from);
    }
    match (to.last_chunk_mut::<64>(), from.last_chunk::<64>()) {
        (Some(to), Some(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// What a group stores for its participation bits; bytes that it lacks are not stored.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn deposit<const CHUNK: usize>(group: &Group, part: u64, missing: u64) -> Deposit {
    let chunks = participants::<CHUNK>(part);
    let stored = !(group.mask & chunks | missing);
    Deposit { stored, value: group.bitval & chunks, n_stored: stored.count_ones() }
}

/// The participation bits of a group whose chunks all participate.
const fn last_pattern(chunk_bytes: usize) -> usize {
    (1 << (GROUP_BYTES / chunk_bytes)) - 1
}

/// Decodes a record; returns the bits that it was packed to.
///
/// `bits` holds at least [`max_packed`] and [`SLACK_BYTES`] bytes; those after the record may be anything.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn unpack<const CHUNK: usize>(bits: &[u8], masks: &Masks<'_>, words: &mut [u8]) -> usize {
    let Some(deposits) = masks.deposits else {
        let word_of = |reader: &mut Reader<'_>, group: &Group, part| {
            if CHUNK == GROUP_BYTES && part & 1 == 0 {
                return reader.take::<true>(64);
            }
            // What the branch found out saves the deposit a mask.
            let part = if CHUNK == GROUP_BYTES { 1 } else { part };
            let Deposit { stored, value, n_stored } = deposit::<CHUNK>(group, part, 0);
            _pdep_u64(reader.take::<false>(n_stored), stored) | value
        };
        return unpack_by::<CHUNK>(bits, masks, words, word_of);
    };
    if CHUNK == GROUP_BYTES {
        // One deposit serves all, and stays in registers.
        let Deposit { stored, value, n_stored } = deposits[1];
        let word_of = |reader: &mut Reader<'_>, _: &Group, part| {
            if part & 1 == 0 {
                reader.take::<true>(64)
            } else {
                _pdep_u64(reader.take::<false>(n_stored), stored) | value
            }
        };
        return unpack_by::<CHUNK>(bits, masks, words, word_of);
    }
    // Where a group of which one chunk does not participate is wide, wide groups are frequent.
    if deposits[const { last_pattern(CHUNK) - 1 }].n_stored > NARROW_BITS {
        unpack_by_table::<CHUNK, true>(bits, masks, deposits, words)
    } else {
        unpack_by_table::<CHUNK, false>(bits, masks, deposits, words)
    }
}

#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn unpack_by_table<const CHUNK: usize, const WIDE: bool>(
    bits: &[u8],
    masks: &Masks<'_>,
    deposits: &Deposits,
    words: &mut [u8],
) -> usize {
    let word_of = |reader: &mut Reader<'_>, _: &Group, part| {
        let Deposit { stored, value, n_stored } = deposits[index(part) & const { last_pattern(CHUNK) } & 15];
        _pdep_u64(reader.take::<WIDE>(n_stored), stored) | value
    };
    unpack_by::<CHUNK>(bits, masks, words, word_of)
}

/// Reads packed bits: [`unpack_by`] makes one and takes one group of at most 64 bits for each of its groups.
struct Reader<'a> {
    /// [`max_packed`] and [`SLACK_BYTES`] bytes.
    bits: &'a [u8],
    /// The next bit.
    at: usize,
}

impl Reader<'_> {
    /// The next `n_bits` bits, and others after them.
    #[inline(always)]
    fn take<const WIDE: bool>(&mut self, n_bits: u32) -> u64 {
        let at = self.at;
        debug_assert!(n_bits <= 64 && at / 8 + 9 <= self.bits.len());
        // SAFETY: the groups of a record store at most its bits, rounded up to a group; after those and the
        // participation bits, which `max_packed` counts, the slack has more than a group and 9 bytes.
        let nine = unsafe { self.bits.get_unchecked(at / 8..at / 8 + 9) };
        self.at += n_bits as usize;
        nine.try_into().map_or(0, |nine| load::<WIDE>(nine, at, n_bits))
    }
}

/// Decodes a record whose words `word_of` reads, by the masks and the participation bits of a group.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn unpack_by<const CHUNK: usize>(
    bits: &[u8],
    masks: &Masks<'_>,
    words: &mut [u8],
    word_of: impl Fn(&mut Reader<'_>, &Group, u64) -> u64,
) -> usize {
    let bits = &bits[..max_packed(words.len(), CHUNK) + SLACK_BYTES];
    let mut reader = Reader { bits, at: words.len().div_ceil(CHUNK) };
    let lanes = GROUP_BYTES / CHUNK;
    let n_lines = words.len() / LINE_BYTES;
    let (lines, last) = words.split_at_mut(n_lines * LINE_BYTES);
    let (groups, last_groups) = masks.groups.split_at(n_lines * GROUP_BYTES);
    let lines = lines.chunks_exact_mut(LINE_BYTES).zip(groups.chunks_exact(GROUP_BYTES));
    // A line has a participation bit for each bit of as many bytes as a group has chunks.
    for ((line, groups), parts) in lines.zip(bits.chunks_exact(lanes)) {
        let mut part = read_word(parts);
        for (bytes, group) in line.chunks_exact_mut(GROUP_BYTES).zip(groups) {
            bytes.copy_from_slice(&word_of(&mut reader, group, part).to_le_bytes());
            part >>= lanes;
        }
    }
    let mut part = read_word(&bits[n_lines * lanes..][..GROUP_BYTES]);
    for (bytes, group) in last.chunks_mut(GROUP_BYTES).zip(last_groups) {
        if let Ok(bytes) = <&mut [u8; GROUP_BYTES]>::try_from(&mut *bytes) {
            *bytes = word_of(&mut reader, group, part).to_le_bytes();
        } else {
            let missing = missing_bits(bytes.len());
            let Deposit { stored, value, n_stored } = deposit::<CHUNK>(group, part, missing);
            let word = _pdep_u64(reader.take::<true>(n_stored), stored) | value;
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        part >>= lanes;
    }
    reader.at
}

/// Collects packed bits.
struct Writer<'a> {
    out: &'a mut [u8],
    /// Where the bits in `held` go.
    at: usize,
    held: u64,
    /// Bits held, below 64.
    n_held: u32,
}

impl Writer<'_> {
    #[inline(always)]
    fn put(&mut self, value: u64, n_bits: u32) {
        self.held |= value << self.n_held;
        let n_held = self.n_held + n_bits;
        if n_held >= 64 {
            self.flush();
            // Two shifts, because one of 64 has no meaning.
            self.held = value >> 1 >> (63 - self.n_held);
        }
        self.n_held = n_held % 64;
    }

    #[inline(always)]
    fn flush(&mut self) {
        if let Some(bytes) = self.out.get_mut(self.at..self.at + 8) {
            bytes.copy_from_slice(&self.held.to_le_bytes());
        }
        self.at += 8;
    }
}

/// The participation bits of one group: chunks whose invariant bits have no difference.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn fitting<const CHUNK: usize>(differences: u64) -> u64 {
    const TOP: u64 = 0x8000_8000_8000_8000;
    match CHUNK {
        2 => {
            // The top bit of a sum is set where the 15 low bits are not all zero.
            let differs = ((differences & !TOP) + !TOP) | differences;
            _pext_u64(!differs, TOP)
        }
        4 => u64::from(differences << 32 == 0) | u64::from(differences >> 32 == 0) << 1,
        _ => u64::from(differences == 0),
    }
}

#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn encode_chunks<const CHUNK: usize>(
    window: &Window,
    start: usize,
    words: &mut [u8],
    masks: &Masks<'_>,
    out: &mut [u8],
) -> Packed {
    window.forward(start, words);
    let lanes = GROUP_BYTES / CHUNK;
    let n_chunks = words.len().div_ceil(CHUNK);
    let n_held = u32::try_from(n_chunks % 8).unwrap_or(0);
    let mut writer = Writer { out, at: n_chunks / 8, held: 0, n_held };
    let mut participating = 0;
    let pack = |bytes: &[u8], &Group { mask, bitval }: &Group, writer: &mut Writer<'_>| {
        let missing = missing_bits(bytes.len());
        let word = read_word(bytes);
        let part = fitting::<CHUNK>((word ^ bitval) & mask & !missing);
        let stored = !(mask & participants::<CHUNK>(part) | missing);
        writer.put(_pext_u64(word, stored), stored.count_ones());
        part
    };
    let eights = words.chunks_exact(8 * CHUNK);
    let rest = eights.remainder();
    let n_eights = eights.len();
    let (whole, last) = masks.groups.split_at(CHUNK * n_eights);
    for (i, (eight, groups)) in eights.zip(whole.chunks_exact(CHUNK)).enumerate() {
        let mut parts = 0;
        for (j, (bytes, group)) in eight.chunks_exact(GROUP_BYTES).zip(groups).enumerate() {
            parts |= pack(bytes, group, &mut writer) << (j * lanes);
        }
        participating += u64::from(parts.count_ones());
        writer.out[i] = parts.to_le_bytes()[0];
    }
    let mut parts = 0;
    for (j, (bytes, group)) in rest.chunks(GROUP_BYTES).zip(last).enumerate() {
        parts |= pack(bytes, group, &mut writer) << (j * lanes);
    }
    // A group may have room for more chunks than there are.
    let parts = parts & !missing_parts(rest.len().div_ceil(CHUNK));
    participating += u64::from(parts.count_ones());
    let n_bits = 8 * writer.at + writer.n_held as usize;
    writer.flush();
    if !rest.is_empty() {
        // The bits start in this byte where it is not full of participation bits.
        let shared = if n_chunks.is_multiple_of(8) { 0 } else { out[n_eights] };
        out[n_eights] = shared | parts.to_le_bytes()[0];
    }
    Packed { bytes: n_bits.div_ceil(8), chunks: n_chunks as u64, participating }
}

/// Participation bits of chunks that a record does not have.
#[inline(always)]
const fn missing_parts(n_chunks: usize) -> u64 {
    u64::MAX << n_chunks
}

#[cfg(test)]
mod tests;
