//! What can be wrong with a tensor's shape, with a block's bytes or with metadata.
//!
//! Every variant carries the numbers that were compared, so that a caller can match and a user can read.
//! Bytes from outside never panic: they end here.

use tierpack_shm::types::{CodecId, Dtype};

use crate::block::FORMAT_VERSION;
use crate::geometry::{MAX_BLOCK_RAW_BYTES, MAX_RANK};

/// A result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// What can be wrong with a tensor's shape, with a block's bytes or with metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shape has too many dimensions.
    #[error("shape has {rank} dimensions, at most {MAX_RANK} are supported: merge some of them")]
    Rank {
        /// Dimensions of the shape.
        rank: usize,
    },
    /// The number of elements, bits or bytes does not fit 64 bits.
    #[error("tensor of {dtype} with shape {shape:?} has more than 2^64 - 1 bits")]
    ShapeOverflow {
        /// Element type.
        dtype: Dtype,
        /// The shape.
        shape: Vec<u64>,
    },
    /// Elements of 4 or 6 bits that do not fill their last byte.
    #[error("{n_elems} elements of {dtype} are not a whole number of bytes: pad them")]
    PartialByte {
        /// Element type.
        dtype: Dtype,
        /// Number of elements.
        n_elems: u64,
    },
    /// The caller's row length does not cut the tensor into whole rows.
    #[error("row length of {row_elems} elements does not divide the tensor's {n_elems} elements")]
    RowLength {
        /// The caller's row length.
        row_elems: u64,
        /// Elements of the tensor.
        n_elems: u64,
    },
    /// The caller passed a row length for a tensor whose shape fixes another.
    #[error(
        "row length of {row_elems} elements contradicts shape {shape:?}, whose rows have {own_elems}: \
         leave the row length out"
    )]
    RowLengthFixed {
        /// The caller's row length.
        row_elems: u64,
        /// Elements of a row by the shape.
        own_elems: u64,
        /// The shape, of rank 2 or more.
        shape: Vec<u64>,
    },
    /// The tensor has no such block.
    #[error("block {block_idx} of a tensor that has {n_blocks}")]
    NoSuchBlock {
        /// The block asked for.
        block_idx: u64,
        /// Blocks of the tensor.
        n_blocks: u64,
    },
    /// The raw bytes passed to the encoder are not those of the block.
    #[error("block {block_idx} has {needed} raw bytes, got {got}")]
    RawLength {
        /// The block.
        block_idx: u64,
        /// Raw bytes of the block.
        needed: u64,
        /// Bytes passed.
        got: u64,
    },
    /// The buffer passed to the decoder has another length than the block's raw bytes.
    #[error("block decodes to {needed} bytes, the output has {got}")]
    OutputLength {
        /// Raw bytes of the block.
        needed: u64,
        /// Bytes of the output.
        got: u64,
    },
    /// The bytes end before the block does.
    #[error("block needs {needed} bytes, only {got} are there")]
    BlockTruncated {
        /// Bytes of the header, or of the block where the header is whole.
        needed: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// The bytes are not a block.
    #[error("not a block: the first four bytes are {found:02x?}, expected \"TPB1\"")]
    NotABlock {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The block has a format version of the future.
    #[error(
        "block has format version {found}, made by a newer TierPack: this one reads version {FORMAT_VERSION}, \
         update it"
    )]
    UnknownVersion {
        /// The block's version.
        found: u16,
    },
    /// The block's codec has a number without a meaning in this version.
    #[error("block has unknown codec {number}: damaged, or made by a newer TierPack")]
    UnknownCodec {
        /// The codec's number.
        number: u8,
    },
    /// The block's dtype has a number without a meaning in this version.
    #[error("block has unknown dtype {number}: damaged, or made by a newer TierPack")]
    UnknownDtype {
        /// The dtype's number.
        number: u8,
    },
    /// A reserved byte of the header is in use.
    #[error("byte {offset} of the block header is reserved: it must be 0 and is {found}")]
    Reserved {
        /// Offset in the header.
        offset: usize,
        /// The byte.
        found: u8,
    },
    /// The block says that it has no elements; such a block is never written.
    #[error("block has {rows} rows of {columns} columns: an empty block is never written")]
    EmptyBlock {
        /// Rows in the header.
        rows: u32,
        /// Columns in the header.
        columns: u32,
    },
    /// The block says that it has more raw bytes than any block may have.
    #[error("block has {rows} rows of {columns} {dtype} columns, more than {MAX_BLOCK_RAW_BYTES} bytes")]
    BlockTooLarge {
        /// Rows in the header.
        rows: u32,
        /// Columns in the header.
        columns: u32,
        /// Dtype in the header.
        dtype: Dtype,
    },
    /// A header field contradicts the others.
    #[error("{field} in the block header is {found}, expected {expected}")]
    Field {
        /// The field's name in FORMAT.md.
        field: &'static str,
        /// Its value.
        found: u32,
        /// The value that the other fields ask for.
        expected: u64,
    },
    /// The bytes are not those that the encoder wrote.
    #[error("block checksum is {computed:#010x}, its header says {stored:#010x}: the bytes are damaged")]
    Checksum {
        /// CRC32C in the header.
        stored: u32,
        /// CRC32C of the bytes.
        computed: u32,
    },
    /// The block needs metadata to be decoded, and none was passed.
    #[error("block of codec {codec} needs metadata of generation {generation}, none was given")]
    NoMetadata {
        /// The block's codec.
        codec: CodecId,
        /// The block's generation.
        generation: u32,
    },
    /// The metadata passed are not those that encoded the block.
    #[error("block needs metadata of generation {needed}, those given have generation {got}")]
    WrongGeneration {
        /// The block's generation.
        needed: u32,
        /// The generation of the metadata.
        got: u32,
    },
    /// The block has no such row.
    #[error("row {row_in_block} of a block that has {rows}")]
    NoSuchRow {
        /// The row asked for.
        row_in_block: u64,
        /// Rows of the block.
        rows: u64,
    },
    /// A record says that its overflow lies where the block has none.
    #[error(
        "record needs overflow bytes {offset} to {end}, the block has {overflow_len}: the block is damaged"
    )]
    Overflow {
        /// First byte of the record's overflow.
        offset: u64,
        /// The byte after its last.
        end: u64,
        /// Bytes of the block's overflow that are there.
        overflow_len: u64,
    },
    /// An element has a code that says that its exponent is in the block's list, and is not there.
    #[error("element {elem} of the block has no exponent in the list of escapes: the block is damaged")]
    NoEscape {
        /// The element's number in the block.
        elem: u64,
    },
    /// The bytes end before the metadata do.
    #[error("metadata need {needed} bytes, only {got} are there")]
    MetadataTruncated {
        /// Bytes of the header, or of all metadata where the header is whole.
        needed: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// The bytes are not metadata.
    #[error("not metadata: the first four bytes are {found:02x?}, expected \"TPM1\"")]
    NotMetadata {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The metadata have a format version of the future.
    #[error(
        "metadata have format version {found}, made by a newer TierPack: this one reads version \
         {FORMAT_VERSION}, update it"
    )]
    UnknownMetadataVersion {
        /// The version of the metadata.
        found: u16,
    },
    /// A field of the metadata has a value without a meaning, or contradicts the tensor.
    #[error("{field} of the metadata is {found}, expected {expected}: damaged, or of another tensor")]
    MetadataField {
        /// The field's name in FORMAT.md.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// The metadata are not those that were written.
    #[error("metadata checksum is {computed:#010x}, the header says {stored:#010x}: the bytes are damaged")]
    MetadataChecksum {
        /// CRC32C in the header.
        stored: u32,
        /// CRC32C of the bytes.
        computed: u32,
    },
    /// An address for a kernel is not aligned.
    #[error("address {address:#x} of {of} is not a multiple of {unit}")]
    Address {
        /// What is there.
        of: &'static str,
        /// The address.
        address: u64,
        /// What it must be a multiple of.
        unit: u64,
    },
    /// Counters that the kernels cannot number.
    #[error("counting {len} bytes with a period of {period} needs more than 2^32 bytes, or counts nothing")]
    Count {
        /// Bytes to count in.
        len: u64,
        /// Bytes, or columns, after which the counters repeat.
        period: u64,
    },
    /// Jobs that share counters may count more than a counter holds.
    #[error(
        "jobs may count {most} words in one counter at {counts:#x}, which holds at most 2^32 - 1: share it less"
    )]
    FullCounter {
        /// The address of the counters.
        counts: u64,
        /// The most that one of them may count.
        most: u64,
    },
    /// An overlay is not one of the block that it is for.
    #[error(
        "overlay has {n_rows} rows of {row_bytes} bytes from byte {rows_at} on, the block has {raw_len} raw bytes: \
         one of them is damaged"
    )]
    Overlay {
        /// Rows of the overlay.
        n_rows: u64,
        /// Bytes of each.
        row_bytes: u64,
        /// Where the first starts.
        rows_at: u64,
        /// Raw bytes of the block.
        raw_len: u64,
    },
    /// The rows of a tensor cannot be gathered on a GPU.
    #[error(
        "rows of {row_bytes} bytes cannot be gathered on a GPU: they are not whole bytes, or more than 2^32 blocks \
         long"
    )]
    NotGatherable {
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// A generation index that a GPU has no place for.
    #[error(
        "generation index {idx} is too large for a GPU, which has {} of them",
        crate::cuda::gather::MAX_FORMS
    )]
    GenerationIndex {
        /// The index.
        idx: u8,
    },
    /// A piece of a sample is no part of the block that it names.
    #[error("a piece of a sample does not lie in block {block_idx}")]
    PieceElsewhere {
        /// The block.
        block_idx: u64,
    },
    /// A fit was asked for without a piece to fit.
    #[error("no sample: a fit needs at least one piece of the tensor")]
    NoSample,
}
