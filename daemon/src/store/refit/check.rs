//! A plan tried on whole blocks: what they take now, and what they would take.

use tierpack_kernels::Coder;
use tierpack_kernels::codec::{Encoding, encode_block};
use tierpack_kernels::fit::{Fit, some_blocks};
use tierpack_kernels::metadata::Metadata;
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::types::UNIT_BYTES;

use crate::store::Outcome;
use crate::store::decoding::Coders;
use crate::store::namespace::{Namespace, Standing, Target};
use crate::store::update::Longer;

/// Blocks that a plan is tried on, at most: at 256 KiB each, as many bytes as the sample has.
const CHECKED_BLOCKS: u64 = 16;

/// What some blocks of a tensor take now, and would take by a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) blocks: Vec<u64>,
    /// Overlays included.
    old_bytes: u64,
    new_bytes: u64,
    /// What those save that become shorter.
    pub(super) saved_bytes: u64,
}

/// What a fit says of the tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fitted {
    metadata_bytes: u64,
    /// Metadata included.
    predicted_bytes: u64,
}

impl From<&Fit> for Fitted {
    fn from(fit: &Fit) -> Self {
        let metadata_bytes = fit.metadata.as_ref().map_or(0, Metadata::len_bytes);
        Self {
            metadata_bytes: metadata_bytes.next_multiple_of(UNIT_BYTES),
            predicted_bytes: fit.predicted_stored_bytes,
        }
    }
}

/// Encodes some blocks of a tensor as they are now by a fit, and stores nothing.
pub(super) fn check(
    namespace: &Namespace,
    target: &Target,
    fit: &Fit,
    seed: u64,
    coders: &mut Coders,
) -> Outcome<Checked> {
    let (key, geometry) = (&target.key, &target.geometry);
    let failed = |error: tierpack_kernels::Error| {
        Refusal::new(ErrorCode::Internal, format!("no fit for tensor {:?}: {error}", key.name))
    };
    let coder = fit.metadata.as_ref().map(|metadata| Coder::new(metadata, geometry));
    let coder = coder.transpose().map_err(failed)?;
    let encoding = coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
    let (mut raw, mut encoded) = (Vec::new(), Vec::new());
    let mut checked = Checked::default();
    for block_idx in some_blocks(geometry.n_blocks(), CHECKED_BLOCKS, seed) {
        let copied = namespace.read_block(target, block_idx, coders, &mut raw)?;
        encode_block(encoding, geometry, block_idx, &raw, &mut encoded).map_err(failed)?;
        let new_bytes = (encoded.len() as u64).next_multiple_of(UNIT_BYTES);
        checked.add(block_idx, copied.stored_bytes(), new_bytes);
    }
    Ok(checked)
}

impl Checked {
    fn add(&mut self, block_idx: u64, old_bytes: u64, new_bytes: u64) {
        self.blocks.push(block_idx);
        self.old_bytes += old_bytes;
        self.new_bytes += new_bytes;
        self.saved_bytes += old_bytes.saturating_sub(new_bytes);
    }

    /// What blocks that become longer gain.
    fn grown_bytes(&self) -> u64 {
        (self.new_bytes + self.saved_bytes).saturating_sub(self.old_bytes)
    }

    /// Stored bytes of the tensor after a refit, and what is to become of blocks that grow.
    ///
    /// Where not all blocks were tried, what the others come to is scaled by what they take now, and never less than
    /// the sample of the fit says.
    pub(super) fn promise(&self, n_blocks: u64, standing: &Standing, fitted: Fitted) -> (u64, Longer) {
        let Fitted { metadata_bytes, predicted_bytes } = fitted;
        let is_whole = self.blocks.len() as u64 == n_blocks;
        let blocks_bytes = standing.stored_bytes.saturating_sub(standing.metadata_bytes);
        let scaled = |bytes: u64| if is_whole { bytes } else { scaled(bytes, blocks_bytes, self.old_bytes) };
        let (saved, grown) = (scaled(self.saved_bytes), scaled(self.grown_bytes()));
        // With every block in the new form, the old metadata go; with some in the old form, they stay.
        let shortest = blocks_bytes.saturating_sub(saved).saturating_add(metadata_bytes);
        let (all, some) = (shortest.saturating_add(grown), shortest.saturating_add(standing.metadata_bytes));
        match (is_whole, grown) {
            (true, _) if all <= some => (all, Longer::Stored),
            (true, _) => (some, Longer::Dropped),
            (false, 0) => (all.max(predicted_bytes), Longer::Dropped),
            (false, _) => (some.max(predicted_bytes.saturating_sub(grown)), Longer::Dropped),
        }
    }
}

/// `value * numerator / denominator`, as large as fits.
fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(blocks: &[(u64, u64)]) -> Checked {
        let mut checked = Checked::default();
        blocks.iter().zip(0..).for_each(|(&(old, new), block_idx)| checked.add(block_idx, old, new));
        checked
    }

    fn standing(blocks_bytes: u64, metadata_bytes: u64) -> Standing {
        Standing { revision: 0, stored_bytes: blocks_bytes + metadata_bytes, metadata_bytes }
    }

    #[test]
    fn of_a_tensor_that_was_tried_as_a_whole_the_shorter_form_is_promised() {
        let fitted = Fitted { metadata_bytes: 100, predicted_bytes: 0 };
        let blocks = [(1000, 600), (1000, 1050)];
        // With all blocks in the new form, the old metadata go: that is worth a block that grows, or it is not.
        let promise = |old_metadata| checked(&blocks).promise(2, &standing(2000, old_metadata), fitted);
        assert_eq!(promise(50), (1750, Longer::Stored));
        assert_eq!(promise(49), (1749, Longer::Dropped));
        assert_eq!(checked(&[(1000, 1100)]).promise(1, &standing(1000, 64), fitted), (1164, Longer::Dropped));
    }

    #[test]
    fn no_more_is_promised_than_whole_blocks_and_the_sample_bear_out() {
        let fitted = |predicted_bytes| Fitted { metadata_bytes: 100, predicted_bytes };
        let standing = standing(100_000, 200);
        let promise = |blocks: &[_], predicted| checked(blocks).promise(100, &standing, fitted(predicted));
        // The sample met zeros alone; the blocks grow, shrink, or some of both.
        assert_eq!(promise(&[(1000, 1400), (1000, 1400)], 500), (100_300, Longer::Dropped));
        assert_eq!(promise(&[(1000, 700), (1000, 800)], 500), (75_100, Longer::Dropped));
        assert_eq!(promise(&[(1000, 700), (1000, 1300)], 500), (85_300, Longer::Dropped));
        // The sample says less than the blocks.
        assert_eq!(promise(&[(1000, 700), (1000, 800)], 90_000), (90_000, Longer::Dropped));
    }
}
