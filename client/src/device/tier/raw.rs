//! What takes the caller's word for addresses and streams, and the calls of the driver's side that take ours.

#![expect(unsafe_code, reason = "addresses and streams of other runtimes, launches over them")]

use std::sync::Arc;

use tierpack_kernels::cuda::driver::{
    GatherWork, GpuError, Kernels, Run, Stream, Unqueued, read_memory, write_memory,
};

use super::graph::GraphGather;
use super::ids::{Ids, count};
use super::launch::Request;
use super::report::{DeviceGather, GatherCounts};
use super::{DeviceHandle, gather_all};
use crate::device::flight::Load;
use crate::device::gpu::{self, Gpu};
use crate::error::{Error, Result};

/// Rows to gather between addresses of the caller.
#[derive(Clone, Copy, Debug)]
pub struct RawGather<'a> {
    /// The tensor.
    pub handle: &'a DeviceHandle,
    /// The device's address of the row numbers, a multiple of `id_bytes`.
    pub ids: u64,
    /// How many.
    pub n_ids: u64,
    /// Bytes of each: 4, unsigned, or 8.
    pub id_bytes: u32,
    /// The device's address of the first row, of any alignment; multiples of 16 are fast.
    pub out: u64,
    /// Bytes there: `n_ids` times [`crate::Handle::row_bytes`].
    pub out_len: u64,
}

impl RawGather<'_> {
    pub(super) fn request(&self) -> Result<Request> {
        let &Self { handle, ids: address, n_ids, id_bytes: bytes, out, out_len } = self;
        let len = count(n_ids)?;
        let needed = u128::from(handle.handle().row_bytes()) * u128::from(n_ids);
        if u128::from(out_len) != needed {
            return Err(Error::BufferLength { needed, got: out_len });
        }
        if !matches!(bytes, 4 | 8) || !address.is_multiple_of(u64::from(bytes)) {
            return Err(GpuError::Ids { address, bytes }.into());
        }
        Ok(handle.request(Ids { address, len, bytes }, out, None))
    }
}

impl DeviceHandle {
    /// Gathers rows between memory of the caller, by a launch on a stream of the caller.
    ///
    /// What comes on the stream afterwards sees the rows, without waiting here.
    /// Row numbers that other kernels of the stream compute need not be there yet.
    /// Whether all were in range, and all rows there, is only known after [`DeviceGather::wait`].
    ///
    /// # Safety
    /// - As for [`Gpu::gather_many_raw`].
    ///
    /// # Errors
    /// As [`Gpu::gather_many_raw`].
    pub unsafe fn gather_raw(
        &self,
        (ids, n_ids, id_bytes): (u64, u64, u32),
        (out, out_len): (u64, u64),
        stream: u64,
    ) -> Result<DeviceGather> {
        let gather = RawGather { handle: self, ids, n_ids, id_bytes, out, out_len };
        // SAFETY: the caller promises what this asks for.
        unsafe { gather_many_raw(&self.tier.gpu, &[gather], stream) }
    }
}

