//! Refits whose values are others than those that were planned with.

use tierpack_shm::types::index;

use super::*;
use crate::size::MIB;
use crate::store::testing::{BLOCK_ROWS, ROW_WORDS, Stored};
use crate::store::update::Workspace;

const IBP: CodecChoice = CodecChoice::Only(CodecId::Ibp);

/// Blocks of words of which only so many of the low bits vary, above them `high`.
fn blocks(n_blocks: u64, bits: u32, high: u64) -> Vec<u8> {
    let words = 0..n_blocks * BLOCK_ROWS * ROW_WORDS;
    let any = words.map(|n| (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits));
    any.flat_map(|low| (high << 48 | low).to_le_bytes()).collect()
}

fn update_block(stored: &Stored, block_idx: u64, bytes: &[u8]) {
    stored.update((0..index(BLOCK_ROWS)).map(|row| block_idx * BLOCK_ROWS + row as u64), bytes);
}

/// Carries out a plan to its end; returns how many blocks were looked at.
fn carry_out(stored: &Stored, target: &Target, plan: Plan) -> usize {
    let task = RefitTask { namespace: stored.namespace(), target: target.clone(), plan };
    let mut refit = stored.store.begin_refit(task).unwrap();
    let mut work = Workspace::default();
    std::iter::repeat_with(|| stored.store.refit_block(&mut refit, &mut work).unwrap())
        .take_while(|goes_on| *goes_on)
        .count()
}

fn read(stored: &Stored, target: &Target) -> Vec<u8> {
    let (mut coders, mut block, mut all) = (Coders::default(), Vec::new(), Vec::new());
    for block_idx in 0..target.geometry.n_blocks() {
        stored.namespace().read_block(target, block_idx, &mut coders, &mut block).unwrap();
        all.extend_from_slice(&block);
    }
    all
}

#[test]
fn a_refit_stops_where_its_first_blocks_do_not_keep_what_was_promised() {
    const BLOCKS: u64 = 40;
    let stored = Stored::new(256 * MIB);
    let (first, other) = (blocks(BLOCKS, 8, 1), blocks(BLOCKS, 8, 2));
    let target = stored.put(IBP, &first);
    let namespace = stored.namespace();
    let before = namespace.current(&target.key).unwrap();
    let update_all = |bytes: &[u8]| {
        for (block, block_idx) in bytes.chunks(bytes.len() / index(BLOCKS)).zip(0..) {
            update_block(&stored, block_idx, block);
        }
    };
    update_all(&other);
    let plan = stored.store.plan(&namespace, &target).unwrap();
    assert!(plan.is_better() && !plan.checked.blocks.is_empty(), "{plan:?}");
    let n_checked = plan.checked.blocks.len();
    update_all(&first);
    assert_eq!(carry_out(&stored, &target, plan), n_checked);
    assert_eq!(namespace.current(&target.key).unwrap(), before, "no block needs the new generation");
    assert!(read(&stored, &target) == first);
    // Where they are as they were planned with, all are stored again.
    update_all(&other);
    let plan = stored.store.plan(&namespace, &target).unwrap();
    assert_eq!(carry_out(&stored, &target, plan) as u64, BLOCKS);
    assert_ne!(namespace.current(&target.key).unwrap(), before);
    assert!(read(&stored, &target) == other);
}

#[test]
fn blocks_that_keep_their_form_never_take_all_generations() {
    const ROUNDS: u64 = 20;
    let stored = Stored::new(64 * MIB);
    let mut bytes = blocks(ROUNDS + 1, 8, 0);
    let target = stored.put(IBP, &bytes);
    let mut most = 0;
    for round in 1..=ROUNDS {
        // Of all blocks, the new metadata suit this one alone.
        let block = blocks(1, 8, round);
        let at = index(round) * block.len();
        bytes[at..at + block.len()].copy_from_slice(&block);
        update_block(&stored, round, &block);
        let pieces = pieces(&target.geometry, round..round + 1, 0);
        let sample: Vec<Sample<'_>> =
            pieces.into_iter().map(|piece| (piece, &block[piece.in_block()])).collect();
        let plan = Plan {
            fit: fit(CodecId::Ibp, &target.geometry, &sample).unwrap(),
            stored_bytes: 0,
            promised_bytes: 0,
            checked: Checked::default(),
            longer: Longer::Dropped,
            revision: round,
        };
        carry_out(&stored, &target, plan);
        stored.store.reclaim();
        most = most.max(stored.namespace().drift(&target.key).unwrap().generations_alive);
    }
    assert!((8..=10).contains(&most), "{most} generations at once");
    assert!(read(&stored, &target) == bytes);
}
