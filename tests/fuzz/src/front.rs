//! Where the records of a block stand: written from FORMAT.md, section "Records".

use tierpack_kernels::RECORD_ELEMS;
use tierpack_kernels::geometry::{BlockShape, Geometry};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

use crate::planes::Planes;

/// Runs of a block, and elements of each.
pub(crate) fn runs_of(geometry: &Geometry, shape: &BlockShape) -> (u64, u64) {
    match geometry.access() {
        Access::Rows => (shape.rows, shape.columns),
        Access::Whole => (1, shape.rows * shape.columns),
    }
}

/// Elements of the last record of a run.
const fn tail_of(run_elems: u64) -> u64 {
    (run_elems - 1) % RECORD_ELEMS + 1
}

/// What the strides of a codec's records may be.
pub(crate) struct StrideRules {
    dtype: Dtype,
    chunk_bytes: u64,
    pub(crate) planes: Option<Planes>,
}

impl StrideRules {
    /// Those of bytes 13 to 16 of metadata.
    pub(crate) fn of(codec: CodecId, dtype: Dtype, fields: [u8; 4]) -> Self {
        let planes = Planes::new(codec, dtype, [fields[0], fields[1]]);
        Self { dtype, chunk_bytes: u64::from(fields[0]), planes }
    }

    /// Those of metadata.
    pub(crate) fn of_metadata(geometry: &Geometry, metadata: &[u8]) -> Option<Self> {
        let fields = metadata.get(13..)?.first_chunk()?;
        Some(Self::of(CodecId::from_number(metadata[6])?, geometry.dtype(), *fields))
    }

    /// The least and the most for a record of these many elements.
    fn range(&self, n_elems: u64) -> (u64, u64) {
        let raw_bytes = n_elems * u64::from(self.dtype.bits()) / 8;
        let most = (4 + raw_bytes).next_multiple_of(4);
        match &self.planes {
            None => (4 + raw_bytes.div_ceil(self.chunk_bytes).div_ceil(8), most),
            Some(planes) if planes.has_heads() => (4 + planes.fixed_bytes(n_elems), most),
            Some(planes) => {
                let only = planes.fixed_bytes(n_elems).next_multiple_of(4);
                (only, only)
            }
        }
    }

    fn clamped(&self, stride: u64, n_elems: u64) -> u64 {
        let (least, most) = self.range(n_elems);
        stride.clamp(least.next_multiple_of(4), most)
    }

    /// A stride near `wanted` that a record of these many elements may have.
    pub(crate) fn near(&self, wanted: u16, n_elems: u64) -> u64 {
        self.clamped(u64::from(wanted) & !3, n_elems)
    }

    /// The stride of a record that is neither full nor as long as the one that metadata speak of.
    fn share_of(&self, full_stride: u64, n_elems: u64) -> u64 {
        let share = (full_stride.saturating_sub(4) * n_elems).div_ceil(RECORD_ELEMS);
        self.clamped((4 + share).next_multiple_of(4), n_elems)
    }
}

/// Elements of the last record of the last block that holds a part of row 0.
pub(crate) fn tail_elems(geometry: &Geometry) -> u64 {
    tail_of(runs_of(geometry, &geometry.block(geometry.pieces_per_row() - 1)).1)
}

/// Where the records of a block stand.
pub(crate) struct Front {
    pub(crate) runs: u64,
    /// Records of a run.
    pub(crate) per_run: u64,
    pub(crate) record_stride: u64,
    pub(crate) tail_stride: u64,
    tail_elems: u64,
}

impl Front {
    /// That of a block of a tensor under these metadata.
    pub(crate) fn of(geometry: &Geometry, metadata: &[u8], block_idx: u64) -> Option<Self> {
        let field = |at: usize| Some(u64::from(u32::from_le_bytes(*metadata.get(at..)?.first_chunk()?)));
        let (full_stride, tail_stride) = (field(20)?, field(32)?);
        let (runs, run_elems) = runs_of(geometry, &geometry.block(block_idx));
        let per_run = run_elems.div_ceil(RECORD_ELEMS);
        let n_elems = tail_of(run_elems);
        let tail_stride = match n_elems {
            n_elems if n_elems == tail_elems(geometry) => tail_stride,
            RECORD_ELEMS => full_stride,
            n_elems => StrideRules::of_metadata(geometry, metadata)?.share_of(full_stride, n_elems),
        };
        let record_stride = if per_run > 1 { full_stride } else { 0 };
        Some(Self { runs, per_run, record_stride, tail_stride, tail_elems: n_elems })
    }

    fn run_stride(&self) -> u64 {
        (self.per_run - 1) * self.record_stride + self.tail_stride
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.runs * self.run_stride()
    }

    /// Where each record starts, and how many elements it has.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, u64)> {
        let places = (0..self.runs).flat_map(|run| (0..self.per_run).map(move |record| (run, record)));
        places.map(|(run, record)| {
            let n_elems = if record + 1 == self.per_run { self.tail_elems } else { RECORD_ELEMS };
            (index(run * self.run_stride() + record * self.record_stride), n_elems)
        })
    }
}
