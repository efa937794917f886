//! Slots: removal and reuse under a handle that is kept, and replacement by another slot.

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use tierpack_shm::epoch;
use tierpack_shm::publish::{is_published, load_word, publish_slot, unpublish_slot};
use tierpack_shm::sync::{AtomicU64, Ordering};
use tierpack_shm::types::{SlotIdx, index};

use crate::explore::{RACE, breaks, holds};
use crate::shared::{Rules, is_held_by, raw, slot_at, switch};

const FOREIGN: &str = "a handle read another publication";
const MISSING: &str = "a tensor that is replaced was missing";

/// A slot as a directory has it: a publication, and the address of a block table; the table has one word.
struct Slot {
    publication: AtomicU64,
    table: AtomicU64,
}

/// Two slots, two tables, two extents; what is in them says which tensor they belong to.
struct Directory {
    epoch: AtomicU64,
    leases: [AtomicU64; 1],
    slots: [Slot; 2],
    tables: [AtomicU64; 2],
    extents: [Cell<u64>; 2],
    /// Where the daemon would say that the name's tensor is: slot in the low 8 bits, publication above.
    named: AtomicU64,
}

/// What a handle keeps.
#[derive(Clone, Copy)]
struct Handle {
    slot: usize,
    publication: u64,
}

impl Handle {
    fn idx(self) -> SlotIdx {
        slot_at(u32::from(self.slot != 0))
    }
}

const FIRST: Handle = Handle { slot: 0, publication: 1 };

impl Directory {
    /// Tensor 0 is published in slot 0, table 0 and extent 0; everything else is free.
    fn new() -> Self {
        let slot = |publication| Slot { publication: AtomicU64::new(publication), table: AtomicU64::new(0) };
        Self {
            epoch: AtomicU64::new(1),
            leases: [AtomicU64::new(0)],
            slots: [slot(1), slot(0)],
            tables: [AtomicU64::new(raw(0, 0).bits()), AtomicU64::new(0)],
            extents: [Cell::new(0), Cell::new(99)],
            named: AtomicU64::new(1 << 8),
        }
    }

    /// Reader: one guard; `None` when the slot holds another publication now.
    fn read(&self, rules: &Rules, handle: Handle) -> Option<u64> {
        let slot = &self.slots[handle.slot];
        switch();
        epoch::begin_by(&rules.epoch, &self.leases[0], &self.epoch, handle.idx());
        let tensor = is_published(&slot.publication, handle.publication).then(|| {
            // Relaxed, as `Guard::slot_field`: the Acquire of the publication check came first.
            let table = &self.tables[index(slot.table.load(Ordering::Relaxed))];
            self.extents[index(load_word(table).offset())].get()
        });
        epoch::end_by(&rules.epoch, &self.leases[0]);
        tensor
    }

    /// Daemon: stores `tensor` in what is free, and reveals it in a slot.
    fn publish(&self, slot_idx: usize, table: usize, extent: usize, tensor: u64) -> Handle {
        self.extents[extent].set(tensor);
        self.tables[table].store(raw(extent as u64, 0).bits(), Ordering::Relaxed);
        self.slots[slot_idx].table.store(table as u64, Ordering::Relaxed);
        let epoch = self.epoch.load(Ordering::Acquire);
        publish_slot(&self.slots[slot_idx].publication, epoch);
        Handle { slot: slot_idx, publication: epoch }
    }

    /// Daemon: steps the epoch and says whether what slot 0 retired is free.
    fn is_free_after_a_step(&self, rules: &Rules) -> bool {
        switch();
        let stamp = epoch::retire_by(&rules.epoch, &self.epoch).expect("the clock of a model does not end");
        !is_held_by(rules, stamp, FIRST.idx(), &self.leases)
    }
}

