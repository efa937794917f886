//! The quota of a namespace: a bound on everything in it, whether somebody can find it or not.
//!
//! It counts visible tensors, what is retired and not free yet, what puts and updates under way have stored, the
//! tables of the directory, and the daemon's heap for all of them.

use std::sync::atomic::Ordering;

use tierpack_shm::layout::{generation, table};
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::pool::Fresh;
use tierpack_shm::types::UNIT_BYTES;

use super::sums::Taken;
use super::{Inner, Namespace};
use crate::size::ByteSize;
use crate::store::Outcome;

/// What new bytes take the place of: that much of what is counted does not count for them.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) enum Place<'a> {
    /// They are the daemon's own work on the same values: no quota holds it up.
    Exempt,
    /// The tensor of this name, if a put replaces it.
    Tensor(&'a str),
    /// So many bytes of blocks of this tensor.
    Blocks(&'a str, u64),
}

impl Place<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Exempt => "",
            Self::Tensor(name) | Self::Blocks(name, _) => name,
        }
    }
}

impl Namespace {
    /// Takes an extent of the data segments within the quota; `None` when they have no room.
    pub(in crate::store) fn allocate_for(&self, place: Place<'_>, len: u64) -> Outcome<Option<Fresh>> {
        let mut inner = self.inner.lock();
        inner.check_quota(&self.name, place, len.max(1).next_multiple_of(UNIT_BYTES))?;
        inner.was_used = true;
        Ok(inner.data.allocate(len))
    }

    /// Refuses `more` bytes beyond the quota.
    pub(in crate::store) fn check_quota(&self, place: Place<'_>, more: u64) -> Outcome<()> {
        self.inner.lock().check_quota(&self.name, place, more)
    }

    /// What the quota leaves to a promise, other promises aside; `u64::MAX` without a quota.
    pub(in crate::store) fn quota_left(&self, place: Place<'_>) -> u64 {
        let inner = self.inner.lock();
        let Some(quota) = inner.access.quota_bytes else { return u64::MAX };
        let promised = self.reserved.load(Ordering::Relaxed);
        quota.saturating_sub(inner.counted_bytes().saturating_sub(inner.replaced_bytes(place)) + promised)
    }

    /// Heap that is charged to the namespace.
    pub(in crate::store) fn heap_bytes(&self) -> u64 {
        self.heap.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Bytes that the namespace takes.
    pub(super) fn taken(&self) -> Taken {
        Taken {
            stored: self.stored_bytes,
            held: self.held_bytes(),
            used: self.data.used_bytes(),
            directory: self.directory.pool().segment_bytes(),
            segments: self.directory.pool().segment_bytes() + self.data.segment_bytes(),
        }
    }

    /// What counts against the quota.
    fn counted_bytes(&self) -> u64 {
        let directory = self.directory.pool().used_bytes();
        self.data.used_bytes() + directory + self.heap.load(Ordering::Relaxed)
    }

    fn replaced_bytes(&self, place: Place<'_>) -> u64 {
        match place {
            Place::Exempt => 0,
            Place::Tensor(name) => self.tensors.get(name).map_or(0, |tensor| tensor.counted_bytes()),
            Place::Blocks(_, bytes) => bytes,
        }
    }

    pub(super) fn check_quota(&self, namespace: &str, place: Place<'_>, more: u64) -> Outcome<()> {
        let Some(quota) = self.access.quota_bytes.filter(|_| !matches!(place, Place::Exempt)) else {
            return Ok(());
        };
        let replaced = self.replaced_bytes(place);
        if self.counted_bytes().saturating_sub(replaced).saturating_add(more) <= quota {
            return Ok(());
        }
        let (taken, tables) = (self.taken(), self.counted_bytes() - self.data.used_bytes());
        let own = match place {
            Place::Tensor(name) => {
                self.tensors.get(name).map_or(0, |tensor| tensor.content.sums.stored_bytes)
            }
            Place::Exempt | Place::Blocks(..) => 0,
        };
        let text = format!(
            "quota of namespace {namespace:?} is {}, of which other tensors take {}, puts and updates under way {}, \
             removed or replaced bytes that clients may still read {}, and names and tables {}: tensor {:?} needs {} \
             more",
            ByteSize(quota),
            ByteSize(taken.stored - own),
            ByteSize(taken.under_way()),
            ByteSize(taken.held),
            ByteSize(tables),
            place.name(),
            ByteSize(more)
        );
        Err(Refusal::new(ErrorCode::Quota, text))
    }
}

/// What a tensor takes of the directory; its slot is counted with all others.
pub(in crate::store) fn table_bytes(n_blocks: u64) -> u64 {
    let generations = generation::ENTRIES * generation::ENTRY_BYTES;
    table::bytes(n_blocks).map_or(u64::MAX, |words| words.next_multiple_of(UNIT_BYTES) + generations)
}
