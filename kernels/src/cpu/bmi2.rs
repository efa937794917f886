//! Codec `ibp` with `pext` and `pdep`: 8 bytes of words at a time, whatever the chunk.
//!
//! The chunks of a group of 8 bytes stand one after the other in the packed bits, least significant first.
//! So one deposit fills the group: its mask has, for each chunk, the bits that the chunk stores, all of them or
//! those that are not invariant, as its participation bit says.
#![expect(unsafe_code, reason = "dispatch to functions that need instructions of this machine")]

use core::arch::x86_64::{_pdep_u64, _pext_u64};

use tierpack_shm::types::index;

use super::{Backend, Split};
use crate::bits::read_word;
use crate::coder::{Deposit, GROUP_BYTES, Group, Masks, missing_bits};
use crate::scalar::ibp::{Packed, SLACK_BYTES};
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

/// Where a decoder stands in a record.
#[derive(Clone, Copy)]
struct Position {
    /// Words decoded, in bytes: a multiple of 8 chunks.
    done: usize,
    /// The next packed bit.
    at: usize,
}

/// 64 bits from bit `at`; those after the end are zero.
#[inline(always)]
fn load(bits: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 9];
    let there = bits.get(at / 8..).unwrap_or(&[]);
    let len = there.len().min(9);
    bytes[..len].copy_from_slice(&there[..len]);
    shifted(&bytes, at)
}

/// 64 bits from bit `at % 8` of 9 bytes.
#[inline(always)]
fn shifted(bytes: &[u8; 9], at: usize) -> u64 {
    let (low, high) = (read_word(&bytes[..8]), u64::from(bytes[8]));
    // Two shifts, because one of 64 has no meaning.
    low >> (at % 8) | high << 1 << (63 - at % 8)
}

#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn decode_chunks<const CHUNK: usize>(
    window: &Window,
    start: usize,
    bits: &[u8],
    masks: &Masks<'_>,
    words: &mut [u8],
) {
    let position = Position { done: 0, at: words.len().div_ceil(CHUNK) };
    let position = decode_eights::<CHUNK>(bits, bits, position, masks, words);
    decode_rest::<CHUNK>(bits, bits, position, masks, words);
    window.inverse(start, words);
}

/// Decodes from the front as far as it goes, then what is left from front and rest put together.
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn decode_split_chunks<const CHUNK: usize>(
    window: &Window,
    start: usize,
    body: Split<'_>,
    masks: &Masks<'_>,
    words: &mut [u8],
) -> Result<(), usize> {
    let Split { front, rest, scratch } = body;
    let position = Position { done: 0, at: words.len().div_ceil(CHUNK) };
    let Position { done, at } = decode_eights::<CHUNK>(front, front, position, masks, words);
    let end = at + stored_bits::<CHUNK>(front, done, masks, words.len());
    let needed = end.div_ceil(8).saturating_sub(front.len());
    let rest = rest.get(..needed).ok_or(needed)?;
    let inside = front.get(at / 8..).unwrap_or(&[]);
    let len = inside.len() + rest.len();
    scratch[..inside.len()].copy_from_slice(inside);
    scratch[inside.len()..len].copy_from_slice(rest);
    let bits = &scratch[..len + SLACK_BYTES];
    let position = Position { done, at: at % 8 };
    let position = decode_eights::<CHUNK>(front, bits, position, masks, words);
    decode_rest::<CHUNK>(front, bits, position, masks, words);
    window.inverse(start, words);
    Ok(())
}

/// What a group stores for its participation bits; bytes that it lacks are not stored.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn deposit<const CHUNK: usize>(group: &Group, part: u64, missing: u64) -> Deposit {
    let chunks = participants::<CHUNK>(part);
    let stored = !(group.mask & chunks | missing);
    Deposit { stored, value: group.bitval & chunks, n_stored: stored.count_ones() as usize }
}

