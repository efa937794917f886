//! Views: stored bytes in place, for as long as the view lives.

use std::sync::Arc;

use tierpack_kernels::codec;
use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::page::Counter;
use tierpack_shm::types::{BlockWord, Dtype, index};

use crate::blocks::{block_bytes, word};
use crate::decode::Coders;
use crate::error::{Error, Result};
use crate::handle::{Fault, Handle, Opened};
use crate::overlays::chain;

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

/// What a look at the words of all blocks has shown.
enum Looked {
    View(View),
    /// Every block is raw, and some have overlays.
    Changed,
}

impl Handle {
    /// Takes a view of the whole tensor.
    ///
    /// Where updates have left overlays, the daemon is asked to put them into their blocks first.
    ///
    /// # Errors
    /// [`Error::Encoded`] when a block is not stored raw; else as [`Handle::get`], and as every call that asks the
    /// daemon: [`Error::Deadline`] when the tensor is updated faster than its overlays can be put away.
    pub fn view(&self) -> Result<View> {
        let mut deadline = None;
        loop {
            if let Looked::View(view) = self.attempt(|opened| self.look(opened))? {
                return Ok(view);
            }
            // No guard is held here: what the daemon folds retires when the last lease ends.
            let deadline = deadline.get_or_insert_with(|| self.client().shared.deadline());
            if deadline.left().is_zero() {
                return Err(deadline.passed("take a view of a tensor that is updated again and again"));
            }
            self.client().fold(self.name(), deadline)?;
        }
    }

    fn look(&self, opened: &Arc<Opened>) -> core::result::Result<Looked, Fault> {
        let guard = opened.owned_guard()?;
        let words = block_words(&guard, opened.geometry.n_blocks())?;
        reach(Point::ViewWordsLoaded);
        let mut is_changed = false;
        // Every block once, so that later no look at one has to wait for its segment.
        for (idx, &word) in (0_u64..).zip(&words) {
            let shape = opened.geometry.block(idx);
            let block = if word.is_overlay() {
                is_changed = true;
                chain(&guard, word, shape.row_bytes).collect()?.block
            } else {
                word
            };
            if !block.is_raw() {
                let codec = Coders::new(&guard, opened).get(block)?.codec();
                return Err(Fault::Failed(Error::Encoded { codec }));
            }
            block_bytes(&guard, block, idx, shape.raw_bytes)?;
        }
        if is_changed {
            return Ok(Looked::Changed);
        }
        // From here on the view holds its own blocks, and nothing that is stored later.
        guard.finish();
        guard.count(Counter::Views, 1);
        let (words, shape) = (words.into(), self.shape());
        Ok(Looked::View(View { guard, words, shape, opened: Arc::clone(opened) }))
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
    /// [`Error::BlockOutOfRange`]; [`Error::Forked`] in a fork of the process that took the view;
    /// [`Error::System`] when the process has closed the client's socket, which ends what the view holds.
    pub fn block(&self, block_idx: u64) -> Result<&[u8]> {
        if !self.guard.is_here() {
            return Err(Error::Forked);
        }
        if self.guard.check_held().is_err() {
            return Err(self.opened.lost("read a view"));
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
            Fault::NoGuard(_) | Fault::NoRoom => Error::Unsupported { block_idx, state: "not where it was" },
        })
    }
}
