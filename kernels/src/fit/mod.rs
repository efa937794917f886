//! Metadata and codec from a sample of a tensor, by measured stored bytes.
//!
//! [`fit`] sweeps what FORMAT.md leaves open for one codec: threshold, chunk, one mask or one per column, and
//! for `ibp:window` the bases.
//! Every candidate is measured, not estimated: heads, padding, overflow, headers, extent rounding and the
//! metadata themselves all count.
//! [`choose`] fits every codec and keeps the one with the fewest bytes, or one that decodes faster and is nearly as
//! short.
//! Where the sample is only a part of the tensor, one half of its pieces sets the metadata and the other half
//! measures them, so that masks and bases of few rows do not praise themselves.

mod bases;
mod choice;
mod count;
mod ibp;
mod measure;
mod pieces;
mod planes;
mod search;
mod sparse;

use tierpack_shm::types::CodecId;

use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::metadata::Metadata;
use crate::window::Window;

pub use choice::{Choice, LEAST_SAVED_PERCENT, MAX_TINY_BYTES, SPEED_PERCENT, choose};
pub use pieces::{Piece, SAMPLE_BYTES, pieces, seed, some_blocks};

use search::Search;

/// One piece of the sample: where it lies, and its raw bytes.
pub type Sample<'a> = (Piece, &'a [u8]);

/// Metadata for one codec, and what they are predicted to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fit {
    /// The codec.
    pub codec: CodecId,
    /// The metadata, as generation 1; `None` for `raw`.
    pub metadata: Option<Metadata>,
    /// Stored bytes of the whole tensor: blocks and metadata, all overheads included.
    pub predicted_stored_bytes: u64,
    /// 100 x (1 - stored / raw bytes); negative where the overheads outweigh the savings.
    pub predicted_saved_percent: f64,
    /// Elements of the sample.
    pub sample_elems: u64,
}

/// Fits the metadata of one codec to a sample.
///
/// `sample` holds pieces of the tensor, best those of [`pieces()`], each once, with its raw bytes.
/// The metadata are those of `codec`, even where `raw` would take fewer bytes: see [`choose`].
/// For a dtype that the codec does not know, such as integers for `planes`, the fit is that of `raw`; so is that of
/// `sparse` where no word is common.
///
/// # Errors
/// [`Error::NoSample`] without pieces; [`Error::NoSuchBlock`], [`Error::PieceElsewhere`] and [`Error::RawLength`] where
/// a piece does not belong to the tensor; [`Error::UnknownCodec`] for a codec that has no fit.
pub fn fit(codec: CodecId, geometry: &Geometry, sample: &[Sample<'_>]) -> Result<Fit> {
    fit_in(&Search::new(geometry, sample)?, codec)
}

/// As [`fit`], with a sample that several codecs share.
fn fit_in(search: &Search<'_>, codec: CodecId) -> Result<Fit> {
    let geometry = search.geometry();
    let raw = || (None, search.raw_stored());
    let (metadata, stored_bytes) = match codec {
        CodecId::Raw => raw(),
        CodecId::Ibp => search.best(codec, &[Window::identity()])?,
        CodecId::IbpWindow => search.best(codec, &search.windows())?,
        CodecId::Planes4 | CodecId::Planes3 | CodecId::Planes222 => {
            search.planes(codec).map_or_else(raw, |(metadata, stored_bytes)| (Some(metadata), stored_bytes))
        }
        CodecId::Sparse => {
            search.sparse().map_or_else(raw, |(metadata, stored_bytes)| (Some(metadata), stored_bytes))
        }
        other => return Err(Error::UnknownCodec { number: other as u8 }),
    };
    Ok(Fit {
        codec: if metadata.is_some() { codec } else { CodecId::Raw },
        metadata,
        predicted_stored_bytes: stored_bytes,
        predicted_saved_percent: percent_saved(stored_bytes, geometry.raw_bytes()),
        sample_elems: search.sample_elems(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn percent_saved(stored: u64, raw: u64) -> f64 {
    if raw == 0 { 0.0 } else { 100.0 * (1.0 - stored as f64 / raw as f64) }
}
