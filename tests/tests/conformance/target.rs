//! What is decoded, and what decodes it.

use tierpack_kernels::block::Block;
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::{Coder, Error, Level, codec};
use tierpack_shm::overlay::Overlay;
use tierpack_shm::types::index;

/// The stored blocks of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) geometry: Geometry,
    /// `None` where every block is `raw`.
    pub(crate) coder: Option<Coder>,
    /// The bytes of each block, in their order.
    pub(crate) blocks: Vec<Vec<u8>>,
    /// Levels of overlays, the oldest first: the number of a block, and the overlay's bytes.
    pub(crate) overlays: Vec<Vec<(u64, Vec<u8>)>>,
}

/// What is wrong with the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Its header contradicts the tensor.
    Header,
    /// A record's rest is not in the overflow.
    Overflow,
    /// An escape has no entry.
    NoEscape,
    /// An overlay names a row that the block lacks.
    Overlay,
}

/// One way to decode.
pub(crate) trait Target {
    /// What it is called in messages.
    fn name(&self) -> String;

    /// The raw bytes of all blocks.
    fn decode(&self, case: &Case) -> Result<Vec<u8>, Fault>;
}

/// The codecs of the processor, at one level.
#[derive(Debug)]
pub(crate) struct Processor(pub(crate) Level);

impl Target for Processor {
    fn name(&self) -> String {
        self.0.to_string()
    }

    fn decode(&self, case: &Case) -> Result<Vec<u8>, Fault> {
        let coder = case.coder.clone().map(|coder| coder.with_level(self.0));
        let mut raw = vec![0xA5; index(case.geometry.raw_bytes())];
        for (block_idx, bytes) in (0..).zip(&case.blocks) {
            let shape = case.geometry.block(block_idx);
            let out = &mut raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
            let block = Block::parse(bytes).map_err(|_| Fault::Header)?;
            if (u64::from(block.rows()), u64::from(block.columns())) != (shape.rows, shape.columns) {
                return Err(Fault::Header);
            }
            codec::decode_block(&block, coder.as_ref(), out).map_err(|error| match error {
                Error::Overflow { .. } => Fault::Overflow,
                Error::NoEscape { .. } => Fault::NoEscape,
                _ => Fault::Header,
            })?;
        }
        for (block_idx, bytes) in case.overlays.iter().flatten() {
            let shape = case.geometry.block(*block_idx);
            let block = &mut raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
            let overlay = Overlay::parse(bytes).map_err(|_| Fault::Header)?;
            overlay.apply(block).map_err(|_| Fault::Overlay)?;
        }
        Ok(raw)
    }
}

/// The levels that this machine has, the reference code first.
pub(crate) fn processors() -> Vec<Processor> {
    Level::ALL.iter().copied().filter(|level| level.is_available()).map(Processor).collect()
}
