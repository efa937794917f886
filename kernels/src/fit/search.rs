//! The sweep over windows, chunks, masks and thresholds.

use core::cell::OnceCell;

use tierpack_shm::types::{CodecId, UNIT_BYTES};

use super::count::{Bits, Counts};
use super::ibp::record_lens;
use super::measure::{Measured, measure};
use super::planes::{self, Statistics};
use super::sparse;
use super::{Sample, bases};
use crate::block::HEADER_BYTES;
use crate::error::{Error, Result};
use crate::geometry::{BlockShape, Geometry};
use crate::metadata::{Form, Granularity, Ibp, MAX_COLUMNS_ROW_BYTES, Metadata, masks_may_be_per_column};
use crate::planes::{Parts, Schedule};
use crate::window::{Bases, Window};

/// Thresholds of the sweep, in percent: a bit is invariant where so many words agree.
const THRESHOLDS: [u64; 7] = [70, 75, 80, 85, 90, 95, 100];

/// Chunks of the sweep, in bytes.
const CHUNKS: [u8; 3] = [2, 4, 8];

/// A piece of the sample, transformed or not.
pub(super) struct Words {
    /// As if it were a block.
    pub(super) shape: BlockShape,
    pub(super) bytes: Vec<u8>,
}

/// The sample in two parts: one that sets metadata and one that measures them.
pub(super) struct Search<'a> {
    geometry: &'a Geometry,
    setting: Vec<Words>,
    /// `None`: the sample is the tensor, and measures itself.
    measuring: Option<Vec<Words>>,
    /// What all codecs `planes` go by, once one has asked.
    statistics: OnceCell<Statistics>,
}

/// A candidate that has been measured.
pub(super) struct Candidate {
    metadata: Metadata,
    stored_bytes: u64,
}

/// What one sweep over thresholds keeps fixed.
struct Sweep<'a> {
    codec: CodecId,
    geometry: &'a Geometry,
    window: &'a Window,
    measuring: &'a [Words],
}

/// The pieces of a sample, of which there is at least one.
fn words_of(geometry: &Geometry, sample: &[Sample<'_>]) -> Result<Vec<Words>> {
    let mut words = Vec::new();
    for (piece, raw) in sample {
        let (block_idx, n_blocks) = (piece.block_idx(), geometry.n_blocks());
        if block_idx >= n_blocks {
            return Err(Error::NoSuchBlock { block_idx, n_blocks });
        }
        if !piece.is_in(&geometry.block(block_idx)) {
            return Err(Error::PieceElsewhere { block_idx });
        }
        let (shape, got) = (piece.shape(), raw.len() as u64);
        if got != shape.raw_bytes {
            return Err(Error::RawLength { block_idx, needed: shape.raw_bytes, got });
        }
        words.push(Words { shape, bytes: raw.to_vec() });
    }
    if words.is_empty() {
        return Err(Error::NoSample);
    }
    Ok(words)
}

impl<'a> Search<'a> {
    pub(super) fn new(geometry: &'a Geometry, sample: &[Sample<'_>]) -> Result<Self> {
        let words = words_of(geometry, sample)?;
        if raw_bytes(&words) == geometry.raw_bytes() || words.len() == 1 {
            return Ok(Self { geometry, setting: words, measuring: None, statistics: OnceCell::new() });
        }
        let mut odd = false;
        let (setting, measuring) = words.into_iter().partition(|_| {
            odd = !odd;
            odd
        });
        Ok(Self { geometry, setting, measuring: Some(measuring), statistics: OnceCell::new() })
    }

    /// The tensor.
    pub(super) const fn geometry(&self) -> &'a Geometry {
        self.geometry
    }

    /// Elements of the sample.
    pub(super) fn sample_elems(&self) -> u64 {
        let pieces = self.setting.iter().chain(self.measuring.iter().flatten());
        pieces.map(|piece| piece.shape.rows * piece.shape.columns).sum()
    }

    /// The windows that `ibp:window` tries.
    pub(super) fn windows(&self) -> Vec<Window> {
        bases::candidates(&self.setting, self.geometry)
    }

    /// Stored bytes of the tensor as `raw`.
    pub(super) fn raw_stored(&self) -> u64 {
        let stored = |block_idx| stored_raw(&self.geometry.block(block_idx));
        let (n_blocks, pieces) = (self.geometry.n_blocks(), self.geometry.pieces_per_row());
        // Blocks that may be shorter than the first: the last piece of every row, or the last rows.
        let short = if pieces > 1 { n_blocks / pieces } else { 1 };
        let full = stored(0).saturating_mul(n_blocks - short);
        full.saturating_add(stored(n_blocks - 1).saturating_mul(short))
    }

    /// The metadata of a `planes` codec with the fewest stored bytes, and these; `None` for a dtype that the codec does
    /// not shorten.
    pub(super) fn planes(&self, codec: CodecId) -> Option<(Metadata, u64)> {
        let schedule = Schedule::of(codec)?;
        let parts = Parts::under(self.geometry.dtype(), schedule)?;
        let measuring = self.measuring.as_deref().unwrap_or(&self.setting);
        let statistics = self.statistics.get_or_init(|| Statistics::of(parts, &self.setting, self.geometry));
        let best = statistics
            .candidates(schedule, parts)
            .into_iter()
            .map(|form| {
                let measured = planes::measure(&form, measuring, self.geometry);
                Candidate::new(codec, self.geometry, Form::Planes(form), &measured, measuring)
            })
            .min_by_key(|candidate| candidate.stored_bytes)?;
        Some((best.metadata, best.stored_bytes))
    }

    /// The metadata of `sparse` with the fewest stored bytes, and these; `None` where no word is common.
    pub(super) fn sparse(&self) -> Option<(Metadata, u64)> {
        let measuring = self.measuring.as_deref().unwrap_or(&self.setting);
        let best = sparse::candidates(&self.setting, self.geometry)
            .into_iter()
            .map(|form| {
                let measured = sparse::measure(&form, measuring, self.geometry);
                Candidate::new(CodecId::Sparse, self.geometry, Form::Sparse(form), &measured, measuring)
            })
            .min_by_key(|candidate| candidate.stored_bytes)?;
        Some((best.metadata, best.stored_bytes))
    }

    /// The metadata with the fewest stored bytes, and these; of equal ones the first, which is the plainest.
    pub(super) fn best(&self, codec: CodecId, windows: &[Window]) -> Result<(Option<Metadata>, u64)> {
        let mut best: Option<Candidate> = None;
        for window in windows {
            let setting = transformed(&self.setting, window);
            let measuring = self.measuring.as_deref().map(|words| transformed(words, window));
            let measuring = measuring.as_deref().unwrap_or(&setting);
            let sweep = Sweep { codec, geometry: self.geometry, window, measuring };
            sweep.every_mask(&setting, &mut best);
        }
        let Candidate { metadata, stored_bytes } = best.ok_or(Error::NoSample)?;
        Ok((Some(metadata), stored_bytes))
    }
}

