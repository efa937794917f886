//! The extent allocator: which units of a namespace's segments are free.
//!
//! Best fit over an ordered set of free runs, joined with their neighbors when they come back.
//! Runs never cross a segment, so that an extent is one slice.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::SEGMENT_SPAN_UNITS;
use crate::types::{Extent, UNIT_BYTES};

/// Who may allocate from a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Everyone.
    Open,
    /// Nobody for now, so that it empties.
    Closed,
    /// Nobody ever again.
    Barred,
    /// Only what is moved out of other segments.
    Reserved,
}

/// Free and used units of the segments of one kind in one namespace.
#[derive(Debug, Default)]
pub struct Extents {
    /// First unit of a free run to its length.
    by_start: BTreeMap<u64, u64>,
    /// (length, first unit) of the runs of open segments.
    by_len: BTreeSet<(u64, u64)>,
    /// The same of reserved segments.
    reserved_by_len: BTreeSet<(u64, u64)>,
    segments: BTreeMap<usize, SegmentUnits>,
    used: u64,
}

/// The units of one segment that the allocator hands out.
#[derive(Clone, Copy, Debug)]
struct SegmentUnits {
    start: u64,
    units: u64,
    used: u64,
    usage: Use,
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
        self.add(index, from, len, Use::Open);
    }

    /// As [`Extents::add_segment`], for a segment of which only [`Extents::allocate_reserved`] allocates.
    ///
    /// # Panics
    /// When the segment is there already.
    pub fn add_reserved_segment(&mut self, index: usize, len: u64) {
        self.add(index, 0, len, Use::Reserved);
    }

    fn add(&mut self, index: usize, from: u64, len: u64, usage: Use) {
        let start = index as u64 * SEGMENT_SPAN_UNITS + from / UNIT_BYTES;
        let units = (len - from) / UNIT_BYTES;
        let earlier = self.segments.insert(index, SegmentUnits { start, units, used: 0, usage });
        assert!(earlier.is_none(), "segment {index} is added once");
        self.insert_run(start, units);
    }

    /// Takes a segment away if nothing in it is used; says whether it did.
    pub fn remove_segment_if_free(&mut self, index: usize) -> bool {
        if !self.is_segment_free(index) {
            return false;
        }
        if let Some(SegmentUnits { start, units, .. }) = self.segments.get(&index).copied() {
            self.remove_run(start, units);
            self.segments.remove(&index);
        }
        true
    }

    /// Closes a segment for allocation, so that it empties.
    pub fn close_segment(&mut self, index: usize) {
        self.turn(index, Use::Closed);
    }

    /// Allocates nothing from a segment ever again: neither [`Extents::open_segment`] nor
    /// [`Extents::open_segments`] opens it.
    pub fn bar_segment(&mut self, index: usize) {
        self.turn(index, Use::Barred);
    }

    /// Allocates from a closed segment again.
    pub fn open_segment(&mut self, index: usize) {
        if self.usage(index) == Some(Use::Closed) {
            self.turn(index, Use::Open);
        }
    }

    /// Allocates from every closed segment again.
    pub fn open_segments(&mut self) {
        self.turn_all(Use::Closed);
    }

    /// Allocates from every reserved segment to everyone.
    pub fn open_reserved_segments(&mut self) {
        self.turn_all(Use::Reserved);
    }

    fn turn_all(&mut self, from: Use) {
        let found = self.segments.iter().filter(|(_, segment)| segment.usage == from);
        for index in found.map(|(&index, _)| index).collect::<Vec<_>>() {
            self.turn(index, Use::Open);
        }
    }

    fn turn(&mut self, index: usize, to: Use) {
        let Some(&SegmentUnits { usage: from, .. }) = self.segments.get(&index) else { return };
        if from == to || from == Use::Barred {
            return;
        }
        let runs = self.runs_of(index);
        if let Some(by_len) = self.by_len_of(from) {
            for (start, len) in &runs {
                by_len.remove(&(*len, *start));
            }
        }
        if let Some(by_len) = self.by_len_of(to) {
            by_len.extend(runs.iter().map(|(start, len)| (*len, *start)));
        }
        if let Some(segment) = self.segments.get_mut(&index) {
            segment.usage = to;
        }
    }

    fn usage(&self, index: usize) -> Option<Use> {
        self.segments.get(&index).map(|segment| segment.usage)
    }

    /// Whether a segment is reserved.
    pub fn is_segment_reserved(&self, index: usize) -> bool {
        self.usage(index) == Some(Use::Reserved)
    }

    /// Whether a segment is closed for allocation for good.
    pub fn is_segment_barred(&self, index: usize) -> bool {
        self.usage(index) == Some(Use::Barred)
    }

    /// The runs that a use of a segment finds by their lengths; `None` when nobody may allocate from it.
    fn by_len_of(&mut self, usage: Use) -> Option<&mut BTreeSet<(u64, u64)>> {
        match usage {
            Use::Open => Some(&mut self.by_len),
            Use::Reserved => Some(&mut self.reserved_by_len),
            Use::Closed | Use::Barred => None,
        }
    }

    /// The free runs of a segment, for any purpose.
    fn runs_of(&self, index: usize) -> Vec<(u64, u64)> {
        let Some(SegmentUnits { start, units, .. }) = self.segments.get(&index) else { return Vec::new() };
        self.by_start.range(*start..start + units).map(|(&start, &len)| (start, len)).collect()
    }

    /// Bytes in use of a segment.
    pub fn segment_used_bytes(&self, index: usize) -> u64 {
        self.segments.get(&index).map_or(0, |segment| segment.used * UNIT_BYTES)
    }

    /// Whether nothing in a segment is used.
    pub fn is_segment_free(&self, index: usize) -> bool {
        self.segments.get(&index).is_some_and(|segment| segment.used == 0)
    }

    /// The smallest free run that holds `units`; `None` when there is none.
    pub fn allocate(&mut self, units: u32) -> Option<Extent> {
        let &(len, start) = self.by_len.range((u64::from(units.max(1)), 0)..).next()?;
        Some(self.take((start, len), units))
    }

    /// As [`Extents::allocate`], in reserved segments.
    pub fn allocate_reserved(&mut self, units: u32) -> Option<Extent> {
        let &(len, start) = self.reserved_by_len.range((u64::from(units.max(1)), 0)..).next()?;
        Some(self.take((start, len), units))
    }

    fn take(&mut self, (start, len): (u64, u64), units: u32) -> Extent {
        let wanted = u64::from(units.max(1));
        self.remove_run(start, len);
        if len > wanted {
            self.insert_run(start + wanted, len - wanted);
        }
        self.count(start, wanted, true);
        Extent { offset: start, units: units.max(1) }
    }

    fn count(&mut self, start: u64, units: u64, is_taken: bool) {
        let segment = self.segments.get_mut(&crate::types::index(start / SEGMENT_SPAN_UNITS));
        let used = segment.map(|segment| &mut segment.used).into_iter().chain([&mut self.used]);
        used.for_each(|used| *used = if is_taken { *used + units } else { *used - units });
    }

    /// Frees an extent.
    ///
    /// # Panics
    /// When it overlaps a free run: it does not come from this allocator.
    pub fn free(&mut self, extent: Extent) {
        let (mut start, mut len) = (extent.offset, u64::from(extent.units));
        self.count(start, len, false);
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
        if let Some(by_len) = self.by_len_at(start) {
            by_len.insert((len, start));
        }
    }

    fn remove_run(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        if let Some(by_len) = self.by_len_at(start) {
            by_len.remove(&(len, start));
        }
    }

    /// The lengths among which a run that starts at `start` is found.
    fn by_len_at(&mut self, start: u64) -> Option<&mut BTreeSet<(u64, u64)>> {
        let usage = self.usage(crate::types::index(start / SEGMENT_SPAN_UNITS))?;
        self.by_len_of(usage)
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
    fn a_barred_segment_is_never_opened_and_a_reserved_one_gives_only_to_moves() {
        let mut extents = Extents::default();
        extents.add_segment(0, 0, 1 << 20);
        extents.add_reserved_segment(1, 1 << 20);
        let a = extents.allocate(100).unwrap();
        extents.bar_segment(0);
        extents.open_segment(0);
        extents.open_segments();
        extents.free(a);
        assert!(extents.allocate(1).is_none() && extents.is_segment_barred(0));
        let b = extents.allocate_reserved(8).unwrap();
        assert_eq!((b.segment_idx(), extents.segment_used_bytes(1)), (1, 8 * UNIT_BYTES));
        extents.open_reserved_segments();
        assert!(extents.allocate_reserved(1).is_none());
        assert_eq!(extents.allocate(1).unwrap().segment_idx(), 1);
        assert!(extents.remove_segment_if_free(0));
        extents.add_segment(0, 0, 1 << 20);
        assert!(!extents.is_segment_barred(0), "a new segment at the index is open");
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
