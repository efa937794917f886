//! Counts on a GPU that a fit starts from: ones per bit position, exponents.
//!
//! The counters stand in device memory and start as zeros; of [`exponents_job`], behind 16 bytes of ones.
//! [`crate::fit::counts`] counts the same on the CPU.

use super::abi::CountJob;
use super::launch::{Launch, THREADS};
use crate::error::{Error, Result};
use crate::planes::Parts;

/// Bytes that a thread block looks at, at least.
const SLICE_BYTES: u64 = 64 * 1024;

/// Bytes that stand before the counters of `count_exponents`: the bits that are one in all words, then those that
/// are zero in all; all ones before the launch.
pub const ALWAYS_BYTES: u64 = 16;

/// Counts the ones of each bit of `period` bytes: counters by byte, 8 each, of 4 bytes.
///
/// `len` bytes at `src` start at the start of a period; several jobs may share their counters.
///
/// # Errors
/// [`Error::Count`] for no period, or one that needs more than 2^32 bytes of counters, or as many bytes to count in.
pub fn bits_job(src: u64, len: u64, period: u64, counts: u64) -> Result<CountJob> {
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
    /// The GPU's address of one exponent of 2 bytes for each column.
    pub address: u64,
    /// Columns.
    pub columns: u64,
}

/// Counts exponents: counters of 4 bytes by exponent, and where `columns` is more than 1 by column before.
///
/// `len` bytes of words at `src` start at the start of a row; several jobs may share their counters.
/// `None` for a dtype that no `planes` codec is for.
///
/// # Errors
/// [`Error::Count`] for no columns, or counters or words that take more than 2^32 bytes.
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
    Ok(Some(CountJob {
        src,
        counts,
        bases: bases.map_or(0, |bases| bases.address),
        len,
        period,
        word_bytes: parts.word_bits / 8,
        exponent_bits: parts.exponent_bits,
        columns: base_columns,
        reserved: 0,
    }))
}

/// The launch of `count_bits` with these jobs; its parameters are `(jobs, n_jobs)`.
pub fn bits_launch(jobs: &[CountJob]) -> Launch {
    launch("count_bits", jobs)
}

/// The launch of `count_exponents` with these jobs; its parameters are `(jobs, n_jobs)`.
pub fn exponents_launch(jobs: &[CountJob]) -> Launch {
    launch("count_exponents", jobs)
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
}
