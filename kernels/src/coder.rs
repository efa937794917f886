//! Metadata prepared for use: what encodes and decodes the blocks of one tensor.
//!
//! A [`Coder`] is built once per handle and generation; with it, reading a row allocates nothing.
//! Masks are kept for groups of 8 bytes, so that every chunk size is read by the same loop.

use tierpack_shm::types::{Access, CodecId, index};

use crate::bits::read_word;
use crate::block::Checked;
use crate::cpu::{Backend, Level};
use crate::cut::{Grid, RECORD_ELEMS, Runs, StrideRules, bytes_of};
use crate::error::{Error, Result};
use crate::geometry::{BlockShape, Geometry};
use crate::metadata::{self, Granularity, Lengths, Metadata, word_bytes};
use crate::planes::Planes;
use crate::sparse::Sparse;
use crate::window::{Bases, Window};

/// Bytes of a group: what one deposit or extraction moves.
pub(crate) const GROUP_BYTES: usize = 8;

/// Mask and bit values of 8 consecutive bytes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// Bits that are invariant.
    pub(crate) mask: u64,
    /// Their values.
    pub(crate) bitval: u64,
}

/// The masks of one record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks<'a> {
    /// 2, 4 or 8.
    pub(crate) chunk_bytes: usize,
    /// Those of every group of 8 bytes of the record, and perhaps more.
    pub(crate) groups: &'a [Group],
    /// The deposits of each group, where all are the same.
    pub(crate) deposits: Option<&'a Deposits>,
}

/// What one group does with its participation bits; aligned, so that a table of them is indexed by a shift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
pub(crate) struct Deposit {
    /// The bits that are stored.
    pub(crate) stored: u64,
    /// The others.
    pub(crate) value: u64,
    /// How many are stored.
    pub(crate) n_stored: u32,
}

/// A deposit for each pattern of participation bits, of which a group has up to 4.
pub(crate) type Deposits = [Deposit; 16];

/// Metadata prepared to encode and decode the blocks of one tensor.
#[derive(Clone, Debug)]
pub struct Coder {
    codec: CodecId,
    generation: u32,
    geometry: Geometry,
    form: Form,
    stride_rules: StrideRules,
    record_stride: u64,
    tail_stride: u64,
    tail_elems: u64,
    /// Every block but the last, or the last piece of each row; then these.
    blocks: [BlockGrid; 2],
    backend: Backend,
}

/// One block as a reader of rows needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockGrid {
    pub(crate) rows: u64,
    pub(crate) row_bytes: u64,
    pub(crate) grid: Grid,
}

/// What differs from codec to codec.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// `ibp` and `ibp:window`.
    Ibp(Ibp),
    /// `planes:4`, `planes:3` and `planes:2-2-2`.
    Planes(Box<Planes>),
    /// `sparse`.
    Sparse(Box<Sparse>),
}

/// Metadata of `ibp` and `ibp:window` prepared for use.
#[derive(Clone, Debug)]
pub(crate) struct Ibp {
    pub(crate) chunk_bytes: usize,
    /// Masks of the groups of a run, as many as there are before they repeat, and then those of one record, so
    /// that the groups of any record lie together.
    pub(crate) groups: Box<[Group]>,
    /// Groups before they repeat.
    pub(crate) period: usize,
    deposits: Option<Box<Deposits>>,
    pub(crate) window: Window,
}

