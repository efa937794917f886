//! The extent allocator: which units of a namespace's segments are free.
//!
//! Best fit over an ordered set of free runs, joined with their neighbors when they come back.
//! Runs never cross a segment, so that an extent is one slice.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::SEGMENT_SPAN_UNITS;
use crate::types::{Extent, UNIT_BYTES};

/// Free and used units of the segments of one kind in one namespace.
#[derive(Debug, Default)]
pub struct Extents {
    /// First unit of a free run to its length.
    by_start: BTreeMap<u64, u64>,
    /// (length, first unit) of the same runs.
    by_len: BTreeSet<(u64, u64)>,
    /// Segment index to (first unit, units) that the allocator may give there.
    segments: BTreeMap<usize, (u64, u64)>,
    /// Segments of which nothing is given, so that they empty; their free runs are not in `by_len`.
    closed: BTreeSet<usize>,
    used: u64,
}

/// Units that `len_bytes` take; `None` when they are more than a segment can hold.
pub fn units_for(len_bytes: u64) -> Option<u32> {
    let units = len_bytes.div_ceil(UNIT_BYTES).max(1);
    if units > SEGMENT_SPAN_UNITS { None } else { u32::try_from(units).ok() }
}

impl Extent {
    /// Index of the segment that it lies in.
    pub const fn segment_idx(&self) -> usize {
        crate::types::index(self.offset / SEGMENT_SPAN_UNITS)
    }
}

impl Extents {
    /// Adds the units of segment `index` from byte `from` to byte `len`; both are multiples of a unit.
    ///
    /// # Panics
    /// When the segment is there already.
    pub fn add_segment(&mut self, index: usize, from: u64, len: u64) {
        let start = index as u64 * SEGMENT_SPAN_UNITS + from / UNIT_BYTES;
        let units = (len - from) / UNIT_BYTES;
        let earlier = self.segments.insert(index, (start, units));
        assert!(earlier.is_none(), "segment {index} is added once");
        self.insert_run(start, units);
    }

    /// Takes a segment away if nothing in it is used; says whether it did.
    pub fn remove_segment_if_free(&mut self, index: usize) -> bool {
        if !self.is_segment_free(index) {
            return false;
        }
        if let Some((start, units)) = self.segments.remove(&index) {
            self.remove_run(start, units);
        }
        self.closed.remove(&index);
        true
    }

    /// Gives nothing of a segment any more, so that it empties.
    pub fn close_segment(&mut self, index: usize) {
        if self.closed.insert(index) {
            for (start, len) in self.runs_of(index) {
                self.by_len.remove(&(len, start));
            }
        }
    }

    /// Gives of a segment again.
    pub fn open_segment(&mut self, index: usize) {
        if self.closed.remove(&index) {
            for (start, len) in self.runs_of(index) {
                self.by_len.insert((len, start));
            }
        }
    }

    /// Gives of every segment again.
    pub fn open_segments(&mut self) {
        for index in self.closed.clone() {
            self.open_segment(index);
        }
    }

    /// The free runs of a segment, closed or not.
    fn runs_of(&self, index: usize) -> Vec<(u64, u64)> {
        let (start, units) = self.segments.get(&index).copied().unwrap_or_default();
        self.by_start.range(start..start + units).map(|(&start, &len)| (start, len)).collect()
    }

    /// Bytes in use of a segment.
    pub fn segment_used_bytes(&self, index: usize) -> u64 {
        let (_, units) = self.segments.get(&index).copied().unwrap_or_default();
        let free: u64 = self.runs_of(index).iter().map(|(_, len)| len).sum();
        (units - free) * UNIT_BYTES
    }

    /// Whether nothing in segment `index` is used.
    pub fn is_segment_free(&self, index: usize) -> bool {
        self.segments.get(&index).is_some_and(|(start, units)| self.by_start.get(start) == Some(units))
    }

    /// Takes the shortest free run that holds `units`; `None` when there is none.
    pub fn allocate(&mut self, units: u32) -> Option<Extent> {
        let wanted = u64::from(units.max(1));
        let &(len, start) = self.by_len.range((wanted, 0)..).next()?;
        self.remove_run(start, len);
        if len > wanted {
            self.insert_run(start + wanted, len - wanted);
        }
        self.used += wanted;
        Some(Extent { offset: start, units: units.max(1) })
    }

