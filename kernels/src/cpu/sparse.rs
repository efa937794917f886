//! Codec `sparse` by words of bits instead of bits: the output is filled with the common word, then the set bits of
//! each group are walked.
//!
//! No instruction beyond the baseline is needed, so every level but [`Level::Scalar`] runs this.

use super::{Backend, Level};
use crate::bits::{low, read_word, take};
use crate::scalar::ibp::{Packed, SLACK_BYTES};
use crate::scalar::{planes::Body, sparse as scalar};
use crate::sparse::{Dictionary, MAX_WORDS, SPAN_WORDS, Sparse, differing};
use crate::window::Word;

/// Bytes that a load of 64 bits from any bit needs.
const LOAD_BYTES: usize = 9;

impl Backend {
    /// As [`scalar::encode`]; `out` holds at least [`scalar::MAX_PACKED`] and [`SLACK_BYTES`] bytes.
    #[inline]
    pub(crate) fn encode_sparse(self, sparse: &Sparse, words: &[u8], out: &mut [u8]) -> Packed {
        match self.level() {
            Level::Scalar => scalar::encode(sparse, words, out),
            _ => encode_words(sparse, words, out),
        }
    }

    /// As [`scalar::decode`]; `room` is to put a body together, and holds as many bytes as `out` of
    /// [`Backend::encode_sparse`].
    ///
    /// # Errors
    /// How many bytes of the rest the record needs, where there are fewer; `words` then holds anything.
    #[inline]
    pub(crate) fn decode_sparse(
        self,
        sparse: &Sparse,
        body: &Body<'_>,
        words: &mut [u8],
        room: &mut [u8],
    ) -> Result<(), usize> {
        match self.level() {
            Level::Scalar => scalar::decode(sparse, body, words),
            _ => decode_words(sparse, body, words, room),
        }
    }
}

/// As [`Backend::encode_sparse`].
fn encode_words(sparse: &Sparse, words: &[u8], out: &mut [u8]) -> Packed {
    match sparse.word_bytes {
        1 => encode::<u8, MAX_WORDS>(sparse, words, out),
        2 => encode::<u16, { 2 * MAX_WORDS }>(sparse, words, out),
        4 => encode::<u32, { 4 * MAX_WORDS }>(sparse, words, out),
        _ => encode::<u64, { 8 * MAX_WORDS }>(sparse, words, out),
    }
}

/// As [`Backend::decode_sparse`].
fn decode_words(sparse: &Sparse, body: &Body<'_>, words: &mut [u8], room: &mut [u8]) -> Result<(), usize> {
    match sparse.word_bytes {
        1 => decode::<u8>(sparse, body, words, room),
        2 => decode::<u16>(sparse, body, words, room),
        4 => decode::<u32>(sparse, body, words, room),
        _ => decode::<u64>(sparse, body, words, room),
    }
}

/// Writes bits one after the other.
struct Writer<'a> {
    out: &'a mut [u8],
    /// Whole bytes written.
    at: usize,
    /// Bits after them, fewer than 8.
    left: u64,
    n_left: u32,
}

impl Writer<'_> {
    /// Writes up to 56 bits; those above are zero.
    #[inline(always)]
    fn push(&mut self, bits: u64, n_bits: u32) {
        let bits = self.left | bits << self.n_left;
        let n_bits = self.n_left + n_bits;
        self.out[self.at..][..8].copy_from_slice(&bits.to_le_bytes());
        self.at += (n_bits / 8) as usize;
        self.left = bits >> (n_bits & !7);
        self.n_left = n_bits % 8;
    }

    /// Writes whole bytes.
    #[inline(always)]
    fn push_bytes(&mut self, bytes: &[u8]) {
        let (chunks, short) = bytes.as_chunks::<8>();
        for chunk in chunks {
            let bits = u64::from_le_bytes(*chunk);
            self.out[self.at..][..8].copy_from_slice(&(self.left | bits << self.n_left).to_le_bytes());
            // Two shifts, because one of 64 has no meaning.
            self.left = bits >> 1 >> (63 - self.n_left);
            self.at += 8;
        }
        for &byte in short {
            self.push(u64::from(byte), 8);
        }
    }
}

/// The words of a record that differ, together.
struct Differing<const BYTES: usize> {
    bytes: [u8; BYTES],
    n: usize,
}

