//! The nouns that every floor shares: dtype, codec, access, extent, block word.
//!
//! These types say where bytes are and how they are stored.
//! They do not know what a tensor's values mean: `kernels` does.
//! The numbers here are part of the layout (LAYOUT.md) and of the format (`kernels/FORMAT.md`): never reuse one.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("TierPack's shared memory and its format are little-endian and need 64-bit addresses");

/// Bytes of one allocation unit: extents are counted in these.
pub const UNIT_BYTES: u64 = 64;

/// Converts a 64-bit count or offset to an index.
///
/// Lossless: TierPack only builds where `usize` has 64 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted at the top of this file")]
pub const fn index(value: u64) -> usize {
    value as usize
}

macro_rules! dtypes {
    ($($number:literal $variant:ident $name:literal $bits:literal $doc:literal;)*) => {
        /// Element type of a tensor: every dtype that safetensors 0.8 knows.
        ///
        /// Expansion of one line: `#[doc = "bfloat16"] Bf16 = 15`, with its name `"BF16"` and its 16 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Dtype {
            $(#[doc = $doc] $variant = $number,)*
        }

        impl Dtype {
            /// Every dtype, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Bits of one element.
            #[inline]
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// The name that safetensors uses, for example `BF16`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The dtype with this number in a block header or slot.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    1 Bool "BOOL" 8 "One byte, 0 or 1; other values are kept as they are.";
    2 F4 "F4" 4 "MX float with 4 bits, two elements per byte.";
    3 F6E2m3 "F6_E2M3" 6 "MX float with 6 bits, 2 of them exponent.";
    4 F6E3m2 "F6_E3M2" 6 "MX float with 6 bits, 3 of them exponent.";
    5 U8 "U8" 8 "Unsigned integer, 8 bits.";
    6 I8 "I8" 8 "Signed integer, 8 bits.";
    7 F8E5m2 "F8_E5M2" 8 "Float with 8 bits, 5 of them exponent.";
    8 F8E4m3 "F8_E4M3" 8 "Float with 8 bits, 4 of them exponent.";
    9 F8E8m0 "F8_E8M0" 8 "MX scale: 8 bits of exponent.";
    10 F8E4m3Fnuz "F8_E4M3FNUZ" 8 "Float with 8 bits, 4 of them exponent, one zero, no infinities.";
    11 F8E5m2Fnuz "F8_E5M2FNUZ" 8 "Float with 8 bits, 5 of them exponent, one zero, no infinities.";
    12 I16 "I16" 16 "Signed integer, 16 bits.";
    13 U16 "U16" 16 "Unsigned integer, 16 bits.";
    14 F16 "F16" 16 "IEEE 754 half precision.";
    15 Bf16 "BF16" 16 "bfloat16.";
    16 I32 "I32" 32 "Signed integer, 32 bits.";
    17 U32 "U32" 32 "Unsigned integer, 32 bits.";
    18 F32 "F32" 32 "IEEE 754 single precision.";
    19 C64 "C64" 64 "Complex number of two F32.";
    20 F64 "F64" 64 "IEEE 754 double precision.";
    21 I64 "I64" 64 "Signed integer, 64 bits.";
    22 U64 "U64" 64 "Unsigned integer, 64 bits.";
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a [`Dtype`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0:?}")]
pub struct UnknownDtype(
    /// The text.
    pub String,
);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(text: &str) -> Result<Self, UnknownDtype> {
        Self::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| UnknownDtype(text.to_owned()))
    }
}

/// How the bytes of a block are encoded; FORMAT.md describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum CodecId {
    /// Verbatim rows.
    Raw = 1,
    /// Invariant Bit Packing: chunks whose invariant bits match store only the others.
    Ibp = 2,
    /// Invariant Bit Packing of words that are rotated and reduced by a base first.
    IbpWindow = 3,
    /// Exponents of floats as codes of 4 bits.
    Planes4 = 4,
    /// Exponents of floats as codes of 3 bits.
    Planes3 = 5,
    /// Exponents of floats as codes of 2, 4 or 6 bits.
    Planes222 = 6,
    /// The words that differ from the most common one.
    Sparse = 7,
}

impl CodecId {
    /// Every codec, in the order of their numbers.
    pub const ALL: &'static [Self] =
        &[Self::Raw, Self::Ibp, Self::IbpWindow, Self::Planes4, Self::Planes3, Self::Planes222, Self::Sparse];

