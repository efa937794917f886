//! Work: tensors of which some blocks are made and encoded, and then stand again and again at other addresses.
//!
//! A gigabyte of different blocks takes a processor longer to encode than the GPU's time is worth; what a kernel does
//! with a block does not depend on the others, and no cache holds the blocks between.
//! The data are those that the predictions of kernels/CUDA.md assume.

use anyhow::{Context as _, Result};
use tierpack_kernels::codec::{self, Encoding};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::{Coder, fit};
use tierpack_shm::types::{Access, CodecId, Dtype, UNIT_BYTES, index};
use tierpack_tests::data::Random;

/// The codecs that have rows of their own.
pub(crate) const CODECS: [CodecId; 6] =
    [CodecId::Raw, CodecId::Ibp, CodecId::Planes4, CodecId::Planes3, CodecId::Planes222, CodecId::Sparse];

/// A tensor of BF16.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) geometry: Geometry,
    pub(crate) codec: CodecId,
    pub(crate) coder: Option<Coder>,
    /// The blocks that are different; block n of the tensor is block n modulo their number.
    blocks: Vec<Vec<u8>>,
    /// Their raw bytes.
    raw: Vec<u8>,
}

/// Where a block is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    pub(crate) offset: u64,
}

impl Work {
    /// A tensor with rows of that many elements, of about `raw_bytes`, of which about `distinct_bytes` are different.
    pub(crate) fn new(codec: CodecId, columns: u64, raw_bytes: u64, distinct_bytes: u64) -> Result<Self> {
        let geometry = |rows| Geometry::new(Dtype::Bf16, &[rows, columns], Access::Rows, None);
        let usual = geometry(1 << 20)?;
        let block_bytes = usual.block(0).raw_bytes;
        let n_distinct = (distinct_bytes / block_bytes).max(1);
        // Whole repetitions, so that all blocks have the same shape.
        let n_blocks = (raw_bytes / block_bytes).max(2).next_multiple_of(n_distinct);
        let geometry = geometry(n_blocks * usual.block_rows())?;
        let raw = bytes(codec, index(n_distinct * block_bytes));
        let coder = match codec {
            CodecId::Raw => None,
            _ => {
                let sample = &raw[..index(block_bytes)];
                let metadata =
                    fit::fit(codec, &geometry, &[(fit::Piece::block(&geometry, 0), sample)])?.metadata;
                let metadata = metadata.with_context(|| format!("{codec} does not suit its own data"))?;
                Some(Coder::new(&metadata.with_generation(1), &geometry)?)
            }
        };
        let mut work = Self { geometry, codec, coder, blocks: Vec::new(), raw };
        let blocks = (0..n_distinct).map(|block_idx| work.encode(block_idx));
        work.blocks = blocks.collect::<Result<_>>()?;
        Ok(work)
    }

    fn encode(&self, block_idx: u64) -> Result<Vec<u8>> {
        let shape = self.geometry.block(block_idx);
        let raw = &self.raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        let encoding = self.coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
        let mut bytes = Vec::new();
        codec::encode_block(encoding, &self.geometry, block_idx, raw, &mut bytes)?;
        Ok(bytes)
    }

    /// The stored bytes of a block.
    pub(crate) fn block(&self, block_idx: u64) -> &[u8] {
        &self.blocks[index(block_idx % self.blocks.len() as u64)]
    }

    /// Whether `bytes` are the raw bytes from the start of the tensor on.
    pub(crate) fn starts_with(&self, bytes: &[u8]) -> bool {
        bytes.chunks(self.raw.len()).all(|chunk| chunk == &self.raw[..chunk.len()])
    }

    /// The raw bytes of the whole tensor.
    pub(crate) fn raw_bytes(&self) -> Vec<u8> {
        self.raw.repeat(index(self.geometry.raw_bytes()) / self.raw.len())
    }

    /// The raw bytes of a row.
    pub(crate) fn row(&self, row: u64) -> &[u8] {
        let row_bytes = index(self.geometry.row_bytes());
        let n_rows = self.raw.len() / row_bytes;
        &self.raw[index(row) % n_rows * row_bytes..][..row_bytes]
    }

    /// Places for the first `n_blocks` blocks in segments of at most this length, and the lengths of the segments.
    pub(crate) fn places(&self, n_blocks: u64, segment_bytes: u64) -> (Vec<Place>, Vec<u64>) {
        let mut lens = vec![0];
        let places = (0..n_blocks).map(|block_idx| {
            let len = (self.block(block_idx).len() as u64).next_multiple_of(UNIT_BYTES);
            if lens[lens.len() - 1] + len > segment_bytes {
                lens.push(0);
            }
            let segment = lens.len() - 1;
            let offset = lens[segment];
            lens[segment] += len;
            Place { segment, offset }
        });
        (places.collect(), lens)
    }

    /// The bytes of one segment.
    pub(crate) fn segment(&self, places: &[Place], segment: usize, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; index(len)];
        for (block_idx, place) in (0..).zip(places).filter(|(_, place)| place.segment == segment) {
            let block = self.block(block_idx);
            bytes[index(place.offset)..][..block.len()].copy_from_slice(block);
        }
        bytes
    }

    /// Raw bytes per stored byte, over the blocks that are different.
    #[expect(clippy::cast_precision_loss, reason = "a figure has three digits")]
    pub(crate) fn ratio(&self) -> f64 {
        let stored: usize = self.blocks.iter().map(Vec::len).sum();
        self.raw.len() as f64 / stored as f64
    }
}

/// Words of BF16 that suit the codec.
fn bytes(codec: CodecId, len: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    let mut word = || {
        let any = random.next_u64();
        match codec {
            CodecId::Raw => any,
            // One bit of the exponent, the sign and the fraction: 9 bits of 16 are kept.
            CodecId::Ibp | CodecId::IbpWindow => any & 0x80FF | 0x3F00,
            // One word in 16 differs by chance, and is one of 200.
            CodecId::Sparse if any.is_multiple_of(16) => 0x3C00 | ((any >> 32) % 200),
            CodecId::Sparse => 0,
            // Half of the exponents are the highest, a quarter the next one, and so on: as in weights.
            _ => any & !0x7F80 | (126 - u64::from((any >> 32).trailing_zeros()).min(7)) << 7,
        }
    };
    (0..len / 2).flat_map(|_| word().to_le_bytes().into_iter().take(2)).collect()
}
