//! Jobs and launches: from checked headers to what the kernels are called with.
//!
//! A kernel never reads a block's header: [`block_job`] checks it against the tensor and the metadata, and the job
//! that it returns holds all that the kernel needs, so that the kernel stays inside the block whatever its bytes are.
//! One warp decodes one record, or four where no record has more than 256 elements; the front of a
//! record is copied into a window of shared memory, and up to four windows are under way per warp.
//!
//! Decode first, then the overlays, [`overlay_launch`] once per level of their chains, the oldest level first.

use core::ops::Range;

use tierpack_shm::types::CodecId;

use super::abi::{BlockJob, OverlayJob};
use crate::block::{Checked, HEADER_BYTES};
use crate::coder::Coder;
use crate::error::{Error, Result};
use crate::geometry::{BlockShape, Geometry, MAX_BLOCK_RAW_BYTES};

/// Threads of a thread block of every kernel.
pub const THREADS: u32 = 128;

/// Bytes that may be read of a block are rounded up to this: what extents of the pool are multiples of.
pub const READ_UNIT: u64 = 64;

/// A record of at most so many elements is decoded by a quarter of a warp, where a run has no longer one.
const SMALL_ELEMS: u32 = 256;

const WARPS: u32 = THREADS / 32;

/// Records under way per warp, or per quarter.
const MAX_STAGES: u32 = 4;

/// The most dynamic shared memory of a warp: 48 KiB of a thread block, less the dictionary of `sparse`.
const MAX_WARP_BYTES: u32 = (48 * 1024 - 2 * 1024) / WARPS;

/// Dynamic shared memory of a warp after which more stages cost more warps than they feed: 8 thread blocks of this
/// fit a multiprocessor of 228 KiB.
const USUAL_WARP_BYTES: u32 = 6 * 1024;

/// Thread blocks per multiprocessor from which on jobs are no longer cut into slices.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Where a kernel's addresses must be multiples of this.
pub(super) const ADDRESS_UNIT: u64 = 16;

/// One stored block, and where its bytes go.
#[derive(Clone, Copy, Debug)]
pub struct StoredBlock<'a> {
    /// Its number in the tensor.
    pub block_idx: u64,
    /// Its first [`HEADER_BYTES`] bytes, or more.
    pub header: &'a [u8],
    /// The GPU's address of the block, a multiple of 16; bytes up to the next multiple of [`READ_UNIT`] from there
    /// may be read.
    pub src: u64,
    /// The GPU's address of [`super::form::device_form`], a multiple of 16; not looked at for `raw`.
    pub form: u64,
    /// The GPU's address of the block's first raw byte, of any alignment; multiples of 16 are fast.
    pub out: u64,
    /// What [`super::abi::Status::first`] names.
    pub number: u32,
}

/// Makes the job of a block, and names the codec of its bytes, which is `raw` where the block did not shrink.
///
/// `coder` is that of the block's generation; a `raw` block needs none.
///
/// # Errors
/// Those of [`crate::block::Block::parse`] and [`crate::codec::decode_block`], except for what is wrong in the
/// records; [`Error::Field`] where the header is of another block than `geometry` has there;
/// [`Error::Address`] for one that is not a multiple of 16.
pub fn block_job(
    coder: Option<&Coder>,
    geometry: &Geometry,
    block: &StoredBlock<'_>,
) -> Result<(CodecId, BlockJob)> {
    let header = Checked::of(block.header)?;
    let shape = geometry.block(block.block_idx);
    if shape.rows == 0 {
        return Err(Error::NoSuchBlock { block_idx: block.block_idx, n_blocks: geometry.n_blocks() });
    }
    check_shape(&header, geometry, &shape)?;
    check_address("the block", block.src, ADDRESS_UNIT)?;
    let job = BlockJob {
        src: block.src,
        out: block.out,
        stored_len: small(header.total_len),
        raw_len: small(header.raw_bytes),
        number: block.number,
        ..BlockJob::default()
    };
    if header.codec == CodecId::Raw {
        let job = BlockJob {
            front_len: job.raw_len,
            runs: header.rows(),
            records: 1,
            tail_stride: small(shape.row_bytes),
            ..job
        };
        return Ok((CodecId::Raw, job));
    }
    let (codec, generation) = (header.codec, header.generation());
    let coder = coder.ok_or(Error::NoMetadata { codec, generation })?;
    let grid = coder.check_block(&header)?;
    check_address("the metadata", block.form, ADDRESS_UNIT)?;
    let job = BlockJob {
        form: block.form,
        front_len: small(grid.front_len()),
        runs: small(grid.runs.count),
        records: small(grid.runs.records),
        tail_elems: small(grid.runs.tail_elems),
        record_stride: small(grid.record_stride),
        tail_stride: small(grid.tail_stride),
        ..job
    };
    Ok((codec, job))
}

