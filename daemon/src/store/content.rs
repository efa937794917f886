//! What a put leaves: blocks with what their encoding told, and the metadata that decodes them.

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{BlockWord, CodecId, Extent};

use super::file_metadata::SharedText;

/// What a put brought: everything about a tensor except where the directory keeps it.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) geometry: Geometry,
    pub(crate) shape: Vec<u64>,
    pub(crate) row_elems: Option<u64>,
    pub(crate) codec: CodecId,
    pub(crate) blocks: Vec<StoredBlock>,
    /// What decodes the blocks that are not raw.
    pub(crate) metadata: Option<StoredMetadata>,
    /// Bytes of all extents, rounding included.
    pub(crate) stored_bytes: u64,
    pub(crate) predicted_bytes: u64,
    pub(crate) runner_up: Option<(CodecId, u64)>,
    pub(crate) file_metadata: Option<SharedText>,
}

impl Content {
    /// Every extent of the data segments.
    pub(super) fn into_extents(self) -> impl Iterator<Item = Extent> {
        let metadata = self.metadata.map(|metadata| metadata.extent);
        self.blocks.into_iter().map(|block| block.extent).chain(metadata)
    }

    pub(super) fn word(&self, block: &StoredBlock) -> BlockWord {
        let flags = if block.is_raw { BlockWord::RAW } else { 0 };
        BlockWord::resident(block.extent.offset(), 0, flags, 1)
    }
}

/// One block as it is stored, and what encoding it told.
#[derive(Debug)]
pub(crate) struct StoredBlock {
    pub(crate) extent: Extent,
    pub(crate) is_raw: bool,
    /// Chunks that did not fit the metadata, and chunks that it shortened: a refit weighs them.
    pub(crate) escapes: u64,
    pub(crate) participating: u64,
    /// CRC32C of the raw bytes, taken at the put.
    pub(crate) raw_crc: u32,
}

/// One generation of a tensor's metadata.
#[derive(Debug)]
pub(crate) struct StoredMetadata {
    pub(crate) number: u32,
    pub(crate) len: u32,
    pub(crate) extent: Extent,
}
