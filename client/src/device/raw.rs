//! What takes the caller's word for an address or a stream, and the two calls of the driver's side that take ours.

#![expect(unsafe_code, reason = "addresses and streams of other runtimes, registered segments, launches")]

use std::sync::Arc;

use tierpack_kernels::cuda::driver::{Device, GpuError, Kernels, Registration, Run, Stream, Unqueued, Work};
use tierpack_shm::attachment::Attachment;
use tierpack_shm::segment::SegmentKind;

use super::flight::{DeviceGet, Load};
use super::gpu::Gpu;
use super::plan::Target;
use super::prefetch::Prefetch;
use super::segments::moved;
use super::tensor::DeviceTensor;
use crate::error::{Error, Result};
use crate::handle::Handle;

impl Handle {
    /// Gets the whole tensor into device memory of the caller, by launches on a stream of the caller.
    ///
    /// What comes on the stream afterwards sees the bytes.
    /// Whether they are whole is only known after [`DeviceGet::wait`].
    ///
    /// # Safety
    /// - `address` is `len` bytes of memory of this GPU, or of other memory that its kernels may write, and stays so
    ///   until the read is over: until [`DeviceGet::wait`] has returned, unless with [`GpuError::Driver`], or what
    ///   comes behind it on the stream runs.
    /// - `stream` is a `CUstream` of the device's primary context, or 0 for its default stream, and stays so until
    ///   this returns.
    ///
    /// # Errors
    /// [`Error::BufferLength`] when `len` is not [`Handle::raw_bytes`], [`GpuError::Capturing`] when the stream is
    /// being captured; else as [`Handle::get_to_device`]. Then nothing of the read is on its way, unless the driver
    /// has refused to say so for seconds, which is logged: then the memory must stay for as long as the process.
    pub unsafe fn get_to_device_raw(
        &self,
        gpu: &Gpu,
        address: u64,
        len: u64,
        stream: u64,
    ) -> Result<DeviceGet> {
        self.client().shared.check_here()?;
        let needed = u128::from(self.raw_bytes());
        if u128::from(len) != needed {
            return Err(Error::BufferLength { needed, got: len });
        }
        // SAFETY: the caller promises the stream for as long as this value lives.
        let stream = unsafe { Stream::of_caller(&gpu.inner.device, stream) };
        stream.check_not_capturing("get a tensor to the GPU")?;
        gpu.inner.enqueue(&[Target { handle: self, out: address, buffer: None }], &stream)
    }
}

impl DeviceGet {
    /// Has what comes on a stream of the caller wait for the bytes, without waiting here.
    ///
    /// # Safety
    /// - `stream` is a `CUstream` of the primary context of the GPU that is read to, or 0 for its default stream.
    ///
    /// # Errors
    /// [`GpuError::Capturing`] when the stream is being captured and the read is on its way; that of
    /// [`DeviceGet::wait`] when the read has ended so.
    pub unsafe fn wait_on(&self, stream: u64) -> Result<()> {
        self.flights.iter().try_for_each(|flight| {
            let Some(event) = flight.pending()? else { return Ok(()) };
            // SAFETY: the caller promises the stream.
            let stream = unsafe { Stream::of_caller(event.device(), stream) };
            stream.check_not_capturing("wait for a tensor on a stream")?;
            Ok(stream.wait(&event)?)
        })
    }
}

impl DeviceTensor {
    /// As [`DeviceGet::wait_on`].
    ///
    /// # Safety
    /// - As for [`DeviceGet::wait_on`].
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub unsafe fn wait_on(&self, stream: u64) -> Result<()> {
        // SAFETY: the caller promises what this asks for.
        unsafe { self.get().wait_on(stream) }
    }
}

impl Prefetch {
    /// As [`DeviceGet::wait_on`].
    ///
    /// # Safety
    /// - As for [`DeviceGet::wait_on`].
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub unsafe fn wait_on(&self, stream: u64) -> Result<()> {
        // SAFETY: the caller promises what this asks for.
        unsafe { self.tensor.wait_on(stream) }
    }
}

/// Registers a data segment; for `segments.rs`, which drops it before the segment is unmapped.
pub(super) fn register(
    device: &Arc<Device>,
    attachment: &Attachment,
    segment_idx: usize,
) -> core::result::Result<Registration, GpuError> {
    let range = attachment.segment_range(SegmentKind::Data, segment_idx).ok_or_else(moved)?;
    // SAFETY: the segment is mapped, since a guard of the caller reads it; the table of `segments.rs` observes the
    // attachment, is called before the segment is unmapped, and drops what this returns then.
    unsafe { Registration::new(device, range.0, range.1) }
}

/// Submits work whose jobs `enqueue.rs` has made of plans.
pub(super) fn submit(
    run: &mut Run,
    kernels: &Kernels,
    work: &Work,
    stream: &Stream,
    load: &Load,
) -> core::result::Result<(), Unqueued> {
    // What the jobs lead to: sources under guards of the load, or in a stage that waits for the stream; forms and
    // targets in buffers of the load, or targets that the caller of `get_to_device_raw` promised.
    debug_assert!(!load.tensors.is_empty(), "a load without tensors");
    // SAFETY: runs are free when `Runs::take` returns them; the load above is kept by a flight until the event has
    // fired, dropped after a failure when nothing runs, and else abandoned; the kernels are those of module `decode`.
    unsafe { run.submit(kernels, work, stream) }
}
