//! What the models share: an epoch, leases, one block word and a few extents.

use loom::cell::Cell;
use tierpack_shm::epoch::{self, Leases, Stamp};
use tierpack_shm::publish;
use tierpack_shm::sync::{AtomicU64, Ordering};
use tierpack_shm::types::{BlockWord, SlotIdx, index};

/// What a reader says when it got bytes of another store than the word said.
pub(crate) const WRONG_BYTES: &str = "bytes of another store";

/// The protocol's rules, or a mutant of them.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) epoch: epoch::Rules,
    pub(crate) words: publish::Rules,
    /// Whether the epoch steps after the word is stored, as it must, or before.
    pub(crate) step: Step,
}

/// When the daemon steps the epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    AfterThePublication,
    BeforeThePublication,
}

impl Rules {
    /// The rules that production uses.
    pub(crate) const SPEC: Self =
        Self { epoch: epoch::Rules::SPEC, words: publish::Rules::SPEC, step: Step::AfterThePublication };

    /// A mutant of the epoch's rules.
    pub(crate) fn with_epoch(change: impl FnOnce(&mut epoch::Rules)) -> Self {
        let mut this = Self::SPEC;
        change(&mut this.epoch);
        this
    }
}

/// Shared memory with one block, two leases and three extents of two words.
pub(crate) struct Shared {
    pub(crate) epoch: AtomicU64,
    pub(crate) leases: [AtomicU64; 2],
    pub(crate) last_looks: [AtomicU64; 2],
    pub(crate) word: AtomicU64,
    /// Not atomic: loom ends the model at an access that is not ordered after the last one.
    pub(crate) extents: [Cell<[u64; 2]>; 3],
}

/// The slot that the models read, unless they say otherwise.
pub(crate) fn slot() -> SlotIdx {
    slot_at(7)
}

/// A point at which loom may go on with another thread.
///
/// loom remembers one last access per atomic: a thread that loads a word before it stores it hides that the store
/// races with another thread's load, and the other order is never tried.
/// A read-modify-write on one dummy between the two brings it back; it is relaxed, so it orders nothing.
pub(crate) fn switch() {
    loom::lazy_static! {
        static ref DUMMY: AtomicU64 = AtomicU64::new(0);
    }
    DUMMY.fetch_add(0, Ordering::Relaxed);
}

/// A slot by number.
pub(crate) fn slot_at(number: u32) -> SlotIdx {
    SlotIdx::new(number).expect("a model's slot index")
}

/// The word of store `sequence`, whose bytes are in extent `extent`.
pub(crate) fn raw(extent: u64, sequence: u32) -> BlockWord {
    BlockWord::resident(extent, 0, BlockWord::RAW, sequence)
}

impl Shared {
    /// Epoch 1, and store 0 published in extent 0.
    pub(crate) fn new() -> Self {
        Self {
            epoch: AtomicU64::new(1),
            leases: [AtomicU64::new(0), AtomicU64::new(0)],
            last_looks: [AtomicU64::new(0), AtomicU64::new(0)],
            word: AtomicU64::new(raw(0, 0).bits()),
            extents: [Cell::new([0, 0]), Cell::new([9, 9]), Cell::new([9, 9])],
        }
    }

    /// Reader: takes a lease on the models' slot.
    pub(crate) fn begin(&self, rules: &Rules, lease_idx: usize) {
        epoch::begin_by(&rules.epoch, &self.leases[lease_idx], &self.epoch, slot());
    }

    /// Reader: ends a lease.
    pub(crate) fn end(&self, rules: &Rules, lease_idx: usize) {
        epoch::end_by(&rules.epoch, &self.leases[lease_idx]);
    }

    /// Reader, under a lease: the block word.
    pub(crate) fn load(&self, rules: &Rules) -> BlockWord {
        publish::load_word_by(&rules.words, &self.word)
    }

    /// Reader: the bytes that a word addresses.
    pub(crate) fn read(&self, word: BlockWord) -> [u64; 2] {
        self.extents[index(word.offset())].get()
    }

    /// Reader: one guard over the block; gives the sequence that it saw.
    pub(crate) fn read_under_lease(&self, rules: &Rules, lease_idx: usize) -> u32 {
        self.begin(rules, lease_idx);
        let word = self.load(rules);
        assert_eq!(self.read(word), [u64::from(word.sequence()); 2], "{WRONG_BYTES}");
        self.end(rules, lease_idx);
        word.sequence()
    }

    /// Daemon: stores `bytes`, publishes `new` in place of `old`, and steps the epoch.
    pub(crate) fn publish(&self, rules: &Rules, [old, new]: [BlockWord; 2], bytes: [u64; 2]) -> Stamp {
        self.extents[index(new.offset())].set(bytes);
        let early = (rules.step == Step::BeforeThePublication).then(|| self.retire(rules));
        publish::publish_word_by(&rules.words, &self.word, old, new).expect("the only writer of the block");
        early.unwrap_or_else(|| self.retire(rules))
    }

    /// Daemon: steps the epoch.
    pub(crate) fn retire(&self, rules: &Rules) -> Stamp {
        epoch::retire_by(&rules.epoch, &self.epoch).expect("the clock of a model does not end")
    }

    /// Daemon: whether a lease still holds what the models' slot retired at `stamp`.
    pub(crate) fn is_held(&self, rules: &Rules, stamp: Stamp) -> bool {
        self.holds(rules, stamp, 0)
    }

    /// Daemon: as [`Shared::is_held`], of what was published in this epoch.
    pub(crate) fn holds(&self, rules: &Rules, stamp: Stamp, published: u64) -> bool {
        let leases = Leases::scan_by(&rules.epoch, self.leases.iter().zip(&self.last_looks));
        leases.hold_by(&rules.epoch, stamp, slot(), published)
    }
}

/// Whether a lease that nobody finishes holds what was retired from `slot`.
pub(crate) fn is_held_by(rules: &Rules, stamp: Stamp, slot: SlotIdx, leases: &[AtomicU64]) -> bool {
    let leases = Leases::scan_by(&rules.epoch, leases.iter().map(|lease| (lease, lease)));
    leases.hold_by(&rules.epoch, stamp, slot, 0)
}
