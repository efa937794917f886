//! A tensor in the memory of a GPU.

use std::fmt;
use std::sync::Arc;

use tierpack_kernels::cuda::driver::{DeviceBuffer, GpuError, Stream};
use tierpack_shm::types::{Dtype, index};

use super::flight::DeviceGet;
use super::gpu::Gpu;
use crate::error::{Error, Result};
use crate::handle::Handle;

/// A tensor's dtype, shape and device memory: what [`Handle::get_to_device`] returns.
///
/// The memory is that of `cuMemAlloc`, row-major, and aligned to 256 bytes.
/// Its bytes are there once [`DeviceTensor::wait`] has returned, and on a stream behind [`DeviceTensor::wait_on`].
/// It is freed when this is dropped and no read writes it any more.
pub struct DeviceTensor {
    dtype: Dtype,
    shape: Vec<u64>,
    ordinal: usize,
    len: u64,
    buffer: Option<Arc<DeviceBuffer>>,
    get: DeviceGet,
    stream: Arc<Stream>,
    /// Whether a read was queued that fills it.
    is_read: bool,
}

/// Dtype, shape and bytes of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) len: u64,
}

impl Form {
    pub(super) fn of(handle: &Handle) -> Self {
        Self { dtype: handle.dtype(), shape: handle.shape(), len: handle.raw_bytes() }
    }
}

impl DeviceTensor {
    pub(super) fn new(
        ordinal: usize,
        form: Form,
        buffer: Option<Arc<DeviceBuffer>>,
        get: DeviceGet,
        stream: &Arc<Stream>,
    ) -> Self {
        let Form { dtype, shape, len } = form;
        Self { dtype, shape, ordinal, len, buffer, get, stream: Arc::clone(stream), is_read: true }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Shape, outermost dimension first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device's address of its first byte; 0 for a tensor without bytes.
    pub fn address(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.address())
    }

    /// The number of the GPU.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Waits until its bytes are there.
    ///
    /// # Errors
    /// As [`DeviceGet::wait`]; [`GpuError::NotRead`] when the last read into it could not be queued.
    pub fn wait(&self) -> Result<()> {
        if !self.is_read {
            return Err(GpuError::NotRead.into());
        }
        self.get.wait()
    }

    /// Whether its bytes are there, or never will be; [`DeviceTensor::wait`] then says which, at once.
    pub fn is_ready(&self) -> bool {
        self.get.is_ready()
    }

    /// Waits for its bytes, and copies them to host memory.
    ///
    /// # Errors
    /// As [`DeviceTensor::wait`]; [`Error::Memory`].
    pub fn to_host(&self) -> Result<Vec<u8>> {
        self.wait()?;
        let mut bytes = Vec::new();
        let memory = |_| Error::Memory { bytes: u128::from(self.len) };
        bytes.try_reserve_exact(index(self.len)).map_err(memory)?;
        bytes.resize(index(self.len), 0);
        if let Some(buffer) = &self.buffer {
            buffer.read(&mut bytes, &self.stream)?;
        }
        Ok(bytes)
    }

    /// The read that fills it.
    pub(super) fn get(&self) -> &DeviceGet {
        &self.get
    }

    pub(super) fn buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        self.buffer.as_ref()
    }

    /// Whether the tensor of `handle` can be read into it.
    pub(super) fn check_for(&self, handle: &Handle, gpu: &Gpu) -> Result<()> {
        if self.ordinal != gpu.ordinal() {
            return Err(GpuError::OtherDevice { found: self.ordinal, needed: gpu.ordinal() }.into());
        }
        let needed = u128::from(handle.raw_bytes());
        if u128::from(self.len) == needed {
            Ok(())
        } else {
            Err(Error::BufferLength { needed, got: self.len })
        }
    }

    /// Has what was queued for it on other streams come before what comes on `stream`.
    pub(super) fn settle_before(&self, stream: &Stream) -> Result<()> {
        if self.stream.is(stream) {
            return Ok(());
        }
        for flight in &self.get.flights {
            match flight.pending() {
                Ok(Some(event)) => stream.wait(&event)?,
                // Bytes that were damaged are there as well.
                Ok(None) | Err(Error::Damaged { .. }) => {}
                // The GPU may still write.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Holds nothing that anybody should use, until it is refilled.
    pub(super) fn empty(&mut self) {
        self.is_read = false;
    }

    /// Is filled by another read from now on.
    pub(super) fn refill(&mut self, dtype: Dtype, shape: &[u64], get: DeviceGet, stream: &Arc<Stream>) {
        (self.dtype, self.get, self.stream) = (dtype, get, Arc::clone(stream));
        self.is_read = true;
        self.shape.clear();
        self.shape.extend(shape);
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTensor")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("ordinal", &self.ordinal)
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
