//! Bytes on their way to the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tierpack_shm::chunk::ChunkWriter;
use tierpack_shm::message::{Blob, MAX_INLINE_BYTES};
use tierpack_shm::types::index;

use crate::error::{Error, Result};

/// Bytes in the message, or in a sealed memory file that comes with it.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) blob: Blob,
    descriptor: Option<OwnedFd>,
}

impl Chunk {
    /// Makes a chunk of `len` bytes, which `fill` writes.
    pub(crate) fn new(len: u64, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        if len <= MAX_INLINE_BYTES as u64 {
            let mut bytes = vec![0; index(len)];
            fill(&mut bytes)?;
            return Ok(Self { blob: Blob::Inline(bytes), descriptor: None });
        }
        let system = |source| Error::System { operation: "make a chunk of a tensor", source };
        let mut writer = ChunkWriter::new(len).map_err(system)?;
        fill(writer.as_mut_bytes())?;
        Ok(Self { blob: Blob::Descriptor { len }, descriptor: Some(writer.seal().map_err(system)?) })
    }

    /// The descriptor that a message with the blob names.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bytes_travel_in_the_message_and_large_ones_beside_it() {
        let chunk = |len| {
            let fill = |buf: &mut [u8]| {
                buf.fill(1);
                Ok(())
            };
            Chunk::new(len, fill).unwrap()
        };
        let small = chunk(MAX_INLINE_BYTES as u64);
        assert!(small.descriptor().is_none() && matches!(small.blob, Blob::Inline(bytes) if bytes[0] == 1));
        let large = chunk(MAX_INLINE_BYTES as u64 + 1);
        assert!(large.descriptor().is_some() && matches!(large.blob, Blob::Descriptor { len: 16_385 }));
    }
}
