//! What is retired: memory that nobody can find any more, but that a lease may still cover.

use std::time::{Duration, Instant};

use tierpack_shm::directory::Slot;
use tierpack_shm::epoch::{Leases, Stamp};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::types::{Extent, SlotIdx, index};

use super::{Inner, Key, Namespace, Tensor};
use crate::store::Outcome;
use crate::store::content::{Leftover, RetiredIndex};

/// Memory that was retired in one step.
#[derive(Debug)]
pub(super) struct Retired {
    stamp: Stamp,
    since: Instant,
    slot_idx: SlotIdx,
    data: Vec<Extent>,
    directory: Vec<Extent>,
    slot: Option<Slot>,
    /// Free again once they are dropped.
    indexes: Vec<RetiredIndex>,
}

impl Retired {
    fn data_bytes(&self) -> u64 {
        self.data.iter().map(Extent::len_bytes).sum()
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
        let holds = inner.pages.iter().map(|(session, page)| {
            let leases = Leases::scan(page.leases());
            let held = inner.retired.iter().filter(|retired| leases.hold(retired.stamp, retired.slot_idx));
            let holds = held.fold(Holds::default(), |sum, retired| Holds {
                bytes: sum.bytes + retired.data_bytes(),
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

    /// Frees what no lease holds any more; says whether it freed something, and whether something is still held.
    pub(in crate::store) fn reclaim(&self) -> (bool, bool) {
        let mut inner = self.inner.lock();
        let before = inner.retired.len();
        if before == 0 {
            return (false, false);
        }
        let leases = Leases::scan(inner.pages.iter().flat_map(|(_, page)| page.leases()));
        for retired in std::mem::take(&mut inner.retired) {
            if leases.hold(retired.stamp, retired.slot_idx) {
                inner.retired.push_back(retired);
                continue;
            }
            reach(Point::BeforeFree);
            drop(retired.indexes);
            retired.data.into_iter().for_each(|extent| inner.data.free(extent));
            retired.directory.into_iter().for_each(|extent| inner.directory.pool_mut().free(extent));
            retired.slot.into_iter().for_each(|slot| inner.directory.give_slot(slot));
        }
        let held = inner.retired.len();
        (held < before, held > 0)
    }
}

impl Inner {
    /// Bytes that are retired and not free yet.
    pub(super) fn held_bytes(&self) -> u64 {
        self.retired.iter().map(Retired::data_bytes).sum()
    }

    /// Hides a tensor; its memory is freed when no lease covers it.
    pub(super) fn retire(&mut self, tensor: Tensor) -> Outcome<()> {
        self.stored_bytes -= tensor.content.sums.stored_bytes;
        self.raw_bytes -= tensor.content.geometry.raw_bytes();
        self.retire_uncounted(vec![tensor])
    }

    /// As [`Inner::retire`], for tensors whose bytes are counted no more, in one step of the epoch.
    pub(super) fn retire_uncounted(&mut self, tensors: Vec<Tensor>) -> Outcome<()> {
        for tensor in &tensors {
            self.directory.unpublish(&tensor.slot).expect("the slot came from this directory");
        }
        let (stamp, since) = (self.step()?, Instant::now());
        self.retired.extend(tensors.into_iter().map(|tensor| Retired {
            stamp,
            since,
            slot_idx: tensor.slot.idx(),
            data: tensor.content.into_extents().collect(),
            directory: vec![tensor.table, tensor.generations],
            slot: Some(tensor.slot),
            indexes: Vec::new(),
        }));
        Ok(())
    }

    /// Retires what changes of a tensor left over; their words are stored already.
    pub(super) fn retire_leftover(&mut self, slot_idx: SlotIdx, leftover: Leftover) -> Outcome<()> {
        let Leftover { extents: data, indexes } = leftover;
        if data.is_empty() && indexes.is_empty() {
            return Ok(());
        }
        let (stamp, since) = (self.step()?, Instant::now());
        let has_index = !indexes.is_empty();
        self.retired.push_back(Retired {
            stamp,
            since,
            slot_idx,
            data,
            directory: Vec::new(),
            slot: None,
            indexes,
        });
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
        let set = directory.set_generation(&tensor.generations, generation_idx, (number, len), &extent);
        set.expect("the table is this tensor's");
        let extents = vec![tensor.content.relocate_metadata(generation_idx, extent)];
        self.retire_leftover(key.slot_idx, Leftover { extents, indexes: Vec::new() })?;
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
