//! What is retired: memory that nobody can find any more, but that a lease may still cover.
//!
//! The leases are looked at without the namespace's lock, and what they leave free is freed in short turns under it.
//! Only namespaces in which something is retired are looked at: they are in the store's list.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tierpack_shm::directory::Slot;
use tierpack_shm::epoch::{Leases, Stamp};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::types::{Extent, SlotIdx, index};

use super::sums::Guard;
use super::{Inner, Key, Namespace, Tensor};
use crate::store::budget::Charge;
use crate::store::content::{Left, Leftover, RetiredIndex};
use crate::store::{Outcome, heap};

/// Entries and extents that one turn under the lock goes through.
const TURN: usize = 1024;

/// Whether a caller waits for a namespace's lock, and for all that can be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Patience {
    /// It waits.
    All,
    /// One turn, or none while somebody has the lock.
    OneTurn,
}

/// The namespaces in which something is retired, by number.
#[derive(Debug, Default)]
pub(in crate::store) struct Retiring(Mutex<BTreeMap<u32, Weak<Namespace>>>);

impl Retiring {
    pub(in crate::store) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(in crate::store) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}

/// What is retired in a namespace and not free yet.
#[derive(Debug)]
pub(super) struct Queue {
    entries: VecDeque<Retired>,
    /// Bytes of their data extents.
    bytes: u64,
    number: u32,
    namespace: Weak<Namespace>,
    list: Arc<Retiring>,
}

impl Queue {
    pub(super) fn new(number: u32, namespace: Weak<Namespace>, list: &Arc<Retiring>) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, number, namespace, list: Arc::clone(list) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push(&mut self, retired: Retired) {
        if self.entries.is_empty() {
            self.list.0.lock().insert(self.number, Weak::clone(&self.namespace));
        }
        self.bytes += retired.data_bytes;
        self.entries.push_back(retired);
    }

    /// Puts back what is left of an entry.
    fn push_front(&mut self, retired: Retired) {
        self.bytes += retired.data_bytes;
        self.entries.push_front(retired);
    }

    /// Takes the next entry out, to be put back or freed.
    fn pop(&mut self) -> Option<Retired> {
        let retired = self.entries.pop_front()?;
        self.bytes -= retired.data_bytes;
        Some(retired)
    }

    /// After entries were taken out: without any, nobody needs to look here.
    fn settle(&self) {
        if self.entries.is_empty() {
            self.list.0.lock().remove(&self.number);
        }
    }
}

/// Memory that was retired in one step.
#[derive(Debug)]
pub(super) struct Retired {
    stamp: Stamp,
    since: Instant,
    slot_idx: SlotIdx,
    /// The epoch before the slot was revealed: of its tables, and of what came with the put.
    publication: u64,
    /// By the epochs of their publications.
    data: Vec<Left>,
    /// Bytes of `data`.
    data_bytes: u64,
    directory: Vec<Extent>,
    slot: Option<Slot>,
    /// Free again once they are dropped.
    indexes: Vec<RetiredIndex>,
    /// The heap that all this takes.
    _charge: Charge,
}

/// What the holders are asked about.
#[derive(Clone, Copy, Debug)]
struct Summary {
    stamp: Stamp,
    since: Instant,
    slot_idx: SlotIdx,
    /// The least epoch of a publication in it.
    published: u64,
    bytes: u64,
}

impl Retired {
    fn new(stamp: Stamp, slot_idx: SlotIdx, publication: u64, mut data: Vec<Left>, charge: Charge) -> Self {
        data.sort_unstable_by_key(|left| left.published);
        Self {
            stamp,
            since: Instant::now(),
            slot_idx,
            publication,
            data_bytes: data.iter().map(|left| left.extent.len_bytes()).sum(),
            data,
            directory: Vec::new(),
            slot: None,
            indexes: Vec::new(),
            _charge: charge,
        }
    }

    fn summary(&self) -> Summary {
        Summary {
            stamp: self.stamp,
            since: self.since,
            slot_idx: self.slot_idx,
            published: self.data.first().map_or(0, |left| left.published).max(self.publication),
            bytes: self.data_bytes,
        }
    }

    /// How many of its data extents are held by leases that hold what was published until `last_look`.
    fn n_held(&self, last_look: u64) -> usize {
        self.data.partition_point(|left| left.published.max(self.publication) <= last_look)
    }

