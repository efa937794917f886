//! What a fit counts of a sample: for callers that count on a GPU (`cuda::count`), and want the same.

use tierpack_shm::types::{Access, Dtype, index};

use super::Sample;
use super::count::Counts;
use super::planes::{Statistics, dropped_of};
use super::search::{Words, words_of};
use crate::bits::low;
use crate::error::Result;
use crate::geometry::Geometry;
use crate::planes::Parts;

/// Ones at each bit of a period of bytes, and how often each byte was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitCounts {
    /// `ones[byte][bit]`.
    pub ones: Vec<[u64; 8]>,
    /// By byte of the period.
    pub seen: Vec<u64>,
}

/// Low bits of a rotated word that are the same in every word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedBits {
    /// The first of them.
    pub first: u32,
    /// How many there are; 0 where fewer than two stand together.
    pub bits: u32,
    /// Their value.
    pub value: u64,
}

/// Elements by their exponent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentCounts {
    /// All columns together.
    pub counts: Vec<u64>,
    /// The base of each column, the lower median of its exponents, and the elements by their exponent less it;
    /// `None` where the tensor has no bases.
    pub by_column: Option<(Vec<u16>, Vec<u64>)>,
    /// What the words have in common.
    pub dropped: DroppedBits,
}

/// Counts by position in the row, from which masks per column are made.
///
/// # Errors
/// Those of [`super::fit`].
pub fn bits_by_column(geometry: &Geometry, sample: &[Sample<'_>]) -> Result<BitCounts> {
    Ok(Counts::by_column(&words_of(geometry, sample)?, geometry).into())
}

/// Counts by position in 8 bytes of a run, from which one mask is made.
///
/// # Errors
/// Those of [`super::fit`].
pub fn bits_by_group(geometry: &Geometry, sample: &[Sample<'_>]) -> Result<BitCounts> {
    Ok(Counts::by_group(&words_of(geometry, sample)?, geometry).into())
}

/// Whether the counts by group start over at each row of a block: the counts of a GPU do then, too.
pub fn groups_start_at_rows(geometry: &Geometry) -> bool {
    geometry.access() == Access::Rows && !geometry.row_bytes().is_multiple_of(8)
}

/// Counts exponents; `None` for a dtype that no `planes` codec is for.
///
/// # Errors
/// Those of [`super::fit`].
pub fn exponents(geometry: &Geometry, sample: &[Sample<'_>]) -> Result<Option<ExponentCounts>> {
    let words: Vec<Words> = words_of(geometry, sample)?;
    let Some(parts) = Parts::of(geometry.dtype()) else { return Ok(None) };
    Ok(Some(Statistics::of(parts, &words, geometry).into_counts()))
}

/// The longest run of low bits that are the same in every word, from the bits that are one in all words and those
/// that are zero in all.
///
/// `None` for a dtype that no `planes` codec is for.
pub fn dropped_bits(dtype: Dtype, ones: u64, zeros: u64) -> Option<DroppedBits> {
    let parts = Parts::of(dtype)?;
    let changed = !(ones | zeros) & low(parts.word_bits);
    Some(dropped_of(parts, ones & low(parts.word_bits), changed).into())
}

/// The lower medians of the columns' exponents, from counts by column: the base of each.
///
/// `None` for a dtype that no `planes` codec is for.
pub fn medians(dtype: Dtype, counts: &[u32]) -> Option<Vec<u16>> {
    let n_exponents = 1 << Parts::of(dtype)?.exponent_bits;
    Some(counts.chunks_exact(n_exponents).map(super::planes::base_of).collect())
}

impl From<Counts> for BitCounts {
    fn from(counts: Counts) -> Self {
        Self { ones: counts.ones, seen: counts.seen }
    }
}

/// How often each byte of a period is seen in runs of bytes of these lengths.
pub fn seen(period: u64, lens: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut seen = vec![0; index(period)];
    for len in lens {
        let (times, rest) = (len / period, len % period);
        seen.iter_mut().zip(0..).for_each(|(seen, i): (&mut u64, u64)| *seen += times + u64::from(i < rest));
    }
    seen
}
