//! What the host and the kernels hand each other: the structs of `kernels/cuda/shared.h`.
//!
//! Addresses are those of the device.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One block to decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BlockJob {
    /// Address of the block's header, a multiple of 16.
    pub src: u64,
    /// Address of the block's first raw byte.
    pub out: u64,
    /// Address of the prepared metadata, a multiple of 16; 0 for codec `raw`.
    pub form: u64,
    /// Bytes that may be read at `src`: header, front, overflow.
    pub stored_len: u32,
    /// Bytes of the front.
    pub front_len: u32,
    /// Runs of the block (FORMAT.md, section "Records"); rows for codec `raw`.
    pub runs: u32,
    /// Records of each run.
    pub records: u32,
    /// Elements of the last record of each run, 1 to 1024.
    pub tail_elems: u32,
    /// Bytes of a full record in the front.
    pub record_stride: u32,
    /// Bytes of the last record of a run in the front.
    pub tail_stride: u32,
    /// Raw bytes of the block.
    pub raw_len: u32,
    /// What [`Status::first`] names.
    pub number: u32,
    /// 0.
    pub reserved: u32,
}

/// Rows of one overlay to write over the raw bytes of a decoded block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OverlayJob {
    /// Address of the overlay's header, a multiple of 16.
    pub src: u64,
    /// Address of the block's first raw byte.
    pub out: u64,
    /// Rows that the overlay holds.
    pub n_rows: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Where its first row starts, from `src`.
    pub rows_at: u32,
    /// Raw bytes of the block.
    pub raw_len: u32,
    /// What [`Status::first`] names.
    pub number: u32,
    /// 0.
    pub reserved: u32,
}

/// What went wrong in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Status {
    /// The sum of flags below.
    pub flags: u32,
    /// The least number of a job with a flag; `u32::MAX` without.
    pub first: u32,
}

/// One block to encode.
///
/// Its work memory holds an [`EncodeResult`], a [`RecordNote`] per record, the slots, and the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EncodeJob {
    /// Address of the block's first raw byte, of any alignment.
    pub raw: u64,
    /// Address of the prepared metadata, a multiple of 16.
    pub form: u64,
    /// Address of the job's work memory, a multiple of 16.
    pub work: u64,
    /// Raw bytes of the block.
    pub raw_len: u32,
    /// Runs of the block.
    pub runs: u32,
    /// Records of each run.
    pub records: u32,
    /// Raw bytes of a full record.
    pub record_bytes: u32,
    /// Raw bytes of the last record of each run.
    pub tail_bytes: u32,
    /// Bytes of a full record in the front.
    pub record_stride: u32,
    /// Bytes of the last record of a run in the front.
    pub tail_stride: u32,
    /// Bytes of the front.
    pub front_len: u32,
    /// Where the slots start, from `work`: a packed record each.
    pub slots_at: u32,
    /// Bytes of a slot, a multiple of 16.
    pub slot_bytes: u32,
    /// Where its escapes start, from a slot of `planes:4`; 0 for the other codecs.
    pub list_at: u32,
    /// Where front and overflow go, from `work`.
    pub out_at: u32,
    /// 0.
    pub reserved: [u32; 2],
}

/// What packing a record gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RecordNote {
    /// Its bytes, and flags.
    pub body: u32,
    /// Chunks, or elements.
    pub chunks: u32,
    /// Those that the metadata shortened.
    pub participating: u32,
    /// Where its rest, or its list of escapes, starts in the overflow.
    pub rest_at: u32,
}

/// What encoding a block gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EncodeResult {
    /// Bytes of the overflow.
    pub overflow_len: u32,
    /// 1: a record makes the whole block raw.
    pub unfit: u32,
    /// Chunks, or elements, of all records.
    pub chunks: u32,
    /// Those that the metadata shortened.
    pub participating: u32,
}

/// Bytes to count in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CountJob {
    /// Address of the first byte: of any alignment for `count_bits`, else that of a word.
    pub src: u64,
    /// Address of the counters, 4 bytes each; of `count_exponents`, two words of 8 bytes before them.
    pub counts: u64,
    /// Address of an exponent to subtract for each column, 2 bytes each; 0 without.
    pub bases: u64,
    /// Bytes.
    pub len: u32,
    /// `count_bits`: bytes after which the counters repeat; `count_exponents`: columns after which they do.
    pub period: u32,
    /// `count_exponents`: bytes of a word.
    pub word_bytes: u32,
    /// `count_exponents`: bits of an exponent.
    pub exponent_bits: u32,
    /// `count_exponents`: columns after which the bases repeat.
    pub columns: u32,
    /// 0.
    pub reserved: u32,
}

impl Status {
    /// A record's rest starts or ends after the block.
    pub const OVERFLOW: u32 = 1;
    /// A code 15 of `planes:4` without an entry.
    pub const NO_ESCAPE: u32 = 2;
    /// An overlay names a row that the block lacks.
    pub const OVERLAY: u32 = 4;
    /// Before a launch.
    pub const CLEAR: Self = Self { flags: 0, first: u32::MAX };
}

const _: () = {
    assert!(size_of::<BlockJob>() == 64);
    assert!(size_of::<OverlayJob>() == 40);
    assert!(size_of::<Status>() == 8);
    assert!(size_of::<EncodeJob>() == 80);
    assert!(size_of::<RecordNote>() == 16);
    assert!(size_of::<EncodeResult>() == 16);
    assert!(size_of::<CountJob>() == 48);
};
