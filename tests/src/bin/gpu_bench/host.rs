//! Memory of the host that the device reads in place: memory files as those of the pool, registered with the driver.
//!
//! They are sealed and mapped read-only, as a client has them.
//! A device that cannot register such memory can register writable one: then the figures are of that, and say so.
#![expect(unsafe_code, reason = "maps memory files and registers them")]

use core::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cudarc::driver::sys;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use tierpack_kernels::cuda::driver::{Device, GpuError, Registration};
use tierpack_shm::types::index;

use crate::device::Bench;

/// Bytes of a segment, as in the pool.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 20;

/// A mapped memory file.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: NonNull<c_void>,
    len: usize,
    is_writable: bool,
}

impl Mapped {
    /// A memory file with these bytes, of which there is at least one.
    pub(crate) fn new(bytes: &[u8], is_writable: bool) -> Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"tierpack-bench", flags).context("make a memory file")?);
        // Whole pages are registered.
        let len = bytes.len().next_multiple_of(1 << 12);
        file.write_all(bytes).and_then(|()| file.set_len(len as u64)).context("fill a memory file")?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, is_writable);
        let non_zero = NonZeroUsize::new(len).context("an empty segment")?;
        // SAFETY: a new mapping, which nobody else knows; the file is as long.
        let base = unsafe { mmap(None, non_zero, protection, MapFlags::MAP_SHARED, file.as_fd(), 0) };
        let base = base.context("map a memory file")?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_FUTURE_WRITE;
        let this = Self { base, len, is_writable };
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).context("seal a memory file")?;
        Ok(this)
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and unmapped once; the fields of `Registered` drop its registration before.
        let unmapped = unsafe { munmap(self.base, self.len) };
        // There is nobody to tell: the process ends soon.
        let _ = unmapped.is_ok();
    }
}

/// A mapped memory file that the device reads.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Where the device finds it.
    pub(crate) address: u64,
    /// Ends before the mapping.
    _kept: Kept,
    map: Mapped,
}

#[derive(Debug)]
#[expect(dead_code, reason = "they are kept, and dropped")]
enum Kept {
    ReadOnly(Registration),
    Writable(Writable),
}

impl Registered {
    /// Registers a mapping.
    pub(crate) fn new(bench: &Bench, map: Mapped) -> Result<Self> {
        if map.is_writable {
            let (kept, address) = Writable::new(bench, &map)?;
            return Ok(Self { address, _kept: Kept::Writable(kept), map });
        }
        // SAFETY: the range is mapped, and stays so until `_kept`, which is dropped before `map`, is gone.
        let registration = unsafe { Registration::new(&bench.device, map.base, map.len) }?;
        Ok(Self { address: registration.address(&bench.device)?, _kept: Kept::ReadOnly(registration), map })
    }

    pub(crate) const fn len(&self) -> u64 {
        self.map.len()
    }
}

/// A registration by cudarc, of memory that the process may write: TierPack itself has no use for it.
#[derive(Debug)]
struct Writable {
    device: Arc<Device>,
    base: NonNull<c_void>,
}

impl Writable {
    /// Registers a mapping, which is unmapped after this is dropped; gives where the device finds it.
    fn new(bench: &Bench, map: &Mapped) -> Result<(Self, u64)> {
        let _entered = bench.device.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped; the context is current.
        unsafe { sys::cuMemHostRegister_v2(map.base.as_ptr(), map.len, flags) }.result()?;
        let this = Self { device: Arc::clone(&bench.device), base: map.base };
        let mut address = 0;
        // SAFETY: the address is written; the range is registered.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, map.base.as_ptr(), 0) }.result()?;
        Ok((this, address))
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        let _entered = self.device.enter();
        // SAFETY: registered by `new`, unregistered once, and still mapped.
        let ended = unsafe { sys::cuMemHostUnregister(self.base.as_ptr()) };
        // There is nobody to tell: the process ends soon.
        let _ = ended;
    }
}

/// How segments of this process can be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ReadOnly,
    Writable,
}

impl Way {
    /// The way that works: that of the pool, or else the other one.
    pub(crate) fn find(bench: &Bench) -> Result<Self> {
        let map = Mapped::new(&[0; 1 << 12], false)?;
        match Registered::new(bench, map) {
            Ok(_) => Ok(Self::ReadOnly),
            Err(error) if error.downcast_ref::<GpuError>().is_some_and(|error| !error.is_lost()) => {
                Ok(Self::Writable)
            }
            Err(error) => Err(error),
        }
    }

    /// What a row says about it.
    pub(crate) const fn note(self) -> &'static str {
        match self {
            Self::ReadOnly => "registered read-only, as the pool",
            Self::Writable => {
                "registered writable, since the device registers no read-only memory, which the pool is"
            }
        }
    }

    /// A segment with these bytes.
    pub(crate) fn map(self, bytes: &[u8]) -> Result<Mapped> {
        Mapped::new(bytes, self == Self::Writable)
    }

    /// Bytes of zeros.
    pub(crate) fn map_zeros(self, len: u64) -> Result<Mapped> {
        // Written, so that the pages are there.
        self.map(&vec![1; index(len)])
    }
}
