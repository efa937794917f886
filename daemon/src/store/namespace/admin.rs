//! A namespace as a whole: who may do what in it, how much it may hold, and its end.

use std::collections::{BTreeMap, BTreeSet};

use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{ErrorCode, NamespaceEntry, Refusal};

use super::{BATCH, Namespace, Tensor};
use crate::store::Outcome;
use crate::store::access::{Access, Caller, Right};

/// The tensors of a namespace that was removed.
#[derive(Debug)]
pub(in crate::store) struct Removed {
    tensors: BTreeMap<String, Tensor>,
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

    /// Refuses `more` stored bytes beyond the quota; `replaced` is the tensor that they take the place of.
    pub(in crate::store) fn check_quota(&self, name: &str, more: u64) -> Outcome<()> {
        self.inner.lock().check_quota(&self.name, name, more)
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
        if !with_tensors && !inner.tensors.is_empty() {
            let n = inner.tensors.len();
            let text = format!(
                "namespace {:?} holds {n} tensors: remove them first, or say that they go with it",
                self.name
            );
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        (inner.is_removed, inner.is_clearing) = (true, true);
        (inner.stored_bytes, inner.raw_bytes) = (0, 0);
        let changed = std::mem::take(&mut inner.changed);
        Ok(Removed { tensors: std::mem::take(&mut inner.tensors), _changed: changed })
    }

    /// Retires what [`Namespace::begin_removal`] took, a few tensors at a time: nobody waits for all of them.
    pub(in crate::store) fn clear(&self, removed: Removed) -> Outcome<()> {
        let mut tensors = removed.tensors.into_values();
        let mut outcome = Ok(());
        while outcome.is_ok() {
            let batch: Vec<_> = tensors.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            outcome = self.inner.lock().retire_uncounted(batch);
            reach(Point::BatchRetired);
        }
        self.inner.lock().is_clearing = false;
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
