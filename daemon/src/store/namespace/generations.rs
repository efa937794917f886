//! Generations of a tensor's metadata: one begins with a refit, and is taken back where the refit came to nothing.

use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::types::CodecId;

use super::{Inner, Key, Namespace};
use crate::store::Outcome;
use crate::store::content::{Leftover, StoredMetadata};

/// A generation that begins: what new blocks are encoded with.
#[derive(Debug)]
pub(crate) struct NewGeneration {
    pub(crate) codec: CodecId,
    /// `None` for `raw`.
    pub(crate) metadata: Option<StoredMetadata>,
    pub(crate) predicted_bytes: u64,
}

/// Codec, index and number of the generation that blocks are encoded with; no number where they are stored raw.
pub(crate) type Current = (CodecId, Option<(u8, u32)>);

/// State of a tensor when a refit is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) revision: u64,
    /// Metadata included.
    pub(crate) stored_bytes: u64,
    pub(crate) metadata_bytes: u64,
}

impl Namespace {
    pub(crate) fn standing(&self, key: &Key) -> Outcome<Standing> {
        let mut inner = self.inner.lock();
        self.keyed(&mut inner, key)?;
        let tensor = &inner.tensors[&key.name];
        let metadata = tensor.content.generations.live();
        Ok(Standing {
            revision: tensor.revision(&inner.directory),
            stored_bytes: tensor.content.sums.stored_bytes,
            metadata_bytes: metadata.map(|(_, metadata)| metadata.extent.len_bytes()).sum(),
        })
    }

    /// What was stored takes the place of what was promised for a tensor as it was at `revision`.
    pub(crate) fn settle(&self, key: &Key, revision: u64) -> Outcome<()> {
        let mut inner = self.inner.lock();
        self.keyed(&mut inner, key)?;
        let Inner { tensors, directory, .. } = &mut *inner;
        let tensor = tensors.get_mut(&key.name).expect("found above, under the same lock");
        let stored_bytes = tensor.content.sums.stored_bytes;
        tensor.content.predicted_bytes = stored_bytes;
        // New values have come in between: what a refit makes of them is still to be seen.
        if tensor.revision(directory) == revision {
            tensor.refit.predicted_bytes = stored_bytes;
            tensor.refit.predicted_codec = Some(tensor.content.codec);
        }
        Ok(())
    }

    /// Index and number of the generation that blocks are encoded with now.
    pub(crate) fn current_generation(&self, key: &Key) -> Outcome<Option<(u8, u32)>> {
        let mut inner = self.inner.lock();
        Ok(self.keyed(&mut inner, key)?.content.generations.current())
    }

    /// As [`Namespace::current_generation`], with its codec.
    pub(crate) fn current(&self, key: &Key) -> Outcome<Current> {
        let mut inner = self.inner.lock();
        let content = &self.keyed(&mut inner, key)?.content;
        Ok((content.codec, content.generations.current()))
    }

    /// Whether a generation is alive, by index and number; no metadata are needed for raw blocks.
    pub(crate) fn has_generation(&self, key: &Key, form: Option<(u8, u32)>) -> Outcome<bool> {
        let mut inner = self.inner.lock();
        let generations = &self.keyed(&mut inner, key)?.content.generations;
        Ok(form.is_none_or(|form| generations.has(form)))
    }

    /// The number that the next generation gets.
    pub(crate) fn next_generation(&self, key: &Key) -> Outcome<u32> {
        let mut inner = self.inner.lock();
        let next = self.keyed(&mut inner, key)?.content.generations.next_number();
        next.ok_or_else(|| {
            let text = format!("tensor {:?} has had all 2^32 - 1 generations: put it again", key.name);
            Refusal::new(ErrorCode::Limit, text)
        })
    }

    /// Begins a generation; the caller holds the tensor's `writing` lock.
    ///
    /// # Errors
    /// Nothing is changed then, and the metadata's extent is free again.
    pub(crate) fn begin_generation(&self, key: &Key, new: NewGeneration) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let NewGeneration { codec, metadata, predicted_bytes } = new;
        let free_idx = self.keyed(&mut inner, key).and_then(|tensor| match &metadata {
            None => Ok(0),
            Some(_) => tensor.content.generations.free_index().ok_or_else(|| {
                let text = format!(
                    "all 16 generations of tensor {:?} are in use: readers hold leases on old ones",
                    key.name
                );
                Refusal::new(ErrorCode::Limit, text)
            }),
        });
        let generation_idx = match free_idx {
            Ok(generation_idx) => generation_idx,
            Err(refusal) => {
                metadata.into_iter().for_each(|metadata| inner.data.free(metadata.extent));
                return Err(refusal);
            }
        };
        let Inner { tensors, directory, stored_bytes, .. } = &mut *inner;
        let tensor = tensors.get_mut(&key.name).expect("found above, under the same lock");
        let mut leftover = Leftover::default();
        let before = tensor.content.sums.stored_bytes;
        // Before the entry can be found.
        let published = directory.epoch();
        let entered = metadata.map(|metadata| {
            let StoredMetadata { number, len, extent, .. } = &metadata;
            let set = directory.set_generation(&tensor.generations, generation_idx, (*number, *len), extent);
            set.expect("the table is this tensor's");
            (generation_idx, metadata.entered(published))
        });
        tensor.content.begin_generation(codec, entered, &mut leftover);
        tensor.content.predicted_bytes = predicted_bytes;
        tensor.content.runner_up = None;
        *stored_bytes = *stored_bytes - before + tensor.content.sums.stored_bytes;
        inner.retire_leftover(key, leftover)
    }

    /// Makes an earlier generation the current one again, unless it has ended; the caller holds the tensor's `writing`
    /// lock.
    pub(crate) fn return_to_generation(&self, key: &Key, before: Current) -> Outcome<()> {
        let mut inner = self.inner.lock();
        self.keyed(&mut inner, key)?;
        let Inner { tensors, stored_bytes, .. } = &mut *inner;
        let tensor = tensors.get_mut(&key.name).expect("found above, under the same lock");
        let mut leftover = Leftover::default();
        let bytes_before = tensor.content.sums.stored_bytes;
        tensor.content.return_to_generation(before, &mut leftover);
        *stored_bytes = *stored_bytes - bytes_before + tensor.content.sums.stored_bytes;
        inner.retire_leftover(key, leftover)
    }
}
