//! Counts on a GPU that a fit starts from: ones per bit position, exponents.
//!
//! The counters stand in device memory and start as zeros; of [`exponents_job`], behind 16 bytes of ones.
//! A counter has 32 bits: what shares it may have at most 2^32 - 1 words (of [`bits_job`]: periods), of all launches
//! since it was zero.
//! [`bits_launch`] and [`exponents_launch`] refuse jobs that have more; what earlier launches counted is the caller's
//! to know.
//! [`crate::fit::counts`] counts the same on the CPU.

use std::collections::BTreeMap;

use super::abi::CountJob;
use super::launch::{Launch, THREADS, check_address};
use crate::error::{Error, Result};
use crate::planes::Parts;

/// Bytes that a thread block looks at, at least.
const SLICE_BYTES: u64 = 64 * 1024;

/// Bytes that stand before the counters of `count_exponents`: the bits that are one in all words, then those that
/// are zero in all; all ones before the launch.
pub const ALWAYS_BYTES: u64 = 16;

/// Counts the ones of each bit of `period` bytes: counters by byte, 8 each, of 4 bytes.
///
/// `len` bytes at `src`, of any alignment, start at the start of a period; several jobs may share their counters.
/// `counts` is a multiple of 4.
///
/// # Errors
/// [`Error::Count`] for no period, or one that needs more than 2^32 bytes of counters, or as many bytes to count in;
/// [`Error::Address`] for counters that are not aligned.
pub fn bits_job(src: u64, len: u64, period: u64, counts: u64) -> Result<CountJob> {
    check_address("the counters", counts, 4)?;
    let fits = |value: u64| u32::try_from(value).ok();
    match (fits(len), fits(period), fits(period.saturating_mul(32))) {
        (Some(len), Some(period @ 1..), Some(_)) => {
            Ok(CountJob { src, counts, len, period, ..CountJob::default() })
        }
        _ => Err(Error::Count { len, period }),
    }
}

/// The bases that exponents are reduced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnBases {
    /// The GPU's address of one exponent of 2 bytes for each column, a multiple of 2.
    pub address: u64,
    /// Columns.
    pub columns: u64,
}

/// Counts exponents: counters of 4 bytes by exponent, and where `columns` is more than 1 by column before.
///
/// `len` bytes of words at `src` start at the start of a row; several jobs may share their counters.
/// `src` is a multiple of a word's bytes, `counts` one of 8.
/// `None` for a dtype that no `planes` codec is for.
///
/// # Errors
/// [`Error::Count`] for no columns, or counters or words that take more than 2^32 bytes; [`Error::Address`] for one
/// that is not aligned.
pub fn exponents_job(
    dtype: tierpack_shm::types::Dtype,
    src: u64,
    len: u64,
    columns: u64,
    bases: Option<ColumnBases>,
    counts: u64,
) -> Result<Option<CountJob>> {
    let Some(parts) = Parts::of(dtype) else { return Ok(None) };
    let error = Error::Count { len, period: columns };
    let fits = |value: u64| u32::try_from(value).ok();
    let counters = columns.saturating_mul(4 << parts.exponent_bits);
    let base_columns = fits(bases.map_or(1, |bases| bases.columns));
    let (Some(len), Some(period @ 1..), Some(_), Some(base_columns @ 1..)) =
        (fits(len), fits(columns), fits(counters), base_columns)
    else {
        return Err(error);
    };
    let bases = bases.map_or(0, |bases| bases.address);
    check_address("the words", src, u64::from(parts.word_bits / 8))?;
    check_address("the counters", counts, 8)?;
    check_address("the bases", bases, 2)?;
    Ok(Some(CountJob {
        src,
        counts,
        bases,
        len,
        period,
        word_bytes: parts.word_bits / 8,
        exponent_bits: parts.exponent_bits,
        columns: base_columns,
        reserved: 0,
    }))
}

/// The launch of `count_bits` with these jobs; its parameters are `(jobs, n_jobs)`.
///
/// # Errors
/// [`Error::FullCounter`] where jobs that share counters have 2^32 periods or more.
pub fn bits_launch(jobs: &[CountJob]) -> Result<Launch> {
    check_counters(jobs.iter().map(|job| (job.counts, job.len.div_ceil(job.period.max(1)))))?;
    Ok(launch("count_bits", jobs))
}

