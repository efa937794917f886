//! Staging: compressed bytes copied to the device in turns, where it cannot read them in place.
//!
//! ```text
//! host buffer     CPU copies in            free again when `copied` has fired
//! copy stream     host -> device buffer,   record `copied`
//! decode stream   wait for `copied`, decode, record `used`
//! device buffer                            free again when `used` has fired
//! ```

#![expect(unsafe_code, reason = "queues copies")]

use std::sync::Arc;

use tierpack_shm::types::index;

use super::device::Device;
use super::error::GpuError;
use super::memory::{DeviceBuffer, PageLocked};
use super::stream::{Event, Stream};

/// One buffer of the host, and the one of the device that it is copied to.
#[derive(Debug)]
pub struct Stage {
    host: PageLocked,
    device: DeviceBuffer,
    copied: Event,
    used: Event,
    /// Whether the device may use the buffers for ever: the driver would not say otherwise.
    is_abandoned: bool,
}

impl Stage {
    /// Allocates both.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Capturing`].
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, GpuError> {
        Ok(Self {
            host: PageLocked::new(device, index(bytes))?,
            device: DeviceBuffer::new(device, bytes)?,
            copied: Event::new(device)?,
            used: Event::new(device)?,
            is_abandoned: false,
        })
    }

    /// Bytes of each.
    #[expect(clippy::len_without_is_empty, reason = "a stage is never empty")]
    pub const fn len(&self) -> u64 {
        self.device.len()
    }

    /// Where the device finds the bytes, and the host's buffer, once the device is done with what was in it; 64-byte
    /// aligned.
    ///
    /// # Errors
    /// [`GpuError::Lost`]; [`GpuError::OutOfMemory`] where buffers that were abandoned cannot be replaced.
    pub fn fill(&mut self) -> Result<(u64, &mut [u8]), GpuError> {
        if self.is_abandoned {
            *self = Self::new(self.device.device(), self.len())?;
        }
        self.copied.synchronize()?;
        self.used.synchronize()?;
        Ok((self.device.address(), self.host.bytes_mut()))
    }

    /// Keeps both buffers for ever, since the device may still use them; the next [`Stage::fill`] makes new ones.
    pub const fn abandon(&mut self) {
        self.is_abandoned = true;
        self.host.abandon();
        self.device.abandon();
    }

    /// Queues the copy of the first `len` bytes on `copy`; what comes on `decode` from now on waits for it.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`]; then nothing is being copied any more, or this is abandoned.
    ///
    /// # Panics
    /// When the buffers are shorter.
    pub fn upload(&mut self, len: u64, copy: &Stream, decode: &Stream) -> Result<(), GpuError> {
        assert!(len <= self.len(), "{len} bytes into a stage of {}", self.len());
        let device = Arc::clone(self.device.device());
        let _entered = device.enter()?;
        let (source, target) = (self.host.pointer().cast_const(), self.device.address());
        // SAFETY: both buffers have room; `fill` and `drop` wait for `copied`, which is recorded behind the copy.
        let copied = unsafe { (device.api.memcpy_htod_async)(target, source, index(len), copy.handle()) };
        device
            .api
            .check("cuMemcpyHtoDAsync_v2", copied)
            .and_then(|()| self.copied.record(copy))
            .and_then(|()| decode.wait(&self.copied))
            .inspect_err(|_| self.settle(copy))
    }

    /// Says that everything on `decode` up to now may read the device's buffer.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`]; then nothing reads it any more, or this is abandoned.
    pub fn mark_used(&mut self, decode: &Stream) -> Result<(), GpuError> {
        self.used.record(decode).inspect_err(|_| self.settle(decode))
    }

    /// After a failure: what was queued before it still uses the buffers.
    fn settle(&mut self, stream: &Stream) {
        if !stream.settle() {
            self.abandon();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Before the buffers go.
        let is_over = self.is_abandoned || (self.copied.settle() && self.used.settle());
        if !is_over {
            self.abandon();
        }
    }
}
