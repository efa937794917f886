//! A namespace as a whole: who may do what in it, how much it may hold, and its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{ErrorCode, NamespaceEntry, Refusal};
use tierpack_shm::stats::RemovedStats;

use super::{BATCH, Namespace, Tensor};
use crate::store::Outcome;
use crate::store::access::{Access, Caller, Right};

/// The tensors of a namespace that was removed.
#[derive(Debug)]
pub(in crate::store) struct Removed {
    tensors: BTreeMap<String, Box<Tensor>>,
    /// Of a transaction that was being revealed.
    revealed: BTreeMap<String, Box<Tensor>>,
    /// Dropped with the rest, without the lock.
    _changed: BTreeSet<String>,
}

impl Namespace {
    /// Refuses a caller who may not.
    pub(crate) fn check(&self, caller: &Caller, right: Right) -> Outcome<()> {
        self.inner.lock().access.check(&self.name, caller, right)
    }

    /// Whether a caller may read it.
    pub(crate) fn is_readable(&self, caller: &Caller) -> bool {
        self.inner.lock().access.allows(caller, Right::Read)
    }

    /// Changes owner, group, mode or quota, if `change` allows it; says whether rights have changed.
    ///
    /// From here on nothing new goes to where somebody can see it who may not read now.
    pub(in crate::store) fn change_access(
        &self,
        change: impl FnOnce(&mut Access) -> Outcome<()>,
    ) -> Outcome<bool> {
        let mut inner = self.inner.lock();
        let mut access = inner.access;
        change(&mut access)?;
        let before = std::mem::replace(&mut inner.access, access);
        self.owner.store(access.uid, Ordering::Relaxed);
        let has_changed = !access.has_rights_of(&before);
        if has_changed {
            inner.bar_lost();
        }
        Ok(has_changed)
    }

    /// What `tierpack ns ls` says about it.
    pub(crate) fn entry(&self) -> NamespaceEntry {
        let inner = self.inner.lock();
        inner.access.entry(&self.name, inner.tensors.len() as u64, inner.stored_bytes)
    }

    /// What the stats say about it once it is removed.
    pub(crate) fn ghost(&self) -> RemovedStats {
        let inner = self.inner.lock();
        let mut stats = RemovedStats::default();
        stats.name.clone_from(&self.name);
        stats.segment_bytes = inner.data.segment_bytes() + inner.directory.pool().segment_bytes();
        stats.held_bytes = inner.held_bytes();
        stats.sessions = inner.pages.iter().map(|(session, _)| *session).collect();
        stats
    }

    /// Whether it can go: nobody maps it, and nothing is in it or on its way out.
    pub(in crate::store) fn is_abandoned(&self) -> bool {
        let inner = self.inner.lock();
        let is_empty = inner.tensors.is_empty() && !inner.is_clearing && inner.retired.is_empty();
        inner.pages.is_empty() && is_empty && inner.puts == 0
    }

