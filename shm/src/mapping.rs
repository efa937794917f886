//! One mapping of a memory file, and bounds-checked views of it.
//!
//! The pointer and its length live in one private struct; everything else asks it.
//! Words are handed out as atomics, since another process may write them.
//! A forked child has no part of it: else it would keep the memory that its parent has returned.

#![expect(unsafe_code, reason = "maps memory and views it")]

use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::error::{Error, Result};
use crate::fork::ForkCookie;
use crate::fork::ranges::{Entered, enter};
use crate::sync::AtomicU64;
use crate::types::index;

/// What this process may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A shared mapping of a whole memory file; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    cookie: ForkCookie,
    entered: ManuallyDrop<Entered>,
}

// SAFETY: a mapping is memory of the process, not of a thread; all access through `&self` is by atomics, or by the
// methods whose callers answer for the bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd`, shared.
    pub(crate) fn new(fd: impl AsFd, len: u64, access: Access) -> Result<Self> {
        let fail = |source| Error::Map { len, source };
        let length = NonZeroUsize::new(index(len)).ok_or(fail(nix::errno::Errno::EINVAL))?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // Before there is something for a fork to find: this registers the handler that runs in the child.
        let cookie = ForkCookie::current()?;
        // SAFETY: no address is passed, so the kernel chooses a free range and no existing mapping changes.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0) }.map_err(fail)?;
        let entered = ManuallyDrop::new(enter(base.addr().get(), length.get()));
        // Where the kernel does not do it, the handler in the child does.
        // SAFETY: leaving a range out of future children changes nothing here.
        let _ = unsafe { madvise(base, length.get(), MmapAdvise::MADV_DONTFORK) }.is_ok();
        Ok(Self { base: base.cast(), len: length.get(), cookie, entered })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Address and length, for system calls on the range.
    pub(crate) fn range(&self) -> (NonNull<core::ffi::c_void>, usize) {
        (self.base.cast(), self.len)
    }

    fn check(&self, at: u64, len: u64, align: u64) -> Option<usize> {
        let end = at.checked_add(len)?;
        (end <= self.len() && at.is_multiple_of(align)).then_some(index(at))
    }

    /// The word at byte `at`; `None` when it is misaligned or outside.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.words(at, 1).map(|words| &words[0])
    }

    /// `count` words from byte `at` on; `None` when they are misaligned or outside.
    #[inline]
    pub(crate) fn words(&self, at: u64, count: u64) -> Option<&[AtomicU64]> {
        let start = self.check(at, count.checked_mul(8)?, 8)?;
        // SAFETY: `check` keeps `start` inside the mapping.
        let first = unsafe { self.base.add(start) };
        // SAFETY: the range lies in the mapping (`check`), is aligned (the base is page-aligned, `start` a multiple
        // of 8), is initialized (memory files start as zeros), and every process touches it by atomics only.
        Some(unsafe { core::slice::from_raw_parts(first.cast().as_ptr(), index(count)) })
    }

    /// The bytes from `at` on.
    ///
    /// # Safety
    /// - Nobody, in any process, writes these bytes while the slice lives.
    pub(crate) unsafe fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let start = self.check(at, len, 1)?;
        // SAFETY: `check` keeps `start` inside the mapping.
        let first = unsafe { self.base.add(start) };
        // SAFETY: the range lies in the mapping and is initialized; the caller promises that nobody writes it.
        Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), index(len)) })
    }

    /// The bytes from `at` on, to write.
    ///
    /// # Safety
    /// - The mapping is writable.
    /// - Nobody else, in any process, reads or writes these bytes while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the range, not the mapping")]
    pub(crate) unsafe fn bytes_mut(&self, at: u64, len: u64) -> Option<&mut [u8]> {
        let start = self.check(at, len, 1)?;
        // SAFETY: `check` keeps `start` inside the mapping.
        let first = unsafe { self.base.add(start) };
        // SAFETY: the range lies in the mapping and is initialized; the caller promises exclusive access.
        Some(unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), index(len)) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // What a child has at this address is not this mapping, and may be its own.
        if !self.cookie.is_here() {
            return;
        }
        // First: a child that is forked in between must not cover what is mapped here next.
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.entered) };
        // SAFETY: the range was mapped by `new` and is unmapped once; views borrow `self`.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmap {} bytes", self.len);
    }
}
