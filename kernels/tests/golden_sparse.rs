//! Golden blocks of codec `sparse`: written once by format version 1, read and written byte for byte forever.

mod common;

use common::Golden;
use tierpack_kernels::block::Block;
use tierpack_shm::types::Access::{Rows, Whole};
use tierpack_shm::types::CodecId::Sparse;
use tierpack_shm::types::Dtype;

/// A golden tensor, and what its files must be.
struct Case {
    golden: Golden,
    /// The form's bytes in the metadata: elements of a group, and 0 or the bits of an index and 1.
    form: [u8; 4],
    /// Words that differ from the common one.
    escapes: u64,
    overflow_len: usize,
}

const CASES: [Case; 3] = [
    // Of its rows, one is raw, and one has words that the dictionary lacks.
    Case {
        golden: Golden::new("sparse_f32_rows", Sparse, Dtype::F32, [24, 50], Rows),
        form: [8, 3, 0, 0],
        escapes: 167,
        overflow_len: 292,
    },
    Case {
        golden: Golden::new("sparse_u16_two_words", Sparse, Dtype::U16, [16, 100], Rows),
        form: [8, 1, 0, 0],
        escapes: 139,
        overflow_len: 75,
    },
    Case {
        golden: Golden::new("sparse_i64_whole", Sparse, Dtype::I64, [4, 300], Whole),
        form: [8, 0, 0, 0],
        escapes: 413,
        overflow_len: 1,
    },
];

#[test]
fn golden_blocks_are_still_read() {
    for Case { golden, form, overflow_len, .. } in CASES {
        golden.check_read();
        assert_eq!(golden.read("metadata")[13..17], form, "{}", golden.name);
        let bytes = golden.read("block");
        let block = Block::parse(&bytes).expect("a good block");
        assert_eq!(block.overflow().len(), overflow_len, "{}", golden.name);
    }
}

#[test]
fn version_1_still_writes_the_golden_blocks() {
    for Case { golden, escapes, .. } in CASES {
        assert_eq!(golden.check_written().escapes, escapes, "{}", golden.name);
    }
}
