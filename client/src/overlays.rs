//! Overlays: rows of a block that changed, in a chain from the newest down to the block.
//!
//! ```text
//! word -> overlay (newest) -> overlay -> ... -> block
//! row:    the first overlay that holds it, else the block's
//! block:  decode, then write the rows of each overlay over it, from the oldest on
//! ```
//!
//! A chain is walked by what the overlays say of themselves: each says how many are below it, which must be one less
//! than the one above said, so that a walk ends after eight steps whatever the bytes are.
//! Checksums are not compared: as with blocks, `get` and `gather` read memory that only the daemon writes.

use std::ops::Deref;

use tierpack_shm::attachment::{Attachment, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::overlay;
use tierpack_shm::overlay::{Overlay, stated_len};
use tierpack_shm::types::{BlockWord, index};

/// A walk down a chain.
#[derive(Debug)]
pub(crate) struct Chain<S> {
    /// Returns the stored bytes that a word addresses, as many as asked for.
    stored: S,
    next: BlockWord,
    row_bytes: u64,
    /// Overlays below, as the one above says.
    below: Option<u64>,
}

impl<'a, S> Chain<S>
where
    S: Fn(BlockWord, u64) -> Result<&'a [u8], NoGuard>,
{
    /// Starts at the word of a block whose rows have `row_bytes` bytes.
    pub(crate) const fn new(newest: BlockWord, row_bytes: u64, stored: S) -> Self {
        Self { stored, next: newest, row_bytes, below: None }
    }

    /// The word that the walk comes to next: of an overlay, or of the block at its end.
    pub(crate) const fn at(&self) -> BlockWord {
        self.next
    }

    /// The next overlay, older than all before; `None` when only the block is left.
    pub(crate) fn next(&mut self) -> Result<Option<Overlay<'a>>, NoGuard> {
        if !self.next.is_resident() {
            return Err(NoGuard::Corrupt);
        }
        if !self.next.is_overlay() {
            return if self.below.unwrap_or(0) == 0 { Ok(None) } else { Err(NoGuard::Corrupt) };
        }
        let header = (self.stored)(self.next, overlay::BYTES)?;
        let len = stated_len(header).ok_or(NoGuard::Corrupt)?;
        let overlay = Overlay::parse((self.stored)(self.next, len)?).map_err(|_| NoGuard::Corrupt)?;
        let is_expected = self.below.is_none_or(|below| below == overlay.depth() + 1);
        if !is_expected || overlay.row_bytes() != self.row_bytes {
            return Err(NoGuard::Corrupt);
        }
        (self.below, self.next) = (Some(overlay.depth()), overlay.covered());
        reach(Point::OverlayFound);
        Ok(Some(overlay))
    }

    /// The overlays that are left, from the newest on; the word of the block itself comes with them.
    pub(crate) fn collect(mut self) -> Result<Collected<'a>, NoGuard> {
        let mut overlays = [const { None }; index(overlay::MAX_CHAIN)];
        let mut targets = overlays.iter_mut();
        while let Some(overlay) = self.next()? {
            *targets.next().ok_or(NoGuard::Corrupt)? = Some(overlay);
        }
        Ok(Collected { overlays, block: self.next })
    }

    /// Looks a row up.
    pub(crate) fn find(mut self, row_in_block: u64) -> Result<Place<'a>, NoGuard> {
        while let Some(overlay) = self.next()? {
            if let Some(row) = overlay.find(row_in_block) {
                return Ok(Place::Overlay(row));
            }
        }
        Ok(Place::Block(self.next))
    }
}

/// Where the newest value of a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// In an overlay: these are its bytes.
    Overlay(&'a [u8]),
    /// In the block that this word addresses.
    Block(BlockWord),
}

/// A whole chain.
#[derive(Debug)]
pub(crate) struct Collected<'a> {
    overlays: [Option<Overlay<'a>>; index(overlay::MAX_CHAIN)],
    pub(crate) block: BlockWord,
}

impl Collected<'_> {
    /// Writes the changed rows over the raw bytes of the block.
    pub(crate) fn apply(&self, raw: &mut [u8]) -> Result<(), NoGuard> {
        let mut oldest_first = self.overlays.iter().rev().flatten();
        oldest_first.try_for_each(|overlay| overlay.apply(raw)).map_err(|_| NoGuard::Corrupt)
    }
}

/// The chain over a block, read under a guard.
pub(crate) fn chain<'a, A>(
    guard: &'a Guard<A>,
    newest: BlockWord,
    row_bytes: u64,
) -> Chain<impl Fn(BlockWord, u64) -> Result<&'a [u8], NoGuard>>
where
    A: Deref<Target = Attachment>,
{
    Chain::new(newest, row_bytes, |word, len| guard.stored(word, len))
}

#[cfg(test)]
mod tests;
