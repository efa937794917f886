//! Bases for `ibp:window`: where the window of words that lose their top bits starts.

use tierpack_shm::types::{Dtype, index};

use super::search::Words;
use crate::geometry::Geometry;
use crate::metadata::{bases_may_be_per_column, has_sign_and_exponent, word_bytes};
use crate::window::{Bases, Window};

/// Words that are sorted to find bases, at most: each of them is looked at once per width.
const MAX_SORTED: usize = 512 << 10;

/// Widths of the window that are tried, in bits of a word; 0 is the smallest word itself.
fn widths(dtype: Dtype) -> Vec<u32> {
    let word_bits = 8 * u32::try_from(word_bytes(dtype)).unwrap_or(1);
    let exponent_bits = match dtype {
        Dtype::F16 | Dtype::F8E5m2 | Dtype::F8E5m2Fnuz => 5,
        Dtype::F8E4m3 | Dtype::F8E4m3Fnuz => 4,
        Dtype::Bf16 | Dtype::F32 | Dtype::C64 => 8,
        Dtype::F64 => 11,
        _ => return vec![0, word_bits / 4, word_bits / 2],
    };
    // Windows of 4, 8, 16 and 32 exponents, where the exponent has more.
    let fraction_bits = word_bits - exponent_bits;
    std::iter::once(0).chain((2..=5).filter(|&k| k < exponent_bits).map(|k| fraction_bits + k)).collect()
}

/// Every window worth a measurement: no base, one for the tensor, one per column, by width.
pub(super) fn candidates(words: &[Words], geometry: &Geometry) -> Vec<Window> {
    let dtype = geometry.dtype();
    let word_bytes = index(word_bytes(dtype));
    let window = |bases| Window { word_bytes, rotate: has_sign_and_exponent(dtype), bases };
    let mut windows = vec![window(Bases::Zero)];
    let rotated = rotated(words, &window(Bases::Zero));
    let widths = widths(dtype);
    let one = starts(every(&rotated, word_bytes), &widths);
    windows.extend(one.iter().map(|&base| window(Bases::One(base))));
    if bases_may_be_per_column(geometry) && geometry.n_rows() > 1 {
        let row_bytes = index(geometry.row_bytes());
        let mut columns = vec![Vec::with_capacity(row_bytes); widths.len()];
        for column in 0..row_bytes / word_bytes {
            let words = column_words(&rotated, row_bytes, column, word_bytes);
            for (bases, base) in columns.iter_mut().zip(starts(words, &widths)) {
                bases.extend_from_slice(&base.to_le_bytes()[..word_bytes]);
            }
        }
        windows.extend(columns.into_iter().map(|bases| window(Bases::Columns(bases.into()))));
    }
    let mut distinct: Vec<Window> = Vec::new();
    for window in windows {
        if !distinct.contains(&window) {
            distinct.push(window);
        }
    }
    distinct
}

/// The blocks after rotation.
fn rotated(words: &[Words], window: &Window) -> Vec<Vec<u8>> {
    let rotate = |block: &Words| {
        let mut bytes = block.bytes.clone();
        window.forward(0, &mut bytes);
        bytes
    };
    words.iter().map(rotate).collect()
}

/// An even part of all words.
fn every(blocks: &[Vec<u8>], word_bytes: usize) -> Vec<u64> {
    let n: usize = blocks.iter().map(|bytes| bytes.len() / word_bytes).sum();
    let step = n.div_ceil(MAX_SORTED / 4).max(1);
    let words = blocks.iter().flat_map(|bytes| bytes.chunks_exact(word_bytes));
    words.step_by(step).map(crate::bits::read_word).collect()
}

/// An even part of the words of one column.
fn column_words(blocks: &[Vec<u8>], row_bytes: usize, column: usize, word_bytes: usize) -> Vec<u64> {
    let n_rows: usize = blocks.iter().map(|bytes| bytes.len() / row_bytes).sum();
    let most = (MAX_SORTED * word_bytes / row_bytes).max(64);
    let step = n_rows.div_ceil(most).max(1);
    let rows = blocks.iter().flat_map(|bytes| bytes.chunks_exact(row_bytes));
    rows.step_by(step).map(|row| crate::bits::read_word(&row[column * word_bytes..][..word_bytes])).collect()
}

/// For each width, where the window that holds most words starts; the lowest start of equal ones.
fn starts(mut words: Vec<u64>, widths: &[u32]) -> Vec<u64> {
    words.sort_unstable();
    let start_of = |&width: &u32| {
        let (mut best, mut most, mut end) = (words.first().copied().unwrap_or(0), 0, 0);
        if width == 0 {
            return best;
        }
        for (i, &start) in words.iter().enumerate() {
            while end < words.len() && (words[end] - start) >> width == 0 {
                end += 1;
            }
            if end - i > most {
                (best, most) = (start, end - i);
            }
        }
        best
    };
    widths.iter().map(start_of).collect()
}
