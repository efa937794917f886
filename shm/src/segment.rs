//! Segments: the daemon's writable memory files, which clients can only read.
//!
//! The daemon makes a segment with all its pages, maps it writable, and seals it:
//! from then on no process can map it writable, write it, or change its length, the daemon's own mapping aside.
//! Source: design brief, section 3, "Segments".

#![expect(unsafe_code, reason = "page-locks and prefaults ranges, hands out bytes")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, madvise, mlock};

use crate::error::{Error, Result};
use crate::faults::{Point, check};
use crate::fork::Unshared;
use crate::layout::SEGMENT_SPAN_BYTES;
use crate::mapping::{Access, Mapping};
use crate::memfd::{self, Seals};
use crate::sync::AtomicU64;
use crate::types::index;

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum SegmentKind {
    /// Blocks, overlays, metadata.
    Data,
    /// Header, ring, slots, block tables, generation tables.
    Directory,
}

impl SegmentKind {
    /// A word for messages and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Directory => "directory",
        }
    }
}

/// A segment in the daemon: mapped writable, with the descriptor that clients get.
#[derive(Debug)]
pub struct Segment {
    map: Mapping,
    /// Not shared with forked children, which would keep the memory.
    fd: Unshared<OwnedFd>,
    is_locked: bool,
}

impl Segment {
    /// Makes, maps and seals a segment of `len` bytes, at most [`SEGMENT_SPAN_BYTES`].
    ///
    /// # Errors
    /// [`Error::Create`], [`Error::Map`] or [`Error::Seal`] with the kernel's answer.
    pub fn create(len: u64) -> Result<Self> {
        if len > SEGMENT_SPAN_BYTES {
            return Err(Error::Create { len, purpose: "a segment", source: Errno::EFBIG });
        }
        check(Point::SegmentCreate).map_err(|source| Error::Create { len, purpose: "a segment", source })?;
        let fd = Unshared::new(memfd::create(c"tierpack-segment", len, true, "a segment")?)?;
        let map = Mapping::new(&fd, len, Access::Write)?;
        memfd::seal(&fd, len, Seals::Pool)?;
        Ok(Self { map, fd, is_locked: false })
    }

    /// Page-locks the segment.
    ///
    /// # Errors
    /// [`Error::Lock`]: the limit on locked memory is too low, or the process lacks the right.
    pub fn lock(&mut self) -> Result<()> {
        let (base, len) = self.map.range();
        // SAFETY: the range is this segment's mapping, which lives as long as `self`.
        unsafe { mlock(base, len) }.map_err(|source| Error::Lock { len: self.len(), source })?;
        self.is_locked = true;
        Ok(())
    }

