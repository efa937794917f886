//! A device: its primary context, which other runtimes of the process share, and what it can do.

#![expect(unsafe_code, reason = "calls the driver")]

use core::ffi::{CStr, c_uint};
use core::marker::PhantomData;
use std::ffi::OsStr;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use super::api::{Api, Handle};
use super::error::{GpuError, NEEDED_CAPABILITY};

/// Numbers of the driver's attributes.
mod attribute {
    use super::Attribute;

    pub(super) const MULTIPROCESSORS: u32 = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32;
    pub(super) const MAJOR: u32 = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32;
    pub(super) const MINOR: u32 = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as u32;
    pub(super) const PAGEABLE_ACCESS: u32 = Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS as u32;
    pub(super) const HOST_PAGE_TABLES: u32 =
        Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES as u32;
    pub(super) const HOST_REGISTER: u32 = Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED as u32;
    pub(super) const READ_ONLY_REGISTER: u32 =
        Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as u32;
}

/// The mode of a thread that captures of others do not concern.
const RELAXED: c_uint = 2;

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Its UUID, which is the same in every process.
    pub uuid: [u8; 16],
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Its multiprocessors.
    pub n_multiprocessors: u32,
    /// Whether its kernels may read any memory of the process (attribute 88).
    pub reads_pageable: bool,
    /// Whether it does so through the page tables of the processor (attribute 100), without faults of its own.
    pub uses_host_page_tables: bool,
    /// Whether memory of the process can be registered (attribute 99).
    pub registers: bool,
    /// Whether memory that the process may only read can be registered (attribute 113).
    pub registers_read_only: bool,
}

impl Facts {
    /// Why segments, which a client may only read, cannot be registered; `None` where they can.
    pub const fn cannot_register(&self) -> Option<&'static str> {
        if !self.registers {
            Some("the GPU cannot register memory of the process (attribute 99 is 0)")
        } else if !self.registers_read_only {
            Some("the GPU cannot register memory that a process may only read (attribute 113 is 0)")
        } else {
            None
        }
    }
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    pub(super) api: &'static Api,
    ordinal: usize,
    device: i32,
    context: Handle,
    facts: Facts,
    /// The process that opened it: a driver does not outlive a fork.
    process: u32,
}

