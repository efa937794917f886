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
};