    fn is_empty(&self) -> bool {
        self.data.is_empty() && self.directory.is_empty() && self.slot.is_none() && self.indexes.is_empty()
    }
}

/// What one session holds back by its leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) bytes: u64,
    /// How long the oldest of it has been retired.
    pub(crate) age: Duration,
}

impl Namespace {
    /// What each attached session holds back now, by the numbers of the sessions; those that hold nothing are left out.
    pub(crate) fn holders(&self) -> Vec<(u64, Holds)> {
        let inner = self.inner.lock();
        if inner.retired.is_empty() {
            return Vec::new();
        }
        let retired: Vec<_> = inner.retired.entries.iter().map(Retired::summary).collect();
        let pages = inner.pages.clone();
        drop(inner);
        let holds = pages.iter().map(|(session, page)| {
            let leases = Leases::scan(page.lease_pairs());
            let held = retired
                .iter()
                .filter(|retired| leases.hold(retired.stamp, retired.slot_idx, retired.published));
            let holds = held.fold(Holds::default(), |sum, retired| Holds {
                bytes: sum.bytes + retired.bytes,
                age: sum.age.max(retired.since.elapsed()),
            });
            (*session, holds)
        });
        holds.filter(|(_, holds)| *holds != Holds::default()).collect()
    }

    /// Bytes that are retired and not free yet.
    pub(in crate::store) fn held_bytes(&self) -> u64 {
        self.inner.lock().held_bytes()
    }

    /// Frees what no lease holds any more; says whether it freed something.
    pub(in crate::store) fn reclaim(&self, patience: Patience) -> bool {
        let Some(inner) = self.locked(patience) else { return false };
        if inner.retired.is_empty() {
            return false;
        }
        // What retires from now on, and sessions that attach, are for the next look: a session that attaches later
        // finds nothing of what is retired already.
        let (end, mut left) = (inner.directory.epoch(), inner.retired.entries.len());
        let pages: Vec<_> = inner.pages.iter().map(|(_, page)| Arc::clone(page)).collect();
        drop(inner);
        let leases = Leases::scan(pages.iter().flat_map(|page| page.lease_pairs()));
        let mut has_freed = false;
        while left > 0 {
            let Some(mut inner) = self.locked(patience) else { break };
            has_freed |= inner.free_unheld(&leases, end, &mut left);
            if patience == Patience::OneTurn {
                break;
            }
        }
        has_freed
    }

    fn locked(&self, patience: Patience) -> Option<Guard<'_>> {
        match patience {
            Patience::All => Some(self.inner.lock()),
            Patience::OneTurn => self.inner.try_lock(),
        }
    }
}

impl Inner {
    /// Bytes that are retired and not free yet.
    pub(super) fn held_bytes(&self) -> u64 {
        self.retired.bytes
    }

    /// One turn: of the `left` entries at the front, frees those from before epoch `end` that `leases` do not hold.
    fn free_unheld(&mut self, leases: &Leases, end: u64, left: &mut usize) -> bool {
        let (mut has_freed, mut turn) = (false, TURN);
        while *left > 0 && turn > 0 {
            let Some(mut retired) = self.retired.pop() else {
                *left = 0;
                break;
            };
            (*left, turn) = (*left - 1, turn - 1);
            if !retired.stamp.is_before(end) {
                self.retired.push(retired);
                continue;
            }
            let last_look = leases.hold_until(retired.stamp, retired.slot_idx);
            let n_held = last_look.map_or(0, |last_look| retired.n_held(last_look));
            // The rest of the turn, and one: a turn always comes on.
            let n_kept = n_held.max(retired.data.len().saturating_sub(turn + 1));
            turn = (turn + 1).saturating_sub(retired.data.len() - n_kept);
            if last_look.is_none() || retired.data.len() > n_kept {
                reach(Point::BeforeFree);
                has_freed = true;
            }
            for Left { extent, .. } in retired.data.drain(n_kept..) {
                retired.data_bytes -= extent.len_bytes();
                self.data.free(extent);
            }
            if n_kept > n_held {
                *left += 1;
                self.retired.push_front(retired);
                continue;
            }
            self.free_rest(&mut retired, last_look);
            if !retired.is_empty() {
                self.retired.push(retired);
            }
        }
        self.retired.settle();
        has_freed
    }

