//! Tensors of every codec, with metadata written from FORMAT.md: what a fit would rarely choose is here as well.

use tierpack_kernels::codec::{self, Encoding};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_kernels::{Coder, RECORD_ELEMS};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

use crate::random::Random;
use crate::target::Case;
use crate::words::{self, Own};

/// What a case is made from: the same plan makes the same case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) codec: CodecId,
    pub(crate) dtype: Dtype,
    pub(crate) access: Access,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Chooses the variant of the codec and the words.
    pub(crate) seed: u64,
}

impl Plan {
    /// `None` where the dtype has no such codec, or such rows cannot be stored.
    pub(crate) fn case(&self) -> Option<Case> {
        let Self { codec, dtype, access, rows, columns, seed } = *self;
        let geometry = Geometry::new(dtype, &[rows, columns], access, None).ok()?;
        let mut random = Random(seed);
        let (coder, raw) = if codec == CodecId::Raw || geometry.n_blocks() == 0 {
            (None, random.bytes(index(geometry.raw_bytes())))
        } else {
            let own = Own::new(codec, &geometry, &mut random)?;
            let metadata = metadata(&own, &geometry, &mut random);
            let metadata = Metadata::parse(&metadata, &geometry).expect("metadata as FORMAT.md says");
            let coder = Coder::new(&metadata, &geometry).expect("metadata of this tensor");
            (Some(coder), words::raw(&own, &geometry, &mut random))
        };
        let name = format!("{codec} {dtype} {access:?} {rows}x{columns} seed {seed}");
        Some(encode(name, &geometry, coder, &raw))
    }
}

/// A case of these raw bytes.
pub(crate) fn encode(name: String, geometry: &Geometry, coder: Option<Coder>, raw: &[u8]) -> Case {
    let block = |block_idx| {
        let shape = geometry.block(block_idx);
        let raw = &raw[index(shape.byte_offset)..][..index(shape.raw_bytes)];
        let encoding = coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
        let mut bytes = Vec::new();
        codec::encode_block(encoding, geometry, block_idx, raw, &mut bytes).expect("a block");
        bytes
    };
    let blocks = (0..geometry.n_blocks()).map(block).collect();
    Case { name, geometry: *geometry, coder, blocks, overlays: Vec::new() }
}

/// Whether some block of a case has not become `raw`.
pub(crate) fn is_coded(case: &Case) -> bool {
    case.blocks.iter().any(|block| block[6] != CodecId::Raw as u8)
}

/// Elements of full records, if there are any, and of the usual last record of a run.
fn lengths(geometry: &Geometry) -> (bool, u64) {
    let elems = |block_idx| {
        let shape = geometry.block(block_idx);
        match geometry.access() {
            Access::Rows => shape.columns,
            Access::Whole => shape.rows * shape.columns,
        }
    };
    let tail = (elems(geometry.pieces_per_row() - 1) - 1) % RECORD_ELEMS + 1;
    (elems(0) > RECORD_ELEMS || tail == RECORD_ELEMS, tail)
}

fn metadata(own: &Own, geometry: &Geometry, random: &mut Random) -> Vec<u8> {
    let (has_full, tail_elems) = lengths(geometry);
    let share = random.below(80);
    let stride = |n_elems: u64| {
        let raw_bytes = n_elems * u64::from(geometry.dtype().bits()) / 8;
        let least = own.least_bytes(n_elems).next_multiple_of(4);
        let most = (4 + raw_bytes).next_multiple_of(4);
        if own.codec == CodecId::Planes4 {
            least
        } else {
            least + (most.max(least) - least) * share / 400 * 4
        }
    };
    let mut bytes = vec![0; 48];
    bytes[..4].copy_from_slice(b"TPM1");
    bytes[13..17].copy_from_slice(&own.fields);
    for (at, value, len) in [
        (4, 1, 2),
        (6, own.codec as u64, 1),
        (7, geometry.dtype() as u64, 1),
        (8, 1 + random.below(9), 4),
        (12, geometry.access() as u64, 1),
        (20, if has_full { stride(RECORD_ELEMS) } else { 0 }, 4),
        (24, geometry.row_bytes(), 8),
        (32, stride(tail_elems), 4),
        (36, 48 + own.body.len() as u64, 4),
    ] {
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
    bytes.extend(&own.body);
    let checksum = crc32c::crc32c(&bytes);
    bytes[40..44].copy_from_slice(&checksum.to_le_bytes());
    bytes
}