/// Encodes words of which a record has at most `BYTES` bytes.
fn encode<W: Word, const BYTES: usize>(sparse: &Sparse, words: &[u8], out: &mut [u8]) -> Packed {
    let n = words.len() / W::BYTES;
    let common = W::from_bits(sparse.common);
    let mut masks = [0; MAX_WORDS / SPAN_WORDS];
    let mut others = Differing { bytes: [0; BYTES], n: 0 };
    for (mask, span) in masks.iter_mut().zip(words.chunks(SPAN_WORDS * W::BYTES)) {
        *mask = differing(span, common);
        let mut left = *mask;
        while left != 0 {
            let i = left.trailing_zeros() as usize;
            left &= left - 1;
            let word = &span[i * W::BYTES..][..W::BYTES];
            others.bytes[others.n * W::BYTES..][..W::BYTES].copy_from_slice(word);
            others.n += 1;
        }
    }
    let bytes = &others.bytes[..others.n * W::BYTES];
    let mut room = [0; MAX_WORDS];
    let dictionary = sparse.dictionary.as_ref();
    let indexes = dictionary.and_then(|dictionary| indexes::<W>(dictionary, bytes, &mut room));
    let mut writer = Writer { out, at: 0, left: 0, n_left: 0 };
    writer.push(u64::from(indexes.is_none()), 1);
    push_masks(&mut writer, sparse.group_elems, &masks, n);
    match (indexes, dictionary) {
        (Some(indexes), Some(dictionary)) => push_indexes(&mut writer, indexes, dictionary.index_bits),
        _ => writer.push_bytes(bytes),
    }
    let bytes = writer.at + usize::from(writer.n_left > 0);
    if writer.n_left > 0 {
        writer.push(0, 8);
    }
    Packed { bytes, chunks: n as u64, participating: (n - others.n) as u64 }
}

/// The index of each word, where the dictionary has all of them.
#[inline(always)]
fn indexes<'a, W: Word>(
    dictionary: &Dictionary,
    words: &[u8],
    room: &'a mut [u8; MAX_WORDS],
) -> Option<&'a [u8]> {
    let n = words.len() / W::BYTES;
    for (number, word) in room.iter_mut().zip(words.chunks_exact(W::BYTES)) {
        *number = dictionary.index_of(W::read(word).into())?;
    }
    Some(&room[..n])
}

/// Writes indexes, as many at once as one push takes.
#[inline(always)]
fn push_indexes(writer: &mut Writer<'_>, indexes: &[u8], n_bits: u32) {
    let (chunks, short) = indexes.as_chunks::<7>();
    for chunk in chunks {
        let bits = chunk.iter().rev().fold(0, |bits, &number| bits << n_bits | u64::from(number));
        writer.push(bits, 7 * n_bits);
    }
    for &number in short {
        writer.push(u64::from(number), n_bits);
    }
}

/// Writes the bits of the groups, then those of the elements of differing groups.
#[inline(always)]
fn push_masks(writer: &mut Writer<'_>, group_elems: usize, masks: &[u64], n: usize) {
    let (group_bits, per_span) = (low(width(group_elems)), SPAN_WORDS / group_elems);
    for (span, mask) in masks[..n.div_ceil(SPAN_WORDS)].iter().enumerate() {
        let n_groups = (n - span * SPAN_WORDS).div_ceil(group_elems).min(per_span);
        let bits = (0..per_span).fold(0, |bits, group| {
            bits | u64::from(mask >> (group * group_elems) & group_bits != 0) << group
        });
        writer.push(bits, width(n_groups));
    }
    for (span, &mask) in masks.iter().enumerate() {
        let (mut left, mut elem) = (mask, span * SPAN_WORDS);
        while left != 0 {
            let n_bits = width(group_elems.min(n - elem));
            let bits = left & group_bits;
            if bits != 0 {
                writer.push(bits & low(32), n_bits.min(32));
                if n_bits > 32 {
                    writer.push(bits >> 32, n_bits - 32);
                }
            }
            elem += group_elems;
            // Two shifts, because one of 64 has no meaning.
            left = left >> 1 >> (group_elems - 1);
        }
    }
}

/// A number of bits of one word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "counts of bits of one word are at most 64")]
const fn width(n: usize) -> u32 {
    n as u32
}