    /// Gives an extent back.
    ///
    /// # Panics
    /// When it overlaps a free run: it was not given by this allocator.
    pub fn free(&mut self, extent: Extent) {
        let (mut start, mut len) = (extent.offset, u64::from(extent.units));
        self.used -= len;
        let segment = start / SEGMENT_SPAN_UNITS;
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back() {
            assert!(before + before_len <= start, "extent at unit {start} is freed twice");
            if before + before_len == start && before / SEGMENT_SPAN_UNITS == segment {
                self.remove_run(before, before_len);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some((&after, &after_len)) = self.by_start.range(start..).next() {
            assert!(start + len <= after, "extent at unit {start} is freed twice");
            if start + len == after && after / SEGMENT_SPAN_UNITS == segment {
                self.remove_run(after, after_len);
                len += after_len;
            }
        }
        self.insert_run(start, len);
    }

    /// Bytes in use, rounding included.
    pub fn used_bytes(&self) -> u64 {
        self.used * UNIT_BYTES
    }

    /// Bytes of the longest free run.
    pub fn longest_free_bytes(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| len * UNIT_BYTES)
    }

    fn insert_run(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        if !self.closed.contains(&crate::types::index(start / SEGMENT_SPAN_UNITS)) {
            self.by_len.insert((len, start));
        }
    }

    fn remove_run(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounds_up_and_refuses_more_than_a_segment() {
        assert_eq!(units_for(0), Some(1));
        assert_eq!(units_for(64), Some(1));
        assert_eq!(units_for(65), Some(2));
        assert_eq!(units_for(SEGMENT_SPAN_UNITS * UNIT_BYTES), u32::try_from(SEGMENT_SPAN_UNITS).ok());
        assert_eq!(units_for(SEGMENT_SPAN_UNITS * UNIT_BYTES + 1), None);
        assert_eq!(units_for(u64::MAX), None);
    }

    #[test]
    fn never_joins_runs_of_two_segments() {
        let mut extents = Extents::default();
        extents.add_segment(0, 0, SEGMENT_SPAN_UNITS * UNIT_BYTES);
        extents.add_segment(1, 0, SEGMENT_SPAN_UNITS * UNIT_BYTES);
        let whole = u32::try_from(SEGMENT_SPAN_UNITS).unwrap();
        let (a, b) = (extents.allocate(whole).unwrap(), extents.allocate(whole).unwrap());
        extents.free(a);
        extents.free(b);
        assert_eq!(extents.longest_free_bytes(), SEGMENT_SPAN_UNITS * UNIT_BYTES);
        assert!(extents.allocate(whole + 1).is_none());
        assert!(extents.remove_segment_if_free(0) && extents.remove_segment_if_free(1));
        assert_eq!(extents.longest_free_bytes(), 0);
    }

    #[test]
    fn a_closed_segment_takes_back_and_gives_nothing() {
        let mut extents = Extents::default();
        extents.add_segment(0, 0, 1 << 20);
        let (a, b) = (extents.allocate(100).unwrap(), extents.allocate(50).unwrap());
        extents.close_segment(0);
        assert!(extents.allocate(1).is_none());
        extents.free(a);
        assert!(extents.allocate(1).is_none() && !extents.is_segment_free(0));
        assert_eq!(extents.segment_used_bytes(0), 50 * UNIT_BYTES);
        extents.open_segment(0);
        let c = extents.allocate(100).unwrap();
        assert_eq!(c.offset, 0, "the freed run is given again");
        extents.free(c);
        extents.close_segment(0);
        extents.free(b);
        assert!(extents.is_segment_free(0) && extents.remove_segment_if_free(0));
        extents.add_segment(0, 0, 1 << 20);
        assert!(extents.allocate(1).is_some(), "a new segment at the index is open");
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn notices_an_extent_that_is_freed_twice() {
        let mut extents = Extents::default();
        extents.add_segment(0, 0, 1 << 20);
        let Extent { offset, units } = extents.allocate(4).unwrap();
        extents.allocate(4).unwrap();
        extents.free(Extent { offset, units });
        extents.free(Extent { offset, units });
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(steps in proptest::collection::vec((any::<bool>(), 1_u32..300), 1..200)) {
            const UNITS: usize = 2048;
            let mut extents = Extents::default();
            extents.add_segment(3, 0, UNITS as u64 * UNIT_BYTES);
            let base = 3 * SEGMENT_SPAN_UNITS;
            let (mut taken, mut live) = (vec![false; UNITS], Vec::new());
            for (take, size) in steps {
                if take {
                    let Some(extent) = extents.allocate(size) else {
                        let longest = taken.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0);
                        prop_assert!(longest < size as usize, "a run of {longest} was free for {size}");
                        continue;
                    };
                    for unit in extent.offset..extent.offset + u64::from(extent.units) {
                        let at = usize::try_from(unit - base).unwrap();
                        prop_assert!(!std::mem::replace(&mut taken[at], true));
                    }
                    live.push(extent);
                } else if !live.is_empty() {
                    let extent = live.swap_remove(size as usize % live.len());
                    for unit in extent.offset..extent.offset + u64::from(extent.units) {
                        taken[usize::try_from(unit - base).unwrap()] = false;
                    }
                    extents.free(extent);
                }
                let used = taken.iter().filter(|used| **used).count() as u64;
                prop_assert_eq!(extents.used_bytes(), used * UNIT_BYTES);
            }
            live.drain(..).for_each(|extent| extents.free(extent));
            prop_assert!(extents.is_segment_free(3));
            prop_assert_eq!(extents.longest_free_bytes(), UNITS as u64 * UNIT_BYTES);
        }
    }
}
