//! A GPU that tensors are read to.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tierpack_kernels::Coder;
use tierpack_kernels::cuda::driver::{Device, DeviceBuffer, GpuError, Kernels, Stream};
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::cuda::images::Module;

use super::access::{AccessState, GpuAccess};
use super::config::GpuConfig;
use super::enqueue::MOST_TENSORS;
use super::flight::Runs;
use super::forms::DeviceForms;
use super::plan::Target;
use super::prefetch::Prefetch;
use super::reaper::Reaper;
use super::segments::Segments;
use super::staging::Staging;
use super::tensor::{DeviceTensor, Form};
use crate::error::{Error, Result};
use crate::handle::{Handle, Opened};

/// Tells the GPUs of a process apart, two of the same device included; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GpuId(u64);

/// An open GPU: what [`Handle::get_to_device`] reads to.
///
/// It uses the device's primary context, as other runtimes of the process do; a process may open several, and the
/// same one more than once.
/// Dropping it waits for reads that are on their way; tensors that it returned stay.
#[derive(Debug)]
pub struct Gpu {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) id: GpuId,
    pub(super) device: Arc<Device>,
    pub(super) access: AccessState,
    pub(super) kernels: Kernels,
    /// Those of module `gather`, once a tensor is to be gathered from.
    gather_kernels: Mutex<Option<Arc<Kernels>>>,
    /// Reads that somebody will wait for.
    pub(super) stream: Arc<Stream>,
    /// Prefetches, so that they delay nobody.
    pub(super) background: Arc<Stream>,
    pub(super) copies: Stream,
    /// Metadata, which is waited for.
    pub(super) uploads: Stream,
    pub(super) staging: Staging,
    pub(super) runs: Arc<Runs>,
    pub(super) reaper: Reaper,
    /// Where forms of this GPU are kept.
    forms: Mutex<Vec<Weak<DeviceForms>>>,
}

impl Gpu {
    /// Opens a GPU: loads the driver, checks it and the device, and loads the kernels.
    ///
    /// # Errors
    /// [`Error::Gpu`] with a variant of [`GpuError`] for each reason; a machine without a GPU or driver is one.
    pub fn open(config: &GpuConfig) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let choice = config.chosen()?;
        let device = Device::open(config.ordinal)?;
        let access = AccessState::new(choice, device.facts())?;
        let kernels = Kernels::load(&device, Module::Decode)?;
        let inner = Inner {
            // Relaxed: it only has to be unique.
            id: GpuId(NEXT.fetch_add(1, Ordering::Relaxed)),
            access,
            kernels,
            gather_kernels: Mutex::default(),
            stream: Arc::new(Stream::new(&device)?),
            background: Arc::new(Stream::new(&device)?),
            copies: Stream::new(&device)?,
            uploads: Stream::new(&device)?,
            staging: Staging::new(config.staging_bytes, config.staging_buffers),
            runs: Arc::default(),
            reaper: Reaper::start(&device)?,
            forms: Mutex::default(),
            device,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device's number, as in [`GpuConfig::ordinal`].
    pub fn ordinal(&self) -> usize {
        self.inner.device.ordinal()
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.inner.device.facts().name
    }

    /// The device's UUID, which is the same in every process.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.device.facts().uuid
    }

    /// How it reads the pool, and why not in a better way.
    pub fn access(&self) -> GpuAccess {
        let (mode, reason) = self.inner.access.now();
        let (registered_segments, registered_bytes) = Segments::of_process().of(self.inner.id);
        GpuAccess { mode, reason, registered_segments, registered_bytes }
    }

    /// Gets whole tensors, with one launch per codec for up to 256 of them.
    ///
    /// They are of one moment as by [`Client::get_many`](crate::Client::get_many), 256 at a time.
    /// Their reads end together: a damaged one is an error of [`DeviceTensor::wait`] for all of them, which names it.
    ///
    /// # Errors
    /// As [`Handle::get_to_device`]; then none is got.
    pub fn get_many_to_device(&self, handles: &[&Handle]) -> Result<Vec<DeviceTensor>> {
        self.get_many(handles, &self.inner.stream)
    }

    /// Starts to get a whole tensor, behind other prefetches and next to reads that somebody waits for.
    ///
    /// As [`Handle::get_to_device`], on a stream for prefetches alone.
    ///
    /// # Errors
    /// As [`Handle::get_to_device`].
    pub fn prefetch(&self, handle: &Handle) -> Result<Prefetch> {
        self.get_one(handle, &self.inner.background).map(Prefetch::new)
    }

    fn get_one(&self, handle: &Handle, stream: &Arc<Stream>) -> Result<DeviceTensor> {
        let buffer = self.allocate(handle)?;
        let get = self.inner.enqueue(&[target(handle, buffer.as_ref())], stream)?;
        Ok(DeviceTensor::new(self.ordinal(), Form::of(handle), buffer, get, stream))
    }

