//! Golden blocks of codec `sparse`: written once by format version 1, read and written byte for byte forever.
//!
//! Each lies in `tests/golden/v1` as three files: raw bytes, metadata, block.

use std::path::Path;

use tierpack_kernels::block::{Block, FORMAT_VERSION};
use tierpack_kernels::codec::{self, Encoding, Scratch};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, Level};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/v1");

/// A golden tensor of one block, and what its files must be.
struct Golden {
    name: &'static str,
    dtype: Dtype,
    shape: [u64; 2],
    access: Access,
    /// The form's bytes in the metadata: elements of a group, and 0 or the bits of an index and 1.
    form: [u8; 4],
    /// Words that differ from the common one.
    escapes: u64,
    overflow_len: usize,
}

const GOLDEN: [Golden; 3] = [
    // Of its rows, one is raw, and one has words that the dictionary lacks.
    Golden {
        name: "sparse_f32_rows",
        dtype: Dtype::F32,
        shape: [24, 50],
        access: Access::Rows,
        form: [8, 3, 0, 0],
        escapes: 167,
        overflow_len: 292,
    },
    Golden {
        name: "sparse_u16_two_words",
        dtype: Dtype::U16,
        shape: [16, 100],
        access: Access::Rows,
        form: [8, 1, 0, 0],
        escapes: 139,
        overflow_len: 75,
    },
    Golden {
        name: "sparse_i64_whole",
        dtype: Dtype::I64,
        shape: [4, 300],
        access: Access::Whole,
        form: [8, 0, 0, 0],
        escapes: 413,
        overflow_len: 1,
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

    fn coder(&self) -> Coder {
        let bytes = self.read("metadata");
        let metadata = Metadata::parse(&bytes, &self.geometry()).expect("golden metadata");
        assert_eq!(bytes[13..17], self.form, "{}", self.name);
        assert_eq!(metadata.to_bytes(), bytes);
        assert_eq!((metadata.codec(), metadata.generation()), (CodecId::Sparse, 5));
        Coder::new(&metadata, &self.geometry()).expect("metadata of this tensor")
    }
}

#[test]
fn golden_blocks_are_still_read() {
    for golden in GOLDEN {
        let (raw, bytes) = (golden.read("raw"), golden.read("block"));
        for &level in Level::ALL {
            let coder = golden.coder().with_level(level);
            let block = Block::parse(&bytes).expect("a good block");
            assert_eq!(block.verify_crc(), Ok(()));
            assert_eq!((block.codec(), block.generation()), (CodecId::Sparse, 5));
            assert_eq!(block.overflow().len(), golden.overflow_len, "{}", golden.name);
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
        for &level in Level::ALL {
            let coder = golden.coder().with_level(level);
            let mut bytes = Vec::new();
            let (encoding, raw) = (Encoding::Coded(&coder), golden.read("raw"));
            let encoded =
                codec::encode_block(encoding, &golden.geometry(), 0, &raw, &mut bytes).expect("a block");
            assert_eq!((encoded.codec, encoded.escapes), (CodecId::Sparse, golden.escapes));
            assert!(bytes == golden.read("block"), "{} at {level}", golden.name);
        }
    }
}
