//! The daemon's side of a namespace's segments of one kind: segments, and the extents in them.
//!
//! An extent is written while it is [`Fresh`], which only its owner can see, and is read-only once frozen.

#![expect(unsafe_code, reason = "writes and reads extents")]

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::extents::{Extents, units_for};
use crate::layout::{MAX_SEGMENTS, SEGMENT_SPAN_UNITS};
use crate::segment::Segment;
use crate::sync::AtomicU64;
use crate::types::{Extent, UNIT_BYTES, index};

/// Segments of one kind in one namespace, and what is free in them.
#[derive(Debug, Default)]
pub struct Pool {
    segments: Vec<Option<Arc<Segment>>>,
    /// Indexes that no client maps any more, or that were never used.
    vacant: Vec<usize>,
    extents: Extents,
    segment_bytes: u64,
}

/// An extent that nobody else sees yet.
#[derive(Debug)]
pub struct Fresh {
    extent: Extent,
    segment: Arc<Segment>,
}

impl Fresh {
    /// First unit, counted over the namespace.
    pub fn offset(&self) -> u64 {
        self.extent.offset
    }

    /// Bytes, rounding included.
    pub fn len_bytes(&self) -> u64 {
        self.extent.len_bytes()
    }

    /// Writes `bytes` from byte `at` of the extent on.
    ///
    /// # Panics
    /// When they do not fit the extent.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len_bytes()), "the writer sized this extent");
        // SAFETY: this value is the only owner of the extent, borrowed mutably; no word addresses it, since its
        // address only leaves by `freeze`.
        unsafe { self.segment.write(in_segment(self.extent.offset) + at, bytes) };
    }

    /// Ends writing: from now on the extent can be published.
    pub fn freeze(self) -> Extent {
        self.extent
    }
}

/// Byte offset in its segment of a unit.
pub(crate) const fn in_segment(unit: u64) -> u64 {
    unit % SEGMENT_SPAN_UNITS * UNIT_BYTES
}

impl Pool {
    /// The index that the next segment gets; `None` when the address space is full.
    pub fn next_index(&mut self) -> Option<usize> {
        if let Some(vacant) = self.vacant.pop() {
            return Some(vacant);
        }
        if self.segments.len() == MAX_SEGMENTS {
            return None;
        }
        self.segments.push(None);
        Some(self.segments.len() - 1)
    }

    /// Puts a segment at an index that came from [`Pool::next_index`]; the first `reserved` bytes are never allocated.
    ///
    /// # Panics
    /// When a segment is there.
    pub fn add(&mut self, segment_idx: usize, segment: Arc<Segment>, reserved: u64) {
        self.extents.add_segment(segment_idx, reserved, segment.len());
        self.segment_bytes += segment.len();
        let earlier = self.segments[segment_idx].replace(segment);
        assert!(earlier.is_none(), "segment index {segment_idx} is vacant");
    }

    /// As [`Pool::add`], for a segment of which only [`Pool::allocate_reserved`] allocates.
    ///
    /// # Panics
    /// When a segment is there.
    pub fn add_reserved(&mut self, segment_idx: usize, segment: Arc<Segment>) {
        self.extents.add_reserved_segment(segment_idx, segment.len());
        self.segment_bytes += segment.len();
        let earlier = self.segments[segment_idx].replace(segment);
        assert!(earlier.is_none(), "segment index {segment_idx} is vacant");
    }

    /// Takes a segment out if nothing in it is used; its index stays taken until [`Pool::vacate`].
    pub fn take_if_free(&mut self, segment_idx: usize) -> Option<Arc<Segment>> {
        if !self.extents.remove_segment_if_free(segment_idx) {
            return None;
        }
        let segment = self.segments[segment_idx].take()?;
        self.segment_bytes -= segment.len();
        Some(segment)
    }

    /// Makes an index reusable: no client maps the segment that had it.
    pub fn vacate(&mut self, segment_idx: usize) {
        self.vacant.push(segment_idx);
    }

    /// The segments with their indexes.
    pub fn segments(&self) -> impl Iterator<Item = (usize, &Arc<Segment>)> {
        self.segments.iter().enumerate().filter_map(|(idx, segment)| Some((idx, segment.as_ref()?)))
    }

    /// Indexes of segments in which nothing is used, reserved ones aside.
    pub fn free_segments(&self) -> Vec<usize> {
        let is_free =
            |idx: &usize| self.extents.is_segment_free(*idx) && !self.extents.is_segment_reserved(*idx);
        self.segments().map(|(idx, _)| idx).filter(is_free).collect()
    }

    /// Closes a segment for allocation, so that it empties.
    pub fn close_segment(&mut self, segment_idx: usize) {
        self.extents.close_segment(segment_idx);
    }

    /// Reopens a segment for allocation.
    pub fn open_segment(&mut self, segment_idx: usize) {
        self.extents.open_segment(segment_idx);
    }

    /// Reopens every segment for allocation.
    pub fn open_segments(&mut self) {
        self.extents.open_segments();
    }

    /// Allocates nothing from a segment ever again, so that it empties.
    pub fn bar_segment(&mut self, segment_idx: usize) {
        self.extents.bar_segment(segment_idx);
    }

