//! What the kernels know of a tensor: how its rows are found, and how each generation of metadata stores them.

use tierpack_shm::types::Access;

use super::abi::{Cache, GatherForm, GatherGrid, GatherTensor, MAX_FORMS};
use crate::coder::Coder;
use crate::cuda::launch::{ADDRESS_UNIT, check_address};
use crate::cut::{RECORD_ELEMS, Runs};
use crate::error::{Error, Result};
use crate::geometry::{BlockShape, Geometry};

/// Shared memory of one row under way that reads may touch after what is there.
const SLACK_BYTES: u32 = 32;

/// The most shared memory of one row under way: a thread block of one warp then takes 46 KiB.
pub(super) const MAX_WINDOW_BYTES: u32 = 46 * 1024;

/// The least, so that rows that are not encoded are copied in pieces of some length.
const MIN_WINDOW_BYTES: u32 = 512;

/// Shared memory of one row under way where rows are cut into pieces anyway.
const USUAL_WINDOW_BYTES: u32 = 8 * 1024;

/// Rows of at most so many elements are gathered by a quarter of a warp.
const SMALL_ELEMS: u64 = 256;

/// Addresses for the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Of the block words, a multiple of 8.
    pub words: u64,
    /// Of the [`super::abi::Segment`]s, a multiple of 16.
    pub segments: u64,
    /// Segments that there are.
    pub n_segments: u32,
    /// The cache: [`super::CacheLayout::at`]; the default is none.
    pub cache: Cache,
}

/// One generation of metadata on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceForm<'a> {
    /// The index that block words have for it.
    pub generation_idx: u8,
    /// The metadata.
    pub coder: &'a Coder,
    /// Address of [`crate::cuda::form::device_form`], a multiple of 16.
    pub address: u64,
}

/// Describes a tensor to the kernels; write it to a multiple of 16 of device memory.
///
/// Rows whose blocks need a generation that is not among `forms` go to the miss list.
/// A cache is left out where rows are never cached: under access `whole`, and where a row has several blocks.
///
/// # Errors
/// [`Error::NotGatherable`] where the tensor's rows cannot be gathered, or are longer than a kernel can count;
/// [`Error::MetadataField`] where a coder was made for another tensor; [`Error::GenerationIndex`];
/// [`Error::Address`] for one that is not a multiple of 16.
pub fn describe(
    geometry: &Geometry,
    forms: &[DeviceForm<'_>],
    addresses: &Addresses,
) -> Result<GatherTensor> {
    if !geometry.is_gatherable() {
        return Err(Error::NotGatherable { row_bytes: geometry.row_bytes() });
    }
    let n_blocks = geometry.n_blocks();
    let pieces = narrow(geometry, geometry.pieces_per_row())?;
    let shapes = [0, n_blocks.saturating_sub(1)].map(|block_idx| geometry.block(block_idx));
    let grids = shapes.map(|shape| grid(geometry, &shape));
    let whole = geometry.access() == Access::Whole;
    let is_short = !whole && pieces == 1 && geometry.row_elems() <= SMALL_ELEMS;
    let block_rows = narrow(geometry, geometry.block_rows())?;
    let mut tensor = GatherTensor {
        words: addresses.words,
        n_blocks,
        segments: addresses.segments,
        n_rows: geometry.n_rows(),
        row_bytes: geometry.row_bytes(),
        cache: if whole || pieces > 1 || n_blocks == 0 { Cache::default() } else { addresses.cache },
        n_segments: addresses.n_segments,
        block_rows,
        block_shift: if block_rows.is_power_of_two() { block_rows.trailing_zeros() } else { 32 },
        pieces,
        piece_bytes: if pieces > 1 { grids[0].row_bytes } else { 0 },
        elem_bits: geometry.dtype().bits(),
        whole: u32::from(whole),
        lanes: if is_short { 8 } else { 32 },
        window_bytes: 0,
        scratch_bytes: 0,
        reserved: [0; 2],
        grids,
        forms: [GatherForm::default(); MAX_FORMS],
    };
    for form in forms {
        add_form(&mut tensor, geometry, &shapes, form)?;
    }
    plan_window(&mut tensor);
    Ok(tensor)
}

fn narrow(geometry: &Geometry, value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::NotGatherable { row_bytes: geometry.row_bytes() })
}

fn small(value: u64) -> u32 {
    u32::try_from(value).expect("a block has at most 1 MiB")
}

