//! How the blocks of a put are encoded: chosen from a sample of the whole tensor, or from its first chunk.
//!
//! Without a sample the first chunk that comes is sampled, at many places; the others wait for the choice, which takes well under a second.
//! A tensor longer than one chunk is judged by that chunk: a refit judges it as a whole.

use tierpack_kernels::Coder;
use tierpack_kernels::codec::Encoding;
use tierpack_kernels::fit::{Choice, Fit, Sample, choose, fit};
use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::metadata::Metadata;
use tierpack_shm::types::{CodecChoice, CodecId};

/// The number of the metadata that a put makes.
const FIRST_GENERATION: u32 = 1;

/// The encoding of one put.
#[derive(Debug)]
pub(super) struct Coding {
    pub(super) codec: CodecId,
    /// The coder and its metadata's bytes; `None` for `raw`.
    coder: Option<(Coder, Vec<u8>)>,
    pub(super) predicted_bytes: u64,
    pub(super) runner_up: Option<(CodecId, u64)>,
}

impl Coding {
    /// Chooses by a sample of the tensor.
    pub(super) fn choose(
        choice: CodecChoice,
        geometry: &Geometry,
        sample: &[Sample<'_>],
    ) -> tierpack_kernels::Result<Self> {
        match choice {
            CodecChoice::Only(codec) => Self::from_fit(fit(codec, geometry, sample)?, None, geometry),
            CodecChoice::Auto(prefer) => {
                let Choice { chosen, others, .. } = choose(geometry, sample, prefer)?;
                let runner_up = others.first().map(|fit| (fit.codec, fit.predicted_stored_bytes));
                Self::from_fit(chosen, runner_up, geometry)
            }
        }
    }

    fn from_fit(
        fit: Fit,
        runner_up: Option<(CodecId, u64)>,
        geometry: &Geometry,
    ) -> tierpack_kernels::Result<Self> {
        let prepare = |metadata: Metadata| -> tierpack_kernels::Result<_> {
            let metadata = metadata.with_generation(FIRST_GENERATION);
            Ok((Coder::new(&metadata, geometry)?, metadata.to_bytes()))
        };
        Ok(Self {
            codec: fit.codec,
            coder: fit.metadata.map(prepare).transpose()?,
            predicted_bytes: fit.predicted_stored_bytes,
            runner_up,
        })
    }

    pub(super) fn encoding(&self) -> Encoding<'_> {
        self.coder.as_ref().map_or(Encoding::Raw, |(coder, _)| Encoding::Coded(coder))
    }

    /// Number and bytes of the metadata.
    pub(super) fn metadata(&self) -> Option<(u32, &[u8])> {
        self.coder.as_ref().map(|(coder, bytes)| (coder.generation(), &bytes[..]))
    }
}
