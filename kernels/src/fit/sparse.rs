//! The common word, the groups and the dictionary of `sparse`, and what they store.

use tierpack_shm::types::index;

use super::measure::{Measured, each_record, measure as measure_lens};
use super::search::Words;
use crate::cut::HEAD_BYTES;
use crate::geometry::Geometry;
use crate::metadata::{self, Form};
use crate::sparse::{MAX_DICTIONARY, SPAN_WORDS, Sparse, differing, word_bytes};
use crate::window::Word;

/// Elements of a group in the sweep.
const GROUPS: [u8; 4] = [8, 16, 32, 64];

/// Of so many words, one must be the common one.
const COMMON_ONE_IN: usize = 4;

/// Every size of groups, without a dictionary and with one where few words differ; none where no word is common.
pub(super) fn candidates(words: &[Words], geometry: &Geometry) -> Vec<metadata::Sparse> {
    let found = match word_bytes(geometry.dtype()) {
        1 => Found::of::<u8>(words),
        2 => Found::of::<u16>(words),
        4 => Found::of::<u32>(words),
        _ => Found::of::<u64>(words),
    };
    let Some(Found { common, others }) = found else { return Vec::new() };
    let form = |others: &[u64]| GROUPS.map(|group_elems| metadata::Sparse::new(group_elems, common, others));
    let mut forms = form(&[]).to_vec();
    if !others.is_empty() {
        forms.extend(form(&others));
    }
    forms
}

/// What a sample says about its words.
struct Found {
    /// The most frequent word.
    common: u64,
    /// All others in ascending order; empty where there are more than a dictionary has.
    others: Vec<u64>,
}

impl Found {
    /// `None` where no word is common.
    fn of<W: Word>(words: &[Words]) -> Option<Self> {
        let common = common::<W>(words)?;
        Some(Self { common: common.into(), others: others(words, common).unwrap_or_default() })
    }
}

/// Calls `each` with the words of the sample.
fn each_word<W: Word>(words: &[Words], mut each: impl FnMut(W)) {
    for block in words {
        for word in block.bytes.chunks_exact(W::BYTES) {
            each(W::read(word));
        }
    }
}

/// The most frequent word, and the smallest of equals; `None` where it is not common.
///
/// Of one word in four, or more, at most four are there: each takes one of as many counters from words that are
/// there less often (Misra and Gries, "Finding repeated elements", 1982).
fn common<W: Word>(words: &[Words]) -> Option<W> {
    let mut counters = [(W::from_bits(0), 0_u64); COMMON_ONE_IN];
    each_word::<W>(words, |word| {
        if let Some((_, count)) = counters.iter_mut().find(|(counted, count)| *counted == word && *count > 0)
        {
            *count += 1;
        } else if let Some(free) = counters.iter_mut().find(|(_, count)| *count == 0) {
            *free = (word, 1);
        } else {
            counters.iter_mut().for_each(|(_, count)| *count -= 1);
        }
    });
    let n_words: usize = words.iter().map(|block| block.bytes.len() / W::BYTES).sum();
    let candidates = counters.iter().filter(|(_, count)| *count > 0).map(|&(word, _)| {
        let mut n = 0;
        each_word::<W>(words, |other| n += usize::from(other == word));
        (n, word)
    });
    let most = candidates.max_by_key(|&(n, word)| (n, u64::MAX - word.into()));
    most.filter(|(n, _)| n * COMMON_ONE_IN >= n_words).map(|(_, word)| word)
}

/// The words that are not the common one, in ascending order; `None` for more than a dictionary has.
fn others<W: Word>(words: &[Words], common: W) -> Option<Vec<u64>> {
    let mut others = Vec::new();
    for block in words {
        for span in block.bytes.chunks(SPAN_WORDS * W::BYTES) {
            for word in differing_words(span, common) {
                if let Err(at) = others.binary_search(&word) {
                    others.insert(at, word);
                    if others.len() > MAX_DICTIONARY {
                        return None;
                    }
                }
            }
        }
    }
    Some(others)
}

/// The words of at most [`SPAN_WORDS`] words that differ from the common one.
fn differing_words<W: Word>(span: &[u8], common: W) -> impl Iterator<Item = u64> {
    let mut left = differing(span, common);
    core::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let i = left.trailing_zeros() as usize;
        left &= left - 1;
        Some(W::read(&span[i * W::BYTES..][..W::BYTES]).into())
    })
}

/// Measures a sample under this form.
pub(super) fn measure(form: &metadata::Sparse, words: &[Words], geometry: &Geometry) -> Measured {
    let dtype = geometry.dtype();
    let sparse = Sparse::new(form, dtype);
    let mut lens = Vec::new();
    each_record(words, geometry, |words, _| {
        lens.push(match sparse.word_bytes {
            1 => record_len::<u8>(&sparse, words),
            2 => record_len::<u16>(&sparse, words),
            4 => record_len::<u32>(&sparse, words),
            _ => record_len::<u64>(&sparse, words),
        });
    });
    measure_lens(words, geometry, &Form::Sparse(form.clone()).stride_rules(dtype), &lens)
}

/// Bytes of one record, head included.
fn record_len<W: Word>(sparse: &Sparse, words: &[u8]) -> u32 {
    let common = W::from_bits(sparse.common);
    let (mut n_differing, mut n_masked, mut indexed) = (0, 0, true);
    for span in words.chunks(SPAN_WORDS * W::BYTES) {
        let (mut left, mut n_left) = (differing(span, common), span.len() / W::BYTES);
        n_differing += left.count_ones() as usize;
        if let Some(dictionary) = sparse.dictionary.as_ref().filter(|_| indexed) {
            indexed = differing_words(span, common).all(|word| dictionary.index_of(word).is_some());
        }
        while left != 0 {
            let n_group = n_left.min(sparse.group_elems);
            if left << (SPAN_WORDS - n_group) != 0 {
                n_masked += n_group;
            }
            n_left -= n_group;
            // Two shifts, because one of 64 has no meaning.
            left = left >> 1 >> (n_group - 1);
        }
    }
    let value_bits = match &sparse.dictionary {
        Some(dictionary) if indexed => dictionary.index_bits,
        _ => sparse.word_bits(),
    };
    let n_groups = (words.len() / W::BYTES).div_ceil(sparse.group_elems);
    let n_bits = 1 + n_groups + n_masked + n_differing * value_bits as usize;
    let len = index(HEAD_BYTES) + n_bits.div_ceil(8).min(words.len());
    u32::try_from(len).expect("a record has at most 8 KiB and a head")
}
