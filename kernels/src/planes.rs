//! Codecs `planes`: what a word of a float is cut into, and the tables of one generation.
//!
//! A word is rotated left by one bit, so that its exponent is at the top and its sign at the bottom.
//! The exponent becomes a code by its rank in a short table of the most frequent ones; the low bits are kept.
//! Source: FORMAT.md, section "Codecs planes".

use tierpack_shm::types::{CodecId, Dtype, index};

use crate::bits::low;
use crate::cut::RECORD_ELEMS;
use crate::metadata::Planes as Form;

/// Elements of a group: each of its planes is one 64-bit word.
pub(crate) const GROUP_ELEMS: usize = 64;

/// In a table of ranks: the exponent has no code.
pub(crate) const ESCAPE: u8 = u8::MAX;

/// How an exponent's rank is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// `planes:4`: four bits, 15 = escape.
    Four,
    /// `planes:3`: three bit planes, 7 = escape.
    Three,
    /// `planes:2-2-2`: three tiers of two bit planes, 3 = go to the next tier, and escape from the last.
    Tiers,
}

impl Schedule {
    /// The schedule of a codec; `None` for other codecs.
    pub(crate) const fn of(codec: CodecId) -> Option<Self> {
        match codec {
            CodecId::Planes4 => Some(Self::Four),
            CodecId::Planes3 => Some(Self::Three),
            CodecId::Planes222 => Some(Self::Tiers),
            _ => None,
        }
    }

    /// Bits of a code that every element has.
    pub(crate) const fn code_bits(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Three => 3,
            Self::Tiers => 2,
        }
    }

    /// Exponents that have a code.
    pub(crate) const fn n_codes(self) -> usize {
        match self {
            Self::Four => 15,
            Self::Three => 7,
            Self::Tiers => 9,
        }
    }
}

/// Bits of a word's parts after rotation: the exponent at the top, mantissa and sign below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) word_bits: u32,
    pub(crate) exponent_bits: u32,
}

impl Parts {
    /// `None` for dtypes that are not floats with a sign, and for pairs of them.
    pub(crate) const fn of(dtype: Dtype) -> Option<Self> {
        let exponent_bits = match dtype {
            Dtype::F64 => 11,
            Dtype::F32 | Dtype::Bf16 => 8,
            Dtype::F16 | Dtype::F8E5m2 | Dtype::F8E5m2Fnuz => 5,
            Dtype::F8E4m3 | Dtype::F8E4m3Fnuz => 4,
            _ => return None,
        };
        Some(Self { word_bits: dtype.bits(), exponent_bits })
    }

    /// Those of a dtype that the schedule can shorten: a code has fewer bits than the exponent.
    pub(crate) fn under(dtype: Dtype, schedule: Schedule) -> Option<Self> {
        Self::of(dtype).filter(|parts| schedule.code_bits() < parts.exponent_bits)
    }

    /// Bits below the exponent.
    pub(crate) const fn low_bits(self) -> u32 {
        self.word_bits - self.exponent_bits
    }

    /// The rotated word.
    pub(crate) const fn rotated(self, word: u64) -> u64 {
        (word << 1 | word >> (self.word_bits - 1)) & low(self.word_bits)
    }

    /// Takes [`Parts::rotated`] back.
    pub(crate) const fn unrotated(self, word: u64) -> u64 {
        (word >> 1 | word << (self.word_bits - 1)) & low(self.word_bits)
    }
}

/// Low bits that are the same in every word: `bits` of them from bit `first` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) first: u32,
    pub(crate) bits: u32,
    pub(crate) value: u64,
}

impl Dropped {
    /// The kept bits of `low_bits`, moved together; `None` where the dropped ones have another value.
    pub(crate) const fn shrink(self, low_bits: u64) -> Option<u64> {
        if low_bits >> self.first & low(self.bits) != self.value {
            return None;
        }
        Some(low_bits & low(self.first) | low_bits >> self.bits & !low(self.first))
    }

    /// Takes [`Dropped::shrink`] back.
    pub(crate) const fn grow(self, kept: u64) -> u64 {
        kept & low(self.first) | self.value << self.first | (kept & !low(self.first)) << self.bits
    }
}

/// Metadata of a `planes` codec prepared for use.
#[derive(Clone, Debug)]
pub(crate) struct Planes {
    pub(crate) schedule: Schedule,
    pub(crate) parts: Parts,
    pub(crate) dropped: Dropped,
    pub(crate) shape: PlaneShape,
    /// The code of each exponent, less its base: its rank, or [`ESCAPE`].
    pub(crate) ranks: Box<[u8]>,
    /// The exponent of each rank; zeros after them.
    pub(crate) table: [u16; 16],
    /// What is subtracted from the exponents of each column, modulo `2^exponent_bits`.
    pub(crate) bases: Option<Box<[u16]>>,
    /// The low bytes of the exponents as vectors look them up: by rank, and for tiers by 4 x tier + place in it;
    /// twice, because vectors have two lanes.
    pub(crate) code_table: [u8; 32],
    /// The ranks of exponents of at most 8 bits by their lowest byte, whatever is in the bits above the exponent.
    pub(crate) ranks_by_byte: Box<[u8; 256]>,
    /// The low bytes of the bases, of one row and then of as many columns as a record has, and a vector.
    base_bytes: Option<Box<[u8]>>,
}