impl Device {
    /// Opens the device of that number: loads the driver if need be, and retains the primary context.
    ///
    /// # Errors
    /// One variant of [`GpuError`] for each reason; never a panic.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, GpuError> {
        Self::open_in(None, ordinal)
    }

    /// As [`Device::open`], with a driver library that is loaded where the environment names none.
    ///
    /// A process has one driver: the first that is loaded.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_in(library: Option<&OsStr>, ordinal: usize) -> Result<Arc<Self>, GpuError> {
        let api = Api::get(library)?;
        let mut count = 0;
        // SAFETY: the count is written.
        api.check("cuDeviceGetCount", unsafe { (api.device_get_count)(&raw mut count) })?;
        let count = usize::try_from(count).unwrap_or(0);
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = match number {
            _ if count == 0 => return Err(GpuError::NoDevice),
            Some(number) => number,
            None => return Err(GpuError::NoSuchDevice { ordinal, count }),
        };
        let mut device = 0;
        // SAFETY: the handle is written.
        api.check("cuDeviceGet", unsafe { (api.device_get)(&raw mut device, number) })?;
        let facts = facts(api, device)?;
        if facts.capability < NEEDED_CAPABILITY {
            return Err(GpuError::TooOldDevice { name: facts.name, found: facts.capability });
        }
        let mut context = 0;
        // SAFETY: the handle is written; it is released when this is dropped.
        let retained = unsafe { (api.primary_ctx_retain)(&raw mut context, device) };
        api.check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Self { api, ordinal, device, context, facts, process: std::process::id() }))
    }

    /// The number that it was opened with.
    pub const fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// What it is and can do.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The version of CUDA that the driver is for: 1000 * major + 10 * minor.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn driver_version(&self) -> Result<i32, GpuError> {
        let mut version = 0;
        // SAFETY: the version is written.
        let asked = unsafe { (self.api.driver_get_version)(&raw mut version) };
        self.api.check("cuDriverGetVersion", asked).map(|()| version)
    }

    /// The value of the driver's attribute of that number (`CUdevice_attribute` of cuda.h).
    ///
    /// # Errors
    /// [`GpuError::Driver`]: the driver knows no such attribute.
    pub fn attribute(&self, number: u32) -> Result<i32, GpuError> {
        attribute_of(self.api, self.device, number)
    }

    /// Whether this process is the one that opened it.
    pub fn is_here(&self) -> bool {
        std::process::id() == self.process
    }

    /// Makes its context the current one of this thread, until what this returns is dropped.
    ///
    /// Until then a capture into a graph, of this thread or another, takes no harm from what is asked here, and refuses
    /// nothing but what would be part of it: no call of ours depends on a stream that is not ours, or checked before.
    ///
    /// # Errors
    /// [`GpuError::Forked`], [`GpuError::Driver`], [`GpuError::Lost`].
    pub fn enter(&self) -> Result<Entered<'_>, GpuError> {
        if !self.is_here() {
            return Err(GpuError::Forked);
        }
        let mut previous = 0;
        // SAFETY: the handle is written.
        self.api.check("cuCtxGetCurrent", unsafe { (self.api.ctx_get_current)(&raw mut previous) })?;
        self.enter_from(previous)
    }

    fn enter_from(&self, previous: Handle) -> Result<Entered<'_>, GpuError> {
        if previous != self.context {
            // SAFETY: the context is retained by `self`.
            self.api.check("cuCtxSetCurrent", unsafe { (self.api.ctx_set_current)(self.context) })?;
        }
        let captures = self.exchange_capture_mode(RELAXED);
        Ok(Entered { device: self, previous, captures, of_this_thread: PhantomData })
    }

    /// The thread's mode before; none where the driver refuses, which leaves things as they were.
    fn exchange_capture_mode(&self, mut mode: c_uint) -> Option<c_uint> {
        let exchange = self.api.exchange_capture_mode?;
        // SAFETY: the mode is read, and the thread's last one written.
        (unsafe { exchange(&raw mut mode) } == 0).then_some(mode)
    }

    /// Calls `release` in the context, to return something; not in a fork, where nothing of it exists.
    ///
    /// Its answer is for nobody: a context that is lost has returned everything.
    pub(super) fn release(&self, release: impl FnOnce(&Api) -> c_uint) {
        drop(self.release_checked("release", release));
    }

    /// As [`Device::release`], for who can tell somebody how it went.
    pub(super) fn release_checked(
        &self,
        call: &'static str,
        release: impl FnOnce(&Api) -> c_uint,
    ) -> Result<(), GpuError> {
        if !self.is_here() {
            return Ok(());
        }
        let _entered = self.enter().or_else(|_| self.enter_from(0)).ok();
        self.api.check(call, release(self.api))
    }

    /// Bytes of the device that are free, and all of them.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Lost`].
    pub fn memory(&self) -> Result<(u64, u64), GpuError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are written; the context is current.
        let asked = unsafe { (self.api.mem_get_info)(&raw mut free, &raw mut total) };
        self.api.check("cuMemGetInfo_v2", asked)?;
        Ok((free as u64, total as u64))
    }

    /// [`GpuError::OutOfMemory`] where that is what an answer means.
    pub(super) fn explain(&self, error: GpuError, what: &'static str, asked: u64) -> GpuError {
        match error {
            GpuError::Driver { code: 2, .. } => {
                let (free, total) = self.memory().unwrap_or_default();
                GpuError::OutOfMemory { what, asked, free, total }
            }
            other => other,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: retained once by `open`; everything made in the context holds this, and so is gone.
            let released = unsafe { (self.api.primary_ctx_release)(self.device) };
            // There is nobody to report to, and nothing left to return.
            let _ = released;
        }
    }
}

/// The context of a device is this thread's current one; the one before comes back when this is dropped.
#[derive(Debug)]
pub struct Entered<'a> {
    device: &'a Device,
    previous: Handle,
    /// What the thread took from captures before.
    captures: Option<c_uint>,
    /// Contexts are current per thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.captures {
            self.device.exchange_capture_mode(mode);
        }
        if self.previous != self.device.context {
            // SAFETY: it was this thread's current context, or 0 for none.
            let restored = unsafe { (self.device.api.ctx_set_current)(self.previous) };
            // Else the caller's next call to its own runtime fails, and says so.
            let _ = restored;
        }
    }
}

fn attribute_of(api: &Api, device: i32, number: u32) -> Result<i32, GpuError> {
    let mut value = 0;
    // SAFETY: the value is written.
    let asked = unsafe { (api.device_get_attribute)(&raw mut value, number, device) };
    api.check("cuDeviceGetAttribute", asked).map(|()| value)
}

fn facts(api: &Api, device: i32) -> Result<Facts, GpuError> {
    let attribute = |number| attribute_of(api, device, number);
    let mut uuid = [0; 16];
    // SAFETY: 16 bytes are written.
    api.check("cuDeviceGetUuid_v2", unsafe { (api.device_get_uuid)(&raw mut uuid, device) })?;
    let mut name = [0_u8; 256];
    // SAFETY: at most 255 bytes are written, so that a zero is left at the end.
    let asked = unsafe { (api.device_get_name)(name.as_mut_ptr().cast(), 255, device) };
    api.check("cuDeviceGetName", asked)?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
    Ok(Facts {
        name,
        uuid,
        capability: (attribute(attribute::MAJOR)?, attribute(attribute::MINOR)?),
        n_multiprocessors: u32::try_from(attribute(attribute::MULTIPROCESSORS)?).unwrap_or(1).max(1),
        reads_pageable: attribute(attribute::PAGEABLE_ACCESS)? != 0,
        uses_host_page_tables: attribute(attribute::HOST_PAGE_TABLES)? != 0,
        registers: attribute(attribute::HOST_REGISTER)? != 0,
        registers_read_only: attribute(attribute::READ_ONLY_REGISTER)? != 0,
    })
}