/// Decodes eight chunks after the other, until fewer are left or the packed bits may end.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn decode_eights<const CHUNK: usize>(
    parts: &[u8],
    packed: &[u8],
    position: Position,
    masks: &Masks<'_>,
    words: &mut [u8],
) -> Position {
    if let Some(deposits) = masks.deposits {
        let patterns = (1 << (GROUP_BYTES / CHUNK)) - 1;
        let deposit_of = |_: &Group, part| deposits[index(part & patterns & 15)];
        eights_by::<CHUNK>(parts, packed, position, masks, words, deposit_of)
    } else {
        let deposit_of = |group: &Group, part| deposit::<CHUNK>(group, part, 0);
        eights_by::<CHUNK>(parts, packed, position, masks, words, deposit_of)
    }
}

#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn eights_by<const CHUNK: usize>(
    parts: &[u8],
    packed: &[u8],
    position: Position,
    masks: &Masks<'_>,
    words: &mut [u8],
    deposit_of: impl Fn(&Group, u64) -> Deposit,
) -> Position {
    let Position { mut done, mut at } = position;
    // Eight chunks share a byte of participation bits, and have `CHUNK` groups.
    let parts = parts.iter().skip(done / (8 * CHUNK));
    let eights = words[done..].chunks_exact_mut(8 * CHUNK);
    let groups = masks.groups[done / GROUP_BYTES..].chunks_exact(CHUNK);
    for ((eight, groups), &part) in eights.zip(groups).zip(parts) {
        if at / 8 + 8 * CHUNK + 9 > packed.len() {
            break;
        }
        let mut part = u64::from(part);
        for (bytes, group) in eight.chunks_exact_mut(GROUP_BYTES).zip(groups) {
            let Deposit { stored, value, n_stored } = deposit_of(group, part);
            // SAFETY: `at` grew by at most 64 for each of the up to `CHUNK` - 1 groups since the check, which left
            // 8 bytes for each group and 9 more.
            let nine = unsafe { packed.get_unchecked(at / 8..at / 8 + 9) };
            let bits = nine.try_into().map_or(0, |nine| shifted(nine, at));
            bytes.copy_from_slice(&(_pdep_u64(bits, stored) | value).to_le_bytes());
            at += n_stored;
            part >>= GROUP_BYTES / CHUNK;
        }
        done += 8 * CHUNK;
    }
    Position { done, at }
}

/// Decodes what is left, which may end within a group.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn decode_rest<const CHUNK: usize>(
    parts: &[u8],
    packed: &[u8],
    position: Position,
    masks: &Masks<'_>,
    words: &mut [u8],
) {
    let Position { done, mut at } = position;
    let parts = parts.iter().skip(done / (8 * CHUNK));
    let groups = masks.groups[done / GROUP_BYTES..].chunks(CHUNK);
    for ((words, groups), &part) in words[done..].chunks_mut(8 * CHUNK).zip(groups).zip(parts) {
        let mut part = u64::from(part);
        for (bytes, group) in words.chunks_mut(GROUP_BYTES).zip(groups) {
            let Deposit { stored, value, n_stored } =
                deposit::<CHUNK>(group, part, missing_bits(bytes.len()));
            let word = (_pdep_u64(load(packed, at), stored) | value).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
            at += n_stored;
            part >>= GROUP_BYTES / CHUNK;
        }
    }
}

/// Packed bits of the chunks after the first `done` bytes.
#[inline]
#[target_feature(enable = "bmi1,bmi2,popcnt,avx2")]
fn stored_bits<const CHUNK: usize>(parts: &[u8], done: usize, masks: &Masks<'_>, raw_bytes: usize) -> usize {
    let (mut left, mut n_bits) = (raw_bytes - done, 0);
    let groups = masks.groups[done / GROUP_BYTES..].chunks(CHUNK);
    for (groups, &part) in groups.zip(parts.iter().skip(done / (8 * CHUNK))) {
        if left == 0 {
            break;
        }
        let mut part = u64::from(part);
        for group in groups {
            n_bits += deposit::<CHUNK>(group, part, missing_bits(left)).n_stored;
            left = left.saturating_sub(GROUP_BYTES);
            part >>= GROUP_BYTES / CHUNK;
        }
    }
    n_bits
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