/// 64 bits from bit `at`; zeros where not all of their bytes are there.
#[inline(always)]
fn load(bits: &[u8], at: usize) -> u64 {
    match bits.get(at / 8..).and_then(|bytes| bytes.first_chunk::<LOAD_BYTES>()) {
        Some(bytes) => read_word(&bytes[..8]) >> (at % 8) | u64::from(bytes[8]) << 1 << (63 - at % 8),
        None => 0,
    }
}

/// A word from bit `at`; 0 where not all bytes of the load are there.
#[inline(always)]
fn load_word<W: Word>(bits: &[u8], at: usize) -> W {
    if W::BYTES == 8 {
        return W::from_bits(load(bits, at));
    }
    let bytes = bits.get(at / 8..).and_then(|bytes| bytes.first_chunk::<8>());
    W::from_bits(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes) >> (at % 8)))
}

/// The parts of a packed record.
#[derive(Clone, Copy)]
struct Parts {
    n_groups: usize,
    /// Elements of the groups that differ.
    n_masked: usize,
    /// Bits of a stored word or index.
    value_bits: u32,
}

impl Parts {
    /// By the bits that are always in the front.
    #[inline(always)]
    fn read(sparse: &Sparse, front: &[u8], n: usize) -> Self {
        let n_groups = n.div_ceil(sparse.group_elems);
        let (mut n_masked, mut last) = (0, 0);
        for first in (0..n_groups).step_by(64) {
            let n_here = (n_groups - first).min(64);
            let groups = take(front, 1 + first, width(n_here));
            n_masked += groups.count_ones() as usize * sparse.group_elems;
            last = groups >> (n_here - 1);
        }
        // The last group may be shorter.
        if last == 1 {
            n_masked -= n_groups * sparse.group_elems - n;
        }
        let value_bits = match &sparse.dictionary {
            Some(dictionary) if take(front, 0, 1) == 0 => dictionary.index_bits,
            _ => sparse.word_bits(),
        };
        Self { n_groups, n_masked, value_bits }
    }

    /// The bit at which words or indexes start.
    #[inline(always)]
    const fn values_at(&self) -> usize {
        1 + self.n_groups + self.n_masked
    }

    /// Bytes to read, where every element of these groups differs, and those that a load reads beyond.
    #[inline(always)]
    const fn most_bytes(&self) -> usize {
        (self.values_at() + self.n_masked * self.value_bits as usize) / 8 + LOAD_BYTES
    }
}

#[inline(always)]
fn decode<W: Word>(sparse: &Sparse, body: &Body<'_>, words: &mut [u8], room: &mut [u8]) -> Result<(), usize> {
    let parts = Parts::read(sparse, body.front(), words.len() / W::BYTES);
    let needed = parts.most_bytes();
    let bits = match (body.rest(), body.bytes.get(..needed)) {
        (None, Some(bits)) => bits,
        (rest, _) => {
            let inside = body.front_len.min(needed);
            room[..inside].copy_from_slice(&body.bytes[..inside]);
            let rest = rest.unwrap_or(&[]);
            let outside = rest.len().min(needed - inside);
            room[inside..][..outside].copy_from_slice(&rest[..outside]);
            room[inside + outside..needed].fill(0);
            &room[..needed]
        }
    };
    fill(words, W::from_bits(sparse.common));
    let at = parts.values_at();
    let end = match &sparse.dictionary {
        Some(dictionary) if bits[0] & 1 == 0 => match dictionary.index_bits {
            0 => {
                let word = W::from_bits(dictionary.word(0));
                walk::<W>(sparse, parts, bits, words, |_| word);
                at
            }
            n_bits => {
                let value = |i| {
                    let number = load_word::<u16>(bits, at + i * n_bits as usize);
                    W::from_bits(dictionary.word(u64::from(number) & low(n_bits)))
                };
                at + walk::<W>(sparse, parts, bits, words, value) * n_bits as usize
            }
        },
        _ => {
            let value = |i| load_word::<W>(bits, at + 8 * i * W::BYTES);
            at + walk::<W>(sparse, parts, bits, words, value) * 8 * W::BYTES
        }
    };
    if body.rest_at.is_none() && end > 8 * body.front_len {
        // Bits after the front are not the record's: a damaged one, whose missing bits are zeros.
        return scalar::decode(sparse, body, words);
    }
    body.check_end(end)
}

