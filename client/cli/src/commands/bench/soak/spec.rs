//! The tensors of the soak: which there are, how they are cut, and what may be done to them.
//!
//! A unit is what an update changes as a whole: a row, or a piece of a row that is longer than a block.
//! Units of all tensors are numbered through, so that one array holds something of each.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use tierpack_client::{Access, CodecChoice, CodecId, Dtype, Prefer, PutOptions};
use tierpack_kernels::geometry::Geometry;

use super::word::{self, MAX_WORDS, Stamp, WORD_BYTES};

/// What may be done to a tensor besides updates and refits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Nothing: somebody measures it.
    Stays,
    /// It is overwritten and now and then removed.
    Changes,
    /// It is there half of the time.
    Comes,
}

/// One tensor.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) id: u8,
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) codec: CodecChoice,
    pub(super) life: Life,
    pub(super) geometry: Geometry,
    /// The number of its first unit.
    pub(super) first_unit: usize,
}

const AUTO: CodecChoice = CodecChoice::Auto(Prefer::Ratio);
const SPEED: CodecChoice = CodecChoice::Auto(Prefer::Speed);

const fn only(codec: CodecId) -> CodecChoice {
    CodecChoice::Only(codec)
}

/// Dtype, rows, bytes of a row, codec, access, life.
type Line = (Dtype, u64, u64, CodecChoice, Access, Life);

const TENSORS: &[Line] = &[
    // The one that latency is measured on: its number is [`MEASURED`].
    (Dtype::F32, 2048, 512, only(CodecId::Ibp), Access::Rows, Life::Stays),
    (Dtype::F32, 4096, 256, only(CodecId::Raw), Access::Rows, Life::Changes),
    // One block.
    (Dtype::Bf16, 4096, 64, only(CodecId::Raw), Access::Rows, Life::Changes),
    (Dtype::F32, 4096, 512, only(CodecId::Ibp), Access::Rows, Life::Changes),
    (Dtype::I64, 8192, 64, only(CodecId::Ibp), Access::Rows, Life::Changes),
    (Dtype::F32, 2048, 1024, only(CodecId::IbpWindow), Access::Rows, Life::Changes),
    (Dtype::F32, 2048, 2048, only(CodecId::Planes222), Access::Rows, Life::Changes),
    (Dtype::Bf16, 4096, 768, only(CodecId::Planes222), Access::Rows, Life::Changes),
    (Dtype::U8, 4096, 512, only(CodecId::Sparse), Access::Rows, Life::Changes),
    (Dtype::Bf16, 1024, 4096, AUTO, Access::Rows, Life::Changes),
    // Rows that are longer than a block.
    (Dtype::F32, 6, 600 << 10, AUTO, Access::Rows, Life::Changes),
    (Dtype::Bf16, 4, 300 << 10, only(CodecId::Raw), Access::Rows, Life::Changes),
    // Blocks of a number of rows that is no power of two.
    (Dtype::F32, 4096, 384, only(CodecId::Planes3), Access::Whole, Life::Changes),
    // More than one request of an update holds.
    (Dtype::F32, 3072, 8192, AUTO, Access::Rows, Life::Changes),
    (Dtype::F32, 16_384, 1024, SPEED, Access::Rows, Life::Comes),
    (Dtype::F32, 2048, 4096, only(CodecId::Raw), Access::Rows, Life::Comes),
    (Dtype::Bf16, 8192, 256, AUTO, Access::Rows, Life::Comes),
    (Dtype::I32, 1024, 1024, only(CodecId::Planes4), Access::Rows, Life::Comes),
];

/// The tensor that latency is measured on.
pub(super) const MEASURED: usize = 0;

/// Every tensor of the soak.
///
/// # Errors
/// The table above is wrong.
pub(super) fn all() -> Result<Vec<Spec>> {
    let (mut specs, mut first_unit) = (Vec::with_capacity(TENSORS.len()), 0);
    for (line, id) in TENSORS.iter().zip(0..) {
        let spec = Spec::new(id, *line, first_unit)?;
        first_unit += spec.n_units();
        specs.push(spec);
    }
    Ok(specs)
}

