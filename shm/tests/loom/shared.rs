//! What the models share: an epoch, leases, one block word and a few extents.

use loom::cell::Cell;
use tierpack_shm::epoch::{self, Stamp};
use tierpack_shm::publish;
use tierpack_shm::sync::{AtomicU64, Ordering};
use tierpack_shm::types::{BlockWord, SlotIdx, index};

/// What a reader says when it got bytes of another store than the word said.
pub const WRONG_BYTES: &str = "bytes of another store";

/// The protocol's rules, or a mutant of them.
#[derive(Clone, Copy)]
pub struct Rules {
    pub epoch: epoch::Rules,
    pub words: publish::Rules,
    /// Whether the epoch steps after the word is stored, as it must, or before.
    pub step: Step,
}

/// When the daemon steps the epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    AfterThePublication,
    BeforeThePublication,
}

impl Rules {
    /// The rules that production uses.
    pub const SPEC: Self =
        Self { epoch: epoch::Rules::SPEC, words: publish::Rules::SPEC, step: Step::AfterThePublication };

    /// A mutant of the epoch's rules.
    pub fn with_epoch(change: impl FnOnce(&mut epoch::Rules)) -> Self {
        let mut this = Self::SPEC;
        change(&mut this.epoch);
        this
    }
}

/// Shared memory with one block, two leases and three extents of two words.
pub struct Shared {
    pub epoch: AtomicU64,
    pub leases: [AtomicU64; 2],
    pub word: AtomicU64,
    /// Not atomic: loom ends the model at an access that is not ordered after the last one.
    pub extents: [Cell<[u64; 2]>; 3],
}

/// The slot that the models read, unless they say otherwise.
pub fn slot() -> SlotIdx {
    slot_at(7)
}

/// A slot by number.
pub fn slot_at(number: u32) -> SlotIdx {
    SlotIdx::new(number).expect("a model's slot index")
}

/// The word of store `sequence`, whose bytes are in extent `extent`.
pub fn raw(extent: u64, sequence: u32) -> BlockWord {
    BlockWord::resident(extent, 0, BlockWord::RAW, sequence)
}

impl Shared {
    /// Epoch 1, and store 0 published in extent 0.
    pub fn new() -> Self {
        Self {
            epoch: AtomicU64::new(1),
            leases: [AtomicU64::new(0), AtomicU64::new(0)],
            word: AtomicU64::new(raw(0, 0).bits()),
            extents: [Cell::new([0, 0]), Cell::new([9, 9]), Cell::new([9, 9])],
        }
    }

    /// Reader: takes a lease on the models' slot.
    pub fn begin(&self, rules: &Rules, lease_idx: usize) {
        epoch::begin_by(&rules.epoch, &self.leases[lease_idx], &self.epoch, slot());
    }

    /// Reader: ends a lease.
    pub fn end(&self, rules: &Rules, lease_idx: usize) {
        epoch::end_by(&rules.epoch, &self.leases[lease_idx]);
    }

    /// Reader, under a lease: the block word.
    pub fn load(&self, rules: &Rules) -> BlockWord {
        publish::load_word_by(&rules.words, &self.word)
    }

    /// Reader: the bytes that a word addresses.
    pub fn read(&self, word: BlockWord) -> [u64; 2] {
        self.extents[index(word.offset())].get()
    }

    /// Reader: one guard over the block; gives the sequence that it saw.
    pub fn read_under_lease(&self, rules: &Rules, lease_idx: usize) -> u32 {
        self.begin(rules, lease_idx);
        let word = self.load(rules);
        assert_eq!(self.read(word), [u64::from(word.sequence()); 2], "{WRONG_BYTES}");
        self.end(rules, lease_idx);
        word.sequence()
    }

    /// Daemon: stores `bytes`, publishes `new`, and steps the epoch.
    pub fn publish(&self, rules: &Rules, new: BlockWord, bytes: [u64; 2]) -> Stamp {
        self.extents[index(new.offset())].set(bytes);
        let early = (rules.step == Step::BeforeThePublication).then(|| self.retire(rules));
        let old = BlockWord::from_bits(self.word.load(Ordering::Relaxed));
        publish::publish_word_by(&rules.words, &self.word, old, new).expect("the only writer of the block");
        early.unwrap_or_else(|| self.retire(rules))
    }

    /// Daemon: steps the epoch.
    pub fn retire(&self, rules: &Rules) -> Stamp {
        epoch::retire_by(&rules.epoch, &self.epoch).expect("the clock of a model does not end")
    }

    /// Daemon: whether a lease still holds what the models' slot retired at `stamp`.
    pub fn is_held(&self, rules: &Rules, stamp: Stamp) -> bool {
        epoch::is_held_by(&rules.epoch, stamp, slot(), &self.leases)
    }
}
