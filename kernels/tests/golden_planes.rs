//! Golden blocks of codecs `planes`: written once by format version 1, read and written byte for byte forever.

mod common;

use common::Golden;
use tierpack_kernels::block::Block;
use tierpack_kernels::metadata::Granularity::{self, Column};
use tierpack_shm::types::Access::{Rows, Whole};
use tierpack_shm::types::CodecId::{Planes3, Planes4, Planes222};
use tierpack_shm::types::Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64};
use tierpack_shm::types::index;

/// A golden tensor, what has one base, and how many bits its metadata drop from every word.
type Case = (Golden, Option<Granularity>, u8);

const CASES: [Case; 20] = [
    (Golden::new("planes4_bf16_rows", Planes4, Bf16, [16, 100], Rows), None, 0),
    (Golden::new("planes4_bf16_whole_bases", Planes4, Bf16, [16, 100], Whole), Some(Column), 0),
    (Golden::new("planes4_f16_whole", Planes4, F16, [15, 101], Whole), None, 0),
    (Golden::new("planes4_f32_rows_bases", Planes4, F32, [10, 101], Rows), Some(Column), 0),
    (Golden::new("planes4_f64_rows", Planes4, F64, [5, 100], Rows), None, 0),
    (Golden::new("planes4_f8_e5m2_rows", Planes4, F8E5m2, [30, 101], Rows), None, 0),
    (Golden::new("planes3_bf16_rows_bases", Planes3, Bf16, [16, 100], Rows), Some(Column), 0),
    (Golden::new("planes3_bf16_whole", Planes3, Bf16, [16, 100], Whole), None, 0),
    (Golden::new("planes3_f16_rows", Planes3, F16, [15, 100], Rows), None, 0),
    (Golden::new("planes3_f32_rows_dropped", Planes3, F32, [10, 100], Rows), None, 16),
    (Golden::new("planes3_f64_rows", Planes3, F64, [5, 100], Rows), None, 0),
    (Golden::new("planes3_f8_e4m3_whole", Planes3, F8E4m3, [30, 100], Whole), None, 0),
    (Golden::new("planes3_f8_e5m2_rows", Planes3, F8E5m2, [30, 100], Rows), None, 0),
    (Golden::new("planes222_bf16_rows_bases", Planes222, Bf16, [16, 100], Rows), Some(Column), 0),
    (Golden::new("planes222_bf16_whole", Planes222, Bf16, [16, 100], Whole), None, 0),
    (Golden::new("planes222_f16_rows", Planes222, F16, [15, 100], Rows), None, 0),
    (Golden::new("planes222_f32_whole_dropped", Planes222, F32, [12, 100], Whole), None, 13),
    (Golden::new("planes222_f64_whole_bases", Planes222, F64, [8, 100], Whole), Some(Column), 0),
    (Golden::new("planes222_f8_e4m3_rows", Planes222, F8E4m3, [30, 100], Rows), None, 0),
    (Golden::new("planes222_f8_e5m2_whole", Planes222, F8E5m2, [30, 100], Whole), None, 0),
];

#[test]
fn golden_blocks_are_still_read() {
    for (golden, ..) in CASES {
        golden.check_read();
    }
}

#[test]
fn version_1_still_writes_the_golden_blocks() {
    for (golden, base, dropped_bits) in CASES {
        let metadata = golden.metadata();
        assert_eq!((metadata.chunk_bytes(), metadata.masks()), (None, None));
        assert_eq!((metadata.base(), golden.read("metadata")[14]), (base, dropped_bits), "{}", golden.name);
        golden.check_written();
    }
}

/// What the files are for: heads and lists, rests, raw records and escapes all occur.
#[test]
fn golden_blocks_have_every_kind_of_record() {
    let (mut raw, mut rests, mut none, mut lists) = (0, 0, 0, 0);
    for (golden, ..) in CASES {
        let bytes = golden.read("block");
        let block = Block::parse(&bytes).expect("a good block");
        if golden.codec == Planes4 {
            lists += usize::from(!block.overflow().is_empty());
            continue;
        }
        let strides = block.front().len() / index(block.records().into());
        for record in block.front().chunks(strides) {
            let head = record.first_chunk().map_or(0, |head| u32::from_le_bytes(*head));
            raw += usize::from(head >> 31 == 1);
            let has_rest = head & 0x7FFF_FFFF != 0x7FFF_FFFF;
            rests += usize::from(has_rest);
            none += usize::from(!has_rest);
        }
    }
    assert!(raw > 3 && rests > 20 && none > 20 && lists == 6, "{raw} {rests} {none} {lists}");
}
