//! Codec `ibp`, one record at a time: the specification in code.
//!
//! A record is cut into chunks of 2, 4 or 8 bytes; the last may be shorter.
//! A chunk *participates* when its invariant bits all have their values; it then stores only the others.
//! Packed are one participation bit per chunk, then the bits of every chunk, least significant first, with no
//! padding between them.
//! Source: FORMAT.md, section "Codec ibp".

use crate::bits::{deposit, extract, put, read_word, take};
use crate::coder::Masks;

/// What an encoder packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Bytes, the last filled up with zero bits.
    pub(crate) bytes: usize,
    /// Chunks of the record.
    pub(crate) chunks: u64,
    /// Those that participate.
    pub(crate) participating: u64,
}

/// Bytes after packed bits that a backend may read, and may write in a buffer: eight chunks and a word.
pub(crate) const SLACK_BYTES: usize = 80;

/// The most bytes that a record of `raw_bytes` bytes packs to.
#[inline]
pub(crate) const fn max_packed(raw_bytes: usize, chunk_bytes: usize) -> usize {
    raw_bytes.div_ceil(chunk_bytes).div_ceil(8) + raw_bytes
}

/// Packs the words of one record into `out`, which holds at least [`max_packed`] bytes.
pub(crate) fn encode(words: &[u8], masks: &Masks<'_>, out: &mut [u8]) -> Packed {
    out.fill(0);
    let n_chunks = words.len().div_ceil(masks.chunk_bytes);
    let mut end = n_chunks;
    let mut participating = 0;
    for (chunk, bytes) in words.chunks(masks.chunk_bytes).enumerate() {
        let (group, n_bits) = masks.chunk(chunk, words.len());
        let word = read_word(bytes);
        if (word ^ group.bitval) & group.mask == 0 {
            participating += 1;
            put(out, chunk, 1, 1);
            let kept = !group.mask;
            put(out, end, extract(word, kept), kept.count_ones());
            end += kept.count_ones() as usize;
        } else {
            put(out, end, word, n_bits);
            end += n_bits as usize;
        }
    }
    Packed { bytes: end.div_ceil(8), chunks: n_chunks as u64, participating }
}

/// Takes [`encode`] back: fills `words` from `bits`.
///
/// Bits after the end of `bits` count as zero, so that any bytes decode to some words.
pub(crate) fn decode(bits: &[u8], masks: &Masks<'_>, words: &mut [u8]) {
    let len = words.len();
    let mut at = len.div_ceil(masks.chunk_bytes);
    for (chunk, bytes) in words.chunks_mut(masks.chunk_bytes).enumerate() {
        let (group, n_bits) = masks.chunk(chunk, len);
        let word = if take(bits, chunk, 1) == 1 {
            let kept = !group.mask;
            let packed = take(bits, at, kept.count_ones());
            at += kept.count_ones() as usize;
            deposit(packed, kept) | group.bitval
        } else {
            let word = take(bits, at, n_bits);
            at += n_bits as usize;
            word
        };
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// Bytes that the record with these participation bits was packed to.
pub(crate) fn packed_len(bits: &[u8], masks: &Masks<'_>, raw_bytes: usize) -> usize {
    let n_chunks = raw_bytes.div_ceil(masks.chunk_bytes);
    let n_bits: usize = (0..n_chunks)
        .map(|chunk| {
            let (group, n_bits) = masks.chunk(chunk, raw_bytes);
            let stored = if take(bits, chunk, 1) == 1 { group.mask.count_zeros() } else { n_bits };
            stored as usize
        })
        .sum();
    (n_chunks + n_bits).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::Group;

    #[test]
    fn a_record_packs_as_the_format_says() {
        // Chunks of 2 bytes whose top 8 bits are invariant 0x3F: the first and the last match.
        let groups = [Group { mask: 0xFF00_FF00_FF00_FF00, bitval: 0x3F00_3F00_3F00_3F00 }; 1];
        let masks = Masks { chunk_bytes: 2, groups: &groups, deposits: None };
        let words = [0x81, 0x3F, 0x02, 0x40, 0x7F];
        let mut out = [0xEE; 8];
        let packed = encode(&words, &masks, &mut out);
        // The last chunk has one byte: its missing byte is an invariant zero, so it cannot match 0x3F.
        assert_eq!(packed, Packed { bytes: 5, chunks: 3, participating: 2 });
        // 1, 0, 1, then 0x81, 0x4002, 0x7F, each shifted up by the bits before it.
        let value: u64 = 0b101 | 0x81 << 3 | 0x4002 << 11 | 0x7F << 27;
        assert_eq!(out, value.to_le_bytes());
        assert_eq!(packed_len(&out, &masks, 5), 5);
        let mut decoded = [0; 5];
        decode(&out[..5], &masks, &mut decoded);
        assert_eq!(decoded, words);
    }
}
