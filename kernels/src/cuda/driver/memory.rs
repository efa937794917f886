//! Memory of the device, and page-locked memory of the host, freed when dropped.
//!
//! Device memory comes from `cuMemAlloc`, not from a pool: it can be shared with other processes, and freeing it
//! waits for what uses it.
//! Page-locked memory is not write-combined: the host reads results from it.

#![expect(unsafe_code, reason = "calls the driver")]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::error::GpuError;
use super::stream::{PAUSE, Stream};

/// Memory of a device.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    address: u64,
    len: u64,
    is_abandoned: bool,
}

impl DeviceBuffer {
    /// Allocates `len` bytes, of which there is at least one; what is in them is anything.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] with what is free; [`GpuError::Capturing`].
    pub fn new(device: &Arc<Device>, len: u64) -> Result<Self, GpuError> {
        let _entered = device.enter()?;
        let mut address = 0;
        let asked = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: the address is written; the context is current.
        let allocated = unsafe { (device.api.mem_alloc)(&raw mut address, asked) };
        let checked = device.api.check("cuMemAlloc_v2", allocated);
        checked.map_err(|error| device.explain(error, "memory of the GPU", len))?;
        Ok(Self { device: Arc::clone(device), address, len, is_abandoned: false })
    }

    /// Its address on the device.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The device that it is of.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Is not freed any more: the device may use it for ever.
    pub(super) const fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Copies `bytes` to its start, and waits for that.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`], [`GpuError::Capturing`].
    ///
    /// # Panics
    /// When it is shorter.
    pub fn write(&mut self, bytes: &[u8], stream: &Stream) -> Result<(), GpuError> {
        assert!(bytes.len() as u64 <= self.len, "{} bytes into a buffer of {}", bytes.len(), self.len);
        // SAFETY: the buffer is as long, and ours.
        unsafe { write_memory(&self.device, self.address, bytes, stream) }
    }

    /// Copies its start to `bytes`, once everything before on `stream` is done, and waits for that.
    ///
    /// # Errors
    /// As [`DeviceBuffer::write`].
    ///
    /// # Panics
    /// When it is shorter.
    pub fn read(&self, bytes: &mut [u8], stream: &Stream) -> Result<(), GpuError> {
        assert!(bytes.len() as u64 <= self.len, "{} bytes from a buffer of {}", bytes.len(), self.len);
        // SAFETY: as in `write`.
        unsafe { read_memory(&self.device, self.address, bytes, stream) }
    }
}

/// Copies `bytes` to the device, behind everything on `stream`, and waits for that.
///
/// # Safety
/// - `address` is memory of the device of at least as many bytes, which may be written.
///
/// # Errors
/// As [`DeviceBuffer::write`].
pub unsafe fn write_memory(
    device: &Device,
    address: u64,
    bytes: &[u8],
    stream: &Stream,
) -> Result<(), GpuError> {
    let _entered = device.enter()?;
    let (source, api) = (bytes.as_ptr().cast(), device.api);
    // SAFETY: the caller promises the target; both stay until the copy is done: it is waited for below.
    let copied = unsafe { (api.memcpy_htod_async)(address, source, bytes.len(), stream.handle()) };
    finish(stream, api.check("cuMemcpyHtoDAsync_v2", copied))
}

/// Copies memory of the device to `bytes`, once everything before on `stream` is done, and waits for that.
///
/// # Safety
/// - `address` is memory of the device of at least as many bytes.
///
/// # Errors
/// As [`DeviceBuffer::write`].
pub unsafe fn read_memory(
    device: &Device,
    address: u64,
    bytes: &mut [u8],
    stream: &Stream,
) -> Result<(), GpuError> {
    let _entered = device.enter()?;
    let (target, api) = (bytes.as_mut_ptr().cast(), device.api);
    // SAFETY: as in `write_memory`; nobody else touches `bytes` meanwhile.
    let copied = unsafe { (api.memcpy_dtoh_async)(target, address, bytes.len(), stream.handle()) };
    finish(stream, api.check("cuMemcpyDtoHAsync_v2", copied))
}

/// Waits for a copy to or from memory of a caller, who may use or free it after this.
///
/// A driver that refuses is asked again until it does not: nothing else says that the copy is over.
fn finish(stream: &Stream, copied: Result<(), GpuError>) -> Result<(), GpuError> {
    // What failed is not on the stream.
    copied?;
    loop {
        match stream.synchronize() {
            Err(error) if !error.is_lost() && error != GpuError::Forked => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: allocated by `new` and freed once; who passed its address to a launch has kept it until then.
        self.device.release(|api| unsafe { (api.mem_free)(self.address) });
    }
}

/// Page-locked memory of the host.
#[derive(Debug)]
pub struct PageLocked {
    device: Arc<Device>,
    pointer: NonNull<u8>,
    len: usize,
    is_abandoned: bool,
}

// SAFETY: it owns its memory, as a `Vec` does; contexts are entered by its users.
unsafe impl Send for PageLocked {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for PageLocked {}

impl PageLocked {
    /// Allocates `len` bytes, of which there is at least one.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], where the system has none that can be page-locked; [`GpuError::Capturing`].
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, GpuError> {
        let _entered = device.enter()?;
        let mut pointer = core::ptr::null_mut();
        // SAFETY: the pointer is written; the context is current.
        let allocated =
            unsafe { (device.api.mem_host_alloc)(&raw mut pointer, len, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let checked = device.api.check("cuMemHostAlloc", allocated);
        checked.map_err(|error| device.explain(error, "page-locked memory of the host", len as u64))?;
        let Some(pointer) = NonNull::new(pointer.cast::<u8>()) else {
            return Err(GpuError::of("cuMemHostAlloc", 2, "no address".to_owned()));
        };
        // Left over from the process's own earlier use, or new from the system: in either case it is initialized.
        // SAFETY: the driver returned `len` bytes, which nobody else has.
        unsafe { pointer.write_bytes(0, len) };
        Ok(Self { device: Arc::clone(device), pointer, len, is_abandoned: false })
    }

    /// Is not freed any more: the device may use it for ever.
    pub(super) const fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Its bytes; no copy that the device has not finished may touch them.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is ours, initialized, and as long; callers have waited for copies into it.
        unsafe { core::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }

    /// As [`PageLocked::bytes`].
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed for as long.
        unsafe { core::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }

    pub(super) const fn pointer(&self) -> *mut c_void {
        self.pointer.as_ptr().cast()
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: allocated by `new` and freed once; who passed it to a copy has waited for that.
        self.device.release(|api| unsafe { (api.mem_free_host)(self.pointer()) });
    }
}