/// The launch of `count_exponents` with these jobs; its parameters are `(jobs, n_jobs)`.
///
/// # Errors
/// [`Error::FullCounter`] where jobs that share counters have 2^32 words or more.
pub fn exponents_launch(jobs: &[CountJob]) -> Result<Launch> {
    check_counters(jobs.iter().map(|job| (job.counts, job.len / job.word_bytes.max(1))))?;
    Ok(launch("count_exponents", jobs))
}

/// Adds up, for each address of counters, the most that one of them may count.
fn check_counters(jobs: impl Iterator<Item = (u64, u32)>) -> Result<()> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for (counts, most) in jobs {
        *sums.entry(counts).or_default() += u64::from(most);
    }
    match sums.into_iter().find(|&(_, most)| most > u64::from(u32::MAX)) {
        Some((counts, most)) => Err(Error::FullCounter { counts, most }),
        None => Ok(()),
    }
}

fn launch(kernel: &'static str, jobs: &[CountJob]) -> Launch {
    let most = jobs.iter().map(|job| u64::from(job.len)).max().unwrap_or(0);
    let n_jobs = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let slices = u32::try_from(most.div_ceil(SLICE_BYTES).clamp(1, 1 << 10)).unwrap_or(1);
    Launch {
        kernel,
        jobs: 0..jobs.len(),
        grid: [n_jobs.clamp(1, i32::MAX.unsigned_abs()), slices, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        warp_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierpack_shm::types::Dtype;

    #[test]
    fn counters_that_no_kernel_can_number_are_refused() {
        assert!(bits_job(0, 1 << 20, 8, 0).is_ok());
        assert_eq!(bits_job(0, 1, 0, 0), Err(Error::Count { len: 1, period: 0 }));
        assert!(bits_job(0, 1 << 32, 8, 0).is_err());
        assert!(bits_job(0, 1, 1 << 27, 0).is_err());
        let job = |dtype, columns| exponents_job(dtype, 0, 100, columns, None, 0);
        assert_eq!(job(Dtype::U8, 1), Ok(None));
        assert!(job(Dtype::F64, 1 << 19).is_err());
        assert!(job(Dtype::F64, 0).is_err());
        let bases = Some(ColumnBases { address: 0, columns: 0 });
        assert!(exponents_job(Dtype::F64, 0, 100, 1, bases, 0).is_err());
        let job = job(Dtype::F16, 3).unwrap().unwrap();
        assert_eq!((job.word_bytes, job.exponent_bits, job.period), (2, 5, 3));
    }

    #[test]
    fn addresses_that_are_not_aligned_are_refused() {
        let unaligned = |of, address, unit| Err(Error::Address { of, address, unit });
        assert!(bits_job(3, 100, 8, 4).is_ok());
        assert_eq!(bits_job(0, 100, 8, 2).map(drop), unaligned("the counters", 2, 4));
        let job = |dtype, src, counts, address| {
            let bases = Some(ColumnBases { address, columns: 2 });
            exponents_job(dtype, src, 96, 2, bases, counts).map(drop)
        };
        assert_eq!(job(Dtype::Bf16, 2, 8, 2), Ok(()));
        assert_eq!(job(Dtype::F8E5m2, 1, 8, 2), Ok(()));
        assert_eq!(job(Dtype::Bf16, 1, 8, 2), unaligned("the words", 1, 2));
        assert_eq!(job(Dtype::F64, 4, 8, 2), unaligned("the words", 4, 8));
        assert_eq!(job(Dtype::Bf16, 2, 4, 2), unaligned("the counters", 4, 8));
        assert_eq!(job(Dtype::Bf16, 2, 8, 1), unaligned("the bases", 1, 2));
    }

    #[test]
    fn more_than_a_counter_holds_is_refused() {
        let most = u64::from(u32::MAX);
        let words = |len, counts| exponents_job(Dtype::F8E5m2, 0, len, 1, None, counts).unwrap().unwrap();
        // Other counters do not count.
        let full = [words(most - 1, 0), words(1, 0), words(most, 8)];
        assert!(exponents_launch(&full).is_ok());
        let over = Error::FullCounter { counts: 0, most: most + 1 };
        assert_eq!(exponents_launch(&[&full[..], &[words(1, 0)]].concat()), Err(over.clone()));
        let bits = |len, period| bits_job(0, len, period, 0).unwrap();
        // A period that has begun counts as one.
        let full = [bits(most, 1)];
        assert!(bits_launch(&full).is_ok());
        assert!(bits_launch(&[bits(most, 8), bits(most, 8)]).is_ok());
        assert_eq!(bits_launch(&[full[0], bits(1, 8)]), Err(over));
    }
}
