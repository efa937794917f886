//! Plans: what a read of one tensor needs, from its words and headers, under its guard.
//!
//! The jobs have no source address yet: that depends on how the GPU reads the pool.

use std::sync::Arc;

use tierpack_kernels::Coder;
use tierpack_kernels::block::{HEADER_BYTES, stored_len};
use tierpack_kernels::cuda::abi::{BlockJob, OverlayJob};
use tierpack_kernels::cuda::driver::DeviceBuffer;
use tierpack_kernels::cuda::launch::{StoredBlock, StoredOverlay, block_job, overlay_job};
use tierpack_kernels::geometry::BlockShape;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::types::{BlockWord, CodecId, index};

use crate::blocks::{check_readable, word};
use crate::decode::Coders;
use crate::handle::{Fault, Handle, Opened};
use crate::overlays::chain;

/// A guard that may be kept while the GPU reads.
pub(super) type OwnedGuard = Guard<Arc<Attachment>>;

/// A tensor to read.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) handle: &'a Handle,
    /// The GPU's address of the first raw byte.
    pub(super) out: u64,
    /// What that lies in, if it is ours.
    pub(super) buffer: Option<Arc<DeviceBuffer>>,
}

/// A tensor whose jobs are made.
#[derive(Debug)]
pub(super) struct Plan {
    // Dropped before `opened`, whose session keeps the lease counting.
    pub(super) guard: OwnedGuard,
    pub(super) opened: Arc<Opened>,
    pub(super) blocks: Vec<PlannedBlock>,
    pub(super) forms: Vec<(u32, Arc<DeviceBuffer>)>,
}

/// A block, and the overlays over it, the oldest first.
#[derive(Debug)]
pub(super) struct PlannedBlock {
    pub(super) stored: Stored,
    pub(super) codec: CodecId,
    pub(super) job: BlockJob,
    pub(super) overlays: Vec<PlannedOverlay>,
}

#[derive(Debug)]
pub(super) struct PlannedOverlay {
    pub(super) stored: Stored,
    /// Overlays below it.
    pub(super) level: u64,
    pub(super) job: OverlayJob,
}

/// Stored bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) word: BlockWord,
    pub(super) len: u64,
}

/// Returns the form of a coder on the GPU.
pub(super) type Upload<'a> = &'a dyn Fn(&Opened, &Coder) -> Result<Arc<DeviceBuffer>, Fault>;

impl Plan {
    /// Plans the read of `target`, whose first block has `number`.
    pub(super) fn new(
        target: &Target<'_>,
        opened: &Arc<Opened>,
        number: u32,
        upload: Upload<'_>,
    ) -> Result<Self, Fault> {
        let guard = opened.owned_guard()?;
        let (mut blocks, mut forms) = (Vec::new(), Vec::new());
        if target.handle.raw_bytes() > 0 {
            let n_blocks = opened.geometry.n_blocks();
            blocks.reserve_exact(index(n_blocks));
            let words = guard.words()?;
            let mut planner =
                Planner { coders: Coders::new(&guard, opened), upload, forms: &mut forms, out: target.out };
            for (block_idx, number) in (0..n_blocks).zip(number..) {
                blocks.push(planner.block(word(words, block_idx)?, block_idx, number)?);
            }
        }
        // Jobs, lengths and forms are known: what is left are the stored bytes.
        guard.finish();
        Ok(Self { guard, opened: Arc::clone(opened), blocks, forms })
    }
}

struct Planner<'a> {
    coders: Coders<'a, Arc<Attachment>>,
    upload: Upload<'a>,
    forms: &'a mut Vec<(u32, Arc<DeviceBuffer>)>,
    /// Where the next block goes.
    out: u64,
}

impl Planner<'_> {
    fn block(&mut self, newest: BlockWord, block_idx: u64, number: u32) -> Result<PlannedBlock, Fault> {
        let (guard, out) = (self.coders.guard, self.out);
        let shape = self.coders.opened.geometry.block(block_idx);
        let (word, overlays) = overlays(guard, newest, &shape, (out, number))?;
        check_readable(guard, word, block_idx)?;
        let len = stored_len(guard.stored(word, HEADER_BYTES)?);
        let header = guard.stored(word, len)?;
        let (coder, form) = if word.is_raw() {
            (None, 0)
        } else {
            let coder = self.coders.get(word)?;
            (Some(coder), self.form(coder)?)
        };
        let block = StoredBlock { block_idx, header, src: 0, form, out, number };
        let planned = block_job(coder, &self.coders.opened.geometry, &block);
        let (codec, job) = planned.map_err(|_| NoGuard::Corrupt)?;
        self.out += shape.raw_bytes;
        Ok(PlannedBlock { stored: Stored { word, len }, codec, job, overlays })
    }

    /// The address of a coder's form.
    fn form(&mut self, coder: &Coder) -> Result<u64, Fault> {
        let number = coder.generation();
        if let Some((_, form)) = self.forms.iter().find(|(known, _)| *known == number) {
            return Ok(form.address());
        }
        let form = (self.upload)(self.coders.opened, coder)?;
        let address = form.address();
        self.forms.push((number, form));
        Ok(address)
    }
}

/// The word of the block itself, and the overlays over it, the oldest first.
fn overlays(
    guard: &OwnedGuard,
    newest: BlockWord,
    shape: &BlockShape,
    (out, number): (u64, u32),
) -> Result<(BlockWord, Vec<PlannedOverlay>), Fault> {
    if !newest.is_overlay() {
        return Ok((newest, Vec::new()));
    }
    let mut chain = chain(guard, newest, shape.row_bytes);
    let mut found = Vec::new();
    loop {
        let word = chain.at();
        let Some(overlay) = chain.next()? else {
            found.reverse();
            return Ok((word, found));
        };
        let (n_rows, row_bytes, rows_at) = (overlay.n_rows(), overlay.row_bytes(), overlay.rows_at());
        let stored =
            StoredOverlay { n_rows, row_bytes, rows_at, raw_len: shape.raw_bytes, src: 0, out, number };
        let job = overlay_job(&stored).map_err(|_| NoGuard::Corrupt)?;
        let stored = Stored { word, len: rows_at + n_rows * row_bytes };
        found.push(PlannedOverlay { stored, level: overlay.depth(), job });
    }
}
