//! Metadata of codec `sparse`: the common word, the elements of a group, the dictionary.

use tierpack_shm::types::{Dtype, index};

use super::expect;
use crate::bits::read_word;
use crate::error::Result;
use crate::sparse::word_bytes;

/// The most bits of an index.
const MAX_INDEX_BITS: u8 = 8;

/// Metadata of `sparse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// 8, 16, 32 or 64.
    pub(crate) group_elems: u8,
    /// Bits of an index; `None` without a dictionary.
    pub(crate) index_bits: Option<u8>,
    pub(crate) common: u64,
    /// The dictionary: 2^`index_bits` words.
    pub(crate) words: Box<[u64]>,
}

impl Sparse {
    /// What a fit found; `words` are at most 256 and become a dictionary, unless there are none.
    pub(crate) fn new(group_elems: u8, common: u64, words: &[u64]) -> Self {
        let Some(last) = words.last() else {
            return Self { group_elems, index_bits: None, common, words: Box::default() };
        };
        let n_words = words.len().next_power_of_two();
        let index_bits = u8::try_from(n_words.trailing_zeros()).ok();
        let words = words.iter().chain(core::iter::repeat(last)).copied().take(n_words).collect();
        Self { group_elems, index_bits, common, words }
    }

    /// Reads the header's bytes.
    pub(super) fn describe(fields: [u8; 4]) -> Result<Self> {
        let [group_elems, dictionary, reserved @ ..] = fields;
        let byte = |field, value: u8, fits, expected| expect(field, u64::from(value), fits, expected);
        byte("group_elems", group_elems, matches!(group_elems, 8 | 16 | 32 | 64), "8, 16, 32 or 64")?;
        byte("dictionary", dictionary, dictionary <= 1 + MAX_INDEX_BITS, "0 to 9")?;
        for value in reserved {
            byte("a reserved byte", value, value == 0, "0")?;
        }
        Ok(Self { group_elems, index_bits: dictionary.checked_sub(1), common: 0, words: Box::default() })
    }

    pub(super) fn fields(&self) -> [u8; 4] {
        [self.group_elems, self.index_bits.map_or(0, |bits| 1 + bits), 0, 0]
    }

    /// Bytes of the common word and the dictionary.
    pub(super) fn body_len(&self, dtype: Dtype) -> u64 {
        (1 + self.index_bits.map_or(0, |bits| 1 << bits)) * word_bytes(dtype)
    }

    /// Reads the body, which has [`Sparse::body_len`] bytes.
    pub(super) fn read(self, dtype: Dtype, body: &[u8]) -> Self {
        let (common, words) = body.split_at(index(word_bytes(dtype)));
        let words = words.chunks_exact(common.len()).map(read_word).collect();
        Self { common: read_word(common), words, ..self }
    }

    pub(super) fn body(&self, dtype: Dtype) -> Vec<u8> {
        let words = core::iter::once(&self.common).chain(&self.words);
        words.flat_map(|word| word.to_le_bytes().into_iter().take(index(word_bytes(dtype)))).collect()
    }
}
