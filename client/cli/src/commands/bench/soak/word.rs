//! Data that describes themselves: every word of 8 bytes says which tensor, row and place it belongs to.
//!
//! ```text
//! bits  0..23   number of the word within its tensor
//! bits 23..31   tensor
//! bits 32..55   revision of its row, or of its piece of a long row
//! bits 55..63   drift: all other bits are XORed with a pattern that this number gives
//! ```
//!
//! The fields lie so that codecs for floats have something to save: tensor and drift stand where elements of 32 and
//! of 16 bits have exponents.
//! Another drift moves every bit, so that metadata made before suit no longer, and a refit gains.

use core::fmt;

/// Bytes of a word.
pub(super) const WORD_BYTES: u64 = 8;
/// Words of the largest tensor.
pub(super) const MAX_WORDS: u64 = 1 << 23;

const TENSOR_SHIFT: u32 = 23;
const REVISION_SHIFT: u32 = 32;
const REVISION_MASK: u64 = (1 << 23) - 1;
const DRIFT_SHIFT: u32 = 55;
const DRIFT_FIELD: u64 = 0xFF << DRIFT_SHIFT;
/// What must be as expected in the first word of a run: everything but revision and drift.
const PLACE_FIELDS: u64 = !(REVISION_MASK << REVISION_SHIFT | DRIFT_FIELD);

/// What is the same in every word of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) tensor: u8,
    pub(super) revision: u32,
    pub(super) drift: u8,
}

/// A word that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Its number within the tensor.
    pub(super) word: u64,
    pub(super) expected: u64,
    pub(super) found: u64,
}

/// The pattern of a drift; the same in every byte, so that a common byte stays one.
const fn pattern(drift: u64) -> u64 {
    (((drift * 37) & 0xFF) * 0x0101_0101_0101_0101) & !DRIFT_FIELD
}

/// The first word of a run, before the pattern; the others count up from it.
fn plain(stamp: Stamp, first_word: u64) -> u64 {
    debug_assert!(first_word < MAX_WORDS && u64::from(stamp.revision) <= REVISION_MASK);
    first_word
        | u64::from(stamp.tensor) << TENSOR_SHIFT
        | u64::from(stamp.revision) << REVISION_SHIFT
        | u64::from(stamp.drift) << DRIFT_SHIFT
}

/// Fills whole words; the first is number `first_word` of its tensor.
pub(super) fn fill(out: &mut [u8], stamp: Stamp, first_word: u64) {
    let (first, pattern) = (plain(stamp, first_word), pattern(u64::from(stamp.drift)));
    for (word, n) in out.as_chunks_mut().0.iter_mut().zip(0..) {
        *word = ((first + n) ^ pattern).to_le_bytes();
    }
}

/// Checks whole words of one row; returns their revision.
///
/// The first word says revision and drift, all others have to agree.
pub(super) fn check(bytes: &[u8], tensor: u8, first_word: u64) -> Result<u32, Wrong> {
    let words = bytes.as_chunks::<8>().0;
    let Some(head) = words.first().map(|word| u64::from_le_bytes(*word)) else { return Ok(0) };
    let pattern = pattern(head >> DRIFT_SHIFT & 0xFF);
    let place = plain(Stamp { tensor, ..Stamp::default() }, first_word);
    let first = (head ^ pattern) & !PLACE_FIELDS | place;
    // Without a branch per word, so that the compiler makes vectors of it.
    let different = words
        .iter()
        .zip(0..)
        .fold(0, |different, (word, n)| different | u64::from_le_bytes(*word) ^ (first + n) ^ pattern);
    if different == 0 {
        return Ok(u32::try_from(first >> REVISION_SHIFT & REVISION_MASK).expect("23 bits"));
    }
    let wrong = words.iter().zip(0..).find_map(|(word, n)| {
        let (found, expected) = (u64::from_le_bytes(*word), (first + n) ^ pattern);
        (found != expected).then_some(Wrong { word: first_word + n, expected, found })
    });
    Err(wrong.unwrap_or(Wrong { word: first_word, expected: first ^ pattern, found: head }))
}

/// The fields of a word, for people.
struct Fields(u64);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drift = self.0 >> DRIFT_SHIFT & 0xFF;
        let plain = self.0 ^ pattern(drift);
        let (tensor, word) = (plain >> TENSOR_SHIFT & 0xFF, plain & (MAX_WORDS - 1));
        let revision = plain >> REVISION_SHIFT & REVISION_MASK;
        write!(f, "{:016x} (tensor {tensor}, word {word}, revision {revision}, drift {drift})", self.0)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "word {}: expected {}, found {}", self.word, Fields(self.expected), Fields(self.found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { tensor: 7, revision: 300_000, drift: 9 };

    fn row() -> Vec<u8> {
        let mut row = vec![0; 512];
        fill(&mut row, STAMP, 64_000);
        row
    }

    #[test]
    fn what_was_filled_is_right_and_says_its_revision() {
        for drift in 0..=255 {
            let mut row = vec![0; 64];
            fill(&mut row, Stamp { drift, ..STAMP }, MAX_WORDS - 8);
            assert_eq!(check(&row, 7, MAX_WORDS - 8), Ok(300_000), "drift {drift}");
        }
        assert_eq!(check(&[], 7, 0), Ok(0));
    }

    #[test]
    fn every_bit_that_differs_is_found() {
        let row = row();
        for bit in 0..row.len() * 8 {
            let mut other = row.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let wrong = check(&other, 7, 64_000);
            assert!(wrong.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn words_of_another_tensor_place_or_revision_are_found() {
        let row = row();
        assert!(check(&row, 6, 64_000).is_err() && check(&row, 7, 64_064).is_err());
        let mut mixed = row.clone();
        fill(&mut mixed[256..], Stamp { revision: 300_001, ..STAMP }, 64_032);
        let wrong = check(&mixed, 7, 64_000).unwrap_err();
        assert_eq!(wrong.word, 64_032);
        let text = wrong.to_string();
        assert!(text.contains("revision 300000") && text.contains("revision 300001"), "{text}");
        mixed.copy_from_slice(&row);
        fill(&mut mixed[8..16], Stamp { drift: 10, ..STAMP }, 64_001);
        assert_eq!(check(&mixed, 7, 64_000).unwrap_err().word, 64_001);
    }
}