impl Coder {
    /// Prepares metadata that [`Metadata::parse`] or a fit returned for this geometry.
    ///
    /// # Errors
    /// Those of [`Metadata::parse`], where the metadata are for another tensor.
    pub fn new(metadata: &Metadata, geometry: &Geometry) -> Result<Self> {
        metadata.check(geometry)?;
        let n_blocks = geometry.n_blocks();
        let lengths = Lengths::of(geometry).ok_or(Error::NoSuchBlock { block_idx: 0, n_blocks })?;
        let form = match &metadata.form {
            metadata::Form::Ibp(ibp) => Form::Ibp(Ibp::new(ibp, geometry)),
            metadata::Form::Planes(planes) => {
                let number = metadata.codec as u8;
                let planes = Planes::new(planes, geometry.dtype()).ok_or(Error::UnknownCodec { number })?;
                Form::Planes(Box::new(planes))
            }
            metadata::Form::Sparse(sparse) => Form::Sparse(Box::new(Sparse::new(sparse, geometry.dtype()))),
        };
        let mut coder = Self {
            codec: metadata.codec,
            generation: metadata.generation,
            geometry: *geometry,
            form,
            stride_rules: metadata.stride_rules(),
            record_stride: u64::from(metadata.record_stride),
            tail_stride: u64::from(metadata.tail_stride),
            tail_elems: lengths.tail_elems,
            blocks: Default::default(),
            backend: Backend::new(Level::detect()),
        };
        coder.blocks = [0, n_blocks - 1].map(|block_idx| {
            let shape = geometry.block(block_idx);
            BlockGrid { rows: shape.rows, row_bytes: shape.row_bytes, grid: coder.grid(&shape) }
        });
        Ok(coder)
    }

    /// Rows and grid of a block, without arithmetic; `None` from the end of the tensor on.
    #[inline]
    pub(crate) fn block(&self, block_idx: u64) -> Option<&BlockGrid> {
        let (n_blocks, pieces) = (self.geometry.n_blocks(), self.geometry.pieces_per_row());
        if block_idx >= n_blocks {
            return None;
        }
        let is_last =
            if pieces > 1 { (block_idx + 1).is_multiple_of(pieces) } else { block_idx + 1 == n_blocks };
        Some(&self.blocks[usize::from(is_last)])
    }

    /// The same coder on another level, for tests and benches; every level reads and writes the same bytes.
    ///
    /// A level that this machine lacks becomes [`Level::Scalar`].
    #[must_use]
    pub fn with_level(self, level: Level) -> Self {
        Self { backend: Backend::new(level), ..self }
    }

    /// The codec of the blocks.
    #[inline]
    pub const fn codec(&self) -> CodecId {
        self.codec
    }

    /// The number of the metadata.
    #[inline]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// What runs the inner loops.
    #[inline]
    pub const fn level(&self) -> Level {
        self.backend.level()
    }

    #[inline]
    pub(crate) const fn backend(&self) -> Backend {
        self.backend
    }

    pub(crate) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    pub(crate) const fn form(&self) -> &Form {
        &self.form
    }

    /// Whether records have heads.
    #[inline]
    pub(crate) const fn has_heads(&self) -> bool {
        self.stride_rules.head_bytes() > 0
    }

    /// Where the records of a block of this shape lie; the shape has rows.
    #[inline]
    pub(crate) const fn grid(&self, shape: &BlockShape) -> Grid {
        let runs = Runs::of(self.geometry.access(), shape.rows, shape.columns);
        let tail_stride = self.stride_of(runs.tail_elems);
        Grid::new(runs, self.geometry.dtype(), self.record_stride, tail_stride)
    }

    /// The stride of a record of `n_elems` elements.
    ///
    /// Metadata hold it for full records and for the usual last record of a run; the last run of a tensor may
    /// end otherwise, and gets its share of a full stride.
    const fn stride_of(&self, n_elems: u64) -> u64 {
        if n_elems == self.tail_elems {
            return self.tail_stride;
        }
        if n_elems == RECORD_ELEMS {
            return self.record_stride;
        }
        self.stride_rules.share_of(self.record_stride, n_elems)
    }

    /// Whether this generation of this tensor may have encoded the block.
    pub(crate) fn check_block(&self, block: &Checked) -> Result<Grid> {
        let codec = block.codec;
        let Some(grid) = block.grid else {
            return Err(Error::NoMetadata { codec, generation: block.generation() });
        };
        if codec != self.codec || block.generation() != self.generation {
            return Err(Error::WrongGeneration { needed: block.generation(), got: self.generation });
        }
        let field = |field, found: u64, expected: u64| {
            let found = u32::try_from(found).unwrap_or(u32::MAX);
            if u64::from(found) == expected { Ok(()) } else { Err(Error::Field { field, found, expected }) }
        };
        field("dtype", block.dtype as u64, self.geometry.dtype() as u64)?;
        let access = block.access().map_or(0, |access| access as u64);
        field("access", access, self.geometry.access() as u64)?;
        let expected =
            Grid::new(grid.runs, block.dtype, self.record_stride, self.stride_of(grid.runs.tail_elems));
        field("record_stride", grid.record_stride, expected.record_stride)?;
        field("tail_stride", grid.tail_stride, expected.tail_stride)?;
        Ok(grid)
    }
}

