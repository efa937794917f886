//! The segments of a namespace: when it needs one more, and when one returns.

use std::sync::Arc;

use tierpack_shm::message::{ErrorCode, Refusal, SegmentId};
use tierpack_shm::segment::{Segment, SegmentKind};

use super::Namespace;
use crate::store::Outcome;

impl Namespace {
    /// Whether an extent of so many bytes can be allocated; in the directory, and a slot with it.
    pub(in crate::store) fn has_room(&self, kind: SegmentKind, len: u64) -> bool {
        let mut inner = self.inner.lock();
        let has_extent = inner.pool_mut(kind).longest_free_bytes() >= len;
        has_extent && (kind == SegmentKind::Data || inner.directory.has_slot())
    }

    /// Whether another segment for slots is what the directory lacks.
    pub(in crate::store) fn lacks_slots(&self) -> bool {
        !self.inner.lock().directory.has_slot()
    }

    /// Adds a segment, and tells of it by `announce` before anybody can take it out again.
    ///
    /// Of a reserved one only [`Namespace::allocate_for_move`] allocates, and in the directory only slots.
    pub(in crate::store) fn add_segment(
        &self,
        (kind, is_reserved): (SegmentKind, bool),
        segment: Segment,
        serial: u64,
        announce: impl FnOnce(SegmentId, Arc<Segment>),
    ) -> Outcome<SegmentId> {
        let (mut inner, segment) = (self.inner.lock(), Arc::new(segment));
        if inner.is_buried {
            let text = format!("namespace {:?} was removed", self.name);
            return Err(Refusal::new(ErrorCode::NotFound, text));
        }
        let pool = inner.pool_mut(kind);
        let Some(segment_idx) = pool.next_index() else {
            let text =
                format!("namespace {:?} has no address left for another {} segment", self.name, kind.name());
            return Err(Refusal::new(ErrorCode::PoolFull, text));
        };
        if is_reserved {
            pool.add_reserved(segment_idx, Arc::clone(&segment));
        } else {
            pool.add(segment_idx, Arc::clone(&segment), 0);
        }
        let index = u32::try_from(segment_idx).expect("at most MAX_SEGMENTS");
        inner.serials.insert((kind, index), serial);
        let id = SegmentId { kind, index, serial };
        // Under the lock: else another thread could tell of its end before this one tells of its start.
        announce(id, segment);
        Ok(id)
    }

    /// Takes out segments in which nothing is used, the first `keep` of each kind that could be used again aside, and
    /// reports each by `retire` in the order of all that is reported of this namespace.
    pub(in crate::store) fn take_free_segments(
        &self,
        keep: usize,
        mut retire: impl FnMut(SegmentId, Arc<Segment>),
    ) {
        let mut inner = self.inner.lock();
        if inner.is_buried {
            return;
        }
        for kind in [SegmentKind::Data, SegmentKind::Directory] {
            let pool = inner.pool_mut(kind);
            let (barred, free): (Vec<_>, Vec<_>) = pool
                .free_segments()
                .into_iter()
                .partition(|segment_idx| pool.is_segment_barred(*segment_idx));
            for segment_idx in barred.into_iter().chain(free.into_iter().skip(keep)) {
                let index = u32::try_from(segment_idx).expect("at most MAX_SEGMENTS");
                // Segment 0 of the directory holds the header.
                if (kind, index) == (SegmentKind::Directory, 0) {
                    continue;
                }
                let segment = inner.pool_mut(kind).take_if_free(segment_idx);
                let serial = inner.serials.remove(&(kind, index)).unwrap_or_default();
                inner.audience.forget((kind, index));
                if let Some(segment) = segment {
                    retire(SegmentId { kind, index, serial }, segment);
                }
            }
        }
    }

    /// Every segment, as the namespace goes: from now on it has no room.
    pub(in crate::store) fn bury(&self) -> Vec<(SegmentId, Arc<Segment>)> {
        let mut inner = self.inner.lock();
        inner.is_buried = true;
        inner.present_segments()
    }

    /// Reopens every data segment for allocation, those that are being emptied included.
    pub(in crate::store) fn open_segments(&self) {
        self.inner.lock().data.open_segments();
    }

    /// Allocates from reserved segments for everyone.
    pub(in crate::store) fn open_reserved_segments(&self) {
        self.inner.lock().data.open_reserved_segments();
    }

    pub(in crate::store) fn vacate(&self, id: SegmentId) {
        self.inner.lock().pool_mut(id.kind).vacate(tierpack_shm::types::index(u64::from(id.index)));
    }

    pub(crate) fn segment_bytes(&self, kind: SegmentKind) -> u64 {
        self.inner.lock().pool_mut(kind).segment_bytes()
    }
}