impl Gpu {
    /// Gathers rows of several tensors between memory of the caller, by one launch on a stream of the caller.
    ///
    /// # Safety
    /// - Row numbers and outputs are memory of this GPU, or other memory that its kernels may read or write, and stay
    ///   so until the gather is over: until [`DeviceGather::wait`] has returned, unless with [`GpuError::Driver`]; or,
    ///   for who never waits, until what comes behind it on the stream runs. Outputs do not overlap.
    /// - `stream` is a `CUstream` of the device's primary context, or 0 for its default stream, and stays so until
    ///   this returns.
    ///
    /// # Errors
    /// [`Error::BufferLength`]; [`GpuError::Ids`], [`GpuError::TooManyIds`], [`GpuError::OtherDevice`];
    /// [`GpuError::Capturing`] when the stream is being captured: see [`DeviceHandle::graph`];
    /// else as [`DeviceHandle::gather`]. Then nothing of it is on its way, as with
    /// [`crate::Handle::get_to_device_raw`].
    pub unsafe fn gather_many_raw(&self, gathers: &[RawGather<'_>], stream: u64) -> Result<DeviceGather> {
        // SAFETY: the caller promises what this asks for.
        unsafe { gather_many_raw(&self.inner, gathers, stream) }
    }
}

/// # Safety
/// - As [`Gpu::gather_many_raw`].
unsafe fn gather_many_raw(
    gpu: &Arc<gpu::Inner>,
    gathers: &[RawGather<'_>],
    stream: u64,
) -> Result<DeviceGather> {
    let mut requests = Vec::with_capacity(gathers.len());
    for gather in gathers {
        gather.handle.handle().client().shared.check_here()?;
        gpu.check_is(&gather.handle.tier.gpu)?;
        let request = gather.request();
        requests.push(request.map_err(|error| error.of(gather.handle.handle(), gathers.len()))?);
    }
    // SAFETY: the caller promises the stream for as long as this value lives.
    let stream = unsafe { Stream::of_caller(&gpu.device, stream) };
    stream.check_not_capturing("gather rows on the GPU")?;
    Ok(DeviceGather::new(gather_all(gpu, requests, &stream)?))
}

impl GraphGather {
    /// Adds the gather to what `stream` captures; call it once.
    ///
    /// A replay gathers by the row numbers that are at `ids` then. Nothing is allocated.
    ///
    /// # Safety
    /// - Row numbers and output are memory as for [`Gpu::gather_many_raw`], for as long as the graph may run.
    /// - `stream` is a `CUstream` of the device's primary context that is being captured, or whose work the caller
    ///   treats as one replay.
    /// - The graph runs only while this exists, and not twice at a time.
    ///
    /// # Errors
    /// As [`Gpu::gather_many_raw`], but for [`GpuError::Capturing`].
    pub unsafe fn capture(
        &mut self,
        (ids, n_ids, id_bytes): (u64, u64, u32),
        (out, out_len): (u64, u64),
        stream: u64,
    ) -> Result<()> {
        let handle = self.handle().clone();
        handle.handle().client().shared.check_here()?;
        let request = RawGather { handle: &handle, ids, n_ids, id_bytes, out, out_len }.request()?;
        // SAFETY: the caller promises the stream for as long as this value lives.
        let stream = unsafe { Stream::of_caller(&self.gpu().device, stream) };
        let (work, kernels) = (self.work(&request), Arc::clone(&self.kernels));
        // SAFETY: the caller promises row numbers and output; the rest is kept by `self`: its table, cache and run,
        // and the guard under which the table is up to date.
        unsafe { self.run.queue_gather(&kernels, &work, &stream) }?;
        self.has_captured(request);
        Ok(())
    }

    /// Renews what a replay reads: takes a new lease, and brings the tensor's words up to date on `stream`.
    ///
    /// Replays behind it on the stream gather the tensor as it is now.
    ///
    /// # Safety
    /// - `stream` is a `CUstream` of the device's primary context which is not being captured, and no replay runs but
    ///   on it.
    ///
    /// # Errors
    /// [`GpuError::StaleGraph`] when the gather must be captured again; else as [`DeviceHandle::gather`].
    pub unsafe fn refresh(&mut self, stream: u64) -> Result<()> {
        self.handle().handle().client().shared.check_here()?;
        // SAFETY: the caller promises the stream for as long as this value lives.
        let stream = unsafe { Stream::of_caller(&self.gpu().device, stream) };
        stream.check_not_capturing("renew a gather of a graph")?;
        self.renew(&stream)
    }

    /// What the last replay did; gathers rows once more that were not in the pool.
    ///
    /// # Safety
    /// - There was a replay since the capture, and none runs.
    ///
    /// # Errors
    /// As [`DeviceGather::wait`].
    pub unsafe fn outcome(&self) -> Result<GatherCounts> {
        self.last()
    }
}

impl DeviceGather {
    /// As [`crate::DeviceGet::wait_on`].
    ///
    /// # Safety
    /// - As for [`crate::DeviceGet::wait_on`].
    ///
    /// # Errors
    /// As [`crate::DeviceGet::wait_on`].
    pub unsafe fn wait_on(&self, stream: u64) -> Result<()> {
        // SAFETY: the caller promises what this asks for.
        unsafe { self.get.wait_on(stream) }
    }
}

/// Submits work that `launch.rs` has made.
pub(super) fn submit(
    run: &mut Run,
    kernels: &Kernels,
    work: &GatherWork,
    stream: &Stream,
    load: &Load,
) -> core::result::Result<(), Unqueued> {
    // What the calls and steps lead to: tables, caches and forms in buffers of the load, segments under its guards,
    // row numbers and outputs in its buffers, or promised by the caller of `gather_many_raw`.
    debug_assert!(work.calls.len() == load.n_calls, "a call without its tensor");
    // SAFETY: runs are free when `Runs::take` returns them; the load above is kept by a flight until the event has
    // fired, dropped after a failure when nothing runs, and else abandoned; the kernels are those of module `gather`.
    unsafe { run.submit_gather(kernels, work, stream) }
}

/// A row number of a request whose launch is over, as a signed one if it has 8 bytes.
pub(super) fn read_id(gpu: &gpu::Inner, request: &Request, position: u32) -> Result<i128> {
    let Ids { address, len, bytes } = request.ids;
    let mut word = [0; 8];
    let word_bytes = &mut word[..if bytes == 4 { 4 } else { 8 }];
    if position < len {
        let at = address + u64::from(position) * u64::from(bytes);
        // SAFETY: the row numbers are there, in memory of ours or of a caller who has not returned from `wait` yet.
        unsafe { read_memory(&gpu.device, at, word_bytes, &gpu.uploads) }?;
    }
    Ok(if bytes == 4 { i128::from(u64::from_le_bytes(word)) } else { i128::from(i64::from_le_bytes(word)) })
}

/// All row numbers of a request, once the stream has come so far.
pub(super) fn read_ids(gpu: &gpu::Inner, ids: &Ids, stream: &Stream) -> Result<Vec<i64>> {
    let mut bytes = vec![0; ids.len as usize * ids.bytes as usize];
    if !bytes.is_empty() {
        // SAFETY: the row numbers are there on the stream, in memory of ours or of a caller of `gather_many_raw`.
        unsafe { read_memory(&gpu.device, ids.address, &mut bytes, stream) }?;
    }
    let each = bytes.chunks_exact(ids.bytes as usize);
    Ok(each
        .map(|id| {
            let mut word = [0; 8];
            word[..id.len()].copy_from_slice(id);
            i64::from_le_bytes(word)
        })
        .collect())
}

/// Writes rows to the output of a request.
pub(super) fn write_rows(gpu: &gpu::Inner, address: u64, bytes: &[u8], stream: &Stream) -> Result<()> {
    // SAFETY: `host.rs` stays within the output, which is memory of ours or of a caller of `gather_many_raw`.
    Ok(unsafe { write_memory(&gpu.device, address, bytes, stream) }?)
}