    /// Whether it is page-locked.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Bytes of the segment.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.map.len()
    }

    /// The word at byte `at`.
    pub(crate) fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.map.word(at)
    }

    /// Words from byte `at` on.
    pub(crate) fn words(&self, at: u64, count: u64) -> Option<&[AtomicU64]> {
        self.map.words(at, count)
    }

    /// Writes `bytes` at byte `at`.
    ///
    /// # Safety
    /// - The caller owns the range: no other thread reads or writes it, and no word that a client can see
    ///   addresses it.
    ///
    /// # Panics
    /// When the range does not lie in the segment.
    pub(crate) unsafe fn write(&self, at: u64, bytes: &[u8]) {
        // SAFETY: the mapping is writable (`create`); the caller owns the range.
        let target = unsafe { self.map.bytes_mut(at, bytes.len() as u64) };
        target.expect("the allocator gives ranges inside the segment").copy_from_slice(bytes);
    }

    /// Reads the bytes from `at` on.
    ///
    /// # Safety
    /// - The range is published or owned by the caller, and is not written while the slice lives.
    ///
    /// # Panics
    /// When the range does not lie in the segment.
    pub(crate) unsafe fn read(&self, at: u64, len: u64) -> &[u8] {
        // SAFETY: the caller promises that nobody writes the range.
        unsafe { self.map.bytes(at, len) }.expect("the allocator gives ranges inside the segment")
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A segment in a client: mapped read-only; the descriptor is closed once mapped.
#[derive(Debug)]
pub(crate) struct ClientSegment {
    pub(crate) map: Mapping,
}

impl ClientSegment {
    /// Maps a descriptor that the daemon sent, after checking its seals and length.
    pub(crate) fn adopt(fd: impl AsFd, len: u64) -> Result<Self> {
        if len > SEGMENT_SPAN_BYTES {
            return Err(Error::Map { len, source: Errno::EFBIG });
        }
        memfd::check(&fd, len, Seals::Pool, "a segment")?;
        check(Point::SegmentMap).map_err(|source| Error::Map { len, source })?;
        Ok(Self { map: Mapping::new(&fd, len, Access::Read)? })
    }

    /// Fills the page tables of `len` bytes from `at` on, whole pages, so that reads do not fault; advisory.
    ///
    /// Says whether the segment goes on behind them.
    pub(crate) fn prefault(&self, at: u64, len: u64) -> bool {
        let (base, whole) = self.map.range();
        let (at, len) = (index(at), index(len));
        let Some(left) = whole.checked_sub(at) else { return false };
        // SAFETY: `at` is at most the length of the mapping.
        let base = unsafe { base.byte_add(at) };
        // MADV_POPULATE_READ is in Linux 5.14 and later; without it pages are mapped as they are read.
        // SAFETY: populating a range of our own mapping changes no contents.
        let advised = unsafe { madvise(base, len.min(left), MmapAdvise::MADV_POPULATE_READ) };
        advised.is_ok() && left > len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_refuses_a_client_every_kind_of_write() {
        use nix::fcntl::{FallocateFlags, fallocate};
        use nix::unistd::{ftruncate, write};

        let segment = Segment::create(1 << 20).unwrap();
        let fd = segment.as_fd().try_clone_to_owned().unwrap();
        assert!(Mapping::new(&fd, 1 << 20, Access::Write).is_err(), "writable mapping");
        assert!(write(&fd, b"x").is_err(), "write");
        assert!(ftruncate(&fd, 0).is_err(), "truncation");
        assert!(ftruncate(&fd, 2 << 20).is_err(), "growth");
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert!(fallocate(&fd, punch, 0, 4096).is_err(), "hole");
        assert!(memfd::seal(&fd, 1 << 20, Seals::Frozen).is_err(), "another seal");
        // The daemon's earlier mapping still writes, and the client sees it.
        let client = ClientSegment::adopt(&fd, 1 << 20).unwrap();
        segment.word(64).unwrap().store(7, crate::sync::Ordering::Relaxed);
        assert_eq!(client.map.word(64).unwrap().load(crate::sync::Ordering::Relaxed), 7);
    }

    /// Pages that are mapped of the mapping at an address, in KiB.
    fn resident(address: usize) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{address:x}-")));
        let line = lines.find(|line| line.starts_with("Rss:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    #[test]
    fn prefaulting_goes_in_steps() {
        let segment = Segment::create(5 << 20).unwrap();
        let client = ClientSegment::adopt(&segment, 5 << 20).unwrap();
        let address = client.map.range().0.addr().get();
        let step = |at: u64| (client.prefault(at << 20, 2 << 20), resident(address));
        if step(0) == (false, Some(0)) {
            // A kernel without it.
            return;
        }
        assert_eq!(
            [step(0), step(2), step(4)],
            [(true, Some(2048)), (true, Some(4096)), (false, Some(5120))]
        );
    }

    #[test]
    fn the_kernel_refuses_to_make_a_client_mapping_writable() {
        use nix::sys::mman::{ProtFlags, mprotect};

        let segment = Segment::create(1 << 20).unwrap();
        let client = ClientSegment::adopt(&segment, 1 << 20).unwrap();
        let (base, len) = client.map.range();
        // SAFETY: the range is the test's own mapping; the call is expected to change nothing.
        let made = unsafe { mprotect(base, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) };
        assert_eq!(made, Err(Errno::EACCES));
    }

    #[test]
    fn a_descriptor_reopened_through_proc_is_powerless() {
        use std::os::fd::AsRawFd;

        let segment = Segment::create(1 << 20).unwrap();
        let path = format!("/proc/self/fd/{}", segment.as_fd().as_raw_fd());
        let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { return };
        assert!(file.set_len(0).is_err());
        assert!(Mapping::new(&file, 1 << 20, Access::Write).is_err());
    }

    #[test]
    fn a_client_refuses_an_unsealed_segment() {
        let fd = memfd::create(c"x", 1 << 20, false, "a test").unwrap();
        assert!(matches!(ClientSegment::adopt(fd, 1 << 20), Err(Error::Descriptor { .. })));
        let file = tempfile_like();
        assert!(matches!(ClientSegment::adopt(file, 1 << 20), Err(Error::Descriptor { .. })));
    }

    fn tempfile_like() -> OwnedFd {
        std::fs::File::open("/proc/self/exe").unwrap().into()
    }
}
