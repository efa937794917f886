//! Codec `sparse`: the common word and the dictionary of one generation.
//!
//! Most words of a record are the common one; only the others are stored, as an index into a dictionary where
//! that has all of them.
//! Source: FORMAT.md, section "Codec sparse".

use tierpack_shm::types::{Dtype, index};

use crate::metadata;
use crate::window::Word;

/// The most words of a record of 1024 elements.
pub(crate) const MAX_WORDS: usize = 1024;

/// Words whose bits a backend looks at together.
pub(crate) const SPAN_WORDS: usize = 64;

/// The most words of a dictionary.
pub(crate) const MAX_DICTIONARY: usize = 256;

/// Slots of a dictionary's hash table: at most half of them are taken.
const SLOTS: usize = 2 * MAX_DICTIONARY;

/// Bytes of a word: an element, or a byte where elements are shorter.
pub(crate) const fn word_bytes(dtype: Dtype) -> u64 {
    if dtype.bits() < 8 { 1 } else { dtype.bits() as u64 / 8 }
}

/// Metadata of `sparse` prepared for use.
#[derive(Clone, Debug)]
pub(crate) struct Sparse {
    /// 1, 2, 4 or 8.
    pub(crate) word_bytes: usize,
    /// The word that is not stored.
    pub(crate) common: u64,
    /// Elements of a group: 8, 16, 32 or 64.
    pub(crate) group_elems: usize,
    /// Other words that have an index.
    pub(crate) dictionary: Option<Dictionary>,
}

impl Sparse {
    /// Prepares metadata that have been checked.
    pub(crate) fn new(form: &metadata::Sparse, dtype: Dtype) -> Self {
        Self {
            word_bytes: index(word_bytes(dtype)),
            common: form.common,
            group_elems: usize::from(form.group_elems),
            dictionary: form.index_bits.map(|bits| Dictionary::new(&form.words, u32::from(bits))),
        }
    }

    /// Bits of a word.
    #[inline]
    pub(crate) fn word_bits(&self) -> u32 {
        match self.word_bytes {
            1 => 8,
            2 => 16,
            4 => 32,
            _ => 64,
        }
    }
}

/// Words by their index, and the other way round.
#[derive(Clone, Debug)]
pub(crate) struct Dictionary {
    /// 0 to 8.
    pub(crate) index_bits: u32,
    /// Those of the 2^`index_bits` indexes; zeros after them.
    words: Box<[u64; MAX_DICTIONARY]>,
    /// A hash table: 0, or an index and 1.
    slots: Box<[u16; SLOTS]>,
}

impl Dictionary {
    /// The dictionary of at most 2^`index_bits` words; of equal words the first has the index.
    fn new(words: &[u64], index_bits: u32) -> Self {
        let mut dictionary =
            Self { index_bits, words: Box::new([0; MAX_DICTIONARY]), slots: Box::new([0; SLOTS]) };
        for (number, (slot, &word)) in (1..).zip(dictionary.words.iter_mut().zip(words)) {
            *slot = word;
            let mut at = first_slot(word);
            while let Some(taken) = usize::from(dictionary.slots[at]).checked_sub(1)
                && words[taken] != word
            {
                at = (at + 1) % SLOTS;
            }
            if dictionary.slots[at] == 0 {
                dictionary.slots[at] = number;
            }
        }
        dictionary
    }

    /// The word of an index, which is below 256.
    #[inline]
    pub(crate) fn word(&self, number: u64) -> u64 {
        self.words[index(number) % MAX_DICTIONARY]
    }

    /// The index of a word.
    #[inline]
    pub(crate) fn index_of(&self, word: u64) -> Option<u8> {
        let mut at = first_slot(word);
        loop {
            let taken = usize::from(self.slots[at]).checked_sub(1)?;
            if self.words[taken % MAX_DICTIONARY] == word {
                return u8::try_from(taken).ok();
            }
            // Ends, because half of the slots are free.
            at = (at + 1) % SLOTS;
        }
    }
}

/// Where the search for a word starts: its product with 2^64 / the golden ratio spreads words of any kind.
#[inline]
const fn first_slot(word: u64) -> usize {
    index(word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOTS.trailing_zeros()))
}

/// One bit per word of at most [`SPAN_WORDS`] words: 1 where it differs from the common one.
#[inline(always)]
pub(crate) fn differing<W: Word>(words: &[u8], common: W) -> u64 {
    let mut flags = [0_u8; SPAN_WORDS];
    for (flag, word) in flags.iter_mut().zip(words.chunks_exact(W::BYTES)) {
        *flag = u8::from(W::read(word) != common);
    }
    let mut bits = 0;
    for (i, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
        // Moves bit 0 of byte i to bit 56 + i.
        bits |= (u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_dictionary_has_the_first_index_of_its_equals() {
        let words: Vec<u64> = (0..256).map(|i| (i % 200) << 40 | 7).collect();
        let dictionary = Dictionary::new(&words, 8);
        for (i, &word) in words.iter().enumerate() {
            assert_eq!(dictionary.index_of(word).map(usize::from), Some(i % 200));
        }
        assert_eq!(dictionary.index_of(8), None);
        assert_eq!(Dictionary::new(&[9], 0).index_of(9), Some(0));
    }

    #[test]
    fn words_that_differ_have_a_bit() {
        let words: Vec<u8> = (0..50_u16).flat_map(|i| (i / 7 * 256).to_le_bytes()).collect();
        let expected: u64 = (0..50).filter(|i| i / 7 != 3).map(|i| 1 << i).sum();
        assert_eq!(differing(&words, 3_u16 << 8), expected);
        assert_eq!(differing(&words, 0x0303_u16), (1 << 50) - 1);
        assert_eq!(differing(&[5; 64], 4_u8), u64::MAX);
    }
}
