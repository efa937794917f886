//! Bytes on their way between processes: one sealed memory file per chunk.
//!
//! The sender fills and seals it, so that it cannot change under the receiver; the receiver checks the seals and the
//! length and copies by `pread`, which a hole or a missing page can fail but not crash.

#![expect(unsafe_code, reason = "fills a memory file through a mapping of its own")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::mapping::{Access, Mapping};
use crate::memfd::{self, Seals};

/// A chunk that its maker still fills.
#[derive(Debug)]
pub struct ChunkWriter {
    map: Mapping,
    fd: OwnedFd,
}

impl ChunkWriter {
    /// A chunk of `len` bytes, at least one.
    ///
    /// # Errors
    /// [`Error::Create`] or [`Error::Map`] with the kernel's answer.
    pub fn new(len: u64) -> Result<Self> {
        let fd = memfd::create(c"tierpack-chunk", len, true, "a chunk")?;
        Ok(Self { map: Mapping::new(&fd, len, Access::Write)?, fd })
    }

    /// The bytes to fill; they start as zeros.
    ///
    /// # Panics
    /// Never: the range is the whole mapping.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory file is writable and has not left this process; `&mut self` makes the slice exclusive.
        unsafe { self.map.bytes_mut(0, self.map.len()) }.expect("the range is the mapping")
    }

    /// Seals the chunk against any change; the descriptor is ready to be sent.
    ///
    /// # Errors
    /// [`Error::Seal`] with the kernel's answer.
    pub fn seal(self) -> Result<OwnedFd> {
        let len = self.map.len();
        // The write seal is refused while a writable mapping exists.
        drop(self.map);
        memfd::seal(&self.fd, len, Seals::Frozen)?;
        Ok(self.fd)
    }
}

/// A chunk that came from a peer, checked to be sealed and as long as announced.
#[derive(Debug)]
pub struct Chunk {
    file: File,
    len: u64,
}

impl Chunk {
    /// Adopts a descriptor that a peer announced as `len` bytes.
    ///
    /// # Errors
    /// [`Error::Descriptor`] when it is not a memory file, not sealed, or has another length.
    pub fn adopt(fd: OwnedFd, len: u64) -> Result<Self> {
        memfd::check(&fd, len, Seals::Frozen, "a chunk")?;
        Ok(Self { file: File::from(fd), len })
    }

    /// Bytes of the chunk.
    #[expect(clippy::len_without_is_empty, reason = "a chunk is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Copies bytes out, from byte `at` on.
    ///
    /// # Errors
    /// [`Error::Io`] when the chunk ends before `buf` is full, or the kernel cannot read it.
    pub fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, at).map_err(|source| Error::Io { operation: "read a chunk", source })
    }
}

impl AsFd for Chunk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DescriptorFault;

    #[test]
    fn a_sealed_chunk_arrives_whole() {
        let mut writer = ChunkWriter::new(5).unwrap();
        writer.as_mut_bytes().copy_from_slice(b"hello");
        let fd = writer.seal().unwrap();
        assert!(Mapping::new(&fd, 5, Access::Write).is_err(), "sealed against writing");
        let chunk = Chunk::adopt(fd, 5).unwrap();
        let mut buf = [0; 4];
        chunk.read_at(1, &mut buf).unwrap();
        assert_eq!(&buf, b"ello");
        assert!(chunk.read_at(2, &mut buf).is_err());
    }

    #[test]
    fn an_unsealed_short_or_foreign_descriptor_is_refused() {
        let fault = |result: Result<Chunk>| match result {
            Err(Error::Descriptor { fault, .. }) => fault,
            other => panic!("{other:?}"),
        };
        let unsealed = memfd::create(c"x", 5, false, "a test").unwrap();
        assert!(matches!(fault(Chunk::adopt(unsealed, 5)), DescriptorFault::Seals { .. }));
        let sealed = ChunkWriter::new(5).unwrap().seal().unwrap();
        let expected = DescriptorFault::Length { found: 5, needed: 6 };
        assert_eq!(fault(Chunk::adopt(sealed, 6)), expected);
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(fault(Chunk::adopt(file.into(), 5)), DescriptorFault::NotAMemoryFile);
    }

    #[test]
    fn a_hole_reads_as_zeros() {
        let fd = memfd::create(c"x", 1 << 20, false, "a test").unwrap();
        memfd::seal(&fd, 1 << 20, Seals::Frozen).unwrap();
        let mut buf = [1; 64];
        Chunk::adopt(fd, 1 << 20).unwrap().read_at(1 << 19, &mut buf).unwrap();
        assert_eq!(buf, [0; 64]);
    }
}
