//! Which codec to use: the shortest, or the fastest of those that are nearly as short.

use tierpack_shm::types::{CodecId, Prefer};

use super::search::Search;
use super::{Fit, Sample, fit_in, percent_saved};
use crate::error::Result;
use crate::geometry::Geometry;

/// A codec that saves less than this share of the stored bytes of `raw` is not chosen.
pub const LEAST_SAVED_PERCENT: f64 = 3.0;

/// What [`Prefer::Speed`] costs at most, in percent of the raw bytes.
pub const SPEED_PERCENT: u64 = 2;

/// Tensors of at most so many raw bytes are left raw without a fit.
///
/// As `raw` they take a header of 64 bytes and at most 128; any other codec takes at least 64 for its metadata and
/// 128 for a block that has more than its header.
pub const MAX_TINY_BYTES: u64 = 128;

/// Every codec, by the speed of its decoder: the fastest first.
///
/// A fixed order, so that the same sample leads to the same choice on every machine.
const BY_DECODE_SPEED: &[CodecId] = &[
    CodecId::Raw,
    CodecId::Planes4,
    CodecId::Planes3,
    CodecId::Planes222,
    CodecId::Sparse,
    CodecId::Ibp,
    CodecId::IbpWindow,
];

/// The fits of every codec, and which of them to use.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// The codec to use.
    pub chosen: Fit,
    /// The others, by predicted bytes: the first is the runner-up.
    pub others: Vec<Fit>,
}

/// Fits every codec to the sample and chooses one.
///
/// [`Prefer::Ratio`]: the one with the fewest predicted bytes.
/// [`Prefer::Speed`]: the fastest decoder of those that take at most [`SPEED_PERCENT`] of the raw bytes more than
/// that; from the fastest to the slowest `raw`, `planes:4`, `planes:3`, `planes:2-2-2`, `sparse`, `ibp`, `ibp:window`.
/// With either, `raw` where the shortest saves under [`LEAST_SAVED_PERCENT`], and for up to [`MAX_TINY_BYTES`].
///
/// # Errors
/// Those of [`super::fit`].
pub fn choose(geometry: &Geometry, sample: &[Sample<'_>], prefer: Prefer) -> Result<Choice> {
    let search = Search::new(geometry, sample)?;
    let raw = fit_in(&search, CodecId::Raw)?;
    if geometry.raw_bytes() <= MAX_TINY_BYTES {
        return Ok(Choice { chosen: raw, others: Vec::new() });
    }
    let raw_stored = raw.predicted_stored_bytes;
    let mut fits = vec![raw];
    for &codec in CodecId::ALL.iter().filter(|&&codec| codec != CodecId::Raw) {
        let fit = fit_in(&search, codec)?;
        // Else the codec does not know the dtype.
        if fit.codec == codec {
            fits.push(fit);
        }
    }
    fits.sort_by_key(|fit| (fit.predicted_stored_bytes, slowness(fit.codec)));
    let chosen = fits.remove(chosen(&fits, raw_stored, geometry.raw_bytes(), prefer));
    Ok(Choice { chosen, others: fits })
}

/// Which of the fits, which are sorted by predicted bytes, to use.
fn chosen(fits: &[Fit], raw_stored: u64, raw_bytes: u64, prefer: Prefer) -> usize {
    let best = fits.first().map_or(raw_stored, |fit| fit.predicted_stored_bytes);
    let is_chosen: &dyn Fn(&Fit) -> bool = if percent_saved(best, raw_stored) < LEAST_SAVED_PERCENT {
        &|fit| fit.codec == CodecId::Raw
    } else {
        match prefer {
            Prefer::Ratio => return 0,
            Prefer::Speed => {
                let given_up = u128::from(raw_bytes) * u128::from(SPEED_PERCENT) / 100;
                let is_near = |fit: &&Fit| u128::from(fit.predicted_stored_bytes - best) <= given_up;
                let fastest = fits.iter().filter(is_near).min_by_key(|fit| slowness(fit.codec));
                let fastest = fastest.map_or(CodecId::Raw, |fit| fit.codec);
                &move |fit| fit.codec == fastest
            }
        }
    };
    fits.iter().position(is_chosen).unwrap_or(0)
}

/// The place of a codec in [`BY_DECODE_SPEED`].
fn slowness(codec: CodecId) -> usize {
    BY_DECODE_SPEED.iter().position(|&known| known == codec).unwrap_or(BY_DECODE_SPEED.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(stored: &[(CodecId, u64)]) -> Vec<Fit> {
        let fit = |&(codec, predicted_stored_bytes): &(CodecId, u64)| Fit {
            codec,
            metadata: None,
            predicted_stored_bytes,
            predicted_saved_percent: 0.0,
            sample_elems: 1,
        };
        stored.iter().map(fit).collect()
    }

    #[test]
    fn every_codec_has_its_place() {
        let mut known = BY_DECODE_SPEED.to_vec();
        known.sort_unstable();
        assert_eq!(known, CodecId::ALL);
    }

    #[test]
    fn speed_gives_up_two_points_and_no_byte_more() {
        let choose = |planes4, prefer| {
            let fits = fits(&[
                (CodecId::IbpWindow, 700),
                (CodecId::Ibp, 720),
                (CodecId::Planes4, planes4),
                (CodecId::Raw, 1000),
            ]);
            fits[chosen(&fits, 1000, 1000, prefer)].codec
        };
        assert_eq!(choose(720, Prefer::Speed), CodecId::Planes4);
        assert_eq!(choose(721, Prefer::Speed), CodecId::Ibp);
        assert_eq!(choose(720, Prefer::Ratio), CodecId::IbpWindow);
    }

    #[test]
    fn raw_stays_where_the_best_saves_too_little() {
        for prefer in [Prefer::Ratio, Prefer::Speed] {
            let choose = |best| {
                let fits = fits(&[(CodecId::Planes222, best), (CodecId::Planes4, 990), (CodecId::Raw, 1000)]);
                fits[chosen(&fits, 1000, 1000, prefer)].codec
            };
            assert_eq!(choose(971), CodecId::Raw);
            assert_ne!(choose(970), CodecId::Raw);
        }
    }
}
