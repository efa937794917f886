//! What is decoded, and what decodes it.

use tierpack_kernels::block::Block;
use tierpack_kernels::cuda::abi::{BlockJob, OverlayJob, Status};
use tierpack_kernels::cuda::launch::{StoredBlock, StoredOverlay, block_job, overlay_job};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::{Coder, Error, Level, codec};
use tierpack_shm::overlay::Overlay;
use tierpack_shm::types::{CodecId, index};

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

impl Case {
    /// The job of a block for kernels, which find it at `src`, its metadata at `form`, and put the tensor at `base`.
    pub(crate) fn block_job(
        &self,
        block_idx: u64,
        [src, form, base]: [u64; 3],
        number: usize,
    ) -> Result<(CodecId, BlockJob), Fault> {
        let block = StoredBlock {
            block_idx,
            header: &self.blocks[index(block_idx)][..64],
            src,
            form,
            out: base + self.geometry.block(block_idx).byte_offset,
            number: u32::try_from(number).expect("few blocks"),
        };
        block_job(self.coder.as_ref(), &self.geometry, &block).map_err(|_| Fault::Header)
    }

    /// The job of an overlay, which kernels find at `src`.
    pub(crate) fn overlay_job(
        &self,
        block_idx: u64,
        bytes: &[u8],
        [src, base]: [u64; 2],
    ) -> Result<OverlayJob, Fault> {
        let shape = self.geometry.block(block_idx);
        let overlay = Overlay::parse(bytes).map_err(|_| Fault::Header)?;
        let job = overlay_job(&StoredOverlay {
            n_rows: overlay.n_rows(),
            row_bytes: overlay.row_bytes(),
            rows_at: overlay.rows_at(),
            raw_len: shape.raw_bytes,
            src,
            out: base + shape.byte_offset,
            number: u32::try_from(block_idx).expect("few blocks"),
        });
        job.map_err(|_| Fault::Header)
    }
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

impl Fault {
    /// What kernels reported of so many jobs: the fault of the first flag.
    pub(crate) fn of(status: Status, n_jobs: usize) -> Option<Self> {
        if status == Status::CLEAR {
            return None;
        }
        assert!((status.first as usize) < n_jobs, "{status:?}");
        Some(match status.flags {
            flags if flags & Status::OVERFLOW != 0 => Self::Overflow,
            flags if flags & Status::NO_ESCAPE != 0 => Self::NoEscape,
            _ => Self::Overlay,
        })
    }
}

/// One way to decode.
pub(crate) trait Target {
    /// What it is called in messages.
    fn name(&self) -> String;

    /// The raw bytes of all blocks.
    fn decode(&self, case: &Case) -> Result<Vec<u8>, Fault>;

    /// The raw bytes of several tensors, in the same launches where it has any; a fault of one is that of all.
    fn decode_together(&self, cases: &[&Case]) -> Result<Vec<Vec<u8>>, Fault> {
        cases.iter().map(|case| self.decode(case)).collect()
    }
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