    /// Whether a segment is closed for allocation for good.
    pub fn is_segment_barred(&self, segment_idx: usize) -> bool {
        self.extents.is_segment_barred(segment_idx)
    }

    /// Whether a segment is reserved.
    pub fn is_segment_reserved(&self, segment_idx: usize) -> bool {
        self.extents.is_segment_reserved(segment_idx)
    }

    /// The segments that are closed for allocation for good, with their indexes.
    pub fn barred_segments(&self) -> impl Iterator<Item = (usize, &Arc<Segment>)> {
        self.segments().filter(|(segment_idx, _)| self.is_segment_barred(*segment_idx))
    }

    /// Allocates from every reserved segment to everyone.
    pub fn open_reserved_segments(&mut self) {
        self.extents.open_reserved_segments();
    }

    /// Bytes in use of a segment.
    pub fn segment_used_bytes(&self, segment_idx: usize) -> u64 {
        self.extents.segment_used_bytes(segment_idx)
    }

    /// An extent for `len_bytes`; `None` when no free run holds it.
    pub fn allocate(&mut self, len_bytes: u64) -> Option<Fresh> {
        let extent = self.extents.allocate(units_for(len_bytes)?)?;
        Some(self.fresh(extent))
    }

    /// As [`Pool::allocate`], in reserved segments.
    pub fn allocate_reserved(&mut self, len_bytes: u64) -> Option<Fresh> {
        let extent = self.extents.allocate_reserved(units_for(len_bytes)?)?;
        Some(self.fresh(extent))
    }

    fn fresh(&self, extent: Extent) -> Fresh {
        let segment = self.segments[index(extent.offset / SEGMENT_SPAN_UNITS)].as_ref();
        Fresh { segment: Arc::clone(segment.expect("the allocator knows only present segments")), extent }
    }

    /// Frees an extent: the lease rule allows it, or it was never published.
    pub fn free(&mut self, extent: Extent) {
        self.extents.free(extent);
    }

    /// Bytes in use, rounding included.
    pub fn used_bytes(&self) -> u64 {
        self.extents.used_bytes()
    }

    /// Bytes of the longest free run that is open to everyone.
    pub fn longest_free_bytes(&self) -> u64 {
        self.extents.longest_free_bytes()
    }

    /// Bytes of all segments.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The bytes of a published or frozen extent.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when its segment is gone.
    pub fn bytes(&self, extent: &Extent) -> Result<&[u8]> {
        let segment = self.at(extent.offset, extent.len_bytes(), "an extent")?;
        // SAFETY: an `Extent` is frozen: `Fresh::write` is gone for it, and it is freed by value.
        Ok(unsafe { segment.read(in_segment(extent.offset), extent.len_bytes()) })
    }

    /// Words of the directory from unit `address` on.
    ///
    /// # Errors
    /// [`Error::OutOfSegment`] when they do not lie in one segment.
    pub fn words(&self, address: u64, count: u64) -> Result<&[AtomicU64]> {
        let what = "a run of words";
        let segment = self.at(address, count.saturating_mul(8), what)?;
        let words = segment.words(in_segment(address), count);
        words.ok_or(Error::OutOfSegment { what, address, len: count.saturating_mul(8) })
    }

    /// The segment that holds `len` bytes from unit `address` on.
    fn at(&self, address: u64, len: u64, what: &'static str) -> Result<&Arc<Segment>> {
        let segment = self.segments.get(index(address / SEGMENT_SPAN_UNITS)).and_then(Option::as_ref);
        segment
            .filter(|segment| in_segment(address).checked_add(len).is_some_and(|end| end <= segment.len()))
            .ok_or(Error::OutOfSegment { what, address, len })
    }

    /// The segment at an index.
    pub(crate) fn segment(&self, segment_idx: usize) -> Option<&Arc<Segment>> {
        self.segments.get(segment_idx).and_then(Option::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut pool = Pool::default();
        assert!(pool.allocate(10).is_none());
        let idx = pool.next_index().unwrap();
        pool.add(idx, Arc::new(Segment::create(1 << 20).unwrap()), 0);
        let mut fresh = pool.allocate(100).unwrap();
        assert_eq!(fresh.len_bytes(), 128);
        fresh.write(0, &[1; 60]);
        fresh.write(60, &[2; 40]);
        let extent = fresh.freeze();
        let bytes = pool.bytes(&extent).unwrap();
        assert_eq!(
            (&bytes[..60], &bytes[60..100], &bytes[100..]),
            (&[1; 60][..], &[2; 40][..], &[0; 28][..])
        );
        assert_eq!(pool.used_bytes(), 128);
        assert!(pool.take_if_free(idx).is_none());
        pool.free(extent);
        assert_eq!(pool.free_segments(), [idx]);
        assert!(pool.take_if_free(idx).is_some());
        assert_eq!((pool.segment_bytes(), pool.longest_free_bytes()), (0, 0));
        pool.vacate(idx);
        assert_eq!(pool.next_index(), Some(idx));
    }

    #[test]
    #[should_panic(expected = "sized this extent")]
    fn a_write_past_the_extent_is_refused() {
        let mut pool = Pool::default();
        let idx = pool.next_index().unwrap();
        pool.add(idx, Arc::new(Segment::create(1 << 20).unwrap()), 0);
        pool.allocate(64).unwrap().write(1, &[0; 64]);
    }
}
