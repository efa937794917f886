//! Codec `sparse`, one record at a time: the specification in code.
//!
//! A record's body is a string of bits: how the differing words are written, one bit per group of elements, the
//! element bits of the groups that have differing words, then these words or their indexes.
//! Source: FORMAT.md, section "Codec sparse".

use super::ibp::Packed;
use super::planes::Body;
use crate::bits::{put, read_word};
use crate::cut::MAX_RECORD_BYTES;
use crate::sparse::{MAX_WORDS, Sparse};

/// The most bytes that a record packs to: all words, the bits of every element and group, and one.
pub(crate) const MAX_PACKED: usize = MAX_RECORD_BYTES + (1 + MAX_WORDS / 8 + MAX_WORDS).div_ceil(8);

/// Packs the words of one record into `out`, which holds at least [`MAX_PACKED`] bytes.
pub(crate) fn encode(sparse: &Sparse, words: &[u8], out: &mut [u8]) -> Packed {
    out.fill(0);
    let n = words.len() / sparse.word_bytes;
    let differs = |word: &[u8]| read_word(word) != sparse.common;
    let differing = || words.chunks_exact(sparse.word_bytes).filter(|word| differs(word)).map(read_word);
    let dictionary = sparse.dictionary.as_ref();
    let dictionary =
        dictionary.filter(|dictionary| differing().all(|word| dictionary.index_of(word).is_some()));
    put(out, 0, u64::from(dictionary.is_none()), 1);
    let mut at = 1 + n.div_ceil(sparse.group_elems);
    for (group, words) in words.chunks(sparse.group_elems * sparse.word_bytes).enumerate() {
        if !words.chunks_exact(sparse.word_bytes).any(differs) {
            continue;
        }
        put(out, 1 + group, 1, 1);
        for word in words.chunks_exact(sparse.word_bytes) {
            put(out, at, u64::from(differs(word)), 1);
            at += 1;
        }
    }
    for word in differing() {
        let (value, n_bits) = match dictionary {
            Some(dictionary) => (dictionary.index_of(word).unwrap_or(0).into(), dictionary.index_bits),
            None => (word, sparse.word_bits()),
        };
        put(out, at, value, n_bits);
        at += n_bits as usize;
    }
    let n_differing = differing().count();
    Packed { bytes: at.div_ceil(8), chunks: n as u64, participating: (n - n_differing) as u64 }
}

/// Takes [`encode`] back.
///
/// # Errors
/// The bytes that the rest must have.
pub(crate) fn decode(sparse: &Sparse, body: &Body<'_>, words: &mut [u8]) -> Result<(), usize> {
    let group_bytes = sparse.group_elems * sparse.word_bytes;
    // Without a dictionary there are only whole words, whatever the bit says.
    let dictionary = sparse.dictionary.as_ref().filter(|_| body.take(0, 1) == 0);
    let mut elem_at = 1 + words.len().div_ceil(group_bytes);
    let differing_groups =
        words.chunks(group_bytes).enumerate().filter(|&(group, _)| body.take(1 + group, 1) == 1);
    let mut at = elem_at + differing_groups.map(|(_, words)| words.len() / sparse.word_bytes).sum::<usize>();
    for (group, words) in words.chunks_mut(group_bytes).enumerate() {
        let differs = body.take(1 + group, 1) == 1;
        for word in words.chunks_exact_mut(sparse.word_bytes) {
            let mut value = sparse.common;
            if differs {
                if body.take(elem_at, 1) == 1 {
                    let n_bits = dictionary.map_or(sparse.word_bits(), |dictionary| dictionary.index_bits);
                    let bits = body.take(at, n_bits);
                    value = dictionary.map_or(bits, |dictionary| dictionary.word(bits));
                    at += n_bits as usize;
                }
                elem_at += 1;
            }
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
    }
    body.check_end(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata;
    use tierpack_shm::types::Dtype;

    #[test]
    fn a_record_packs_as_the_format_says() {
        let form = metadata::Sparse::new(8, 0x3F80, &[0x4000, 0x4040]);
        let sparse = Sparse::new(&form, Dtype::Bf16);
        let mut words = [0x3F80_u16; 20];
        (words[9], words[17]) = (0x4040, 0x4000);
        let raw = words.map(u16::to_le_bytes).concat();
        let mut out = [0xEE; MAX_PACKED];
        let packed = encode(&sparse, &raw, &mut out);
        assert_eq!(packed, Packed { bytes: 3, chunks: 20, participating: 18 });
        // Indexes; groups 1 and 2; element 1 of 8, element 1 of 4; indexes 1 and 0.
        let value: u64 = 0b110 << 1 | 0b10 << 4 | 0b10 << 12 | 0b01 << 16;
        assert_eq!(read_word(&out), value);
        // A word that the dictionary lacks.
        words[17] = 0x4080;
        let raw = words.map(u16::to_le_bytes).concat();
        let packed = encode(&sparse, &raw, &mut out);
        let value = 1 | 0b110 << 1 | 0b10 << 4 | 0b10 << 12 | 0x4040 << 16 | 0x4080 << 32;
        assert_eq!((packed.bytes, read_word(&out)), (6, value));
        let mut decoded = [0; 40];
        let body = Body { bytes: &out[..6], front_len: 3, rest_at: Some(3) };
        assert_eq!(decode(&sparse, &body, &mut decoded), Ok(()));
        assert_eq!(decoded[..], raw);
        let body = Body { bytes: &out[..5], front_len: 3, rest_at: Some(3) };
        assert_eq!(decode(&sparse, &body, &mut decoded), Err(3));
    }
}
