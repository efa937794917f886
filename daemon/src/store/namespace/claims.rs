//! Names that transactions have claimed, and the step that reveals their tensors.
//!
//! Tensors of a transaction are whole, with slots and tables, before it is committed; no name leads to them.
//! The step puts all of them before the table of tensors at once, where they are looked up first; afterwards they move
//! into the table, a few at a time, and what they replace is retired.

use std::collections::BTreeMap;

use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{Entry, ErrorCode, Refusal};

use super::{BATCH, Inner, Namespace, Tensor, Unpublished};
use crate::store::Outcome;

impl Namespace {
    /// Claims names for a transaction, all or none.
    pub(in crate::store) fn claim(&self, names: &[String], by: u64, overwrite: bool) -> Outcome<()> {
        let mut inner = self.inner.lock();
        for (n, name) in names.iter().enumerate() {
            let checked = if inner.claims.get(name) == Some(&by) {
                let text = format!("tensor {name:?} is claimed twice by one put of several tensors");
                Err(Refusal::new(ErrorCode::Invalid, text))
            } else {
                inner.check_free(&self.name, name, overwrite)
            };
            if let Err(refusal) = checked {
                inner.unclaim(&names[..n], by);
                return Err(refusal);
            }
            inner.claims.insert(name.clone(), by);
        }
        Ok(())
    }

    /// Whether a transaction has claimed a name.
    pub(in crate::store) fn has_claimed(&self, name: &str, by: u64) -> bool {
        self.inner.lock().claims.get(name) == Some(&by)
    }

    /// Refuses to change a tensor whose name a transaction has claimed.
    pub(in crate::store) fn check_claim(&self, name: &str) -> Outcome<()> {
        self.inner.lock().check_claim(name)
    }

    /// Ends the claims of a transaction that are left, a few at a time.
    pub(in crate::store) fn unclaim(&self, names: &[String], by: u64) {
        for names in names.chunks(BATCH) {
            self.inner.lock().unclaim(names, by);
        }
    }

    /// How often rights to read it were taken away.
    pub(in crate::store) fn bars(&self) -> u64 {
        self.inner.lock().bars
    }

    /// Whether there is a tensor of a name.
    pub(in crate::store) fn has(&self, name: &str) -> bool {
        self.inner.lock().visible(name).is_some()
    }

    /// Makes a tensor of a transaction whole; nobody finds it yet.
    ///
    /// # Errors
    /// `Ok(Err(content))` when the directory has no room: the caller grows it and tries again.
    pub(in crate::store) fn prepare(
        &self,
        name: &str,
        content: Unpublished,
    ) -> Outcome<Result<(Box<Tensor>, Entry), Unpublished>> {
        let mut inner = self.inner.lock();
        if let Err(refusal) = inner.check_there(&self.name) {
            content.0.into_extents().for_each(|extent| inner.data.free(extent));
            return Err(refusal);
        }
        let made = inner.make_tensor(&self.name, name, content)?;
        Ok(made.map(|tensor| {
            let entry = tensor.entry(&self.name, name, &inner.directory);
            (tensor, entry)
        }))
    }

    /// Frees tensors that were prepared and never revealed, a few at a time.
    pub(in crate::store) fn discard(&self, tensors: impl IntoIterator<Item = Box<Tensor>>) {
        let mut tensors = tensors.into_iter().peekable();
        while tensors.peek().is_some() {
            let mut inner = self.inner.lock();
            for tensor in tensors.by_ref().take(BATCH) {
                inner.discard(*tensor);
            }
        }
    }

    /// Reveals the tensors of a transaction in one step, and ends its claims; on an error they come back.
    ///
    /// `bars` is [`Namespace::bars`] from before the first was prepared.
    pub(in crate::store) fn reveal(
        &self,
        tensors: BTreeMap<String, Box<Tensor>>,
        bars: u64,
    ) -> Result<(), (Refusal, BTreeMap<String, Box<Tensor>>)> {
        let mut inner = self.inner.lock();
        let mut checked = inner.check_there(&self.name);
        if checked.is_ok() && inner.bars != bars {
            // Slots and tables may lie where somebody sees them who may not read now.
            let text = format!(
                "rights to namespace {:?} were taken away while several tensors were put: put them again",
                self.name
            );
            checked = Err(Refusal::new(ErrorCode::Invalid, text));
        }
        if let Err(refusal) = checked {
            return Err((refusal, tensors));
        }
        // One transaction at a time: its caller holds `revealing`.
        inner.begin_names();
        inner.revealed = tensors;
        inner.was_published = true;
        drop(inner);
        reach(Point::PutPublished);
        let mut outcome = Ok(());
        while self.inner.lock().settle(&mut outcome) {}
        self.inner.lock().end_names();
        outcome.map_err(|refusal| (refusal, BTreeMap::new()))
    }
}

impl Inner {
    /// Refuses for a namespace that is gone.
    pub(super) fn check_there(&self, namespace: &str) -> Outcome<()> {
        if self.is_removed {
            let text = format!("namespace {namespace:?} was removed: begin the put again");
            return Err(Refusal::new(ErrorCode::NotFound, text));
        }
        Ok(())
    }

    pub(super) fn check_claim(&self, name: &str) -> Outcome<()> {
        if self.claims.contains_key(name) {
            let text =
                format!("a put of several tensors that is under way replaces tensor {name:?}: try again");
            return Err(Refusal::new(ErrorCode::Busy, text));
        }
        Ok(())
    }

    fn unclaim(&mut self, names: &[String], by: u64) {
        for name in names {
            // Once it has ended, somebody else may have claimed the name.
            if self.claims.get(name) == Some(&by) {
                self.claims.remove(name);
            }
        }
    }

    /// The visible tensor of a name.
    pub(super) fn visible(&self, name: &str) -> Option<&Tensor> {
        self.revealed.get(name).or_else(|| self.tensors.get(name)).map(|tensor| &**tensor)
    }

    /// Moves some of what was revealed into the table of tensors; says whether there may be more.
    fn settle(&mut self, outcome: &mut Outcome<()>) -> bool {
        let mut replaced = Vec::new();
        for _ in 0..BATCH {
            let Some((name, tensor)) = self.revealed.pop_first() else { break };
            self.claims.remove(&name);
            replaced.extend(self.insert(name, tensor));
        }
        if !replaced.is_empty() {
            let retired = self.retire_uncounted(replaced);
            if outcome.is_ok() {
                *outcome = retired;
            }
        }
        !self.revealed.is_empty()
    }

    /// Puts a tensor into the table; returns the one that it replaces, which is counted no more.
    pub(super) fn insert(&mut self, name: String, tensor: Box<Tensor>) -> Option<Box<Tensor>> {
        self.stored_bytes += tensor.content.sums.stored_bytes;
        self.raw_bytes += tensor.content.geometry.raw_bytes();
        if tensor.is_due() {
            self.changed.insert(name.clone());
        }
        let replaced = self.tensors.insert(name, tensor)?;
        self.count_out(&replaced);
        Some(replaced)
    }

    /// Frees a tensor that nobody has found.
    fn discard(&mut self, tensor: Tensor) {
        self.directory.unpublish(&tensor.slot).expect("the slot came from this directory");
        let Tensor { content, slot, table, generations, .. } = tensor;
        content.into_extents().for_each(|extent| self.data.free(extent));
        [table, generations].into_iter().for_each(|extent| self.directory.pool_mut().free(extent));
        self.directory.give_slot(slot);
    }
}
