//! Runs: what one launch needs on its way to the device, and what comes back.
//!
//! For the jobs of a decode:
//!
//! ```text
//! host    [status | block jobs | overlay jobs]   page-locked
//!            ^  |
//!            |  v                                 one copy each way
//! device  [status | block jobs | overlay jobs]
//! ```
//!
//! A run is used again and again, so that a read allocates nothing once there are runs that are long enough.

#![expect(unsafe_code, reason = "queues copies and launches")]

use core::ffi::c_void;
use core::ops::Range;
use std::sync::Arc;

use tierpack_shm::types::index;
use zerocopy::{FromBytes, IntoBytes};

use super::device::Device;
use super::error::GpuError;
use super::memory::{DeviceBuffer, PageLocked};
use super::module::{Kernels, Parameter};
use super::stream::{Event, Stream, Unqueued};
use crate::cuda::abi::{BlockJob, OverlayJob, Status};
use crate::cuda::launch::Launch;

/// Bytes before the jobs.
const STATUS_BYTES: u64 = 64;
/// The least that a run has room for.
const MIN_BYTES: u64 = 64 << 10;

/// Blocks and overlays to decode.
#[derive(Debug, Default)]
pub struct Work {
    /// Blocks to decode, in the order of their launches.
    pub blocks: Vec<BlockJob>,
    /// The launches; their ranges are of `blocks`.
    pub launches: Vec<Launch>,
    /// Overlays to write over them.
    pub overlays: Vec<OverlayJob>,
    /// The launches that write them, one behind the other; their ranges are of `overlays`.
    pub overlay_launches: Vec<Launch>,
}

impl Work {
    /// Bytes that a run needs for it.
    pub fn bytes(&self) -> u64 {
        STATUS_BYTES + size_of_val(&*self.blocks) as u64 + size_of_val(&*self.overlays) as u64
    }
}

/// Room for what a launch needs, on both sides, and the event behind it.
#[derive(Debug)]
pub struct Run {
    pub(super) host: PageLocked,
    pub(super) device: DeviceBuffer,
    pub(super) event: Arc<Event>,
}

impl Run {
    /// Room for at least so many bytes.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Capturing`].
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, GpuError> {
        let bytes = bytes.next_power_of_two().max(MIN_BYTES);
        Ok(Self {
            host: PageLocked::new(device, index(bytes))?,
            device: DeviceBuffer::new(device, bytes)?,
            event: Arc::new(Event::new(device)?),
        })
    }

    /// Whether there is room for so many bytes.
    pub const fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.host.len() as u64
    }

    /// The event behind everything that was submitted last.
    pub fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// What the kernels reported that decode; the event has fired.
    pub fn status(&self) -> Status {
        Status::read_from_prefix(self.host.bytes()).map_or(Status::CLEAR, |(status, _)| status)
    }

    /// Queues the work on `stream`, and the event behind it.
    ///
    /// After an error nothing of it is running any more, unless the error says that this is not known: then the run
    /// and everything that the jobs lead to must be kept for ever.
    ///
    /// # Safety
    /// - The event of what was submitted before has fired.
    /// - Every address in the jobs is memory that the kernels may use so until the event fires or this fails and
    ///   is quiet.
    /// - The kernels of the launches decode blocks, and `kernels` has them.
    ///
    /// # Errors
    /// [`GpuError::Launch`], [`GpuError::Driver`], [`GpuError::Lost`], [`GpuError::Capturing`].
    ///
    /// # Panics
    /// When there is no room for the work.
    pub unsafe fn submit(&mut self, kernels: &Kernels, work: &Work, stream: &Stream) -> Result<(), Unqueued> {
        assert!(self.has_room(work.bytes()), "the caller has looked for room");
        let _entered = kernels.device().enter()?;
        // SAFETY: the caller promises what this asks for.
        let queued = unsafe { self.queue(kernels, work, stream) };
        // What was queued before the failure still reads.
        queued.map_err(|error| Unqueued { error, is_quiet: stream.settle() })
    }

    /// # Safety
    /// - As [`Run::submit`].
    unsafe fn queue(&mut self, kernels: &Kernels, work: &Work, stream: &Stream) -> Result<(), GpuError> {
        let (jobs_at, overlays_at) = (STATUS_BYTES, STATUS_BYTES + size_of_val(&*work.blocks) as u64);
        let bytes = self.host.bytes_mut();
        bytes[..size_of::<Status>()].copy_from_slice(Status::CLEAR.as_bytes());
        put(bytes, jobs_at, work.blocks.as_bytes());
        put(bytes, overlays_at, work.overlays.as_bytes());
        let (device, host, api) = (self.device.address(), self.host.pointer(), kernels.device().api);
        let len = index(work.bytes());
        // SAFETY: both buffers have room, and are kept until the event has fired.
        let copied = unsafe { (api.memcpy_htod_async)(device, host.cast_const(), len, stream.handle()) };
        api.check("cuMemcpyHtoDAsync_v2", copied)?;
        for launch in &work.launches {
            let jobs = device + jobs_at + launch.jobs.start as u64 * size_of::<BlockJob>() as u64;
            let [jobs, status] = [jobs, device].map(Parameter::Address);
            let [n_jobs, warp_bytes] = [length(&launch.jobs), launch.warp_bytes].map(Parameter::Number);
            // SAFETY: decode kernels have these parameters (kernels/cuda/decode.cu); the caller promises the jobs.
            unsafe { kernels.launch(launch, &[jobs, n_jobs, warp_bytes, status], stream) }?;
        }
        for launch in &work.overlay_launches {
            let jobs = device + overlays_at + launch.jobs.start as u64 * size_of::<OverlayJob>() as u64;
            let [jobs, status] = [jobs, device].map(Parameter::Address);
            let n_jobs = Parameter::Number(length(&launch.jobs));
            // SAFETY: `overlay_rows` has these parameters; the caller promises the jobs.
            unsafe { kernels.launch(launch, &[jobs, n_jobs, status], stream) }?;
        }
        let status: *mut c_void = host;
        // SAFETY: as the copy above; nobody reads the host's status before the event has fired.
        let copied = unsafe { (api.memcpy_dtoh_async)(status, device, size_of::<Status>(), stream.handle()) };
        api.check("cuMemcpyDtoHAsync_v2", copied)?;
        self.event.record(stream)
    }
}

pub(super) fn put(target: &mut [u8], at: u64, bytes: &[u8]) {
    target[index(at)..][..bytes.len()].copy_from_slice(bytes);
}

fn length(range: &Range<usize>) -> u32 {
    u32::try_from(range.len()).unwrap_or(u32::MAX)
}
