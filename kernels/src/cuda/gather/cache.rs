//! The size of a cache: how long a line is, and how many there are.

use tierpack_shm::types::{Access, CodecId, index};

use super::abi::{Cache, SET_BYTES, WAYS};
use super::tensor::MAX_WINDOW_BYTES;
use crate::block::Block;
use crate::coder::Coder;
use crate::error::{Error, Result};
use crate::escapes;
use crate::geometry::Geometry;
use crate::records::NO_OVERFLOW;

/// A row may start this far in its line, where it stood so in the pool.
const SKEW_BYTES: u32 = 15;

/// What lines are multiples of.
const LINE_UNIT: u32 = 16;

/// The longest line: what a window of shared memory can hold, and what the tag can say.
pub const MAX_LINE_BYTES: u32 = MAX_WINDOW_BYTES - 32;

/// How the bytes of a cache are laid out: the tags of all sets, then the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLayout {
    n_sets: u32,
    line_bytes: u32,
}

impl CacheLayout {
    /// No cache.
    pub const NONE: Self = Self { n_sets: 0, line_bytes: 0 };

    /// As many sets as fit `bytes`, with lines that hold all but one of a hundred rows of these sizes.
    ///
    /// `row_sizes` comes from [`row_sizes`] of some blocks; a row that is stored raw has its raw bytes.
    /// [`CacheLayout::NONE`] where there is no size, none that a line can have, or not a set's bytes.
    pub fn new(bytes: u64, row_sizes: &mut [u32]) -> Self {
        if row_sizes.is_empty() {
            return Self::NONE;
        }
        let longer = row_sizes.len() / 100;
        let (_, &mut size, _) = row_sizes.select_nth_unstable(row_sizes.len() - 1 - longer);
        Self::with_line(bytes, size.saturating_add(SKEW_BYTES))
    }

    /// As many sets as fit `bytes`, with lines of at least `line_bytes`.
    pub fn with_line(bytes: u64, line_bytes: u32) -> Self {
        let Some(line_bytes) = line_bytes.max(1).checked_next_multiple_of(LINE_UNIT) else {
            return Self::NONE;
        };
        if line_bytes > MAX_LINE_BYTES {
            return Self::NONE;
        }
        let set_bytes = SET_BYTES + u64::from(WAYS) * u64::from(line_bytes);
        match u32::try_from(bytes / set_bytes).unwrap_or(u32::MAX) {
            0 => Self::NONE,
            n_sets => Self { n_sets, line_bytes },
        }
    }

    /// Bytes that it takes: at most those that were passed. The first [`CacheLayout::tag_bytes`] must be 0 at first.
    pub const fn bytes(&self) -> u64 {
        self.tag_bytes() + self.n_lines() * self.line_bytes as u64
    }

    /// Bytes of the tags.
    pub const fn tag_bytes(&self) -> u64 {
        self.n_sets as u64 * SET_BYTES
    }

    /// Rows that it can hold.
    pub const fn n_lines(&self) -> u64 {
        self.n_sets as u64 * WAYS as u64
    }

    /// Bytes of a line.
    pub const fn line_bytes(&self) -> u32 {
        self.line_bytes
    }

    /// What the kernels receive, where it starts at this address, a multiple of 16.
    pub const fn at(&self, address: u64) -> Cache {
        Cache {
            sets: address,
            lines: address + self.tag_bytes(),
            n_sets: self.n_sets,
            line_bytes: self.line_bytes,
        }
    }
}

/// The bytes that a line needs for each row of a block, apart from where it starts: its front, and its rests or
/// escapes.
///
/// # Errors
/// Those of a parse of the block, and [`Error::NoMetadata`] and [`Error::WrongGeneration`] where `coder` is not its.
pub fn row_sizes(coder: Option<&Coder>, geometry: &Geometry, block: &Block<'_>) -> Result<Vec<u32>> {
    let rows = index(u64::from(block.rows()));
    let raw = u32::try_from(block.raw_bytes() / u64::from(block.rows())).unwrap_or(u32::MAX);
    if block.codec() == CodecId::Raw || geometry.access() == Access::Whole {
        return Ok(vec![raw; rows]);
    }
    let (codec, generation) = (block.codec(), block.generation());
    let coder = coder.ok_or(Error::NoMetadata { codec, generation })?;
    let grid = coder.check_block(block.checked())?;
    let front = u32::try_from(grid.run_stride()).unwrap_or(u32::MAX);
    let mut sizes = vec![front; rows];
    let mut add = |row: usize, bytes: usize| {
        if let Some(size) = sizes.get_mut(row) {
            *size = size.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    };
    if codec == CodecId::Planes4 {
        let columns = index(u64::from(block.columns()));
        for elem in escapes::elements(block.overflow()) {
            add(elem / columns, escapes::ENTRY_BYTES);
        }
        return Ok(sizes);
    }
    // Rests follow each other in the order of their records: each ends where the next one starts.
    let mut end = block.overflow().len();
    for row in (0..rows).rev() {
        for record in (0..grid.runs.records).rev() {
            let at = index(grid.place(row as u64, record).offset);
            let head =
                block.front()[at..].first_chunk().map_or(NO_OVERFLOW, |head| u32::from_le_bytes(*head));
            let offset = head & NO_OVERFLOW;
            if offset != NO_OVERFLOW {
                add(row, end.saturating_sub(offset as usize));
                end = end.min(offset as usize);
            }
        }
    }
    Ok(sizes)
}
