//! Golden blocks of codecs `planes`: written once by format version 1, read and written byte for byte forever.
//!
//! Each lies in `tests/golden/v1` as three files: raw bytes, metadata, block.

use std::path::Path;

use tierpack_kernels::block::{Block, FORMAT_VERSION};
use tierpack_kernels::codec::{self, Encoding, Scratch};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::{Granularity, Metadata};
use tierpack_kernels::{Coder, Level};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/v1");

/// A golden tensor of one block, and what its files must be.
struct Golden {
    name: &'static str,
    dtype: Dtype,
    shape: [u64; 2],
    access: Access,
    codec: CodecId,
    base: Option<Granularity>,
    /// Bits that metadata drop from every word.
    dropped_bits: u8,
}

impl Golden {
    const fn new(name: &'static str, codec: CodecId, dtype: Dtype, shape: [u64; 2], access: Access) -> Self {
        Self { name, dtype, shape, access, codec, base: None, dropped_bits: 0 }
    }

    const fn with_bases(self) -> Self {
        Self { base: Some(Granularity::Column), ..self }
    }

    const fn dropping(self, dropped_bits: u8) -> Self {
        Self { dropped_bits, ..self }
    }
}

use Access::{Rows, Whole};
use CodecId::{Planes3, Planes4, Planes222};
use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64};

const GOLDEN: [Golden; 20] = [
    Golden::new("planes4_bf16_rows", Planes4, Bf16, [16, 100], Rows),
    Golden::new("planes4_bf16_whole_bases", Planes4, Bf16, [16, 100], Whole).with_bases(),
    Golden::new("planes4_f16_whole", Planes4, F16, [15, 101], Whole),
    Golden::new("planes4_f32_rows_bases", Planes4, F32, [10, 101], Rows).with_bases(),
    Golden::new("planes4_f64_rows", Planes4, F64, [5, 100], Rows),
    Golden::new("planes4_f8_e5m2_rows", Planes4, F8E5m2, [30, 101], Rows),
    Golden::new("planes3_bf16_rows_bases", Planes3, Bf16, [16, 100], Rows).with_bases(),
    Golden::new("planes3_bf16_whole", Planes3, Bf16, [16, 100], Whole),
    Golden::new("planes3_f16_rows", Planes3, F16, [15, 100], Rows),
    Golden::new("planes3_f32_rows_dropped", Planes3, F32, [10, 100], Rows).dropping(16),
    Golden::new("planes3_f64_rows", Planes3, F64, [5, 100], Rows),
    Golden::new("planes3_f8_e4m3_whole", Planes3, F8E4m3, [30, 100], Whole),
    Golden::new("planes3_f8_e5m2_rows", Planes3, F8E5m2, [30, 100], Rows),
    Golden::new("planes222_bf16_rows_bases", Planes222, Bf16, [16, 100], Rows).with_bases(),
    Golden::new("planes222_bf16_whole", Planes222, Bf16, [16, 100], Whole),
    Golden::new("planes222_f16_rows", Planes222, F16, [15, 100], Rows),
    Golden::new("planes222_f32_whole_dropped", Planes222, F32, [12, 100], Whole).dropping(13),
    Golden::new("planes222_f64_whole_bases", Planes222, F64, [8, 100], Whole).with_bases(),
    Golden::new("planes222_f8_e4m3_rows", Planes222, F8E4m3, [30, 100], Rows),
    Golden::new("planes222_f8_e5m2_whole", Planes222, F8E5m2, [30, 100], Whole),
];

impl Golden {
    fn read(&self, kind: &str) -> Vec<u8> {
        let path = Path::new(FOLDER).join(format!("{}.{kind}", self.name));
        std::fs::read(path).expect("a golden file")
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(self.dtype, &self.shape, self.access, None).expect("a valid shape")
    }

    fn metadata(&self) -> Metadata {
        Metadata::parse(&self.read("metadata"), &self.geometry()).expect("golden metadata")
    }
}

#[test]
fn golden_blocks_are_still_read() {
    for golden in GOLDEN {
        let (raw, bytes) = (golden.read("raw"), golden.read("block"));
        let coder = Coder::new(&golden.metadata(), &golden.geometry()).expect("metadata of this tensor");
        for &level in Level::ALL {
            let coder = coder.clone().with_level(level);
            let block = Block::parse(&bytes).expect("a good block");
            assert_eq!(block.verify_crc(), Ok(()));
            assert_eq!((block.codec(), block.generation()), (golden.codec, 5));
            let mut out = vec![0xA5; raw.len()];
            codec::decode_block(&block, Some(&coder), &mut out).expect("a decode");
            assert!(out == raw, "{} at {level}", golden.name);
            let row_bytes = index(golden.geometry().row_bytes());
            for (row, raw) in raw.chunks(row_bytes).enumerate() {
                let out = &mut out[..row_bytes];
                let mut scratch = Scratch::new();
                let read = codec::decode_row(&coder, 0, row as u64, &bytes, out, &mut scratch);
                assert_eq!(read, Ok(()));
                assert!(out == raw, "row {row} of {} at {level}", golden.name);
            }
        }
    }
}

#[test]
fn version_1_still_writes_the_golden_blocks() {
    assert_eq!(FORMAT_VERSION, 1, "a new version gets golden blocks of its own");
    for golden in GOLDEN {
        let (metadata, stored) = (golden.metadata(), golden.read("metadata"));
        assert_eq!(metadata.to_bytes(), stored);
        assert_eq!((metadata.codec(), metadata.generation()), (golden.codec, 5));
        assert_eq!((metadata.chunk_bytes(), metadata.masks()), (None, None));
        assert_eq!((metadata.base(), stored[14]), (golden.base, golden.dropped_bits), "{}", golden.name);
        let coder = Coder::new(&metadata, &golden.geometry()).expect("metadata of this tensor");
        for &level in Level::ALL {
            let coder = coder.clone().with_level(level);
            let mut bytes = Vec::new();
            let (encoding, raw) = (Encoding::Coded(&coder), golden.read("raw"));
            codec::encode_block(encoding, &golden.geometry(), 0, &raw, &mut bytes).expect("a block");
            assert!(bytes == golden.read("block"), "{} at {level}", golden.name);
        }
    }
}

/// What the files are for: heads and lists, rests, raw records and escapes all occur.
#[test]
fn golden_blocks_have_every_kind_of_record() {
    let (mut raw, mut rests, mut none, mut lists) = (0, 0, 0, 0);
    for golden in GOLDEN {
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
