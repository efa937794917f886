//! Metadata of codecs `ibp` and `ibp:window`: mask, bit values, bases.

use tierpack_shm::types::{Access, CodecId, Dtype, index};

use super::{Granularity, MAX_COLUMNS_ROW_BYTES, bases_may_be_per_column, expect, granularity, word_bytes};
use crate::error::Result;
use crate::geometry::Geometry;

/// Metadata of codecs `ibp` and `ibp:window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ibp {
    /// 2, 4 or 8.
    pub(crate) chunk_bytes: u8,
    pub(crate) masks: Granularity,
    /// `None`: words are not reduced.
    pub(crate) base: Option<Granularity>,
    /// Whether words are rotated left by one bit.
    pub(crate) rotate: bool,
    pub(crate) mask: Box<[u8]>,
    pub(crate) bitval: Box<[u8]>,
    pub(crate) bases: Box<[u8]>,
}

impl Ibp {
    /// Reads the header's bytes.
    pub(super) fn describe(codec: CodecId, dtype: Dtype, fields: [u8; 4]) -> Result<Self> {
        let [chunk_bytes, masks, rotate, base] = fields;
        let byte = |field, value: u8, fits, expected| expect(field, u64::from(value), fits, expected);
        byte("chunk_bytes", chunk_bytes, matches!(chunk_bytes, 2 | 4 | 8), "2, 4 or 8")?;
        let window = codec == CodecId::IbpWindow;
        let rotates = window && has_sign_and_exponent(dtype);
        byte("rotate", rotate, rotate == u8::from(rotates), "1 for floats of ibp:window, else 0")?;
        byte("base", base, window || base == 0, "0 for ibp")?;
        Ok(Self {
            chunk_bytes,
            masks: granularity("masks", masks)?,
            base: if base == 0 { None } else { Some(granularity("base", base)?) },
            rotate: rotates,
            mask: Box::default(),
            bitval: Box::default(),
            bases: Box::default(),
        })
    }

    pub(super) fn fields(&self) -> [u8; 4] {
        let base = self.base.map_or(0, |base| base as u8);
        [self.chunk_bytes, self.masks as u8, u8::from(self.rotate), base]
    }

    /// Whether masks and bases of this granularity exist for the tensor.
    pub(super) fn check(&self, geometry: &Geometry) -> Result<()> {
        let fits = self.masks == Granularity::Tensor
            || masks_may_be_per_column(geometry, u64::from(self.chunk_bytes));
        expect("masks", self.masks as u64, fits, "1: rows of this length have no mask per column")?;
        let base = self.base.map_or(0, |base| base as u64);
        let fits = self.base != Some(Granularity::Column) || bases_may_be_per_column(geometry);
        expect("base", base, fits, "0 or 1: rows of this length have no base per column")
    }

    /// Bytes of mask, bit values and bases.
    pub(super) fn body_len(&self, geometry: &Geometry) -> u64 {
        2 * self.mask_len(geometry) + self.bases_len(geometry)
    }

    fn mask_len(&self, geometry: &Geometry) -> u64 {
        match self.masks {
            Granularity::Tensor => u64::from(self.chunk_bytes),
            Granularity::Column => geometry.row_bytes(),
        }
    }

    fn bases_len(&self, geometry: &Geometry) -> u64 {
        match self.base {
            None => 0,
            Some(Granularity::Tensor) => word_bytes(geometry.dtype()),
            Some(Granularity::Column) => geometry.row_bytes(),
        }
    }

    /// Reads the body, which has [`Ibp::body_len`] bytes.
    pub(super) fn read(self, geometry: &Geometry, body: &[u8]) -> Result<Self> {
        let mask_len = index(self.mask_len(geometry));
        let (mask, body) = body.split_at(mask_len);
        let (bitval, bases) = body.split_at(mask_len);
        let stray = mask.iter().zip(bitval).position(|(mask, value)| value & !mask != 0);
        expect("bit values", stray.unwrap_or(0) as u64, stray.is_none(), "bits of the mask only")?;
        Ok(Self { mask: mask.into(), bitval: bitval.into(), bases: bases.into(), ..self })
    }

    pub(super) fn body(&self) -> Vec<u8> {
        [&*self.mask, &*self.bitval, &*self.bases].concat()
    }
}

/// Whether words of this dtype may be rotated: they are floats with a sign bit in front.
pub(crate) const fn has_sign_and_exponent(dtype: Dtype) -> bool {
    use Dtype::{Bf16, C64, F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz, F16, F32, F64};
    matches!(dtype, F8E5m2 | F8E4m3 | F8E4m3Fnuz | F8E5m2Fnuz | F16 | Bf16 | F32 | C64 | F64)
}

/// Whether a mask per column is defined: positions in a row are those of its chunks.
pub(crate) const fn masks_may_be_per_column(geometry: &Geometry, chunk_bytes: u64) -> bool {
    let aligned = match geometry.access() {
        Access::Rows => true,
        Access::Whole => geometry.row_bytes().is_multiple_of(chunk_bytes),
    };
    aligned && geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES
}
