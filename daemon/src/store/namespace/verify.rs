//! Verification: stored bytes against their checksums, decoded bytes against the hash taken at the put.
//!
//! Each block is copied out under the lock and checked outside, so that puts go on; a tensor that goes away in the
//! middle is an error, not damage.

use crc32c::crc32c;
use tierpack_kernels::Coder;
use tierpack_kernels::block::Block;
use tierpack_kernels::codec::decode_block;
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_shm::message::{Damage, Reply};
use tierpack_shm::types::index;

use super::Namespace;
use crate::error::chain;
use crate::store::Outcome;

/// Raw bytes that one request checks: it must not keep a worker long.
const BYTES_PER_TURN: u64 = 32 << 20;

/// What is needed to check one block without the lock.
struct Copied {
    geometry: Geometry,
    bytes: Vec<u8>,
    metadata: Option<Vec<u8>>,
    raw_crc: u32,
    publication: u64,
}

impl Namespace {
    /// Checks blocks from `first_block` on, until the turn is over or one is damaged.
    pub(crate) fn verify(&self, name: &str, first_block: u64) -> Outcome<Reply> {
        let n_blocks = self.open_geometry(name)?.n_blocks();
        let (mut next_block, mut raw_bytes, mut damage) = (first_block, 0, None);
        let mut coder = None;
        while next_block < n_blocks && raw_bytes < BYTES_PER_TURN && damage.is_none() {
            let copied = self.copy_block(name, next_block)?;
            match check(&copied, next_block, &mut coder) {
                Ok(len) => raw_bytes += len,
                Err(fault) => damage = Some(Damage { block_idx: next_block, fault }),
            }
            next_block += 1;
        }
        Ok(Reply::Verified { n_blocks, next_block, raw_bytes, damage })
    }

    fn open_geometry(&self, name: &str) -> Outcome<Geometry> {
        let inner = self.inner.lock();
        let tensor = inner.tensors.get(name).ok_or_else(|| self.not_found(name))?;
        Ok(tensor.content.geometry)
    }

    fn copy_block(&self, name: &str, block_idx: u64) -> Outcome<Copied> {
        let inner = self.inner.lock();
        let tensor = inner.tensors.get(name).ok_or_else(|| self.not_found(name))?;
        let block = tensor.content.blocks.get(index(block_idx)).ok_or_else(|| self.not_found(name))?;
        let bytes = inner.data.bytes(&block.extent).expect("the extent is this tensor's");
        let metadata = tensor.content.metadata.as_ref().filter(|_| !block.is_raw).map(|metadata| {
            let bytes = inner.data.bytes(&metadata.extent).expect("the extent is this tensor's");
            bytes[..index(u64::from(metadata.len))].to_vec()
        });
        Ok(Copied {
            geometry: tensor.content.geometry,
            bytes: bytes.to_vec(),
            metadata,
            raw_crc: block.raw_crc,
            publication: tensor.publication,
        })
    }
}

/// Checks one block; gives its raw bytes, or what is wrong.
fn check(copied: &Copied, block_idx: u64, coder: &mut Option<(u64, Coder)>) -> Result<u64, String> {
    let Copied { geometry, bytes, metadata, raw_crc, publication } = copied;
    let block = Block::parse(bytes).map_err(|error| chain(&error))?;
    block.verify_crc().map_err(|error| chain(&error))?;
    if let Some(metadata) = metadata
        && coder.as_ref().is_none_or(|(of, _)| of != publication)
    {
        let parsed = Metadata::parse(metadata, geometry).map_err(|error| chain(&error))?;
        *coder = Some((*publication, Coder::new(&parsed, geometry).map_err(|error| chain(&error))?));
    }
    let shape = geometry.block(block_idx);
    let mut raw = vec![0; index(shape.raw_bytes)];
    let coder = metadata.as_ref().and(coder.as_ref()).map(|(_, coder)| coder);
    decode_block(&block, coder, &mut raw).map_err(|error| chain(&error))?;
    let found = crc32c(&raw);
    if found == *raw_crc {
        return Ok(shape.raw_bytes);
    }
    Err(format!("decoded bytes have CRC32C {found:#010x}, at the put they had {raw_crc:#010x}"))
}