fn check_shape(header: &Checked, geometry: &Geometry, shape: &BlockShape) -> Result<()> {
    let field = |field, found: u32, expected: u64| {
        if u64::from(found) == expected { Ok(()) } else { Err(Error::Field { field, found, expected }) }
    };
    field("dtype", header.dtype as u32, geometry.dtype() as u64)?;
    field("rows", header.rows(), shape.rows)?;
    field("columns", header.columns(), shape.columns)
}

pub(super) fn check_address(of: &'static str, address: u64, unit: u64) -> Result<()> {
    if address.is_multiple_of(unit) { Ok(()) } else { Err(Error::Address { of, address, unit }) }
}

fn small(value: u64) -> u32 {
    u32::try_from(value).expect("Checked keeps a block within 1 MiB and a header")
}

/// One launch of a kernel with the parameters `(jobs, n_jobs, warp_bytes, status)`, or of `overlay_rows`, which has
/// no `warp_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's name in module `decode`.
    pub kernel: &'static str,
    /// Which of the jobs it is.
    pub jobs: Range<usize>,
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Dynamic shared memory of each, at most 46 KiB, so that no attribute needs to be set.
    pub shared_bytes: u32,
    /// The kernel's parameter: dynamic shared memory of a warp.
    pub warp_bytes: u32,
}

/// Sorts jobs by kernel and plans a launch for each kernel; jobs of one kernel stay in their order.
///
/// The launches may run in any order, or at once.
pub fn decode_launches(jobs: &mut [(CodecId, BlockJob)], n_multiprocessors: u32) -> Vec<Launch> {
    jobs.sort_by_key(|&(codec, _)| kernel(codec));
    let mut launches = Vec::new();
    let mut start = 0;
    for same in jobs.chunk_by(|a, b| kernel(a.0) == kernel(b.0)) {
        launches.push(launch(same, start, n_multiprocessors));
        start += same.len();
    }
    launches
}

const fn kernel(codec: CodecId) -> &'static str {
    match codec {
        CodecId::Raw => "decode_raw",
        CodecId::Ibp | CodecId::IbpWindow => "decode_ibp",
        CodecId::Planes4 => "decode_planes4",
        CodecId::Planes3 => "decode_planes3",
        CodecId::Planes222 => "decode_planes222",
        // `Sparse`, and codecs of which there is no job.
        _ => "decode_sparse",
    }
}

/// Plans the launch of jobs of one kernel, of which there is at least one.
fn launch(jobs: &[(CodecId, BlockJob)], start: usize, n_multiprocessors: u32) -> Launch {
    let n_jobs = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let warp_bytes = jobs.iter().map(|(codec, job)| warp_bytes(*codec, job)).max().unwrap_or(0);
    let wanted = n_multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR).div_ceil(n_jobs.max(1));
    let most = jobs.iter().map(|(codec, job)| most_slices(*codec, job)).max().unwrap_or(1);
    Launch {
        kernel: kernel(jobs[0].0),
        jobs: start..start + jobs.len(),
        // The kernels go on to later jobs where there are more than fit a grid.
        grid: [n_jobs.min(i32::MAX.unsigned_abs()), wanted.clamp(1, most), 1],
        block: [THREADS, 1, 1],
        shared_bytes: WARPS * warp_bytes,
        warp_bytes,
    }
}