    /// The codec with this number in a block header.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Raw),
            2 => Some(Self::Ibp),
            3 => Some(Self::IbpWindow),
            4 => Some(Self::Planes4),
            5 => Some(Self::Planes3),
            6 => Some(Self::Planes222),
            7 => Some(Self::Sparse),
            _ => None,
        }
    }

    /// The name that the command line and the stats use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Ibp => "ibp",
            Self::IbpWindow => "ibp:window",
            Self::Planes4 => "planes:4",
            Self::Planes3 => "planes:3",
            Self::Planes222 => "planes:2-2-2",
            Self::Sparse => "sparse",
        }
    }

    /// The codec with this [`CodecId::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|codec| codec.name() == name)
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which codec a put asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CodecChoice {
    /// The one that suits a sample best; `raw` when the shortest saves under 3 %.
    Auto(Prefer),
    /// This one.
    Only(CodecId),
}

impl CodecChoice {
    /// The text of every choice, for people: `auto, raw, ibp, … or planes:2-2-2`.
    pub fn names() -> String {
        let names: Vec<&str> = CodecId::ALL.iter().map(|codec| codec.name()).collect();
        match names.split_last() {
            Some((last, others)) => format!("auto, {} or {last}", others.join(", ")),
            None => "auto".to_owned(),
        }
    }
}

impl Default for CodecChoice {
    fn default() -> Self {
        Self::Auto(Prefer::default())
    }
}

/// What [`CodecChoice::Auto`] goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Prefer {
    /// The fewest stored bytes.
    #[default]
    Ratio,
    /// The fastest decoder of the codecs that save at most two points less, in percent of the raw bytes.
    Speed,
}

impl FromStr for CodecChoice {
    type Err = UnknownCodec;

    fn from_str(text: &str) -> Result<Self, UnknownCodec> {
        if text == "auto" {
            return Ok(Self::default());
        }
        CodecId::from_name(text).map(Self::Only).ok_or_else(|| UnknownCodec(text.to_owned()))
    }
}

/// The text is not the name of a [`CodecChoice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec {0:?}: pass {names}", names = CodecChoice::names())]
pub struct UnknownCodec(
    /// The text.
    pub String,
);

/// What a tensor's blocks are cut for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Access {
    /// Every gather row starts a record: the default.
    #[default]
    Rows = 1,
    /// Records run across row ends: for tensors that are read whole.
    Whole = 2,
}

impl Access {
    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Whole => "whole",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Index of a tensor slot within its namespace: 24 bits, as a lease stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotIdx(u32);

impl SlotIdx {
    /// In a lease: every tensor of the namespace.
    pub const EVERY: Self = Self(0xFF_FFFF);

    /// A slot index; `None` from [`SlotIdx::EVERY`] on.
    pub const fn new(value: u32) -> Option<Self> {
        if value < Self::EVERY.0 { Some(Self(value)) } else { None }
    }

    /// The index as a number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// A lease's low 24 bits.
    #[inline]
    pub(crate) const fn from_low_bits(word: u64) -> Self {
        Self((word & 0xFF_FFFF) as u32)
    }
}

/// A run of units in one segment of a namespace: what the allocator hands out and takes back.
///
/// Not `Copy`: its holder owns the bytes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First unit, counted over the whole namespace (LAYOUT.md, section "Addresses").
    pub(crate) offset: u64,
    /// Units, at least one.
    pub(crate) units: u32,
}

impl Extent {
    /// First unit, counted over the whole namespace.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes, rounding included.
    pub const fn len_bytes(&self) -> u64 {
        self.units as u64 * UNIT_BYTES
    }
}

/// Where a block's bytes are, which metadata decodes them, and which store this was.
///
/// One `u64` in the block table: offset in units (35 bits), generation index (8), flags (3), sequence (18).
/// Source: design brief, section 3, "Block word"; LAYOUT.md, section "Block word".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockWord(u64);

impl BlockWord {
    /// Units that a word can address: 2 TiB.
    pub const MAX_UNITS: u64 = 1 << 35;
    /// The block's bytes are in the pool.
    pub const RESIDENT: u64 = 1 << 43;
    /// The word addresses an overlay.
    pub const OVERLAY: u64 = 1 << 44;
    /// The block's codec is `raw`: no metadata is needed.
    pub const RAW: u64 = 1 << 45;
    const SEQUENCE_SHIFT: u32 = 46;

