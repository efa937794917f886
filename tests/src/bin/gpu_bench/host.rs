//! Memory of the host that the device reads in place: memory files as those of the pool, registered with the driver or
//! reached as pageable memory.
//!
//! They are sealed and mapped read-only, as a client has them.
//! A device that can read no such memory can register writable one: then the figures are of that, and say so.
#![expect(unsafe_code, reason = "maps memory files and registers them")]

use core::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use tierpack_kernels::cuda::driver::{GpuError, Registration};
use tierpack_shm::types::index;

use crate::device::{Access, Bench};

/// Bytes of a segment, as in the pool.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 20;

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A memory file as a client has it: mapped read-only, and sealed against writing.
    Sealed,
    /// A memory file that is not sealed against writing, mapped writable.
    Writable,
    /// A sealed memory file, mapped as a private, writable copy.
    Private,
    /// No file: a copy in memory of the process.
    Copy,
}

/// A mapping of memory of the host.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: NonNull<c_void>,
    len: usize,
}

impl Mapped {
    /// A mapping with these bytes, of which there is at least one.
    pub(crate) fn new(bytes: &[u8], kind: Kind) -> Result<Self> {
        // Whole pages are registered.
        let len = bytes.len().next_multiple_of(1 << 12);
        let non_zero = NonZeroUsize::new(len).context("an empty segment")?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        if kind == Kind::Copy {
            // SAFETY: a new mapping, which nobody else knows.
            let base = unsafe { mmap_anonymous(None, non_zero, both, MapFlags::MAP_PRIVATE) };
            let base = base.context("map memory")?;
            // SAFETY: the mapping is at least as long, new, and writable.
            unsafe { base.cast::<u8>().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
            return Ok(Self { base, len });
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"tierpack-bench", flags).context("make a memory file")?);
        file.write_all(bytes).and_then(|()| file.set_len(len as u64)).context("fill a memory file")?;
        let mut seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        seals.set(SealFlag::F_SEAL_FUTURE_WRITE, kind != Kind::Writable);
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).context("seal a memory file")?;
        let (protection, flags) = match kind {
            Kind::Sealed => (ProtFlags::PROT_READ, MapFlags::MAP_SHARED),
            Kind::Private => (both, MapFlags::MAP_PRIVATE),
            Kind::Writable | Kind::Copy => (both, MapFlags::MAP_SHARED),
        };
        // SAFETY: a new mapping, which nobody else knows; the file is as long.
        let base = unsafe { mmap(None, non_zero, protection, flags, file.as_fd(), 0) };
        Ok(Self { base: base.context("map a memory file")?, len })
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len as u64
    }

    /// Where the processor finds it, and a device that reads pageable memory, too.
    pub(crate) fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// Nobody in this process writes it from now on.
    pub(crate) fn protect(&self) -> Result<()> {
        // SAFETY: the mapping is this one's, and nothing refers to bytes in it.
        unsafe { mprotect(self.base, self.len, ProtFlags::PROT_READ) }.context("protect a mapping")
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

/// A mapping that the device reads.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Where the device finds it.
    pub(crate) address: u64,
    /// Ends before the mapping; none of pageable memory.
    _kept: Option<Registration>,
    pub(crate) map: Mapped,
}

impl Registered {
    /// Registers a mapping, whatever the device's attributes are.
    pub(crate) fn attempt(bench: &Bench, map: Mapped, is_read_only: bool) -> Result<Self, GpuError> {
        // SAFETY: the range is mapped, and stays so until `_kept`, which is dropped before `map`, is gone; kernels of
        // this program only read it.
        let kept = unsafe { Registration::attempt(&bench.device, map.base, map.len, is_read_only) }?;
        Ok(Self { address: kept.address(&bench.device)?, _kept: Some(kept), map })
    }

    pub(crate) const fn len(&self) -> u64 {
        self.map.len()
    }
}

/// How the device reaches segments of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Pageable,
    ReadOnly,
    Writable,
}

impl Way {
    /// The way that was asked for, or else one that works: that of the pool, or that of writable memory.
    pub(crate) fn find(bench: &Bench) -> Result<Self> {
        match bench.access {
            Some(Access::Ats) if bench.device.facts().reads_pageable => return Ok(Self::Pageable),
            Some(Access::Ats) => bail!("the device cannot read pageable memory (attribute 88 is 0)"),
            Some(Access::Registered | Access::Staged) | None => {}
        }
        let answer = match bench.device.facts().cannot_register() {
            None => Registered::attempt(bench, Mapped::new(&[0; 1 << 12], Kind::Sealed)?, true).map(drop),
            Some(reason) => Err(GpuError::NoAccess { asked: "registered", reason: reason.to_owned() }),
        };
        match answer {
            Ok(()) => Ok(Self::ReadOnly),
            Err(error) if error.is_lost() || bench.access == Some(Access::Registered) => Err(error.into()),
            Err(_) => Ok(Self::Writable),
        }
    }

    /// What a row says about it.
    pub(crate) const fn note(self) -> &'static str {
        match self {
            Self::Pageable => "read as pageable memory, mapped as the pool",
            Self::ReadOnly => "registered read-only, as the pool",
            Self::Writable => {
                "registered writable, since the device registers no read-only memory, which the pool is"
            }
        }
    }

    /// A segment with these bytes, which the device reads.
    pub(crate) fn map(self, bench: &Bench, bytes: &[u8]) -> Result<Registered> {
        let kind = if self == Self::Writable { Kind::Writable } else { Kind::Sealed };
        self.register(bench, Mapped::new(bytes, kind)?)
    }

    /// Registers a mapping of [`Way::map_zeros`], where that is the way.
    pub(crate) fn register(self, bench: &Bench, map: Mapped) -> Result<Registered> {
        match self {
            Self::Pageable => Ok(Registered { address: map.address(), _kept: None, map }),
            Self::ReadOnly | Self::Writable => Ok(Registered::attempt(bench, map, self == Self::ReadOnly)?),
        }
    }

    /// A mapping of that many bytes.
    pub(crate) fn map_zeros(self, len: u64) -> Result<Mapped> {
        let kind = if self == Self::Writable { Kind::Writable } else { Kind::Sealed };
        // Written, so that the pages are there.
        Mapped::new(&vec![1; index(len)], kind)
    }
}