/// Records that a warp decodes at once.
const fn records_per_warp(job: &BlockJob) -> u32 {
    if job.records == 1 && job.tail_elems <= SMALL_ELEMS { 4 } else { 1 }
}

/// Bytes of the window of a record, as `window_bytes` in `records.cuh` has them: up to 12 bytes before the record,
/// in units of 16, and 16 bytes that reads of the last bits may touch.
const fn window_bytes(job: &BlockJob) -> u32 {
    let stride = if job.record_stride > job.tail_stride { job.record_stride } else { job.tail_stride };
    (stride + 12).next_multiple_of(16) + 16
}

/// Shared memory of a warp that decodes the job: as many stages as are worth it, and fit.
fn warp_bytes(codec: CodecId, job: &BlockJob) -> u32 {
    if codec == CodecId::Raw {
        return 0;
    }
    let stage = records_per_warp(job) * window_bytes(job);
    let most = (MAX_WARP_BYTES / stage).min(MAX_STAGES);
    stage * (USUAL_WARP_BYTES / stage).max(2).min(most)
}

/// Slices of the job of which each still has work for all of its warps.
fn most_slices(codec: CodecId, job: &BlockJob) -> u32 {
    let (work, per_thread_block) = match codec {
        // Four times 16 bytes for each thread.
        CodecId::Raw => (job.raw_len, THREADS * 64),
        _ => (job.runs.saturating_mul(job.records), 2 * WARPS * records_per_warp(job)),
    };
    // At most 65535, the limit of a grid's height.
    work.div_ceil(per_thread_block).clamp(1, 1 << 15)
}

/// What the header of an overlay says, and the block below it.
#[derive(Clone, Copy, Debug)]
pub struct StoredOverlay {
    /// Rows that it holds.
    pub n_rows: u64,
    /// Bytes of a row, as in the block.
    pub row_bytes: u64,
    /// Where its first row starts, from its first byte.
    pub rows_at: u64,
    /// Raw bytes of the block.
    pub raw_len: u64,
    /// The GPU's address of the overlay's header, a multiple of 16.
    pub src: u64,
    /// The GPU's address of the block's first raw byte.
    pub out: u64,
    /// What [`super::abi::Status::first`] names.
    pub number: u32,
}

/// Makes the job of an overlay; the caller has checked that its bytes are there.
///
/// # Errors
/// [`Error::Overlay`] where it is not one of such a block; [`Error::Address`] for one that is not a multiple of 16.
pub fn overlay_job(overlay: &StoredOverlay) -> Result<OverlayJob> {
    let StoredOverlay { n_rows, row_bytes, rows_at, raw_len, src, out, number } = *overlay;
    let numbers_end = HEADER_BYTES + n_rows.saturating_mul(4).min(MAX_BLOCK_RAW_BYTES * 4);
    let fits = row_bytes > 0
        && raw_len <= MAX_BLOCK_RAW_BYTES
        && raw_len.is_multiple_of(row_bytes)
        && n_rows <= raw_len / row_bytes
        && rows_at.is_multiple_of(READ_UNIT)
        && (numbers_end..=u64::from(u32::MAX) / 2).contains(&rows_at);
    if !fits {
        return Err(Error::Overlay { n_rows, row_bytes, rows_at, raw_len });
    }
    check_address("the overlay", src, ADDRESS_UNIT)?;
    let [n_rows, row_bytes, rows_at, raw_len] = [n_rows, row_bytes, rows_at, raw_len].map(small);
    Ok(OverlayJob { src, out, n_rows, row_bytes, rows_at, raw_len, number, reserved: 0 })
}

/// The launch of `overlay_rows` with the jobs of one level; its parameters are `(jobs, n_jobs, status)`.
pub fn overlay_launch(jobs: Range<usize>) -> Launch {
    let n_jobs = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    Launch {
        kernel: "overlay_rows",
        jobs,
        grid: [n_jobs.clamp(1, i32::MAX.unsigned_abs()), 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        warp_bytes: 0,
    }
}

#[cfg(test)]
#[path = "launch/tests.rs"]
mod tests;