impl Spec {
    fn new(id: u8, (dtype, rows, row_bytes, codec, access, life): Line, first_unit: usize) -> Result<Self> {
        let shape = [rows, row_bytes * 8 / u64::from(dtype.bits())];
        let geometry = Geometry::new(dtype, &shape, access, None).context("cut a tensor of the soak")?;
        ensure!(
            geometry.raw_bytes() <= MAX_WORDS * WORD_BYTES && geometry.row_bytes() == row_bytes,
            "tensor {id} of the soak has {} bytes in rows of {}",
            geometry.raw_bytes(),
            geometry.row_bytes()
        );
        // `planes` is for floats alone: others are stored by it as `raw`.
        let name = format!("soak-{id:02}-{dtype}-{row_bytes}");
        Ok(Self { id, name, dtype, codec, life, geometry, first_unit })
    }

    pub(super) fn shape(&self) -> [u64; 2] {
        [self.geometry.n_rows(), self.geometry.row_elems()]
    }

    pub(super) fn raw_bytes(&self) -> usize {
        usize_of(self.geometry.raw_bytes())
    }

    pub(super) fn row_bytes(&self) -> usize {
        usize_of(self.geometry.row_bytes())
    }

    pub(super) fn n_rows(&self) -> u64 {
        self.geometry.n_rows()
    }

    /// Units of a row.
    pub(super) fn pieces(&self) -> usize {
        usize_of(self.geometry.pieces_per_row())
    }

    pub(super) fn n_units(&self) -> usize {
        usize_of(self.n_rows()) * self.pieces()
    }

    /// The units of some row.
    pub(super) fn units_of(&self, row: u64) -> Range<usize> {
        let first = usize_of(row) * self.pieces();
        first..first + self.pieces()
    }

    /// Where a unit is in the tensor's bytes.
    pub(super) fn bytes_of(&self, unit: usize) -> Range<usize> {
        if self.pieces() == 1 {
            return unit * self.row_bytes()..(unit + 1) * self.row_bytes();
        }
        let shape = self.geometry.block(unit as u64);
        let start = usize_of(shape.byte_offset);
        start..start + usize_of(shape.raw_bytes)
    }

    /// The units of some block.
    pub(super) fn units_in_block(&self, block_idx: u64) -> Range<usize> {
        if self.pieces() > 1 {
            let unit = usize_of(block_idx);
            return unit..unit + 1;
        }
        let shape = self.geometry.block(block_idx);
        let first = usize_of(shape.first_row);
        first..first + usize_of(shape.rows)
    }

    /// Fills one unit with a revision.
    pub(super) fn fill(&self, unit: usize, out: &mut [u8], revision: u32, drift: u8) {
        let stamp = Stamp { tensor: self.id, revision, drift };
        word::fill(out, stamp, self.first_word(unit));
    }

    /// The number of a unit's first word.
    pub(super) fn first_word(&self, unit: usize) -> u64 {
        self.bytes_of(unit).start as u64 / WORD_BYTES
    }

    /// How it is put.
    pub(super) fn options(&self) -> PutOptions {
        PutOptions::new().codec(self.codec).access(self.geometry.access())
    }
}

fn usize_of(n: u64) -> usize {
    tierpack_shm::types::index(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_cover_every_tensor_once() {
        let specs = all().unwrap();
        let mut first = 0;
        for spec in &specs {
            assert_eq!(spec.first_unit, first);
            first += spec.n_units();
            let mut at = 0;
            for unit in 0..spec.n_units() {
                let bytes = spec.bytes_of(unit);
                assert_eq!((bytes.start, bytes.len() % 8), (at, 0), "{}", spec.name);
                at = bytes.end;
            }
            assert_eq!(at, spec.raw_bytes());
            let blocks = (0..spec.geometry.n_blocks()).flat_map(|idx| spec.units_in_block(idx));
            assert!(blocks.eq(0..spec.n_units()), "{}", spec.name);
        }
        assert_eq!(specs[MEASURED].life, Life::Stays);
    }

    #[test]
    fn every_shape_that_matters_is_there() {
        let specs = all().unwrap();
        let has = |test: fn(&Spec) -> bool| assert!(specs.iter().any(test));
        has(|spec| spec.pieces() > 1);
        has(|spec| spec.geometry.n_blocks() == 1);
        has(|spec| spec.raw_bytes() > 16 << 20);
        has(|spec| spec.row_bytes() == 64);
        has(|spec| !spec.geometry.block_rows().is_power_of_two());
        for codec in CodecId::ALL {
            assert!(specs.iter().any(|spec| spec.codec == only(*codec)), "{codec}");
        }
    }
}
