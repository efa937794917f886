//! Who was ever sent which segment, and what follows when one of them loses the right to read.
//!
//! A peer may keep what it was sent: neither an `Unmapped` nor a hang-up proves that it did not.
//! So a segment that was sent to a user without the right takes nothing new, ever: it is barred.
//! Compaction empties the data segments among them; the memory that it needs for that is kept back in the budget.

use std::collections::HashMap;
use std::sync::Arc;

use tierpack_shm::message::SegmentId;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::types::index;

use super::{Inner, Namespace};
use crate::store::access::{Access, Caller, Right};

/// Users that are distinguished, each by a bit; the last bit is of all others.
const MAX_CALLERS: usize = 63;
const OTHERS: u64 = 1 << MAX_CALLERS;

/// Who was sent what is present.
#[derive(Debug, Default)]
pub(super) struct Audience {
    /// Each once; operators are left out, since they lose no right.
    callers: Vec<Arc<Caller>>,
    /// Bits of the callers by segment; barred segments are left out.
    sent: HashMap<(SegmentKind, u32), u64>,
}

impl Audience {
    fn bit_of(&mut self, caller: &Arc<Caller>) -> u64 {
        if let Some(at) = self.callers.iter().position(|known| known == caller) {
            return 1 << at;
        }
        if self.callers.len() < MAX_CALLERS {
            self.callers.push(Arc::clone(caller));
            return 1 << (self.callers.len() - 1);
        }
        let used = self.used();
        let Some(at) = (0..MAX_CALLERS).find(|at| used & 1 << at == 0) else { return OTHERS };
        self.callers[at] = Arc::clone(caller);
        1 << at
    }

    fn used(&self) -> u64 {
        self.sent.values().fold(0, |all, bits| all | bits)
    }

    fn add(&mut self, caller: &Arc<Caller>, segments: impl Iterator<Item = (SegmentKind, u32)>) {
        if caller.is_operator {
            return;
        }
        let bit = self.bit_of(caller);
        for segment in segments {
            *self.sent.entry(segment).or_default() |= bit;
        }
    }

    /// Forgets a segment that is gone or barred.
    pub(super) fn forget(&mut self, segment: (SegmentKind, u32)) {
        self.sent.remove(&segment);
    }

    fn bits(&self, is_meant: impl Fn(&Caller) -> bool) -> u64 {
        let meant = self.callers.iter().enumerate().filter(|(_, caller)| is_meant(caller));
        meant.fold(OTHERS, |bits, (at, _)| bits | 1 << at)
    }

    /// The segments that somebody was sent who may not read now, and those of whose audience not all is known.
    fn lost(&self, access: &Access) -> Vec<(SegmentKind, u32)> {
        let bits = self.bits(|caller| !access.allows(caller, Right::Read));
        let lost = self.sent.iter().filter(|(_, sent)| **sent & bits != 0);
        lost.map(|(segment, _)| *segment).collect()
    }

    /// Whether somebody could lose the right to read whom the owner is not.
    fn is_shared(&self, access: &Access) -> bool {
        self.used() & self.bits(|caller| caller.uid != access.uid) != 0
    }
}

impl Namespace {
    /// Notes that a caller is about to be sent segments; says whether it may read them.
    pub(crate) fn admit(&self, caller: &Arc<Caller>, ids: &[SegmentId]) -> bool {
        let mut inner = self.inner.lock();
        let may_read = inner.access.allows(caller, Right::Read);
        if may_read {
            inner.note_sent(caller, ids);
        }
        may_read
    }

    /// Bytes of segments that take nothing new, since users who lost the right to read were sent them.
    pub(in crate::store) fn closed_bytes(&self) -> u64 {
        self.inner.lock().closed_bytes()
    }

    /// Whether compaction has segments of it to empty that take nothing new.
    pub(in crate::store) fn has_barred(&self) -> bool {
        let data = &self.inner.lock().data;
        data.barred_segments().any(|(segment_idx, _)| data.segment_used_bytes(segment_idx) > 0)
    }

    /// Bytes that compaction needs at once to empty any segment that takes nothing new, or that could be barred.
    pub(in crate::store) fn kept_back_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        let (data, is_shared) = (&inner.data, inner.audience.is_shared(&inner.access));
        let meant =
            data.segments().filter(|(segment_idx, _)| is_shared || data.is_segment_barred(*segment_idx));
        meant.map(|(_, segment)| segment.len()).max().unwrap_or(0)
    }
}

impl Inner {
    /// Notes who is sent segments, of those that are present and not barred.
    pub(super) fn note_sent(&mut self, caller: &Arc<Caller>, ids: &[SegmentId]) {
        let Self { audience, serials, data, directory, .. } = self;
        let is_meant = |id: &&SegmentId| {
            let segment_idx = index(u64::from(id.index));
            let is_barred = match id.kind {
                SegmentKind::Data => data.is_segment_barred(segment_idx),
                SegmentKind::Directory => directory.pool().is_segment_barred(segment_idx),
            };
            !is_barred && serials.get(&(id.kind, id.index)) == Some(&id.serial)
        };
        audience.add(caller, ids.iter().filter(is_meant).map(|id| (id.kind, id.index)));
    }

    /// Bars what was sent to users who may not read now.
    pub(super) fn bar_lost(&mut self) {
        self.bars += 1;
        let lost = self.audience.lost(&self.access);
        let mut directory = Vec::new();
        for (kind, segment_idx) in lost {
            self.audience.forget((kind, segment_idx));
            match kind {
                SegmentKind::Data => self.data.bar_segment(index(u64::from(segment_idx))),
                SegmentKind::Directory => directory.push(index(u64::from(segment_idx))),
            }
        }
        if !directory.is_empty() {
            self.directory.bar_segments(&directory);
        }
    }

    pub(super) fn closed_bytes(&self) -> u64 {
        let both = [&self.data, self.directory.pool()];
        both.into_iter().flat_map(|pool| pool.barred_segments().map(|(_, segment)| segment.len())).sum()
    }
}

#[cfg(test)]
mod tests {
    use tierpack_shm::socket::Peer;

    use super::*;

    fn caller(uid: u32) -> Arc<Caller> {
        Arc::new(Caller::new(Peer { pid: 1, uid, gid: uid }, Vec::new(), 7))
    }

    #[test]
    fn what_too_many_users_were_sent_counts_as_lost() {
        let (mut audience, open) =
            (Audience::default(), Access { uid: 1, gid: 1, mode: 0o666, quota_bytes: None });
        audience.add(&caller(0), [(SegmentKind::Data, 9)].into_iter());
        for uid in 100..163 {
            audience.add(&caller(uid), [(SegmentKind::Data, 0)].into_iter());
            audience.add(&caller(uid), [(SegmentKind::Data, 0)].into_iter());
        }
        assert!(audience.lost(&open).is_empty() && audience.is_shared(&open));
        let private = Access { mode: 0o600, uid: 162, ..open };
        assert_eq!(audience.lost(&private), [(SegmentKind::Data, 0)]);
        audience.add(&caller(500), [(SegmentKind::Data, 1)].into_iter());
        assert_eq!(audience.lost(&open), [(SegmentKind::Data, 1)], "who user 500 is was not kept");
        audience.forget((SegmentKind::Data, 0));
        audience.forget((SegmentKind::Data, 1));
        audience.add(&caller(500), [(SegmentKind::Data, 2)].into_iter());
        assert!(
            audience.lost(&open).is_empty(),
            "the bits of users who were sent nothing present are free again"
        );
    }
}
