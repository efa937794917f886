//! Registration: memory of the process that the device may read where it is.
//!
//! The driver page-locks the range and assigns it an address on each device.
//! A range is registered once per process and unregistered once, before it is unmapped; the driver refuses a second
//! registration that overlaps, and keeps a forgotten one for the next mapping at that address.

#![expect(unsafe_code, reason = "calls the driver")]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Device;
use super::error::GpuError;

/// The most that one registration holds: some drivers count pages of a longer one in 32 bits.
/// Source: reports on 580-series drivers; TierPack registers segments, of at most 64 MiB.
const MAX_BYTES: usize = 64 << 30;

/// A registered range; unregistered when dropped.
#[derive(Debug)]
pub struct Registration {
    device: Arc<Device>,
    pointer: NonNull<c_void>,
    len: usize,
    has_ended: bool,
}

// SAFETY: it is a range of addresses; unregistering works from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory that the process may only read, for all contexts of the process.
    ///
    /// # Safety
    /// - The range is mapped, and stays so until this is dropped.
    ///
    /// # Errors
    /// [`GpuError::NoAccess`] where the device cannot, [`GpuError::Registration`] where the driver will not,
    /// [`GpuError::Capturing`].
    pub unsafe fn new(device: &Arc<Device>, pointer: NonNull<c_void>, len: usize) -> Result<Self, GpuError> {
        if let Some(reason) = device.facts().cannot_register() {
            return Err(no_access(reason));
        }
        // SAFETY: the caller promises the range.
        unsafe { Self::attempt(device, pointer, len, true) }
    }

    /// As [`Registration::new`], but whatever the device's attributes are, so that the answer is the driver's own;
    /// with `is_read_only` unset, as memory that the device may write, too.
    ///
    /// # Safety
    /// - The range is mapped, and stays so until this is dropped.
    /// - Where the device may write it, no launch writes what somebody else reads or writes.
    ///
    /// # Errors
    /// As [`Registration::new`].
    pub unsafe fn attempt(
        device: &Arc<Device>,
        pointer: NonNull<c_void>,
        len: usize,
        is_read_only: bool,
    ) -> Result<Self, GpuError> {
        if len > MAX_BYTES {
            return Err(no_access("more than 64 GiB in one piece"));
        }
        let mut flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        if is_read_only {
            flags |= sys::CU_MEMHOSTREGISTER_READ_ONLY;
        }
        let _entered = device.enter()?;
        // SAFETY: the caller promises the range; the context is current.
        let registered = unsafe { (device.api.mem_host_register)(pointer.as_ptr(), len, flags) };
        let checked = device.api.check("cuMemHostRegister_v2", registered);
        checked.map_err(|error| match error.plain() {
            Ok((code, name)) => GpuError::Registration { code, name, address: pointer.addr().get(), len },
            Err(other) => other,
        })?;
        Ok(Self { device: Arc::clone(device), pointer, len, has_ended: false })
    }

    /// Where a device finds the first byte.
    ///
    /// # Errors
    /// [`GpuError::Registration`] where it cannot.
    pub fn address(&self, device: &Device) -> Result<u64, GpuError> {
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: the address is written; the range is registered.
        let found =
            unsafe { (device.api.mem_host_get_device_pointer)(&raw mut address, self.pointer.as_ptr(), 0) };
        let checked = device.api.check("cuMemHostGetDevicePointer_v2", found);
        checked.map_err(|error| match error.plain() {
            Ok((code, name)) => {
                GpuError::Registration { code, name, address: self.pointer.addr().get(), len: self.len }
            }
            Err(other) => other,
        })?;
        Ok(address)
    }

    /// Unregisters the range, as dropping does, and says how that went.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: the driver keeps the pages, and may read them for what is mapped there later.
    pub fn end(mut self) -> Result<(), GpuError> {
        self.unregister()
    }

    fn unregister(&mut self) -> Result<(), GpuError> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        let ended = self.device.release_checked("cuMemHostUnregister", |api| {
            // SAFETY: registered by `new`, unregistered once, and still mapped, as the caller of `new` promised.
            unsafe { (api.mem_host_unregister)(self.pointer.as_ptr()) }
        });
        match ended {
            // A context that is lost has returned everything.
            Err(error) if error.is_lost() => Ok(()),
            ended => ended,
        }
    }

    /// Bytes of the range.
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }
}

fn no_access(reason: &str) -> GpuError {
    GpuError::NoAccess { asked: "registered", reason: reason.to_owned() }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // There is nobody to tell; who can tell somebody calls `end`.
        drop(self.unregister());
    }
}
