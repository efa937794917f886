//! A run of `gather`: calls on their way to the device, what it must know before, and the reports that come back.
//!
//! ```text
//! host    [miss lists | statuses]  [statuses | calls | positions | bytes for memory that stays]
//!            ^                        |                             |
//!            |                        v                             v
//! device  [miss lists | statuses  |  calls  | positions]       tensors, segments, block words
//! ```
//!
//! The host's statuses that go up and those that come down are not the same bytes: a graph sends them up again.

#![expect(unsafe_code, reason = "queues copies and launches")]

use core::ops::Range;

use tierpack_shm::types::index;
use zerocopy::{FromBytes, IntoBytes};

use super::error::GpuError;
use super::module::{Kernels, Parameter};
use super::run::{Run, put};
use super::stream::{Stream, Unqueued};
use crate::cuda::gather::{GatherCall, GatherLaunch, GatherStatus};

/// Positions that the miss list of a call has room for; a call with more misses is gathered again as a whole.
pub const MISSED_ROOM: u32 = 256;

const MISSED_BYTES: u64 = MISSED_ROOM as u64 * 4;
const STATUS_BYTES: u64 = size_of::<GatherStatus>() as u64;
const DOWN_BYTES: u64 = MISSED_BYTES + STATUS_BYTES;

/// Something that comes before the launch, in its turn.
#[derive(Clone, Debug)]
pub enum Step {
    /// Copies a part of [`GatherWork::bytes`] to memory of the device.
    Copy {
        /// Where to.
        address: u64,
        /// Which bytes.
        part: Range<usize>,
    },
    /// Fills memory of the device with zeros.
    Zero {
        /// Where.
        address: u64,
        /// How many bytes.
        len: u64,
    },
    /// Empties what is out of date in the cache of a tensor.
    Sweep {
        /// The launch.
        launch: GatherLaunch,
        /// The address of the tensor.
        tensor: u64,
    },
}

/// A launch of `gather`, and what comes before it.
#[derive(Debug, Default)]
pub struct GatherWork {
    /// In this order, before the launch.
    pub steps: Vec<Step>,
    /// What the steps copy.
    pub bytes: Vec<u8>,
    /// The calls; where their reports go is for the run to say.
    pub calls: Vec<GatherCall>,
    /// Positions that the first call is to gather alone; empty: all of them.
    pub only: Vec<u32>,
    /// The launch; `None` where no call has an id.
    pub launch: Option<GatherLaunch>,
}

impl GatherWork {
    /// Bytes that a run needs for it.
    pub fn needed(&self) -> u64 {
        self.payload_at() + self.bytes.len() as u64
    }

    fn n_calls(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Where the host keeps what goes up.
    fn up_at(&self) -> u64 {
        self.n_calls() * DOWN_BYTES
    }

    /// Bytes that go up for the launch itself.
    fn up_bytes(&self) -> u64 {
        self.n_calls() * STATUS_BYTES + size_of_val(&*self.calls) as u64 + size_of_val(&*self.only) as u64
    }

    fn payload_at(&self) -> u64 {
        (self.up_at() + self.up_bytes()).next_multiple_of(16)
    }
}

impl Run {
    /// What call `call_idx` of `n_calls` reported, and the positions on its miss list; the event has fired.
    pub fn gathered(&self, call_idx: usize, n_calls: usize) -> (GatherStatus, &[u32]) {
        let bytes = self.host.bytes();
        let status_at = n_calls * index(MISSED_BYTES) + call_idx * index(STATUS_BYTES);
        let status = GatherStatus::read_from_prefix(&bytes[status_at..]);
        let status = status.map_or(GatherStatus::CLEAR, |(status, _)| status);
        let listed = index(status.n_missed.min(u64::from(MISSED_ROOM)));
        let list = &bytes[call_idx * index(MISSED_BYTES)..][..4 * listed];
        // The buffer is page-aligned, so that this never fails.
        (status, <[u32]>::ref_from_bytes(list).unwrap_or(&[]))
    }

    /// Queues the work on `stream`, and the event behind it.
    ///
    /// After an error nothing of it is running any more, unless the error says that this is not known: then the run
    /// and everything that the calls lead to must be kept for ever.
    ///
    /// # Safety
    /// - As for [`Run::submit`], of the calls and the steps; `kernels` are those of module `gather`.
    ///
    /// # Errors
    /// As [`Run::submit`].
    ///
    /// # Panics
    /// When there is no room for the work.
    pub unsafe fn submit_gather(
        &mut self,
        kernels: &Kernels,
        work: &GatherWork,
        stream: &Stream,
    ) -> Result<(), Unqueued> {
        let _entered = kernels.device().enter()?;
        // SAFETY: the caller promises what this asks for.
        let queued = unsafe { self.queue_gather(kernels, work, stream) };
        let queued = queued.and_then(|()| self.event.record(stream));
        // What was queued before the failure still reads.
        queued.map_err(|error| Unqueued { error, is_quiet: stream.settle() })
    }