    fn get_many(&self, handles: &[&Handle], stream: &Arc<Stream>) -> Result<Vec<DeviceTensor>> {
        let mut tensors = Vec::with_capacity(handles.len());
        for handles in handles.chunks(MOST_TENSORS) {
            let buffers = handles.iter().map(|handle| self.allocate(handle)).collect::<Result<Vec<_>>>()?;
            let each = handles.iter().zip(&buffers);
            let targets: Vec<_> = each.map(|(handle, buffer)| target(handle, buffer.as_ref())).collect();
            let get = self.inner.enqueue(&targets, stream)?;
            let each = handles.iter().zip(buffers);
            tensors.extend(each.map(|(handle, buffer)| {
                DeviceTensor::new(self.ordinal(), Form::of(handle), buffer, get.clone(), stream)
            }));
        }
        Ok(tensors)
    }

    /// Memory for a tensor; none for one without bytes.
    fn allocate(&self, handle: &Handle) -> Result<Option<Arc<DeviceBuffer>>> {
        handle.client().shared.check_here()?;
        match handle.raw_bytes() {
            0 => Ok(None),
            len => Ok(Some(Arc::new(DeviceBuffer::new(&self.inner.device, len)?))),
        }
    }
}

pub(super) fn target<'a>(handle: &'a Handle, buffer: Option<&Arc<DeviceBuffer>>) -> Target<'a> {
    Target { handle, out: buffer.map_or(0, |buffer| buffer.address()), buffer: buffer.map(Arc::clone) }
}

impl Handle {
    /// Gets the whole tensor into new memory of a GPU, by a launch on a stream of that GPU's.
    ///
    /// It returns once the launch is queued; with access `staged`, once all but the last buffers have been copied, so
    /// that it may wait for reads before it. [`DeviceTensor::wait`] waits for the bytes, and says whether they are
    /// those of the tensor as it was at the call, whatever has happened to it since.
    ///
    /// # Errors
    /// [`Error::Gpu`], among others [`GpuError::OutOfMemory`]; else as [`Handle::get`].
    pub fn get_to_device(&self, gpu: &Gpu) -> Result<DeviceTensor> {
        gpu.get_one(self, &gpu.inner.stream)
    }

    /// Gets the whole tensor into the memory of one that is not needed any more, and allocates none.
    ///
    /// What was queued for `tensor` before comes first; all other users of its memory must be done.
    ///
    /// # Errors
    /// [`Error::BufferLength`] when it has another length, [`GpuError::OtherDevice`]; else as
    /// [`Handle::get_to_device`]. After an error `tensor` holds anything.
    pub fn get_to_device_into(&self, gpu: &Gpu, tensor: &mut DeviceTensor) -> Result<()> {
        self.client().shared.check_here()?;
        tensor.check_for(self, gpu)?;
        let stream = &gpu.inner.stream;
        tensor.settle_before(stream)?;
        tensor.empty();
        let get = gpu.inner.enqueue(&[target(self, tensor.buffer())], stream)?;
        tensor.refill(self.dtype(), self.shape_ref(), get, stream);
        Ok(())
    }
}

impl Inner {
    /// The kernels that gather; the first one who asks loads them.
    pub(super) fn gather_kernels(&self) -> core::result::Result<Arc<Kernels>, GpuError> {
        let mut kernels = self.gather_kernels.lock();
        let loaded = match kernels.take() {
            Some(loaded) => loaded,
            None => Arc::new(Kernels::load(&self.device, Module::Gather)?),
        };
        *kernels = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Whether a handle of the GPU `other` can be used with this one.
    pub(super) fn check_is(&self, other: &Self) -> core::result::Result<(), GpuError> {
        let (found, needed) = (other.device.ordinal(), self.device.ordinal());
        if other.id == self.id { Ok(()) } else { Err(GpuError::OtherDevice { found, needed }) }
    }

    /// The metadata of a coder in device memory.
    pub(super) fn form(
        &self,
        opened: &Opened,
        coder: &Coder,
    ) -> core::result::Result<Arc<DeviceBuffer>, GpuError> {
        opened.forms.get((self.id, coder.generation()), || {
            let bytes = device_form(coder);
            let mut buffer = DeviceBuffer::new(&self.device, bytes.len() as u64)?;
            buffer.write(&bytes, &self.uploads)?;
            self.keep_in_mind(&opened.forms);
            Ok(buffer)
        })
    }

    fn keep_in_mind(&self, forms: &Arc<DeviceForms>) {
        let mut known = self.forms.lock();
        known.retain(|known| known.strong_count() > 0);
        let forms = Arc::downgrade(forms);
        if !known.iter().any(|known| known.ptr_eq(&forms)) {
            known.push(forms);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reaper.close();
        self.forms.get_mut().iter().filter_map(Weak::upgrade).for_each(|forms| forms.forget(self.id));
        self.runs.clear();
        self.staging.clear();
        Segments::of_process().forget(self.id);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !self.inner.device.is_here() {
            // The reaper does not exist in a fork, and locks may have been caught: leave everything where it is.
            let _ = ManuallyDrop::new(Arc::clone(&self.inner));
        }
    }
}

impl From<GpuError> for Error {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}
