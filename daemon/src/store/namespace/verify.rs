//! Verification: stored bytes against their checksums, decoded bytes against the hash taken when they were stored.
//!
//! Each block is copied out under the lock and checked outside, so that puts go on; a tensor that goes away in the
//! middle is an error, not damage.

use crc32c::crc32c;
use tierpack_kernels::block::Block;
use tierpack_shm::message::{Damage, Reply};
use tierpack_shm::overlay::Overlay;

use super::{BlockCopy, Namespace, Target};
use crate::error::chain;
use crate::store::Outcome;
use crate::store::decoding::{Coders, Decoded};

/// Raw bytes that one request checks: it must not keep a worker long.
const BYTES_PER_TURN: u64 = 2 << 20;

impl Namespace {
    /// Checks blocks from `first_block` on, until the turn is over or one is damaged.
    pub(crate) fn verify(&self, name: &str, first_block: u64) -> Outcome<Reply> {
        let target = self.target(name, None)?;
        let n_blocks = target.geometry.n_blocks();
        let (mut next_block, mut raw_bytes, mut damage) = (first_block, 0, None);
        let (mut coders, mut raw) = (Coders::default(), Vec::new());
        while next_block < n_blocks && raw_bytes < BYTES_PER_TURN && damage.is_none() {
            match self.verify_block(&target, next_block, &mut coders, &mut raw)? {
                Ok(len) => raw_bytes += len,
                Err(fault) => damage = Some(Damage { block_idx: next_block, fault }),
            }
            next_block += 1;
        }
        Ok(Reply::Verified { n_blocks, next_block, raw_bytes, damage })
    }

    /// Checks one block; returns its raw bytes, or what is wrong.
    fn verify_block(
        &self,
        target: &Target,
        block_idx: u64,
        coders: &mut Coders,
        raw: &mut Vec<u8>,
    ) -> Outcome<Result<u64, String>> {
        loop {
            let copied = self.copy_block(&target.key, block_idx)?;
            if let Err(fault) = check_sums(&copied) {
                return Ok(Err(fault));
            }
            match self.decode_base(target, block_idx, &copied, coders, raw)? {
                Decoded::Damaged(fault) => return Ok(Err(fault)),
                // Its generation went away between the two looks: another word is there by now.
                Decoded::Gone => continue,
                Decoded::Whole => {}
            }
            let (found, needed) = (crc32c(raw), copied.raw_crc);
            if found != needed {
                let fault =
                    format!("decoded bytes have CRC32C {found:#010x}, when stored they had {needed:#010x}");
                return Ok(Err(fault));
            }
            return Ok(Ok(raw.len() as u64));
        }
    }
}

/// Checks the checksums of a block and of its overlays.
fn check_sums(copied: &BlockCopy) -> Result<(), String> {
    let block = Block::parse(&copied.bytes).map_err(|error| chain(&error))?;
    block.verify_crc().map_err(|error| chain(&error))?;
    copied.overlays.iter().try_for_each(|bytes| {
        let checked = Overlay::parse(bytes).and_then(|overlay| overlay.verify());
        checked.map_err(|fault| fault.to_string())
    })
}
