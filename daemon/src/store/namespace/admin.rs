//! A namespace as a whole: who may do what in it, how much it may hold, and its end.

use std::sync::atomic::Ordering;

use tierpack_shm::message::{ErrorCode, NamespaceEntry, Refusal};
use tierpack_shm::stats::RemovedStats;

use super::Namespace;
use crate::store::Outcome;
use crate::store::access::{Access, Caller, Right};

impl Namespace {
    /// Refuses a caller who may not.
    pub(crate) fn check(&self, caller: &Caller, right: Right) -> Outcome<()> {
        self.inner.lock().access.check(&self.name, caller, right)
    }

    /// Whether a caller may read it.
    pub(crate) fn is_readable(&self, caller: &Caller) -> bool {
        self.inner.lock().access.allows(caller, Right::Read)
    }

    /// Changes owner, group, mode or quota, if `change` allows it.
    pub(in crate::store) fn change_access(
        &self,
        change: impl FnOnce(&mut Access) -> Outcome<()>,
    ) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let mut access = inner.access;
        change(&mut access)?;
        inner.access = access;
        self.owner.store(access.uid, Ordering::Relaxed);
        Ok(())
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
        inner.pages.is_empty() && inner.tensors.is_empty() && inner.retired.is_empty() && inner.puts == 0
    }

    /// Takes all tensors away, or refuses when there are some and they are not to go.
    pub(in crate::store) fn clear(&self, with_tensors: bool) -> Outcome<()> {
        let mut inner = self.inner.lock();
        if !with_tensors && !inner.tensors.is_empty() {
            let n = inner.tensors.len();
            let text = format!(
                "namespace {:?} holds {n} tensors: remove them first, or say that they go with it",
                self.name
            );
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        inner.is_removed = true;
        let tensors = std::mem::take(&mut inner.tensors);
        tensors.into_values().try_for_each(|tensor| inner.retire(tensor))
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