    /// Of an entry, frees what is no data extent and was published after `last_look`.
    fn free_rest(&mut self, retired: &mut Retired, last_look: Option<u64>) {
        let is_held = |published: u64| last_look.is_some_and(|last_look| published <= last_look);
        retired.indexes.retain(|index| is_held(index.published.max(retired.publication)));
        if !is_held(retired.publication) {
            retired.directory.drain(..).for_each(|extent| self.directory.pool_mut().free(extent));
            retired.slot.take().into_iter().for_each(|slot| self.directory.give_slot(slot));
        }
    }

    /// Hides a tensor; its memory is freed when no lease covers it.
    pub(super) fn retire(&mut self, tensor: Box<Tensor>) -> Outcome<()> {
        self.count_out(&tensor);
        self.retire_uncounted(vec![tensor])
    }

    /// Takes the bytes of a visible tensor out of the sums.
    pub(super) fn count_out(&mut self, tensor: &Tensor) {
        self.stored_bytes -= tensor.content.sums.stored_bytes;
        self.raw_bytes -= tensor.content.geometry.raw_bytes();
    }

    /// As [`Inner::retire`], for tensors whose bytes are counted no more, in one step of the epoch.
    #[expect(clippy::vec_box, reason = "they come in boxes from the table of tensors")]
    pub(super) fn retire_uncounted(&mut self, tensors: Vec<Box<Tensor>>) -> Outcome<()> {
        for tensor in &tensors {
            self.directory.unpublish(&tensor.slot).expect("the slot came from this directory");
        }
        let stamp = self.step()?;
        for tensor in tensors {
            let Tensor { content, slot, publication, table, generations, charge, .. } = *tensor;
            let retired = Retired::new(stamp, slot.idx(), publication, content.into_left().collect(), charge);
            self.retired.push(Retired { directory: vec![table, generations], slot: Some(slot), ..retired });
        }
        Ok(())
    }

    /// Retires what changes of a tensor left over; their words are stored already.
    pub(super) fn retire_leftover(&mut self, key: &Key, leftover: Leftover) -> Outcome<()> {
        let Leftover { extents: data, indexes } = leftover;
        if data.is_empty() && indexes.is_empty() {
            return Ok(());
        }
        let stamp = self.step()?;
        let has_index = !indexes.is_empty();
        // It cannot be refused: the words are stored already. Updates look for room before they begin.
        let charge = self.budget.charge_anyway(&self.heap, heap::of_retired(data.len()));
        let retired = Retired::new(stamp, key.slot_idx, key.publication, data, charge);
        self.retired.push(Retired { indexes, ..retired });
        if has_index {
            reach(Point::IndexRetired);
        }
        Ok(())
    }

    /// Moves the metadata of a generation to where there is room; says whether there was.
    ///
    /// Readers find the old bytes or the new ones, which are the same.
    pub(in crate::store) fn move_generation(
        &mut self,
        key: &Key,
        generation_idx: u8,
        (number, len): (u32, u32),
    ) -> Outcome<bool> {
        let Some(mut fresh) = self.allocate_for_move(u64::from(len)) else { return Ok(false) };
        let Self { tensors, data, directory, .. } = self;
        let tensor = tensors.get_mut(&key.name).expect("the caller has found it, under the same lock");
        let found = tensor.content.generations.get(generation_idx);
        let old = &found.expect("the caller has found it, under the same lock").extent;
        fresh.write(0, &data.bytes(old).expect("the extent is this tensor's")[..index(u64::from(len))]);
        let extent = fresh.freeze();
        reach(Point::MetadataCopied);
        // Before the entry leads there.
        let published = directory.epoch();
        let set = directory.set_generation(&tensor.generations, generation_idx, (number, len), &extent);
        set.expect("the table is this tensor's");
        let to = Left { extent, published };
        let extents = vec![tensor.content.relocate_metadata(generation_idx, to)];
        self.retire_leftover(key, Leftover { extents, indexes: Vec::new() })?;
        Ok(true)
    }

    fn step(&self) -> Outcome<Stamp> {
        let stamp = self.directory.retire().ok_or_else(end_of_clock);
        reach(Point::EpochStepped);
        stamp
    }
}

pub(super) fn end_of_clock() -> Refusal {
    let text = "the epoch of this namespace is at its end: restart the daemon";
    Refusal::new(ErrorCode::Internal, text)
}

#[cfg(test)]
pub(super) mod tests;