/// How many planes of each kind a record has: what its fixed part takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaneShape {
    pub(crate) schedule: Schedule,
    /// Planes of one byte per element, of kept low bits.
    pub(crate) byte_planes: usize,
    /// Planes of one bit per element, of those that fill no byte.
    pub(crate) bit_planes: u32,
}

impl PlaneShape {
    pub(crate) const fn new(schedule: Schedule, parts: Parts, dropped_bits: u32) -> Self {
        let kept = parts.low_bits() - dropped_bits;
        Self { schedule, byte_planes: (kept / 8) as usize, bit_planes: kept % 8 }
    }

    /// Bits of the codes and the bit planes of a group of `n` elements.
    pub(crate) const fn group_bits(&self, n: usize) -> usize {
        self.code_bits(n) + self.bit_planes as usize * n
    }

    /// Bits of the codes of a group of `n` elements.
    pub(crate) const fn code_bits(&self, n: usize) -> usize {
        match self.schedule {
            // Two codes share a byte.
            Schedule::Four => n.div_ceil(2) * 8,
            schedule => schedule.code_bits() as usize * n,
        }
    }

    /// Bits of a record of `n` elements before its tiers and exponents.
    pub(crate) const fn fixed_bits(&self, n: usize) -> usize {
        let groups = n / GROUP_ELEMS * self.group_bits(GROUP_ELEMS) + self.group_bits(n % GROUP_ELEMS);
        8 * n * self.byte_planes + groups
    }
}

impl Planes {
    /// Prepares metadata that have been checked.
    pub(crate) fn new(form: &Form, dtype: Dtype) -> Option<Self> {
        let parts = Parts::under(dtype, form.schedule)?;
        let mut ranks = vec![ESCAPE; 1 << parts.exponent_bits].into_boxed_slice();
        let mut table = [0; 16];
        for (rank, &exponent) in (0..).zip(&form.table) {
            table[usize::from(rank)] = exponent;
            // Of exponents that are in the table twice, the first counts.
            if let Some(slot @ &mut ESCAPE) = ranks.get_mut(usize::from(exponent)) {
                *slot = rank;
            }
        }
        Some(Self {
            schedule: form.schedule,
            parts,
            dropped: form.dropped,
            shape: PlaneShape::new(form.schedule, parts, form.dropped.bits),
            code_table: code_table(form.schedule, &table),
            ranks_by_byte: Box::new(std::array::from_fn(|byte| ranks[byte & (ranks.len() - 1)])),
            ranks,
            table,
            base_bytes: form.bases.as_deref().map(base_bytes),
            bases: form.bases.clone(),
        })
    }

    /// The low bytes of the bases of the record that starts with element `first` of its run, and more.
    #[inline]
    pub(crate) fn bases_from(&self, first: usize) -> Option<&[u8]> {
        let bytes = self.base_bytes.as_deref()?;
        let columns = self.bases.as_ref().map_or(1, |bases| bases.len().max(1));
        Some(&bytes[if first < columns { first } else { first % columns }..])
    }

    /// Bytes of a word.
    #[inline]
    pub(crate) const fn word_bytes(&self) -> usize {
        (self.parts.word_bits / 8) as usize
    }

    /// The most bytes that a record of `n` elements packs to.
    pub(crate) const fn max_packed(&self, n: usize) -> usize {
        let tiers = match self.schedule {
            Schedule::Tiers => 4,
            _ => 0,
        };
        (self.shape.fixed_bits(n) + n * (tiers + self.parts.exponent_bits as usize)).div_ceil(8)
    }

    /// The base of the column at which element `elem` of a run is.
    pub(crate) fn base(&self, elem: usize) -> u16 {
        self.bases.as_ref().map_or(0, |bases| bases[elem % bases.len()])
    }
}

fn code_table(schedule: Schedule, table: &[u16; 16]) -> [u8; 32] {
    std::array::from_fn(|code| {
        let code = code % 16;
        let exponent = match schedule {
            Schedule::Tiers if code % 4 == 3 || code >= 12 => 0,
            Schedule::Tiers => table[code / 4 * 3 + code % 4],
            _ => table[code],
        };
        exponent.to_le_bytes()[0]
    })
}

fn base_bytes(bases: &[u16]) -> Box<[u8]> {
    let len = bases.len() + index(RECORD_ELEMS) + GROUP_ELEMS;
    bases.iter().cycle().take(len).map(|base| base.to_le_bytes()[0]).collect()
}

/// Bytes of an exponent in metadata.
pub(crate) const fn exponent_bytes(parts: Parts) -> usize {
    if parts.exponent_bits > 8 { 2 } else { 1 }
}
