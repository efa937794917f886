//! Streams and events.
//!
//! Streams of ours do not wait for the legacy default stream; events of ours take no times.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::api::Handle;
use super::device::Device;
use super::error::GpuError;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const NOT_READY: u32 = 600;

/// A driver that refuses to wait is asked again for this long, since what is used can then not be returned.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two questions to a driver that refuses to answer.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Something could not be queued as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unqueued {
    /// Why.
    pub error: GpuError,
    /// Whether nothing of it is running; else the driver did not say so, and what it uses must be kept for ever.
    pub is_quiet: bool,
}

impl From<GpuError> for Unqueued {
    /// An error before anything was queued.
    fn from(error: GpuError) -> Self {
        Self { error, is_quiet: true }
    }
}

/// A stream of a device.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: Handle,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Us,
    Caller,
}

impl Stream {
    /// Makes a stream of the lowest priority, which is the one that streams have by default.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`].
    pub fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        let _entered = device.enter()?;
        let mut handle = 0;
        // SAFETY: the handle is written; the context is current.
        let created = unsafe { (device.api.stream_create)(&raw mut handle, NON_BLOCKING, 0) };
        device.api.check("cuStreamCreateWithPriority", created)?;
        Ok(Self { device: Arc::clone(device), handle, owner: Owner::Us })
    }

    /// A stream of another runtime of this process.
    ///
    /// # Safety
    /// - `handle` is a stream of the device's primary context, or 0 for its default stream, and stays so until this
    ///   is dropped.
    pub unsafe fn of_caller(device: &Arc<Device>, handle: u64) -> Self {
        let handle = usize::try_from(handle).unwrap_or(usize::MAX);
        Self { device: Arc::clone(device), handle, owner: Owner::Caller }
    }

    pub(super) const fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether both are the same stream.
    pub fn is(&self, other: &Self) -> bool {
        self.handle == other.handle
    }

    /// Waits until everything on it is done.
    ///
    /// # Errors
    /// [`GpuError::Lost`] when something on it has failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream exists.
        let done = unsafe { (self.device.api.stream_synchronize)(self.handle) };
        self.device.api.check("cuStreamSynchronize", done)
    }

    /// Whether everything on it is done, once it is; `false` where the driver keeps refusing to say.
    pub(super) fn settle(&self) -> bool {
        settle(|| self.synchronize())
    }

    /// Refuses a stream that is being captured into a graph.
    ///
    /// # Errors
    /// [`GpuError::Capturing`].
    pub fn check_not_capturing(&self, call: &'static str) -> Result<(), GpuError> {
        let _entered = self.device.enter()?;
        let mut status = 0;
        // SAFETY: the status is written; the stream exists.
        let asked = unsafe { (self.device.api.stream_is_capturing)(self.handle, &raw mut status) };
        self.device.api.check("cuStreamIsCapturing", asked)?;
        if status == 0 { Ok(()) } else { Err(GpuError::Capturing { call }) }
    }

    /// What comes on it from now on waits for `event`.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`].
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        let _entered = self.device.enter()?;
        // SAFETY: both exist; the driver keeps what it needs of the event.
        let queued = unsafe { (self.device.api.stream_wait_event)(self.handle, event.handle, 0) };
        self.device.api.check("cuStreamWaitEvent", queued)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owner == Owner::Us {
            // SAFETY: made by `new` and destroyed once; the driver lets what is on it finish.
            self.device.release(|api| unsafe { (api.stream_destroy)(self.handle) });
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: Handle,
}

impl Event {
    /// Makes an event; until it is recorded, it counts as fired.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`].
    pub fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        let _entered = device.enter()?;
        let mut handle = 0;
        // SAFETY: the handle is written; the context is current.
        let created = unsafe { (device.api.event_create)(&raw mut handle, DISABLE_TIMING) };
        device.api.check("cuEventCreate", created)?;
        Ok(Self { device: Arc::clone(device), handle })
    }

    /// The device that it is of.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Records it behind everything on `stream`.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`].
    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        let _entered = self.device.enter()?;
        // SAFETY: both exist.
        let recorded = unsafe { (self.device.api.event_record)(self.handle, stream.handle) };
        self.device.api.check("cuEventRecord", recorded)
    }

    /// Whether it has fired.
    ///
    /// # Errors
    /// [`GpuError::Lost`] when something before it has failed.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        let _entered = self.device.enter()?;
        // SAFETY: the event exists.
        match unsafe { (self.device.api.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.device.api.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until it has fired.
    ///
    /// # Errors
    /// As [`Event::is_done`].
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _entered = self.device.enter()?;
        // SAFETY: the event exists.
        let done = unsafe { (self.device.api.event_synchronize)(self.handle) };
        self.device.api.check("cuEventSynchronize", done)
    }

    /// Whether it has fired, once it has; `false` where the driver keeps refusing to say.
    pub(super) fn settle(&self) -> bool {
        settle(|| self.synchronize())
    }
}

fn settle(wait: impl Fn() -> Result<(), GpuError>) -> bool {
    let asked = Instant::now();
    loop {
        match wait() {
            Ok(()) => return true,
            // A context that is lost runs nothing; one of another process is not waited for.
            Err(error) if error.is_lost() || error == GpuError::Forked => return true,
            Err(_) if asked.elapsed() >= PATIENCE => return false,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new` and destroyed once; the driver keeps what a waiting stream needs of it.
        self.device.release(|api| unsafe { (api.event_destroy)(self.handle) });
    }
}