/// What the daemon does to the tensor of slot 0 while a handle on it is used.
#[derive(Clone, Copy)]
enum Change {
    /// Removes it, and stores another one in the same slot, table and extent once they are free.
    RemoveThenReuse,
    /// As before, but asks no lease.
    RemoveThenReuseAtOnce,
    /// Writes the live slot: never allowed.
    ReplaceInPlace,
}

fn change_under_a_kept_handle(rules: Rules, guards: usize, change: Change) {
    let daemon = Arc::new(Directory::new());
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || {
        let mut last = true;
        for _ in 0..guards {
            let found = client.read(&rules, FIRST);
            assert!(found.is_none_or(|tensor| tensor == 0), "{FOREIGN}");
            assert!(last || found.is_none(), "{FOREIGN}: a removed tensor came back");
            last = found.is_some();
        }
    });
    if let Change::ReplaceInPlace = change {
        daemon.publish(0, 1, 1, 2);
        if daemon.is_free_after_a_step(&rules) {
            daemon.extents[0].set(66);
        }
    } else {
        unpublish_slot(&daemon.slots[0].publication);
        let free = daemon.is_free_after_a_step(&rules);
        if free || matches!(change, Change::RemoveThenReuseAtOnce) {
            let second = daemon.publish(0, 0, 0, 2);
            assert_ne!(second.publication, FIRST.publication, "a publication has its number for itself");
        }
    }
    reader.join().expect("the reader ends");
}

/// The daemon replaces the tensor by one in another slot; a handle on the first sees that and is opened anew.
fn replace(rules: Rules) {
    let daemon = Arc::new(Directory::new());
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || {
        let found = client.read(&rules, FIRST).unwrap_or_else(|| {
            // The daemon's answer to `open`.
            let named = client.named.load(Ordering::Acquire);
            let handle = Handle { slot: index(named & 0xFF), publication: named >> 8 };
            assert_ne!(handle.slot, FIRST.slot, "{MISSING}");
            let tensor = client.read(&rules, handle).expect(MISSING);
            assert_eq!(tensor, 2, "{FOREIGN}");
            tensor
        });
        assert!(found == 0 || found == 2, "{FOREIGN}");
    });
    let second = daemon.publish(1, 1, 1, 2);
    daemon.named.store(second.slot as u64 | second.publication << 8, Ordering::Release);
    unpublish_slot(&daemon.slots[0].publication);
    if daemon.is_free_after_a_step(&rules) {
        daemon.publish(0, 0, 0, 3);
    }
    reader.join().expect("the reader ends");
}

#[test]
fn a_handle_on_a_removed_tensor_never_reads_what_came_after_it() {
    holds("removal and reuse of a slot, two guards", || {
        change_under_a_kept_handle(Rules::SPEC, 2, Change::RemoveThenReuse);
    });
}

#[test]
fn a_stale_handle_sees_that_its_tensor_was_replaced() {
    holds("replacement", || replace(Rules::SPEC));
}

#[test]
fn reusing_a_slot_without_asking_the_leases_is_found() {
    breaks("slot reused at once", &[RACE, FOREIGN], || {
        change_under_a_kept_handle(Rules::SPEC, 1, Change::RemoveThenReuseAtOnce);
    });
}

#[test]
fn replacing_a_slot_in_place_is_found() {
    breaks("slot replaced in place", &[RACE, FOREIGN], || {
        change_under_a_kept_handle(Rules::SPEC, 1, Change::ReplaceInPlace);
    });
}

#[test]
fn a_stale_handle_without_the_readers_fence_is_found() {
    let rules = Rules::with_epoch(|rules| rules.reader_fence = false);
    breaks("slot reused, no fence in the reader", &[RACE, FOREIGN], move || {
        change_under_a_kept_handle(rules, 1, Change::RemoveThenReuse);
    });
}

#[test]
fn a_replacement_without_the_daemons_fence_is_found() {
    let rules = Rules::with_epoch(|rules| rules.daemon_fence = false);
    breaks("replacement, no fence in the daemon", &[RACE, FOREIGN], move || replace(rules));
}