    /// Takes all tensors away, or refuses when there are some and they are not to go.
    ///
    /// They can be found no more, but are visible to handles until [`Namespace::clear`] has retired them.
    pub(in crate::store) fn begin_removal(&self, with_tensors: bool) -> Outcome<Removed> {
        let mut inner = self.inner.lock();
        inner.commits.check()?;
        let n = inner.tensors.len().max(inner.revealed.len());
        if !with_tensors && n > 0 {
            let text = format!(
                "namespace {:?} holds {n} tensors: remove them first, or say that they go with it",
                self.name
            );
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        inner.begin_names();
        (inner.is_removed, inner.is_clearing) = (true, true);
        (inner.stored_bytes, inner.raw_bytes) = (0, 0);
        let changed = std::mem::take(&mut inner.changed);
        let (tensors, revealed) = (std::mem::take(&mut inner.tensors), std::mem::take(&mut inner.revealed));
        Ok(Removed { tensors, revealed, _changed: changed })
    }

    /// Retires what [`Namespace::begin_removal`] took, a few tensors at a time: nobody waits for all of them.
    pub(in crate::store) fn clear(&self, removed: Removed) -> Outcome<()> {
        let mut tensors = removed.tensors.into_values().chain(removed.revealed.into_values());
        let mut outcome = Ok(());
        while outcome.is_ok() {
            let batch: Vec<_> = tensors.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            outcome = self.inner.lock().retire_uncounted(batch);
            reach(Point::BatchRetired);
        }
        let mut inner = self.inner.lock();
        inner.is_clearing = false;
        inner.end_names();
        drop(inner);
        outcome
    }

    /// Counts a put in or out: the namespace stays while one is under way.
    pub(in crate::store) fn count_put(&self, begins: bool) {
        let mut inner = self.inner.lock();
        inner.puts = if begins { inner.puts + 1 } else { inner.puts - 1 };
    }

    /// Keeps it although no put was committed: it was asked for by name.
    pub(in crate::store) fn keep(&self) {
        self.inner.lock().was_published = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tierpack_kernels::geometry::Geometry;
    use tierpack_shm::layout::MIN_SEGMENT_BYTES;
    use tierpack_shm::segment::{Segment, SegmentKind};
    use tierpack_shm::types::{Access as Layout, CodecChoice, CodecId, Dtype};

    use super::super::Patience;
    use super::super::reclaim::tests::{caller, namespace};
    use super::*;
    use crate::store::content::{Content, Description};

    /// Publishes a tensor without rows; says whether there was room.
    fn publish(namespace: &Namespace, name: &str) -> Outcome<bool> {
        let geometry = Geometry::new(Dtype::U64, &[0, 8], Layout::Rows, None).unwrap();
        let described = Description {
            geometry,
            shape: vec![0, 8],
            row_elems: None,
            choice: CodecChoice::Only(CodecId::Raw),
            codec: CodecId::Raw,
            predicted_bytes: None,
            runner_up: None,
            file_metadata: None,
        };
        let charge = namespace.inner.lock().budget.charge_anyway(&Arc::default(), 0);
        let content = (Content::new(described, Vec::new(), None), charge);
        namespace.publish(name, content, false).map(|done| done.is_ok())
    }

    #[test]
    fn a_namespace_whose_slots_are_in_use_refuses_a_put_instead_of_growing() {
        let namespace = namespace(&Arc::default());
        namespace.inner.lock().directory.limit_slots(40);
        for n in 0..40 {
            assert_eq!(publish(&namespace, &n.to_string()), Ok(true));
        }
        let refusal = publish(&namespace, "one more").unwrap_err();
        assert_eq!(refusal.code(), Some(ErrorCode::Limit));
        assert!(refusal.text.contains("all 40 slots of namespace \"ns\""), "{}", refusal.text);
        namespace.remove("7").unwrap();
        namespace.reclaim(Patience::All);
        assert_eq!(publish(&namespace, "one more"), Ok(true), "a slot that is free again");
    }

    #[test]
    fn tensors_of_a_removed_namespace_retire_in_bounded_batches() {
        const N: usize = 2 * BATCH + 88;
        let namespace = namespace(&Arc::default());
        for n in 0..N {
            while !publish(&namespace, &n.to_string()).unwrap() {
                let segment = Segment::create(MIN_SEGMENT_BYTES).unwrap();
                let kind = (SegmentKind::Directory, namespace.lacks_slots());
                let added = namespace.add_segment(kind, segment, 2, |_, _| ());
                added.unwrap();
            }
        }
        assert_eq!((namespace.stats().tensors, namespace.stats().generations), (N as u64, 0));
        assert!(namespace.begin_removal(false).is_err());
        let (before, removed) = (namespace.stats().epoch, namespace.begin_removal(true).unwrap());
        assert!(
            namespace.open("7", &caller()).is_err() && !namespace.is_abandoned(),
            "its tensors are on their way out"
        );
        assert_eq!(
            (namespace.stats().epoch, namespace.stats().tensors),
            (before, 0),
            "nothing was walked yet"
        );
        namespace.clear(removed).unwrap();
        assert_eq!(namespace.stats().epoch, before + 3, "one step for each batch");
        namespace.reclaim(Patience::All);
        assert!(namespace.is_abandoned());
    }
}
