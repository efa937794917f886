//! The table of mapped segments: looked at by every reader, changed by the session, one thread at a time.

#![expect(unsafe_code, reason = "owns the mapped segments behind atomic pointers")]

use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use crate::layout::MAX_SEGMENTS;
use crate::segment::ClientSegment;
use crate::sync::Ordering;

/// The mapped segments of one kind, by index.
pub(super) struct SegmentTable(Box<[AtomicPtr<ClientSegment>]>);

impl SegmentTable {
    pub(super) fn new() -> Self {
        // Zeroed by the system: only the pages of entries that are used ever exist.
        // SAFETY: all zeros is the null pointer, a valid `AtomicPtr`.
        Self(unsafe { Box::<[AtomicPtr<ClientSegment>]>::new_zeroed_slice(MAX_SEGMENTS).assume_init() })
    }

    #[inline]
    pub(super) fn get(&self, segment_idx: usize) -> Option<&ClientSegment> {
        // Acquire: pairs with the Release in `insert`; the mapping is whole when its pointer is seen.
        let pointer = self.0.get(segment_idx)?.load(Ordering::Acquire);
        // SAFETY: the pointer is null or from `insert`, and is freed only by `remove`, whose caller promises that
        // nobody reads the segment, or with the table, which this borrows.
        unsafe { pointer.as_ref() }
    }

    /// The indexes at which there is a segment.
    pub(super) fn mapped(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter(|&segment_idx| self.get(segment_idx).is_some())
    }

    /// Puts a segment at a vacant index; says whether it was vacant.
    pub(super) fn insert(&self, segment_idx: usize, segment: ClientSegment) -> bool {
        let Some(entry) = self.0.get(segment_idx) else { return false };
        let pointer = Box::into_raw(Box::new(segment));
        // Release: pairs with the Acquire in `get`.
        if entry.compare_exchange(null_mut(), pointer, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: the pointer was made above and not shared.
            drop(unsafe { Box::from_raw(pointer) });
            return false;
        }
        true
    }

    /// Unmaps a segment; says whether it was there.
    ///
    /// # Safety
    /// - No guard reads the segment: no word that a live lease covers addresses it.
    pub(super) unsafe fn remove(&self, segment_idx: usize) -> bool {
        let Some(entry) = self.0.get(segment_idx) else { return false };
        let pointer = entry.swap(null_mut(), Ordering::AcqRel);
        if pointer.is_null() {
            return false;
        }
        // SAFETY: the pointer came from `Box::into_raw` in `insert`, and the swap made this its only owner.
        drop(unsafe { Box::from_raw(pointer) });
        true
    }
}

impl Drop for SegmentTable {
    fn drop(&mut self) {
        for entry in &mut self.0 {
            let pointer = std::mem::replace(entry.get_mut(), null_mut());
            if !pointer.is_null() {
                // SAFETY: the pointer came from `Box::into_raw` in `insert`; `&mut self` means no reader is left.
                drop(unsafe { Box::from_raw(pointer) });
            }
        }
    }
}
