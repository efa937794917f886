//! The structs of `kernels/cuda/gather.h`.
//!
//! Addresses are those of the device.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cuda::abi::Status;

/// Generations of one tensor that a device can have at a time: indexes below this.
pub const MAX_FORMS: usize = 16;

/// Lines of a set of the cache.
pub const WAYS: u32 = 8;

/// Bytes of the tags of one set, all zeros where it is empty.
pub const SET_BYTES: u64 = 208;

/// The cache of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Cache {
    /// Address of the tags, a multiple of 16.
    pub sets: u64,
    /// Address of the first line, a multiple of 16.
    pub lines: u64,
    /// Sets of [`WAYS`] lines; 0: no cache.
    pub n_sets: u32,
    /// Bytes of a line, a multiple of 16.
    pub line_bytes: u32,
}

/// A data segment of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Segment {
    /// Address of its first byte, a multiple of 64; 0: not there.
    pub address: u64,
    /// Bytes that may be read, a multiple of 64.
    pub bytes: u64,
}

/// One generation of metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GatherForm {
    /// Address of [`super::super::form::device_form`], a multiple of 16.
    pub form: u64,
    /// The codec's number; 0: not there.
    pub codec: u32,
    /// Bytes of a full record in the front; 0 where no run has two records.
    pub record_stride: u32,
    /// Bytes of the last record of a run in the front: in every block, in the last block or piece.
    pub tail_stride: [u32; 2],
    /// 0.
    pub reserved: [u32; 2],
}

/// How blocks are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GatherGrid {
    /// Rows of the block.
    pub rows: u32,
    /// Raw bytes of each.
    pub row_bytes: u32,
    /// Runs of the block.
    pub runs: u32,
    /// Records of a run.
    pub records: u32,
    /// Elements of the last of them.
    pub tail_elems: u32,
    /// 0.
    pub reserved: [u32; 3],
}

/// A tensor on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GatherTensor {
    /// Address of the block words, 8 bytes each.
    pub words: u64,
    /// Blocks of the tensor.
    pub n_blocks: u64,
    /// Address of the [`Segment`]s.
    pub segments: u64,
    /// Gather rows.
    pub n_rows: u64,
    /// Raw bytes of a row.
    pub row_bytes: u64,
    /// Where rows are cached.
    pub cache: Cache,
    /// Segments that there are.
    pub n_segments: u32,
    /// Rows of every block but the last.
    pub block_rows: u32,
    /// Its logarithm; 32: it has none.
    pub block_shift: u32,
    /// Blocks of a row.
    pub pieces: u32,
    /// Raw bytes of every piece but the last.
    pub piece_bytes: u32,
    /// Bits of an element.
    pub elem_bits: u32,
    /// 1: access `whole`.
    pub whole: u32,
    /// Lanes that gather a row: 8 or 32.
    pub lanes: u32,
    /// Bytes of shared memory for each row under way, a multiple of 16.
    pub window_bytes: u32,
    /// Of these, bytes for a decoded record of access `whole`.
    pub scratch_bytes: u32,
    /// 0.
    pub reserved: [u32; 2],
    /// Of every block, and of the last block or piece.
    pub grids: [GatherGrid; 2],
    /// By generation index.
    pub forms: [GatherForm; MAX_FORMS],
}

/// What a launch did for one tensor; the host sets it to [`GatherStatus::CLEAR`] before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GatherStatus {
    /// Flags of damaged bytes, and the least position that has one.
    pub status: Status,
    /// The least position of an id that is no row; `u64::MAX` without.
    pub bad_position: u64,
    /// Blocks that were not there, also those that the list had no room for.
    pub n_missed: u64,
    /// Rows that came from the cache.
    pub hits: u64,
    /// Rows that came from the pool.
    pub misses: u64,
    /// Of these, rows that went into the cache.
    pub inserts: u64,
    /// Lines that changed while they were read, or that another team was writing.
    pub conflicts: u64,
    /// Rows from the pool that no line can hold.
    pub bypasses: u64,
}

impl GatherStatus {
    /// Before a launch.
    pub const CLEAR: Self = Self {
        status: Status::CLEAR,
        bad_position: u64::MAX,
        n_missed: 0,
        hits: 0,
        misses: 0,
        inserts: 0,
        conflicts: 0,
        bypasses: 0,
    };
}

/// Rows to gather from one tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GatherCall {
    /// Address of the [`GatherTensor`], a multiple of 16.
    pub tensor: u64,
    /// Address of the row numbers, at a multiple of [`GatherCall::id_bytes`]; a negative one is no row.
    pub ids: u64,
    /// Address of the positions to gather, 4 bytes each; 0: all of them.
    pub only: u64,
    /// Address of the first row of the output; with [`GatherCall::KEEP`] of scratch,
    /// [`super::GatherLaunch::scratch_rows`] rows.
    pub out: u64,
    /// Address of the miss list: positions, 4 bytes each, in any order, one per block of a row.
    pub missed: u64,
    /// Address of the [`GatherStatus`], a multiple of 8.
    pub status: u64,
    /// How many ids, at most [`GatherCall::MAX_IDS`]; with `only`, how many of those.
    pub n_ids: u32,
    /// 4 or 8.
    pub id_bytes: u32,
    /// Positions that the miss list has room for.
    pub missed_room: u32,
    /// Of the flags below.
    pub flags: u32,
    /// The thread block that starts with this tensor.
    pub first_block: u32,
    /// Another number for each launch: which rows the cache takes when it is full depends on it.
    pub turn: u32,
}

impl GatherCall {
    /// The most ids of one call.
    pub const MAX_IDS: u32 = u32::MAX - 1;
    /// Fill the cache with these rows, and keep them there; the output is scratch.
    pub const KEEP: u32 = 1;
}

const _: () = {
    assert!(size_of::<Cache>() == 24);
    assert!(size_of::<Segment>() == 16);
    assert!(size_of::<GatherForm>() == 32);
    assert!(size_of::<GatherGrid>() == 32);
    assert!(size_of::<GatherTensor>() == 688);
    assert!(size_of::<GatherStatus>() == 64);
    assert!(size_of::<GatherCall>() == 72);
};
