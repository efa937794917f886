//! Views: stored bytes in place, for as long as the view lives.

use std::sync::Arc;

use tierpack_kernels::codec;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::page::Counter;
use tierpack_shm::types::{BlockWord, CodecId, Dtype, index};

use crate::blocks::{block_bytes, word};
use crate::error::{Error, Result};
use crate::handle::{Fault, Handle, Opened};

/// A lease over the bytes of a raw tensor: slices of shared memory, without a copy.
///
/// The view shows the tensor as it was when the view was taken, whatever happens to its name.
/// Until it is dropped the daemon cannot use that memory for anything else, and one of 1024 leases is taken.
#[derive(Debug)]
pub struct View {
    // Dropped before `opened`, whose session keeps the lease counting.
    guard: Guard<Arc<Attachment>>,
    words: Box<[BlockWord]>,
    shape: Vec<u64>,
    opened: Arc<Opened>,
}

impl Handle {
    /// Takes a view of the whole tensor.
    ///
    /// # Errors
    /// [`Error::Encoded`] when the tensor is not stored raw; else as [`Handle::get`].
    pub fn view(&self) -> Result<View> {
        self.attempt(|opened| {
            if opened.codec != CodecId::Raw {
                return Err(Fault::Failed(Error::Encoded { codec: opened.codec }));
            }
            let guard = opened.owned_guard()?;
            let words = block_words(&guard, opened.geometry.n_blocks())?;
            reach(Point::ViewWordsLoaded);
            // Every block once, so that later no look at one has to wait for its segment.
            for (idx, &word) in (0_u64..).zip(&words) {
                block_bytes(&guard, word, idx, opened.geometry.block(idx).raw_bytes)?;
            }
            guard.count(Counter::Views, 1);
            let shape = self.shape();
            Ok(View { guard, words: words.into(), shape, opened: Arc::clone(opened) })
        })
    }
}

/// The words of every block; a tensor without blocks has no table to look at.
fn block_words(
    guard: &Guard<Arc<Attachment>>,
    n_blocks: u64,
) -> core::result::Result<Vec<BlockWord>, NoGuard> {
    if n_blocks == 0 {
        return Ok(Vec::new());
    }
    let words = guard.words()?;
    (0..n_blocks).map(|block_idx| word(words, block_idx)).collect()
}

impl View {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.opened.geometry.dtype()
    }

    /// Shape, outermost dimension first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Bytes of the tensor: of all blocks together.
    pub fn raw_bytes(&self) -> u64 {
        self.opened.geometry.raw_bytes()
    }

    /// Blocks of the tensor; 0 when it has no elements.
    pub fn n_blocks(&self) -> u64 {
        self.words.len() as u64
    }

    /// The bytes of one block; those of all blocks, one behind the other, are the tensor.
    ///
    /// # Errors
    /// [`Error::BlockOutOfRange`]; [`Error::Forked`] in a fork of the process that took the view.
    pub fn block(&self, block_idx: u64) -> Result<&[u8]> {
        if !self.guard.is_here() {
            return Err(Error::Forked);
        }
        let n_blocks = self.n_blocks();
        let word = *self
            .words
            .get(index(block_idx))
            .filter(|_| block_idx < n_blocks)
            .ok_or(Error::BlockOutOfRange { block_idx, n_blocks })?;
        let raw_bytes = self.opened.geometry.block(block_idx).raw_bytes;
        let found = block_bytes(&self.guard, word, block_idx, raw_bytes)
            .and_then(|block| codec::raw_payload(block, raw_bytes).ok_or(Fault::NoGuard(NoGuard::Corrupt)));
        found.map_err(|fault| match fault {
            Fault::Failed(error) => error,
            // Taking the view has read this very word, and its lease keeps the bytes where they were.
            Fault::NoGuard(_) => Error::Unsupported { block_idx, state: "not where it was" },
        })
    }
}
