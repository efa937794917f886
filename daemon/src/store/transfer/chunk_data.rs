//! Where the bytes that came with a request are.

use tierpack_shm::chunk::Chunk;
use tierpack_shm::types::index;

use super::invalid;
use crate::store::Outcome;

/// The bytes of a chunk, wherever they came.
#[derive(Debug)]
pub(crate) enum ChunkData {
    /// In the message.
    Inline(Vec<u8>),
    /// In a sealed memory file.
    Sealed(Chunk),
}

impl ChunkData {
    pub(in crate::store) fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Sealed(chunk) => chunk.len(),
        }
    }

    /// Fills `buf` from byte `at` on; the caller has checked the length.
    pub(in crate::store) fn read_at(&self, at: u64, buf: &mut [u8]) -> Outcome<()> {
        match self {
            Self::Inline(bytes) => {
                buf.copy_from_slice(&bytes[index(at)..][..buf.len()]);
                Ok(())
            }
            Self::Sealed(chunk) => chunk
                .read_at(at, buf)
                .map_err(|error| invalid(format!("chunk cannot be read: {}", crate::error::chain(&error)))),
        }
    }
}