impl Ibp {
    fn new(metadata: &metadata::Ibp, geometry: &Geometry) -> Self {
        let chunk_bytes = usize::from(metadata.chunk_bytes);
        let mut groups = groups(metadata, geometry.access());
        let period = groups.len();
        let record_bytes = index(bytes_of(geometry.dtype(), RECORD_ELEMS));
        for i in 0..record_bytes.div_ceil(GROUP_BYTES) {
            groups.push(groups[i]);
        }
        let bases = match metadata.base {
            None => Bases::Zero,
            Some(Granularity::Tensor) => Bases::One(read_word(&metadata.bases)),
            Some(Granularity::Column) => Bases::Columns(metadata.bases.clone()),
        };
        Self {
            chunk_bytes,
            deposits: (period == 1).then(|| Box::new(groups[0].deposits(chunk_bytes))),
            groups: groups.into(),
            period,
            window: Window {
                word_bytes: index(word_bytes(geometry.dtype())),
                rotate: metadata.rotate,
                bases,
            },
        }
    }

    /// The masks of the record that starts at byte `start` of its run.
    #[inline]
    pub(crate) fn masks(&self, start: usize) -> Masks<'_> {
        let first = start / GROUP_BYTES;
        let first = if first < self.period { first } else { first % self.period };
        let groups = &self.groups[first..];
        Masks { chunk_bytes: self.chunk_bytes, groups, deposits: self.deposits.as_deref() }
    }
}

impl Group {
    /// The table of what each pattern of participation bits stores.
    fn deposits(&self, chunk_bytes: usize) -> Deposits {
        std::array::from_fn(|parts| {
            let chunks = (0..GROUP_BYTES / chunk_bytes)
                .filter(|chunk| parts >> chunk & 1 == 1)
                .fold(0, |chunks, chunk| chunks | !missing_bits(chunk_bytes) << (8 * chunk * chunk_bytes));
            let stored = !(self.mask & chunks);
            Deposit { stored, value: self.bitval & chunks, n_stored: stored.count_ones() }
        })
    }
}

impl Masks<'_> {
    /// Mask and bit values of chunk `chunk` of a record of `raw_bytes` bytes, and the bits that the chunk has.
    ///
    /// Bits that a short last chunk lacks are invariant zeros.
    pub(crate) fn chunk(&self, chunk: usize, raw_bytes: usize) -> (Group, u32) {
        let at = chunk * self.chunk_bytes;
        let group = self.groups[at / GROUP_BYTES];
        let n_bytes = self.chunk_bytes.min(raw_bytes - at);
        let shift = 8 * (at % GROUP_BYTES);
        let missing = missing_bits(n_bytes);
        let mask = group.mask >> shift | missing;
        let n_bits = if n_bytes == 8 { 64 } else { missing.trailing_zeros() };
        (Group { mask, bitval: group.bitval >> shift & !missing }, n_bits)
    }
}

/// The bits of a group after its first `n_bytes` bytes.
#[inline(always)]
pub(crate) const fn missing_bits(n_bytes: usize) -> u64 {
    if n_bytes >= GROUP_BYTES { 0 } else { u64::MAX << (8 * n_bytes) }
}

/// The masks of one row, or of as many rows as end where a group does; at least one group.
fn groups(metadata: &metadata::Ibp, access: Access) -> Vec<Group> {
    let len = metadata.mask.len();
    let times = match (metadata.masks, access) {
        (Granularity::Column, Access::Rows) => 1,
        _ => GROUP_BYTES >> len.trailing_zeros().min(GROUP_BYTES.trailing_zeros()),
    };
    let (mask, bitval) = (metadata.mask.repeat(times), metadata.bitval.repeat(times));
    mask.chunks(GROUP_BYTES)
        .zip(bitval.chunks(GROUP_BYTES))
        .map(|(mask, bitval)| Group { mask: read_word(mask), bitval: read_word(bitval) })
        .collect()
}
