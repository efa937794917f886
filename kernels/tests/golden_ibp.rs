//! Golden blocks of codec `ibp`: written once by format version 1, read and written byte for byte forever.

mod common;

use common::Golden;
use tierpack_kernels::metadata::Granularity::{self, Column, Tensor};
use tierpack_shm::types::Access::{Rows, Whole};
use tierpack_shm::types::CodecId::{Ibp, IbpWindow};
use tierpack_shm::types::Dtype;

/// A golden tensor, and what its metadata must be: bytes of a chunk, what has one mask, what has one base.
type Case = (Golden, u8, Granularity, Option<Granularity>);

const CASES: [Case; 5] = [
    (Golden::new("ibp_bf16_rows", Ibp, Dtype::Bf16, [12, 30], Rows), 2, Tensor, None),
    (Golden::new("ibp_u8_columns", Ibp, Dtype::U8, [60, 37], Rows), 2, Column, None),
    (Golden::new("ibp_window_f32_whole", IbpWindow, Dtype::F32, [60, 20], Whole), 4, Tensor, Some(Tensor)),
    (Golden::new("ibp_window_bf16_columns", IbpWindow, Dtype::Bf16, [40, 24], Rows), 2, Tensor, Some(Column)),
    (Golden::new("ibp_i64_whole", Ibp, Dtype::I64, [30, 3], Whole), 8, Tensor, None),
];

#[test]
fn golden_blocks_are_still_read() {
    for (golden, ..) in CASES {
        golden.check_read();
    }
}

#[test]
fn version_1_still_writes_the_golden_blocks() {
    for (golden, chunk_bytes, masks, base) in CASES {
        let metadata = golden.metadata();
        assert_eq!((metadata.chunk_bytes(), metadata.masks()), (Some(chunk_bytes), Some(masks)));
        assert_eq!(metadata.base(), base);
        golden.check_written();
    }
}
