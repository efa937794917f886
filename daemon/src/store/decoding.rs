//! Blocks decoded by the daemon itself: to verify them, to put overlays into them, to encode them again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tierpack_kernels::Coder;
use tierpack_kernels::block::Block;
use tierpack_kernels::codec::decode_block;
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::overlay::Overlay;
use tierpack_shm::types::index;

use super::Outcome;
use super::namespace::{BlockCopy, Key, Namespace, Target};
use crate::error::chain;

/// Coders of one publication of a tensor, by the numbers of their generations.
#[derive(Debug, Default)]
pub(crate) struct Coders {
    coders: BTreeMap<u32, Coder>,
    /// Whose they are.
    of: Option<(u32, Key)>,
}

/// What came of decoding a block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// All of it.
    Whole,
    /// Its generation is gone, so its word is another one by now: copy it again.
    Gone,
    /// The stored bytes are damaged.
    Damaged(String),
}

impl Coders {
    /// Forgets the coders of another publication than this one.
    fn keep_only(&mut self, namespace: &Namespace, key: &Key) {
        let is_of = |(number, of): &(u32, Key)| *number == namespace.id.namespace && of == key;
        if !self.of.as_ref().is_some_and(is_of) {
            self.coders.clear();
            self.of = Some((namespace.id.namespace, key.clone()));
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Coder> {
        self.coders.get(&number)
    }

    fn parse(bytes: &[u8], geometry: &Geometry) -> Result<Coder, String> {
        let metadata = Metadata::parse(bytes, geometry).map_err(|error| chain(&error))?;
        Coder::new(&metadata, geometry).map_err(|error| chain(&error))
    }
}

impl Namespace {
    /// Makes sure that `coders` has the coder of a generation; says whether that is still alive.
    pub(crate) fn load_coder(
        &self,
        target: &Target,
        number: u32,
        coders: &mut Coders,
    ) -> Outcome<Result<bool, String>> {
        coders.keep_only(self, &target.key);
        let Entry::Vacant(vacant) = coders.coders.entry(number) else { return Ok(Ok(true)) };
        let Some(bytes) = self.copy_metadata(&target.key, number)? else { return Ok(Ok(false)) };
        Ok(Coders::parse(&bytes, &target.geometry).map(|coder| {
            vacant.insert(coder);
            true
        }))
    }

    /// Decodes a copied block, its overlays aside, in place of what `raw` holds.
    pub(crate) fn decode_base(
        &self,
        target: &Target,
        block_idx: u64,
        copied: &BlockCopy,
        coders: &mut Coders,
        raw: &mut Vec<u8>,
    ) -> Outcome<Decoded> {
        if let Some(number) = copied.generation {
            match self.load_coder(target, number, coders)? {
                Ok(true) => {}
                Ok(false) => return Ok(Decoded::Gone),
                Err(fault) => return Ok(Decoded::Damaged(fault)),
            }
        }
        raw.resize(index(target.geometry.block(block_idx).raw_bytes), 0);
        let coder = copied.generation.and_then(|number| coders.get(number));
        let decoded = Block::parse(&copied.bytes).and_then(|block| decode_block(&block, coder, raw));
        Ok(decoded.map_or_else(|error| Decoded::Damaged(chain(&error)), |()| Decoded::Whole))
    }

    /// The raw bytes of a block as readers see them now, in place of what `raw` holds; returns their copy.
    pub(crate) fn read_block(
        &self,
        target: &Target,
        block_idx: u64,
        coders: &mut Coders,
        raw: &mut Vec<u8>,
    ) -> Outcome<BlockCopy> {
        loop {
            let copied = self.copy_block(&target.key, block_idx)?;
            match self.decode_base(target, block_idx, &copied, coders, raw)? {
                Decoded::Gone => continue,
                Decoded::Damaged(fault) => return Err(self.damaged(target, block_idx, &fault)),
                Decoded::Whole => {}
            }
            let mut overlays = copied.overlays.iter();
            let applied = overlays.try_for_each(|bytes| Overlay::parse(bytes)?.apply(raw));
            return match applied {
                Ok(()) => Ok(copied),
                Err(fault) => Err(self.damaged(target, block_idx, &fault.to_string())),
            };
        }
    }

    pub(crate) fn damaged(&self, target: &Target, block_idx: u64, fault: &str) -> Refusal {
        let (namespace, name) = (&self.name, &target.key.name);
        let text = format!("block {block_idx} of tensor {name:?} in namespace {namespace:?}: {fault}");
        tracing::error!(namespace, tensor = name, block = block_idx, fault, "a stored block is damaged");
        Refusal::new(ErrorCode::Internal, text)
    }
}
