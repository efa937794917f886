//! The transform of `ibp:window`: words are rotated left by one bit, then reduced by a base.
//!
//! The rotation moves the sign of a float to the lowest bit and the exponent to the top; the base moves the
//! exponents in use down to zero, so that the top bits of most words become zero.
//! Both are bijections of words: every bit pattern survives.
//! Source: FORMAT.md, section "Codec ibp:window".

/// What words are reduced by, in runs as they are: the base of a run's word `i` is that of its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bases {
    /// Nothing.
    Zero,
    /// One word for all.
    One(u64),
    /// One word for each position of a row, as bytes; runs of several rows start over at each.
    Columns(Box<[u8]>),
}

/// The transform of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Bytes of a word: 1, 2, 4 or 8.
    pub(crate) word_bytes: usize,
    /// Whether words are rotated.
    pub(crate) rotate: bool,
    /// What is subtracted.
    pub(crate) bases: Bases,
}

impl Window {
    /// The window of codec `ibp`: words stay what they are.
    pub(crate) const fn identity() -> Self {
        Self { word_bytes: 1, rotate: false, bases: Bases::Zero }
    }

    /// Whether words stay what they are.
    #[inline(always)]
    pub(crate) fn is_identity(&self) -> bool {
        !self.rotate && self.bases == Bases::Zero
    }

    /// Transforms the words that start at byte `start` of their run.
    #[inline(always)]
    pub(crate) fn forward(&self, start: usize, words: &mut [u8]) {
        self.apply::<true>(start, words);
    }

    /// Takes the transform of [`Window::forward`] back.
    #[inline(always)]
    pub(crate) fn inverse(&self, start: usize, words: &mut [u8]) {
        self.apply::<false>(start, words);
    }

    #[inline(always)]
    fn apply<const FORWARD: bool>(&self, start: usize, words: &mut [u8]) {
        if self.is_identity() {
            return;
        }
        match self.word_bytes {
            1 => self.apply_words::<u8, FORWARD>(start, words),
            2 => self.apply_words::<u16, FORWARD>(start, words),
            4 => self.apply_words::<u32, FORWARD>(start, words),
            _ => self.apply_words::<u64, FORWARD>(start, words),
        }
    }

    #[inline(always)]
    fn apply_words<W: Word, const FORWARD: bool>(&self, start: usize, words: &mut [u8]) {
        if self.rotate {
            self.apply_rotated::<W, FORWARD, true>(start, words);
        } else {
            self.apply_rotated::<W, FORWARD, false>(start, words);
        }
    }

    #[inline(always)]
    fn apply_rotated<W: Word, const FORWARD: bool, const ROTATE: bool>(
        &self,
        start: usize,
        words: &mut [u8],
    ) {
        match &self.bases {
            Bases::Zero => each::<W, FORWARD, ROTATE>(words, W::from_bits(0)),
            Bases::One(base) => each::<W, FORWARD, ROTATE>(words, W::from_bits(*base)),
            Bases::Columns(bases) => {
                let mut words = words;
                // A division takes as long as many words.
                let mut from = if start < bases.len() { start } else { start % bases.len().max(1) };
                while !words.is_empty() {
                    let len = (bases.len() - from).min(words.len());
                    let (now, later) = words.split_at_mut(len);
                    each_of::<W, FORWARD, ROTATE>(now, &bases[from..from + len]);
                    (words, from) = (later, 0);
                }
            }
        }
    }
}

#[inline(always)]
fn each<W: Word, const FORWARD: bool, const ROTATE: bool>(words: &mut [u8], base: W) {
    for bytes in words.chunks_exact_mut(W::BYTES) {
        W::read(bytes).step::<FORWARD, ROTATE>(base).write(bytes);
    }
}

#[inline(always)]
fn each_of<W: Word, const FORWARD: bool, const ROTATE: bool>(words: &mut [u8], bases: &[u8]) {
    for (bytes, base) in words.chunks_exact_mut(W::BYTES).zip(bases.chunks_exact(W::BYTES)) {
        W::read(bytes).step::<FORWARD, ROTATE>(W::read(base)).write(bytes);
    }
}

/// An unsigned word of 1, 2, 4 or 8 bytes.
pub(crate) trait Word: Copy + Eq + Into<u64> {
    /// Its bytes.
    const BYTES: usize;
    /// Reads [`Word::BYTES`] bytes, little-endian; 0 from any other number of bytes.
    fn read(bytes: &[u8]) -> Self;
    /// Writes [`Word::BYTES`] bytes.
    fn write(self, bytes: &mut [u8]);
    /// The low bits of a number.
    fn from_bits(bits: u64) -> Self;
    /// Whether the word has the bit values that the mask marks.
    fn fits(self, mask: Self, bitval: Self) -> bool;
    /// One word of the transform, forward or back.
    fn step<const FORWARD: bool, const ROTATE: bool>(self, base: Self) -> Self;
}

macro_rules! words {
    ($($word:ident)*) => {$(
        impl Word for $word {
            const BYTES: usize = size_of::<$word>();

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0, $word::from_le_bytes)
            }

            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                Self::read(&bits.to_le_bytes()[..Self::BYTES])
            }

            #[inline(always)]
            fn fits(self, mask: Self, bitval: Self) -> bool {
                (self ^ bitval) & mask == 0
            }

            #[inline(always)]
            fn step<const FORWARD: bool, const ROTATE: bool>(self, base: Self) -> Self {
                match (FORWARD, ROTATE) {
                    (true, true) => self.rotate_left(1).wrapping_sub(base),
                    (true, false) => self.wrapping_sub(base),
                    (false, true) => self.wrapping_add(base).rotate_right(1),
                    (false, false) => self.wrapping_add(base),
                }
            }
        }
    )*};
}

words! { u8 u16 u32 u64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_word_comes_back() {
        let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let columns: Box<[u8]> = [0_u16, 1, 0x7F00, 0xFFFF, 0x8000].map(u16::to_le_bytes).concat().into();
        for rotate in [false, true] {
            for bases in [Bases::Zero, Bases::One(0x7A01), Bases::Columns(columns.clone())] {
                let window = Window { word_bytes: 2, rotate, bases };
                let mut words = raw.clone();
                window.forward(4, &mut words);
                assert_eq!(words == raw, window.is_identity());
                window.inverse(4, &mut words);
                assert!(words == raw);
            }
        }
    }

    #[test]
    fn columns_start_over_at_each_row() {
        let bases: Box<[u8]> = [1, 2, 3].into();
        let window = Window { word_bytes: 1, rotate: false, bases: Bases::Columns(bases) };
        let mut words = [10; 7];
        window.forward(5, &mut words);
        assert_eq!(words, [7, 9, 8, 7, 9, 8, 7]);
    }

    #[test]
    fn rotation_moves_the_sign_down() {
        let window = Window { word_bytes: 2, rotate: true, bases: Bases::One(0x7F00) };
        let mut words = 0xBF81_u16.to_le_bytes();
        window.forward(0, &mut words);
        assert_eq!(u16::from_le_bytes(words), 0x0003, "exponent 127 is the base: sign and mantissa stay");
    }
}
