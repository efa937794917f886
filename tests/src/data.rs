//! Self-describing test data: every 8-byte word says which tensor, which version and which place it belongs to.

/// The word at `word_idx` of version `version` of tensor `tensor`: 16 bits, 16 bits, 32 bits, mixed.
pub fn word(tensor: u16, version: u16, word_idx: u64) -> u64 {
    let plain = u64::from(tensor) << 48 | u64::from(version) << 32 | (word_idx & 0xFFFF_FFFF);
    // An odd multiplier keeps each word different from all others; its low bits, which repeat with the place, are then
    // mixed with the high ones.
    let mixed = plain.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 32
}

/// Takes a word apart: tensor, version, place.
pub fn parts(word: u64) -> (u16, u16, u64) {
    const INVERSE: u64 = 0xF1DE83E19937733D;
    const { assert!(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(INVERSE) == 1) };
    let [place @ .., v0, v1, t0, t1] = (word ^ word >> 32).wrapping_mul(INVERSE).to_le_bytes();
    (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([v0, v1]), u64::from(u32::from_le_bytes(place)))
}

/// Which words a tensor is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// [`word`]: every bit varies, so that no codec shortens them.
    Mixed,
    /// Tensor and version in bits that are the same everywhere, so that `ibp` stores about half of them; in one word
    /// of 32 those bits are turned around, so that some rows are longer than others.
    Compressible,
}

impl Words {
    /// The ones for a tensor that is to be encoded, or not.
    pub fn new(compressible: bool) -> Self {
        if compressible { Self::Compressible } else { Self::Mixed }
    }

    /// The word at `word_idx`; each is different from all others, of this tensor and of other ones.
    pub fn word(self, tensor: u16, version: u16, word_idx: u64) -> u64 {
        if self == Self::Mixed {
            return word(tensor, version, word_idx);
        }
        let constant = u64::from(tensor) << 48 | u64::from(version) << 32;
        let place = word_idx.wrapping_mul(0x9E37_79B1) & 0xFFFF_FFFF;
        // What is turned around depends on the place alone, so that no two tensors meet.
        if place >> 27 == 0 { constant ^ (0xFFFF_FFFF << 32) | place } else { constant | place }
    }

    /// Tensor and version of a word that [`Words::word`] gave; of any other word they are anything.
    pub fn origin(self, word: u64) -> (u16, u16) {
        if self == Self::Mixed {
            let (tensor, version, _) = parts(word);
            return (tensor, version);
        }
        let [place @ .., v0, v1, t0, t1] = word.to_le_bytes();
        let turned = if u32::from_le_bytes(place) >> 27 == 0 { u16::MAX } else { 0 };
        (u16::from_le_bytes([t0, t1]) ^ turned, u16::from_le_bytes([v0, v1]) ^ turned)
    }

    /// Fills `bytes`, whole words from `first_word` on.
    ///
    /// # Panics
    /// When they are not whole words.
    pub fn fill(self, bytes: &mut [u8], tensor: u16, version: u16, first_word: u64) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        assert!(rest.is_empty(), "test data is whole words");
        for (n, out) in words.iter_mut().enumerate() {
            *out = self.word(tensor, version, first_word + n as u64).to_le_bytes();
        }
    }

    /// Words of `bytes` that differ from what [`Words::fill`] wrote.
    pub fn mismatches(self, bytes: &[u8], tensor: u16, version: u16, first_word: u64) -> u64 {
        let words = (first_word..).zip(bytes.as_chunks::<8>().0);
        words.filter(|(n, found)| u64::from_le_bytes(**found) != self.word(tensor, version, *n)).count()
            as u64
    }
}

/// [`Words::fill`] of mixed words.
///
/// # Panics
/// When `bytes` are not whole words.
pub fn fill(bytes: &mut [u8], tensor: u16, version: u16, first_word: u64) {
    Words::Mixed.fill(bytes, tensor, version, first_word);
}

/// [`Words::mismatches`] of mixed words.
pub fn mismatches(bytes: &[u8], tensor: u16, version: u16, first_word: u64) -> u64 {
    Words::Mixed.mismatches(bytes, tensor, version, first_word)
}

/// A small generator of numbers with a fixed seed (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// So many bytes of any value.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next_u64().to_le_bytes());
        words.take(len.div_ceil(8)).flatten().take(len).collect()
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }
}

/// Reads fill a tensor as a stream: an endless source of [`Words::fill`]'s bytes.
#[derive(Debug)]
pub struct Source {
    words: Words,
    tensor: u16,
    version: u16,
    at: u64,
}

impl Source {
    /// The bytes of a tensor of mixed words from its start on.
    pub fn new(tensor: u16, version: u16) -> Self {
        Self::of(Words::Mixed, tensor, version)
    }

    /// The bytes of a tensor from its start on.
    pub fn of(words: Words, tensor: u16, version: u16) -> Self {
        Self { words, tensor, version, at: 0 }
    }
}

impl std::io::Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let words = buf.len() / 8;
        if words == 0 {
            return Err(std::io::Error::other("test data is read in whole words"));
        }
        self.words.fill(&mut buf[..words * 8], self.tensor, self.version, self.at);
        self.at += words as u64;
        Ok(words * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_where_it_belongs() {
        for parts_in in [(0, 0, 0), (1, 2, 3), (u16::MAX, u16::MAX, u64::from(u32::MAX))] {
            assert_eq!(parts(word(parts_in.0, parts_in.1, parts_in.2)), parts_in);
        }
    }

    #[test]
    fn every_kind_of_word_says_where_it_comes_from() {
        for words in [Words::Mixed, Words::Compressible] {
            assert!((0..1000).all(|n| words.origin(words.word(7, 300, n)) == (7, 300)), "{words:?}");
        }
    }

    #[test]
    fn a_wrong_word_is_a_mismatch() {
        let mut bytes = [0; 64];
        fill(&mut bytes, 3, 4, 100);
        assert_eq!(mismatches(&bytes, 3, 4, 100), 0);
        assert_eq!(mismatches(&bytes, 3, 5, 100), 8);
        bytes[9] ^= 1;
        assert_eq!(mismatches(&bytes, 3, 4, 100), 1);
    }

    #[test]
    fn compressible_words_differ_and_are_checked() {
        let words = Words::new(true);
        let mut all: Vec<u64> = (0..4096).map(|n| words.word(7, 3, n)).collect();
        let constant = all.iter().filter(|word| **word >> 32 == 7 << 16 | 3).count();
        assert!((3800..4096).contains(&constant), "{constant}");
        all.extend((0..4096).map(|n| words.word(7, 4, n)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8192);
        let mut bytes = [0; 64];
        words.fill(&mut bytes, 3, 4, 100);
        assert_eq!((words.mismatches(&bytes, 3, 4, 100), words.mismatches(&bytes, 3, 4, 101)), (0, 8));
    }
}
