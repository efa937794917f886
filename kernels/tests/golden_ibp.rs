//! Golden blocks of codec `ibp`: written once by format version 1, read and written byte for byte forever.
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
    chunk_bytes: u8,
    masks: Granularity,
    base: Option<Granularity>,
}

const GOLDEN: [Golden; 5] = [
    Golden {
        name: "ibp_bf16_rows",
        dtype: Dtype::Bf16,
        shape: [12, 30],
        access: Access::Rows,
        codec: CodecId::Ibp,
        chunk_bytes: 2,
        masks: Granularity::Tensor,
        base: None,
    },
    Golden {
        name: "ibp_u8_columns",
        dtype: Dtype::U8,
        shape: [60, 37],
        access: Access::Rows,
        codec: CodecId::Ibp,
        chunk_bytes: 2,
        masks: Granularity::Column,
        base: None,
    },
    Golden {
        name: "ibp_window_f32_whole",
        dtype: Dtype::F32,
        shape: [60, 20],
        access: Access::Whole,
        codec: CodecId::IbpWindow,
        chunk_bytes: 4,
        masks: Granularity::Tensor,
        base: Some(Granularity::Tensor),
    },
    Golden {
        name: "ibp_window_bf16_columns",
        dtype: Dtype::Bf16,
        shape: [40, 24],
        access: Access::Rows,
        codec: CodecId::IbpWindow,
        chunk_bytes: 2,
        masks: Granularity::Tensor,
        base: Some(Granularity::Column),
    },
    Golden {
        name: "ibp_i64_whole",
        dtype: Dtype::I64,
        shape: [30, 3],
        access: Access::Whole,
        codec: CodecId::Ibp,
        chunk_bytes: 8,
        masks: Granularity::Tensor,
        base: None,
    },
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
        let metadata = golden.metadata();
        assert_eq!(metadata.to_bytes(), golden.read("metadata"));
        assert_eq!((metadata.codec(), metadata.generation()), (golden.codec, 5));
        assert_eq!(
            (metadata.chunk_bytes(), metadata.masks()),
            (Some(golden.chunk_bytes), Some(golden.masks))
        );
        assert_eq!(metadata.base(), golden.base);
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