    /// Queues the work on a stream that is being captured; a graph that is made of it runs it at each launch.
    ///
    /// # Safety
    /// - As for [`Run::submit_gather`], and for as long as the graph may run; this is kept as long.
    ///
    /// # Errors
    /// [`GpuError::Launch`], [`GpuError::Driver`], [`GpuError::Lost`]: then the capture is of no use.
    ///
    /// # Panics
    /// When there is no room for the work.
    pub unsafe fn queue_gather(
        &mut self,
        kernels: &Kernels,
        work: &GatherWork,
        stream: &Stream,
    ) -> Result<(), GpuError> {
        assert!(self.has_room(work.needed()), "the caller has looked for room");
        let _entered = kernels.device().enter()?;
        self.fill(work);
        let (device, api) = (self.device.address(), kernels.device().api);
        for step in &work.steps {
            // SAFETY: the caller promises the steps' addresses.
            unsafe { self.queue_step(kernels, work, step, stream) }?;
        }
        let Some(launch) = &work.launch else { return Ok(()) };
        let statuses = device + work.n_calls() * MISSED_BYTES;
        let host = self.host.pointer().cast::<u8>();
        // SAFETY: within the buffer, whose room was looked for.
        let up = unsafe { host.add(index(work.up_at())) };
        // SAFETY: both buffers have room, and are kept until the event has fired.
        let copied =
            unsafe { (api.memcpy_htod_async)(statuses, up.cast(), index(work.up_bytes()), stream.handle()) };
        api.check("cuMemcpyHtoDAsync_v2", copied)?;
        let calls = Parameter::Address(statuses + work.n_calls() * STATUS_BYTES);
        let n_calls = Parameter::Number(u32::try_from(work.calls.len()).unwrap_or(u32::MAX));
        // SAFETY: `gather` has these parameters (kernels/cuda/gather.cu); the caller promises the calls.
        unsafe { kernels.launch(&(*launch).into(), &[calls, n_calls], stream) }?;
        // SAFETY: as the copy above; nobody reads what comes back before the event has fired.
        let copied =
            unsafe { (api.memcpy_dtoh_async)(host.cast(), device, index(work.up_at()), stream.handle()) };
        api.check("cuMemcpyDtoHAsync_v2", copied)
    }

    /// Writes what goes up into the host's buffer.
    fn fill(&mut self, work: &GatherWork) {
        let n_calls = work.n_calls();
        let (missed, statuses) = (self.device.address(), self.device.address() + n_calls * MISSED_BYTES);
        let only = statuses + n_calls * STATUS_BYTES + size_of_val(&*work.calls) as u64;
        let bytes = self.host.bytes_mut();
        let mut at = work.up_at();
        for _ in &work.calls {
            put(bytes, at, GatherStatus::CLEAR.as_bytes());
            at += STATUS_BYTES;
        }
        for (call, call_idx) in work.calls.iter().zip(0..) {
            let call = GatherCall {
                missed: missed + call_idx * MISSED_BYTES,
                missed_room: MISSED_ROOM,
                status: statuses + call_idx * STATUS_BYTES,
                only: if call_idx == 0 && !work.only.is_empty() { only } else { 0 },
                ..*call
            };
            put(bytes, at, call.as_bytes());
            at += size_of::<GatherCall>() as u64;
        }
        put(bytes, at, work.only.as_bytes());
        put(bytes, work.payload_at(), &work.bytes);
    }

    /// # Safety
    /// - As [`Run::queue_gather`].
    unsafe fn queue_step(
        &self,
        kernels: &Kernels,
        work: &GatherWork,
        step: &Step,
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let api = kernels.device().api;
        match *step {
            Step::Copy { address, ref part } => {
                let source = &self.host.bytes()[index(work.payload_at())..][part.clone()];
                // SAFETY: the caller promises the target; the source stays as it is until the event has fired.
                let copied = unsafe {
                    (api.memcpy_htod_async)(address, source.as_ptr().cast(), source.len(), stream.handle())
                };
                api.check("cuMemcpyHtoDAsync_v2", copied)
            }
            Step::Zero { address, len } => {
                // SAFETY: the caller promises the memory.
                let filled = unsafe { (api.memset_d8_async)(address, 0, index(len), stream.handle()) };
                api.check("cuMemsetD8Async", filled)
            }
            Step::Sweep { launch, tensor } => {
                // SAFETY: `sweep_cache` has this parameter; the caller promises the tensor.
                unsafe { kernels.launch(&launch.into(), &[Parameter::Address(tensor)], stream) }
            }
        }
    }
}