/// Raw bytes of a sample.
fn raw_bytes(words: &[Words]) -> u64 {
    words.iter().map(|piece| piece.shape.raw_bytes).sum()
}

fn stored_raw(shape: &BlockShape) -> u64 {
    (HEADER_BYTES + shape.raw_bytes).next_multiple_of(UNIT_BYTES)
}

fn transformed(words: &[Words], window: &Window) -> Vec<Words> {
    let forward = |Words { shape, bytes }: &Words| {
        let mut bytes = bytes.clone();
        window.forward(0, &mut bytes);
        Words { shape: *shape, bytes }
    };
    words.iter().map(forward).collect()
}

impl Sweep<'_> {
    /// Measures every threshold, chunk and granularity of masks.
    fn every_mask(&self, setting: &[Words], best: &mut Option<Candidate>) {
        let geometry = self.geometry;
        let by_group = Counts::by_group(setting, geometry);
        let columns = geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES && geometry.n_rows() > 1;
        let by_column = columns.then(|| Counts::by_column(setting, geometry));
        for chunk_bytes in CHUNKS {
            let counts = by_group.folded(usize::from(chunk_bytes));
            self.every_threshold(Granularity::Tensor, chunk_bytes, &counts, best);
            if let Some(counts) = &by_column
                && masks_may_be_per_column(geometry, u64::from(chunk_bytes))
            {
                self.every_threshold(Granularity::Column, chunk_bytes, counts, best);
            }
        }
    }

    fn every_threshold(
        &self,
        masks: Granularity,
        chunk_bytes: u8,
        counts: &Counts,
        best: &mut Option<Candidate>,
    ) {
        let mut last: Option<Bits> = None;
        for percent in THRESHOLDS {
            let bits = counts.invariant(percent);
            if last.as_ref() == Some(&bits) {
                continue;
            }
            let candidate = self.candidate(masks, chunk_bytes, &bits);
            if best.as_ref().is_none_or(|best| candidate.stored_bytes < best.stored_bytes) {
                *best = Some(candidate);
            }
            last = Some(bits);
        }
    }

    /// Measures one candidate and scales its bytes to the tensor.
    fn candidate(&self, masks: Granularity, chunk_bytes: u8, bits: &Bits) -> Candidate {
        let lens = record_lens(self.measuring, self.geometry, masks, chunk_bytes, bits);
        let word_bytes = self.window.word_bytes;
        let (base, bases) = match &self.window.bases {
            Bases::Zero => (None, Box::default()),
            Bases::One(base) => (Some(Granularity::Tensor), base.to_le_bytes()[..word_bytes].into()),
            Bases::Columns(bases) => (Some(Granularity::Column), bases.clone()),
        };
        let form = Form::Ibp(Ibp {
            chunk_bytes,
            masks,
            base,
            rotate: self.window.rotate,
            mask: bits.mask.clone().into(),
            bitval: bits.bitval.clone().into(),
            bases,
        });
        let measured =
            measure(self.measuring, self.geometry, &form.stride_rules(self.geometry.dtype()), &lens);
        Candidate::new(self.codec, self.geometry, form, &measured, self.measuring)
    }
}

impl Candidate {
    /// Scales what a sample takes to the tensor.
    ///
    /// Records are scaled by raw bytes; headers are not: each block has one, however many pieces of it there are.
    pub(super) fn new(
        codec: CodecId,
        geometry: &Geometry,
        form: Form,
        measured: &Measured,
        measuring: &[Words],
    ) -> Self {
        let stride = |stride| u32::try_from(stride).expect("a stride is at most 8 KiB and a head");
        let metadata = Metadata {
            codec,
            dtype: geometry.dtype(),
            access: geometry.access(),
            generation: 1,
            row_bytes: geometry.row_bytes(),
            record_stride: stride(measured.record_stride),
            tail_stride: stride(measured.tail_stride),
            form,
        };
        let sample_bytes = raw_bytes(measuring);
        let blocks = if sample_bytes == geometry.raw_bytes() {
            measured.stored_bytes
        } else {
            // What rounding adds is half a unit on average.
            let beside = geometry.n_blocks().saturating_mul(HEADER_BYTES + UNIT_BYTES / 2);
            scaled(measured.body_bytes, geometry.raw_bytes(), sample_bytes).saturating_add(beside)
        };
        let stored_bytes = blocks.saturating_add(metadata.len_bytes().next_multiple_of(UNIT_BYTES));
        Self { metadata, stored_bytes }
    }
}

/// `value * numerator / denominator`, as large as fits.
fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