fn grid(geometry: &Geometry, shape: &BlockShape) -> GatherGrid {
    if shape.rows == 0 {
        return GatherGrid::default();
    }
    let runs = Runs::of(geometry.access(), shape.rows, shape.columns);
    GatherGrid {
        rows: small(shape.rows),
        row_bytes: small(shape.row_bytes),
        runs: small(runs.count),
        records: small(runs.records),
        tail_elems: small(runs.tail_elems),
        reserved: [0; 3],
    }
}

fn add_form(
    tensor: &mut GatherTensor,
    geometry: &Geometry,
    shapes: &[BlockShape; 2],
    form: &DeviceForm<'_>,
) -> Result<()> {
    if form.coder.geometry() != geometry {
        return Err(Error::MetadataField {
            field: "row_bytes",
            found: form.coder.geometry().row_bytes(),
            expected: "that of the tensor: the coder was made for another",
        });
    }
    check_address("the metadata", form.address, ADDRESS_UNIT)?;
    let idx = form.generation_idx;
    let place = tensor.forms.get_mut(usize::from(idx)).ok_or(Error::GenerationIndex { idx })?;
    let grids = shapes.map(|shape| form.coder.grid(&shape));
    *place = GatherForm {
        form: form.address,
        codec: form.coder.codec() as u32,
        record_stride: small(grids[0].record_stride.max(grids[1].record_stride)),
        tail_stride: grids.map(|grid| small(grid.tail_stride)),
        reserved: [0; 2],
    };
    Ok(())
}

/// Room for the longest line or front, or else for the longest record.
fn plan_window(tensor: &mut GatherTensor) {
    let padded = |bytes: u64| u32::try_from((bytes + 15).next_multiple_of(16)).unwrap_or(u32::MAX);
    let strides = || tensor.forms.iter().filter(|form| form.codec != 0);
    let record = strides().map(|form| form.tail_stride.into_iter().fold(form.record_stride, u32::max)).max();
    let records = u64::from(tensor.grids[0].records.max(1));
    let front = strides()
        .map(|form| (records - 1) * u64::from(form.record_stride) + u64::from(form.tail_stride[0]))
        .max();
    let raw = u64::from(tensor.grids[0].row_bytes);
    let wanted = [padded(front.unwrap_or(0)), padded(raw), tensor.cache.line_bytes];
    // A longer row is gathered by pieces, unless the cache may have it.
    let most = tensor.cache.line_bytes.max(USUAL_WINDOW_BYTES - SLACK_BYTES);
    let fits = |bytes: u32| bytes <= most;
    let room = wanted.into_iter().filter(|&bytes| fits(bytes)).max().unwrap_or(0);
    let room = room.max(padded(u64::from(record.unwrap_or(0)))).max(MIN_WINDOW_BYTES);
    if tensor.whole == 1 {
        let record_bytes = small(RECORD_ELEMS * u64::from(tensor.elem_bits) / 8);
        tensor.scratch_bytes = record_bytes + SLACK_BYTES;
    }
    tensor.window_bytes = room + SLACK_BYTES + tensor.scratch_bytes;
    // The four windows of a warp must fit a thread block.
    if tensor.window_bytes > MAX_WINDOW_BYTES / 4 {
        tensor.lanes = 32;
    }
}

impl GatherTensor {
    /// Adds a generation of metadata, or puts it in the place of the one that has had its index.
    ///
    /// # Errors
    /// As [`describe`].
    pub fn set_form(&mut self, geometry: &Geometry, form: &DeviceForm<'_>) -> Result<()> {
        let shapes = [0, geometry.n_blocks().saturating_sub(1)].map(|block_idx| geometry.block(block_idx));
        add_form(self, geometry, &shapes, form)?;
        plan_window(self);
        Ok(())
    }

    /// The block of row `row`, or its first one; for a host that reads the miss list.
    #[must_use]
    pub fn blocks_of(&self, row: u64) -> core::ops::Range<u64> {
        let first = if self.pieces > 1 {
            row.saturating_mul(u64::from(self.pieces))
        } else {
            row / u64::from(self.block_rows.max(1))
        };
        first..first.saturating_add(u64::from(self.pieces)).min(self.n_blocks)
    }

    /// Bytes of shared memory of a thread block of that many threads.
    pub(super) fn shared_bytes(&self, threads: u32) -> u32 {
        threads / self.lanes * self.window_bytes
    }
}
