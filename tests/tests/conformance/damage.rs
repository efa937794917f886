//! Damaged blocks: every target gives the same output, or finds the same fault, and stays inside its memory.

use tierpack_shm::types::{Access, CodecId, Dtype};

use crate::make::{Plan, is_coded};
use crate::random::Random;
use crate::simulated::simulated;
use crate::suite::agree;
use crate::target::{Case, Fault, Target};

/// Small coded tensors of several records that have something in the overflow.
fn cases(codec: CodecId) -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, access, rows, columns) in [
        (Dtype::Bf16, Access::Rows, 6, 1100),
        (Dtype::Bf16, Access::Whole, 40, 70),
        (Dtype::F32, Access::Rows, 30, 41),
        (Dtype::F64, Access::Whole, 3, 500),
        (Dtype::F8E5m2, Access::Rows, 20, 200),
    ] {
        let plans = (0..40).map(|seed| Plan { codec, dtype, access, rows, columns, seed });
        let with_overflow = |case: &Case| is_coded(case) && word(&case.blocks[0], 32) > 8;
        cases.extend(plans.filter_map(|plan| plan.case()).find(with_overflow));
    }
    assert!(cases.len() >= 3, "{codec}: {} cases with overflow", cases.len());
    cases
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*block[at..].first_chunk().expect("a word of the block"))
}

fn set_word(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Where the front of the first block ends.
fn front_end(block: &[u8]) -> usize {
    block.len() - usize::try_from(word(block, 32)).expect("a length")
}

/// The offsets of the records of the first block; a run is as many records as the shape says.
fn records(case: &Case) -> Vec<usize> {
    let block = &case.blocks[0];
    let [rows, columns, all, stride, tail] = [12, 16, 20, 24, 28].map(|at| word(block, at) as usize);
    let runs = if case.geometry.access() == Access::Rows { rows } else { 1 };
    let per_run = all / runs;
    assert!(columns > 0);
    let run_stride = (per_run - 1) * stride + tail;
    (0..all).map(|i| 64 + i / per_run * run_stride + i % per_run * stride).collect()
}

/// Decodes a damaged copy everywhere; counts what came of it.
fn damaged(case: &Case, counts: &mut [usize; 2], damage: impl FnOnce(&mut Vec<u8>)) {
    let mut case = case.clone();
    damage(&mut case.blocks[0]);
    match agree(&case) {
        Ok(_) => counts[0] += 1,
        Err(fault) => {
            assert!(matches!(fault, Fault::Overflow | Fault::NoEscape), "{}: {fault:?}", case.name);
            counts[1] += 1;
        }
    }
}

/// Codecs whose records have heads.
fn with_heads() -> impl Iterator<Item = CodecId> {
    CodecId::ALL.iter().copied().filter(|codec| !matches!(codec, CodecId::Raw | CodecId::Planes4))
}

#[test]
fn changed_heads() {
    for codec in with_heads() {
        let mut counts = [0; 2];
        for case in cases(codec) {
            let overflow_len = word(&case.blocks[0], 32);
            for at in records(&case).into_iter().step_by(3) {
                let head = word(&case.blocks[0], at);
                let raw = head & 1 << 31;
                for value in [
                    head ^ 1 << 31,
                    raw | 0x7FFF_FFFF,
                    raw | 0x7FFF_FFFE,
                    raw | overflow_len,
                    raw | (overflow_len + 1),
                    raw | (overflow_len - 1),
                    raw,
                ] {
                    damaged(&case, &mut counts, |block| set_word(block, at, value));
                }
            }
        }
        assert!(counts.iter().all(|&n| n > 10), "{codec}: {counts:?}");
    }
}

#[test]
fn changed_bytes_of_the_front() {
    for &codec in &CodecId::ALL[1..] {
        let (mut counts, mut random) = ([0; 2], Random(7));
        for case in cases(codec) {
            let end = front_end(&case.blocks[0]) as u64;
            for _ in 0..40 {
                let at = usize::try_from(64 + random.below(end - 64)).expect("an offset");
                let change = random.pick(&[1, 0x10, 0x80, 0xFF]);
                damaged(&case, &mut counts, |block| block[at] ^= change);
            }
        }
        assert!(counts[0] > 10, "{codec}: {counts:?}");
    }
}

#[test]
fn overflow_that_is_cut_off() {
    for &codec in &CodecId::ALL[1..] {
        let mut counts = [0; 2];
        for case in cases(codec) {
            let len = word(&case.blocks[0], 32);
            for cut in
                [4, 8, len / 2, len].map(|cut| cut.next_multiple_of(4)).into_iter().filter(|&cut| cut <= len)
            {
                damaged(&case, &mut counts, |block| {
                    let total_len = word(block, 36) - cut;
                    set_word(block, 32, len - cut);
                    set_word(block, 36, total_len);
                    block.truncate(total_len as usize);
                });
            }
        }
        assert!(counts[1] > 5, "{codec}: {counts:?}");
    }
}

#[test]
fn a_list_of_escapes_in_any_order_is_read_within_its_bounds() {
    // A bisection and a walk may find different entries of a list that is not sorted.
    let mut random = Random(3);
    for case in cases(CodecId::Planes4) {
        for target in simulated() {
            let mut case = case.clone();
            let block = &mut case.blocks[0];
            let start = front_end(block);
            block[start..].iter_mut().for_each(|byte| *byte = random.byte());
            let found = target.decode(&case);
            assert!(matches!(found, Ok(_) | Err(Fault::NoEscape)), "{} at {}", case.name, target.name());
        }
    }
}
