//! Golden tensors of one block: three files each in `tests/golden/v1`, raw bytes, metadata, block.

use std::path::Path;

use tierpack_kernels::block::{Block, FORMAT_VERSION};
use tierpack_kernels::codec::{self, Encoded, Encoding, Scratch};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, Level};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/v1");

/// The generation of every golden block.
const GENERATION: u32 = 5;

/// A golden tensor.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    pub(crate) codec: CodecId,
    pub(crate) dtype: Dtype,
    pub(crate) shape: [u64; 2],
    pub(crate) access: Access,
}

impl Golden {
    pub(crate) const fn new(
        name: &'static str,
        codec: CodecId,
        dtype: Dtype,
        shape: [u64; 2],
        access: Access,
    ) -> Self {
        Self { name, codec, dtype, shape, access }
    }

    pub(crate) fn read(&self, kind: &str) -> Vec<u8> {
        let path = Path::new(FOLDER).join(format!("{}.{kind}", self.name));
        std::fs::read(path).expect("a golden file")
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry::new(self.dtype, &self.shape, self.access, None).expect("a valid shape")
    }

    /// The metadata, which are written as they were.
    pub(crate) fn metadata(&self) -> Metadata {
        let bytes = self.read("metadata");
        let metadata = Metadata::parse(&bytes, &self.geometry()).expect("golden metadata");
        assert_eq!(metadata.to_bytes(), bytes);
        assert_eq!((metadata.codec(), metadata.generation()), (self.codec, GENERATION));
        metadata
    }

    fn coders(&self) -> impl Iterator<Item = Coder> {
        let coder = Coder::new(&self.metadata(), &self.geometry()).expect("metadata of this tensor");
        Level::ALL.iter().map(move |&level| coder.clone().with_level(level))
    }

    /// The block is read on every level, whole and by rows.
    pub(crate) fn check_read(&self) {
        let (raw, bytes) = (self.read("raw"), self.read("block"));
        let block = Block::parse(&bytes).expect("a good block");
        assert_eq!(block.verify_crc(), Ok(()));
        assert_eq!((block.codec(), block.generation()), (self.codec, GENERATION));
        for coder in self.coders() {
            let mut out = vec![0xA5; raw.len()];
            codec::decode_block(&block, Some(&coder), &mut out).expect("a decode");
            assert!(out == raw, "{} at {}", self.name, coder.level());
            let row_bytes = index(self.geometry().row_bytes());
            for (row, raw) in raw.chunks(row_bytes).enumerate() {
                let out = &mut out[..row_bytes];
                let mut scratch = Scratch::new();
                let read = codec::decode_row(&coder, 0, row as u64, &bytes, out, &mut scratch);
                assert_eq!(read, Ok(()));
                assert!(out == raw, "row {row} of {} at {}", self.name, coder.level());
            }
        }
    }

    /// The block is written on every level, byte for byte; returns what the encoders said.
    pub(crate) fn check_written(&self) -> Encoded {
        assert_eq!(FORMAT_VERSION, 1, "a new version gets golden blocks of its own");
        let (raw, block) = (self.read("raw"), self.read("block"));
        let written = |coder: Coder| {
            let mut bytes = Vec::new();
            let encoding = Encoding::Coded(&coder);
            let encoded =
                codec::encode_block(encoding, &self.geometry(), 0, &raw, &mut bytes).expect("a block");
            assert!(bytes == block, "{} at {}", self.name, coder.level());
            assert_eq!(encoded.codec, self.codec);
            encoded
        };
        let all: Vec<Encoded> = self.coders().map(written).collect();
        assert!(all.iter().all(|encoded| *encoded == all[0]), "{}: {all:?}", self.name);
        all[0]
    }
}
