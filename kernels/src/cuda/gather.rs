//! Gathering rows on a GPU: tensors as the kernels see them, their caches, and the launches.
//!
//! 1. [`describe`] makes a [`GatherTensor`] of a tensor's geometry and its generations of metadata; it goes to device
//!    memory once, and again when a generation, a segment or the cache changes.
//! 2. A [`GatherCall`] names ids, output, miss list and status.
//! 3. [`plan`] sizes the launch of kernel `gather` of module `gather`, whose parameters are the address of the calls in
//!    device memory, and how many there are.
//! 4. The host reads the status: rows of the miss list are promoted and gathered again.
//!
//! What orders what: block words, segments and forms change only between launches, in the order of one stream, and
//! forms and segments before the words that need them.
//! The cache needs no such order: a line is used only where its tag has the block word of today.
//! [`sweep`] empties what is out of date, before 2^18 stores to a block bring an old word back.

pub mod abi;
mod cache;
mod tensor;

pub use abi::{Cache, GatherCall, GatherForm, GatherGrid, GatherStatus, GatherTensor, MAX_FORMS, Segment};
pub use cache::{CacheLayout, MAX_LINE_BYTES, row_sizes};
pub use tensor::{Addresses, DeviceForm, describe};

use super::launch::Launch;
use tensor::MAX_WINDOW_BYTES;

/// Thread blocks per multiprocessor that a launch has by default.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Threads of a thread block, where the windows of as many rows fit it.
const MAX_THREADS: u32 = 128;

/// Lines that each thread of a sweep looks at, if there are enough.
const LINES_PER_THREAD: u64 = 8;

/// One launch of a kernel of module `gather`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherLaunch {
    /// Its name.
    pub kernel: &'static str,
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Dynamic shared memory of each, at most 46 KiB, so that no attribute needs to be set.
    pub shared_bytes: u32,
    /// With [`GatherCall::KEEP`]: rows that the output must have room for.
    pub scratch_rows: u32,
}

impl From<GatherLaunch> for Launch {
    fn from(launch: GatherLaunch) -> Self {
        let GatherLaunch { kernel, grid, block, shared_bytes, .. } = launch;
        Self { kernel, jobs: 0..0, grid, block, shared_bytes, warp_bytes: 0 }
    }
}

/// Plans the launch of some calls, each with its tensor, and sets where each starts.
///
/// `max_blocks` bounds the thread blocks, so that the caller's own kernels keep multiprocessors; 0 means 8 on
/// each.
/// `None` where no call has an id.
pub fn plan(
    calls: &mut [(&GatherTensor, &mut GatherCall)],
    n_multiprocessors: u32,
    max_blocks: u32,
) -> Option<GatherLaunch> {
    let fits = |threads: u32| {
        move |(tensor, _): &(&GatherTensor, &mut GatherCall)| tensor.shared_bytes(threads) <= MAX_WINDOW_BYTES
    };
    let threads =
        [MAX_THREADS, 64].into_iter().find(|&threads| calls.iter().all(fits(threads))).unwrap_or(32);
    let most = match max_blocks {
        0 => n_multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR).max(1),
        most => most,
    };
    let blocks_of = |tensor: &GatherTensor, call: &GatherCall| {
        let items = u64::from(call.n_ids) * u64::from(tensor.pieces);
        items.div_ceil(u64::from(threads / tensor.lanes))
    };
    let wanted: u64 = calls.iter().map(|(tensor, call)| blocks_of(tensor, call)).sum();
    let n_blocks = u32::try_from(wanted).unwrap_or(u32::MAX).min(most).min(i32::MAX.unsigned_abs());
    if n_blocks == 0 {
        return None;
    }
    let mut start = 0;
    for (tensor, call) in &mut *calls {
        call.first_block = u32::try_from(start % u64::from(n_blocks)).unwrap_or(0);
        start += blocks_of(tensor, call);
    }
    let shared_bytes = calls.iter().map(|(tensor, _)| tensor.shared_bytes(threads)).max().unwrap_or(0);
    let teams = calls.iter().map(|(tensor, _)| threads / tensor.lanes).max().unwrap_or(0);
    Some(GatherLaunch {
        kernel: "gather",
        grid: [n_blocks, 1, 1],
        block: [threads, 1, 1],
        shared_bytes,
        scratch_rows: n_blocks.saturating_mul(teams),
    })
}

/// Plans the launch that empties the lines that are out of date; its parameter is the address of the tensor.
///
/// To run at least once per 2^17 changes of the tensor's blocks.
/// `None` where there is no cache.
pub fn sweep(tensor: &GatherTensor, n_multiprocessors: u32) -> Option<GatherLaunch> {
    let lines = u64::from(tensor.cache.n_sets) * u64::from(abi::WAYS);
    let wanted = lines.div_ceil(u64::from(MAX_THREADS) * LINES_PER_THREAD);
    let most = u64::from(n_multiprocessors.max(1)) * u64::from(BLOCKS_PER_MULTIPROCESSOR);
    let n_blocks = u32::try_from(wanted.min(most)).unwrap_or(u32::MAX);
    (n_blocks > 0).then_some(GatherLaunch {
        kernel: "sweep_cache",
        grid: [n_blocks, 1, 1],
        block: [MAX_THREADS, 1, 1],
        shared_bytes: 0,
        scratch_rows: 0,
    })
}

#[cfg(test)]
mod tests;
