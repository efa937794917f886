//! Overlays, folding and generations: words that cover other words.

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use tierpack_shm::publish::{load_word, publish_word};
use tierpack_shm::sync::{AtomicU64, Ordering};
use tierpack_shm::types::{BlockWord, index};

use crate::explore::{RACE, breaks, holds};
use crate::shared::{Rules, Shared, raw, switch};

const WRONG_ROWS: &str = "rows of no store";
const LOST: &str = "a committed update is lost";
const WRONG_GENERATION: &str = "bytes decoded by another generation";

/// When the extent below an overlay retires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BaseRetires {
    /// When the fold stops covering it.
    AtTheFold,
    /// Too early: the overlay still needs it.
    AtTheOverlay,
}

/// The daemon updates row 0 of a block by an overlay, folds it, and overwrites the base and the overlay.
///
/// An overlay's extent holds the word that it covers and the new row.
fn overlay_then_fold(rules: Rules, guards: usize, retires: BaseRetires) {
    let daemon = Arc::new(Shared::new());
    daemon.extents[0].set([10, 20]);
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || {
        for _ in 0..guards {
            client.begin(&rules, 0);
            let word = client.load(&rules);
            let mut rows = client.read(word);
            if word.is_overlay() {
                let base = client.read(BlockWord::from_bits(rows[0]));
                rows = [rows[1], base[1]];
            }
            assert!(rows == [10, 20] || rows == [11, 20], "{WRONG_ROWS}: {rows:?}");
            client.end(&rules, 0);
        }
    });
    let overlay = BlockWord::resident(1, 0, BlockWord::OVERLAY, 1);
    let stamp = daemon.publish(&rules, [raw(0, 0), overlay], [raw(0, 0).bits(), 11]);
    match retires {
        BaseRetires::AtTheOverlay if !daemon.is_held(&rules, stamp) => daemon.extents[0].set([55, 55]),
        BaseRetires::AtTheOverlay => {}
        BaseRetires::AtTheFold => {
            let stamp = daemon.publish(&rules, [overlay, raw(2, 2)], [11, 20]);
            if !daemon.is_held(&rules, stamp) {
                daemon.extents[0].set([66, 66]);
                daemon.extents[1].set([0, 77]);
            }
        }
    }
    reader.join().expect("the reader ends");
}

/// How the fold publishes its word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FoldStores {
    IfTheWordIsStillTheOne,
    Whatever,
}

/// A fold and an update of one block at once, each writing an extent of its own: bit 0 stands for the update that
/// was there before, bit 1 for the one that comes.
fn fold_beside_update(stores: FoldStores) {
    let word = Arc::new(AtomicU64::new(raw(0, 0).bits()));
    let extents = Arc::new([Cell::new(0b01_u64), Cell::new(0), Cell::new(0)]);
    let (fold_word, fold_extents) = (Arc::clone(&word), Arc::clone(&extents));
    let fold = thread::spawn(move || {
        loop {
            let old = load_word(&fold_word);
            fold_extents[1].set(fold_extents[index(old.offset())].get());
            let new = raw(1, old.sequence() + 1);
            switch();
            match stores {
                FoldStores::Whatever => fold_word.store(new.bits(), Ordering::Release),
                FoldStores::IfTheWordIsStillTheOne if publish_word(&fold_word, old, new).is_err() => {
                    thread::yield_now();
                    continue;
                }
                FoldStores::IfTheWordIsStillTheOne => {}
            }
            break;
        }
    });
    loop {
        let old = load_word(&word);
        extents[2].set(extents[index(old.offset())].get() | 0b10);
        switch();
        if publish_word(&word, old, raw(2, old.sequence() + 1)).is_ok() {
            break;
        }
        thread::yield_now();
    }
    fold.join().expect("the fold ends");
    let last = load_word(&word);
    assert_eq!(extents[index(last.offset())].get(), 0b11, "{LOST}");
    assert_eq!(last.sequence(), 2, "{LOST}");
}

/// Which words count when the daemon asks whether a generation index is still in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InUse {
    /// The block's word and the words that it covers: the index is free after the fold.
    CurrentAndCovered,
    /// The block's word alone.
    Current,
}

/// Generation index 0 is recycled under a reader of a block whose overlay names index 1 and whose base names 0.
fn recycle_a_generation(rules: Rules, in_use: InUse) {
    let daemon = Arc::new((Shared::new(), [Cell::new(0_u64), Cell::new(1)]));
    let (shared, metadata) = &*daemon;
    shared.extents[1].set([BlockWord::resident(0, 0, 0, 0).bits(), 5]);
    let overlay = BlockWord::resident(1, 1, BlockWord::OVERLAY, 1);
    shared.word.store(overlay.bits(), Ordering::Relaxed);
    let client = Arc::clone(&daemon);
    let reader = thread::spawn(move || {
        let (shared, metadata) = &*client;
        shared.begin(&rules, 0);
        let mut word = shared.load(&rules);
        if word.is_overlay() {
            word = BlockWord::from_bits(shared.read(word)[0]);
        }
        // A model's encoded bytes are the number of the generation that they were encoded by.
        let encoded_by = shared.read(word)[0];
        let number = metadata[usize::from(word.generation_idx())].get();
        assert_eq!(encoded_by, number, "{WRONG_GENERATION}");
        shared.end(&rules, 0);
    });
    let stamp = match in_use {
        InUse::CurrentAndCovered => {
            shared.publish(&rules, [overlay, BlockWord::resident(2, 1, 0, 2)], [1, 1])
        }
        InUse::Current => shared.retire(&rules),
    };
    if !shared.is_held(&rules, stamp) {
        metadata[0].set(257);
    }
    reader.join().expect("the reader ends");
}

#[test]
fn readers_see_old_or_new_rows_while_an_overlay_is_folded() {
    holds("overlay and fold, one guard", || overlay_then_fold(Rules::SPEC, 1, BaseRetires::AtTheFold));
}

#[test]
fn a_second_guard_sees_old_or_new_rows_while_an_overlay_is_folded() {
    holds("overlay and fold, two guards", || overlay_then_fold(Rules::SPEC, 2, BaseRetires::AtTheFold));
}

#[test]
fn a_base_that_retires_at_the_overlay_is_found() {
    breaks("base retired at the overlay", &[RACE, WRONG_ROWS], || {
        overlay_then_fold(Rules::SPEC, 1, BaseRetires::AtTheOverlay);
    });
}

#[test]
fn a_fold_and_an_update_lose_nothing() {
    holds("fold beside update", || fold_beside_update(FoldStores::IfTheWordIsStillTheOne));
}

#[test]
fn a_plain_store_by_the_fold_is_found() {
    breaks("fold by a plain store", &[RACE, LOST], || fold_beside_update(FoldStores::Whatever));
}

#[test]
fn a_generation_is_recycled_after_the_fold() {
    holds("generation recycled after the fold", || {
        recycle_a_generation(Rules::SPEC, InUse::CurrentAndCovered);
    });
}

#[test]
fn recycling_a_generation_by_current_words_only_is_found() {
    breaks("generation recycled by current words", &[RACE, WRONG_GENERATION], || {
        recycle_a_generation(Rules::SPEC, InUse::Current);
    });
}