    /// The word of a block whose raw bytes are in the pool; `sequence` is taken modulo 2^18.
    ///
    /// `offset` is below [`BlockWord::MAX_UNITS`]: the allocator returns no other.
    #[inline]
    pub const fn resident(offset: u64, generation_idx: u8, flags: u64, sequence: u32) -> Self {
        debug_assert!(offset < Self::MAX_UNITS);
        let flags = flags & (Self::OVERLAY | Self::RAW) | Self::RESIDENT;
        Self(offset | (generation_idx as u64) << 35 | flags | (sequence as u64) << Self::SEQUENCE_SHIFT)
    }

    /// The word with these bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// All 64 bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// First unit of the extent, counted over the namespace.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 & (Self::MAX_UNITS - 1)
    }

    /// Index into the tensor's generation table.
    #[inline]
    pub const fn generation_idx(self) -> u8 {
        (self.0 >> 35 & 0xFF) as u8
    }

    /// Whether the bytes are in the pool.
    #[inline]
    pub const fn is_resident(self) -> bool {
        self.0 & Self::RESIDENT != 0
    }

    /// Whether the word addresses an overlay.
    #[inline]
    pub const fn is_overlay(self) -> bool {
        self.0 & Self::OVERLAY != 0
    }

    /// Whether the block's codec is `raw`.
    #[inline]
    pub const fn is_raw(self) -> bool {
        self.0 & Self::RAW != 0
    }

    /// Counts the stores to this block, modulo 2^18.
    #[inline]
    pub const fn sequence(self) -> u32 {
        (self.0 >> Self::SEQUENCE_SHIFT) as u32
    }
}

impl fmt::Debug for BlockWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockWord")
            .field("offset", &self.offset())
            .field("generation_idx", &self.generation_idx())
            .field("resident", &self.is_resident())
            .field("overlay", &self.is_overlay())
            .field("raw", &self.is_raw())
            .field("sequence", &self.sequence())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_numbers_and_names_round_trip() {
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::from_number(dtype as u8), Some(dtype));
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert_eq!(Dtype::from_number(0), None);
        assert_eq!(Dtype::from_number(23), None);
        assert!("bf16".parse::<Dtype>().is_err());
    }

    #[test]
    fn codec_numbers_and_names_round_trip() {
        for &codec in CodecId::ALL {
            assert_eq!(CodecId::from_number(codec as u8), Some(codec));
            assert_eq!(CodecId::from_name(codec.name()), Some(codec));
        }
        assert_eq!((CodecId::from_number(0), CodecId::from_number(u8::MAX)), (None, None));
        assert_eq!(CodecId::from_name("IBP"), None);
    }

    #[test]
    fn the_names_of_all_codecs_are_choices() {
        let names = CodecChoice::names();
        let names: Vec<&str> = names.split(", ").flat_map(|name| name.split(" or ")).collect();
        assert_eq!(names.len(), 1 + CodecId::ALL.len());
        assert_eq!(names[0].parse(), Ok(CodecChoice::Auto(Prefer::Ratio)));
        for (name, &codec) in names[1..].iter().zip(CodecId::ALL) {
            assert_eq!(name.parse(), Ok(CodecChoice::Only(codec)));
        }
        let error = "ibp:2".parse::<CodecChoice>().unwrap_err().to_string();
        assert!(error.contains("\"ibp:2\"") && error.contains("raw, ibp, ibp:window"), "{error}");
    }

    #[test]
    fn block_word_keeps_every_field_apart() {
        let word = BlockWord::resident(BlockWord::MAX_UNITS - 1, 255, BlockWord::RAW, (1 << 18) - 1);
        assert_eq!(word.offset(), BlockWord::MAX_UNITS - 1);
        assert_eq!(word.generation_idx(), 255);
        assert_eq!(word.sequence(), (1 << 18) - 1);
        assert!(word.is_resident() && word.is_raw() && !word.is_overlay());
        let word = BlockWord::resident(5, 1, BlockWord::OVERLAY, 1 << 18);
        assert_eq!((word.offset(), word.generation_idx(), word.sequence()), (5, 1, 0));
        assert!(word.is_resident() && !word.is_raw() && word.is_overlay());
    }

    #[test]
    fn slot_idx_keeps_the_lease_mark_free() {
        assert_eq!(SlotIdx::new(0xFF_FFFF), None);
        assert_eq!(SlotIdx::new(0xFF_FFFE).map(SlotIdx::get), Some(0xFF_FFFE));
    }
}