/// Fills `words` with one word.
#[inline(always)]
fn fill<W: Word>(words: &mut [u8], word: W) {
    let bytes = Into::<u64>::into(word).to_le_bytes();
    let bytes = &bytes[..W::BYTES];
    if bytes.iter().all(|byte| *byte == bytes[0]) {
        words.fill(bytes[0]);
    } else {
        for bytes in words.chunks_exact_mut(W::BYTES) {
            word.write(bytes);
        }
    }
}

/// Writes every differing word, of which `value` returns the one with a number; returns how many there are.
#[inline(always)]
fn walk<W: Word>(
    sparse: &Sparse,
    parts: Parts,
    bits: &[u8],
    words: &mut [u8],
    value: impl Fn(usize) -> W,
) -> usize {
    let group_bytes = sparse.group_elems * W::BYTES;
    let (mut n, mut at) = (0, 1 + parts.n_groups);
    for first in (0..parts.n_groups).step_by(64) {
        let mut groups = take(bits, 1 + first, width((parts.n_groups - first).min(64)));
        while groups != 0 {
            let start = (first + groups.trailing_zeros() as usize) * group_bytes;
            groups &= groups - 1;
            let end = words.len().min(start + group_bytes);
            let group = &mut words[start..end];
            let n_elems = group.len() / W::BYTES;
            let mut elems = load(bits, at) & low(width(n_elems));
            at += n_elems;
            while elems != 0 {
                let elem = elems.trailing_zeros() as usize;
                elems &= elems - 1;
                value(n).write(&mut group[elem * W::BYTES..][..W::BYTES]);
                n += 1;
            }
        }
    }
    n
}

// A room for packed records holds what loads read and stores write beyond them.
const _: () = assert!(LOAD_BYTES <= SLACK_BYTES && 16 <= SLACK_BYTES);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tierpack_shm::types::Dtype;

    use super::*;
    use crate::metadata;

    /// Reads one body by the specification and by the fast path.
    fn compare(sparse: &Sparse, body: &Body<'_>, n_bytes: usize) {
        let (mut expected, mut words) = (vec![0xA5; n_bytes], vec![0x5A; n_bytes]);
        let mut room = vec![0xEE; scalar::MAX_PACKED + SLACK_BYTES];
        let result = scalar::decode(sparse, body, &mut expected);
        assert_eq!(decode_words(sparse, body, &mut words, &mut room), result);
        assert!(result.is_err() || words == expected, "{sparse:?}");
        // What was read is written back alike.
        let mut packed = [vec![0xEE; room.len()], room];
        let [by_bits, by_words] = &mut packed;
        let written = scalar::encode(sparse, &expected, by_bits);
        assert_eq!(encode_words(sparse, &expected, by_words), written);
        assert!(by_bits[..written.bytes] == by_words[..written.bytes], "{sparse:?}");
    }

    fn dictionary() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![
            Just(vec![]),
            Just(vec![u64::MAX / 255]),
            proptest::collection::vec(0..9_u64, 1..9),
            proptest::collection::vec(any::<u64>(), 1..=256),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn any_bits_give_what_the_specification_gives(
            dtype in proptest::sample::select(&[Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::C64][..]),
            group_elems in proptest::sample::select(&[8_u8, 16, 32, 64][..]),
            common in any::<u64>(),
            dictionary in dictionary(),
            n in prop_oneof![1..200_usize, 900..=1024_usize],
            noise in proptest::collection::vec(prop_oneof![Just(0), Just(0x41), any::<u8>()], 1..400),
            front in 0..256_usize,
            rest in prop_oneof![Just(None), (0..4000_usize).prop_map(Some)],
        ) {
            let mask = low(dtype.bits());
            let dictionary: Vec<u64> = dictionary.iter().map(|word| word & mask).collect();
            let form = metadata::Sparse::new(group_elems, common & mask, &dictionary);
            let sparse = Sparse::new(&form, dtype);
            let least = (1 + n.div_ceil(sparse.group_elems)).div_ceil(8);
            let front_len = least + front * n * sparse.word_bytes / 256;
            let bytes: Vec<u8> = noise.iter().copied().cycle().take(front_len + 5000).collect();
            for len in [front_len, front_len + 3, bytes.len()] {
                // The rest is at the end, after bytes that are not the record's.
                let rest_at = rest.map(|rest: usize| len - rest.min(len - front_len));
                let body = Body { bytes: &bytes[..len], front_len, rest_at };
                compare(&sparse, &body, n * sparse.word_bytes);
            }
        }
    }
}
