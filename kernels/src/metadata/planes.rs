//! Metadata of codecs `planes`: the table of exponents, the dropped bits, bases per column.

use tierpack_shm::types::{CodecId, Dtype, index};

use super::{Granularity, bases_may_be_per_column, expect, field};
use crate::bits::read_word;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::planes::{Dropped, Parts, Schedule, exponent_bytes};

/// Metadata of a `planes` codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planes {
    pub(crate) schedule: Schedule,
    /// Bytes of an exponent in the body.
    exponent_bytes: usize,
    pub(crate) dropped: Dropped,
    /// Whether there is a base per column.
    by_column: bool,
    /// Exponents by their rank; as many as the schedule has codes.
    pub(crate) table: Box<[u16]>,
    /// Exponents that are subtracted, one per column.
    pub(crate) bases: Option<Box<[u16]>>,
}

impl Planes {
    /// What a fit found.
    pub(crate) fn new(
        schedule: Schedule,
        parts: Parts,
        dropped: Dropped,
        table: Box<[u16]>,
        bases: Option<Box<[u16]>>,
    ) -> Self {
        let exponent_bytes = exponent_bytes(parts);
        Self { schedule, exponent_bytes, dropped, by_column: bases.is_some(), table, bases }
    }

    /// Reads the header's bytes.
    pub(super) fn describe(codec: CodecId, dtype: Dtype, fields: [u8; 4]) -> Result<Self> {
        let schedule = Schedule::of(codec).ok_or(Error::UnknownCodec { number: codec as u8 })?;
        let parts = Parts::under(dtype, schedule)
            .ok_or_else(|| field("dtype", dtype as u64, "a float whose exponent the codec shortens"))?;
        let [first, bits, base, reserved] = fields;
        let byte = |field, value: u8, fits, expected| expect(field, u64::from(value), fits, expected);
        let dropped = Dropped { first: first.into(), bits: bits.into(), value: 0 };
        let ends_low = dropped.first + dropped.bits <= parts.low_bits();
        byte("dropped_first", first, ends_low && (bits > 0 || first == 0), "a bit below the exponent")?;
        byte("base", base, matches!(base, 0 | 2), "0 or 2")?;
        byte("a reserved byte", reserved, reserved == 0, "0")?;
        let by_column = base == Granularity::Column as u8;
        let exponent_bytes = exponent_bytes(parts);
        Ok(Self { schedule, exponent_bytes, dropped, by_column, table: Box::default(), bases: None })
    }

    pub(super) fn fields(&self) -> [u8; 4] {
        let byte = |bits: u32| u8::try_from(bits).expect("a word has at most 64 bits");
        let base = if self.by_column { Granularity::Column as u8 } else { 0 };
        [byte(self.dropped.first), byte(self.dropped.bits), base, 0]
    }

    pub(super) fn check(&self, geometry: &Geometry) -> Result<()> {
        let fits = !self.by_column || bases_may_be_per_column(geometry);
        expect("base", 2, fits, "0: rows of this length have no base per column")
    }

    /// Bytes of the table, the value of the dropped bits, and the bases.
    pub(super) fn body_len(&self, geometry: &Geometry) -> u64 {
        let bases = if self.by_column { geometry.row_elems() } else { 0 };
        (self.schedule.n_codes() as u64 + bases) * self.exponent_bytes as u64
            + self.value_len(geometry.dtype())
    }

    const fn value_len(&self, dtype: Dtype) -> u64 {
        if self.dropped.bits == 0 { 0 } else { dtype.bits() as u64 / 8 }
    }

    /// Reads the body, which has [`Planes::body_len`] bytes.
    pub(super) fn read(self, geometry: &Geometry, body: &[u8]) -> Result<Self> {
        let dtype = geometry.dtype();
        let (table, body) = body.split_at(self.schedule.n_codes() * self.exponent_bytes);
        let (value, bases) = body.split_at(index(self.value_len(dtype)));
        let value = read_word(value);
        let fits = value >> self.dropped.bits == 0;
        expect("the dropped bits", value, fits, "as many bits as are dropped")?;
        let table = self.exponents(dtype, table)?;
        let bases = if self.by_column { Some(self.exponents(dtype, bases)?) } else { None };
        Ok(Self { dropped: Dropped { value, ..self.dropped }, table, bases, ..self })
    }

    fn exponents(&self, dtype: Dtype, bytes: &[u8]) -> Result<Box<[u16]>> {
        let bits = Parts::of(dtype).map_or(0, |parts| parts.exponent_bits);
        let exponent = |bytes: &[u8]| {
            let value = read_word(bytes);
            expect("an exponent", value, value >> bits == 0, "no more bits than those of the dtype")?;
            u16::try_from(value).map_err(|_| field("an exponent", value, "at most 16 bits"))
        };
        bytes.chunks_exact(self.exponent_bytes).map(exponent).collect()
    }

    pub(super) fn body(&self, dtype: Dtype) -> Vec<u8> {
        let exponents = |values: &[u16]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes().into_iter().take(self.exponent_bytes))
                .collect()
        };
        let value = &self.dropped.value.to_le_bytes()[..index(self.value_len(dtype))];
        [exponents(&self.table), value.to_vec(), self.bases.as_deref().map(exponents).unwrap_or_default()]
            .concat()
    }
}
