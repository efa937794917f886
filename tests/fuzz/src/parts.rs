//! Metadata and blocks whose headers are right and whose bodies are the fuzzer's.
//!
//! Written from FORMAT.md and not with the encoder, so that the parser is held to the text: what these functions
//! give must be accepted.

use tierpack_kernels::geometry::{BlockShape, Geometry};
use tierpack_kernels::{Coder, RECORD_ELEMS};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

use crate::input::{Input, repeated};

/// Rows of more bytes have one mask and one base.
const MAX_COLUMNS_ROW_BYTES: u64 = 64 << 10;

/// The end of a head without a rest in the overflow.
const NO_REST: u32 = 0x7FFF_FFFF;

/// Sets the little-endian field at `at`.
pub(crate) fn set(bytes: &mut [u8], at: usize, value: u64, len: usize) {
    bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

/// Sets the checksum of a block or of metadata, which stands at byte 40 of both.
pub(crate) fn seal(bytes: &mut [u8]) {
    set(bytes, 40, 0, 4);
    let checksum = crc32c::crc32c(bytes);
    set(bytes, 40, checksum.into(), 4);
}

/// Runs of a block, and elements of each.
fn runs_of(geometry: &Geometry, shape: &BlockShape) -> (u64, u64) {
    match geometry.access() {
        Access::Rows => (shape.rows, shape.columns),
        Access::Whole => (1, shape.rows * shape.columns),
    }
}

/// Elements of the last record of a run.
const fn tail_of(run_elems: u64) -> u64 {
    (run_elems - 1) % RECORD_ELEMS + 1
}

/// A stride near `wanted` that a record of these many elements may have.
fn stride(wanted: u16, n_elems: u64, dtype: Dtype, chunk_bytes: u64) -> u64 {
    let raw_bytes = n_elems * u64::from(dtype.bits()) / 8;
    let least = (4 + raw_bytes.div_ceil(chunk_bytes).div_ceil(8)).next_multiple_of(4);
    let most = (4 + raw_bytes).next_multiple_of(4);
    (u64::from(wanted) & !3).clamp(least, most)
}

const fn has_sign_and_exponent(dtype: Dtype) -> bool {
    use Dtype::{Bf16, C64, F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz, F16, F32, F64};
    matches!(dtype, F16 | Bf16 | F32 | F64 | C64 | F8E5m2 | F8E4m3 | F8E4m3Fnuz | F8E5m2Fnuz)
}

/// Metadata for a tensor that has blocks.
///
/// Twelve bytes (form, generation, record stride, tail stride, bytes of the pattern), then the pattern of masks,
/// bit values and bases.
pub(crate) fn metadata(geometry: &Geometry, input: &mut Input<'_>) -> Vec<u8> {
    let (dtype, access, row_bytes) = (geometry.dtype(), geometry.access(), geometry.row_bytes());
    let [form, noise] = input.array();
    let generation = input.u32().max(1);
    let (record_stride, tail_stride, len) = (input.u16(), input.u16(), input.u16());
    let pattern = input.take(len.into());

    let codec = if form & 1 == 0 { CodecId::Ibp } else { CodecId::IbpWindow };
    let window = codec == CodecId::IbpWindow;
    let chunk_bytes = [2, 4, 8, 2][usize::from(form >> 1 & 3)];
    let short = row_bytes <= MAX_COLUMNS_ROW_BYTES;
    let aligned = access == Access::Rows || row_bytes.is_multiple_of(chunk_bytes);
    let (masks, mask_len) = if form & 8 != 0 && short && aligned { (2, row_bytes) } else { (1, chunk_bytes) };
    let word_bytes = if dtype == Dtype::C64 { 4 } else { u64::from(dtype.bits()).div_ceil(8) };
    let (base, bases_len) = match form >> 4 & 3 {
        1 if window => (1, word_bytes),
        2 if window && short => (2, row_bytes),
        _ => (0, 0),
    };

    let (_, first) = runs_of(geometry, &geometry.block(0));
    let (_, last) = runs_of(geometry, &geometry.block(geometry.pieces_per_row() - 1));
    let tail_elems = tail_of(last);
    let has_full = first >= RECORD_ELEMS;
    let record_stride = if has_full { stride(record_stride, RECORD_ELEMS, dtype, chunk_bytes) } else { 0 };
    let tail_stride = match tail_elems {
        RECORD_ELEMS => record_stride,
        n_elems => stride(tail_stride, n_elems, dtype, chunk_bytes),
    };

    let mut body = repeated(pattern, noise, 2 * mask_len + bases_len);
    let (mask, rest) = body.split_at_mut(index(mask_len));
    rest.iter_mut().zip(mask).for_each(|(value, mask)| *value &= *mask);
    let mut bytes = vec![0; 48];
    bytes[..4].copy_from_slice(b"TPM1");
    let rotate = u64::from(window && has_sign_and_exponent(dtype));
    let total_len = 48 + body.len() as u64;
    for (at, value, len) in [
        (4, 1, 2),
        (6, codec as u64, 1),
        (7, dtype as u64, 1),
        (8, generation.into(), 4),
        (12, access as u64, 1),
        (13, chunk_bytes, 1),
        (14, masks, 1),
        (15, rotate, 1),
        (16, base, 1),
        (20, record_stride, 4),
        (24, row_bytes, 8),
        (32, tail_stride, 4),
        (36, total_len, 4),
    ] {
        set(&mut bytes, at, value, len);
    }
    bytes.extend(body);
    seal(&mut bytes);
    bytes
}

/// What is done to the heads of the records of a block.
#[derive(Clone, Copy)]
pub(crate) enum Heads {
    /// Nothing.
    Kept,
    /// No record has a rest in the overflow.
    WithoutRest,
    /// Rests start within the overflow.
    Within,
    /// Both.
    Mixed,
}

impl Heads {
    pub(crate) const fn of(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Kept,
            1 => Self::WithoutRest,
            2 => Self::Within,
            _ => Self::Mixed,
        }
    }

    fn repair(self, head: u32, overflow_len: u32) -> u32 {
        let flag = head & !NO_REST;
        let within = flag | ((head & NO_REST) % (overflow_len + 1));
        match self {
            Self::Kept => head,
            Self::WithoutRest => flag | NO_REST,
            Self::Mixed if head & 1 == 0 => flag | NO_REST,
            Self::Within | Self::Mixed => within,
        }
    }
}

/// A block of these metadata, right but for its records, or `None` where the front alone is as long as `raw`.
///
/// Three bytes (length of the overflow, noise), then the pattern of front and overflow.
pub(crate) fn block(
    (coder, metadata): (&Coder, &[u8]),
    geometry: &Geometry,
    block_idx: u64,
    heads: Heads,
    mut input: Input<'_>,
) -> Option<Vec<u8>> {
    let shape = geometry.block(block_idx);
    let (runs, run_elems) = runs_of(geometry, &shape);
    let per_run = run_elems.div_ceil(RECORD_ELEMS);
    let full_stride = u32::from_le_bytes(*metadata[20..].first_chunk()?);
    let record_stride = if per_run > 1 { u64::from(full_stride) } else { 0 };
    let front_len = coder.front_end(block_idx) - 64;
    let run_stride = front_len / runs;
    let room = shape.raw_bytes.checked_sub(front_len + 1)?;
    let overflow_len = u64::from(input.u16()).min(room);

    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"TPB1");
    bytes[6..12].copy_from_slice(&metadata[6..12]);
    bytes[44] = metadata[12];
    for (at, value) in [
        (12, shape.rows),
        (16, shape.columns),
        (20, runs * per_run),
        (24, record_stride),
        (28, run_stride - (per_run - 1) * record_stride),
        (32, overflow_len),
        (36, 64 + front_len + overflow_len),
    ] {
        set(&mut bytes, at, value, 4);
    }
    set(&mut bytes, 4, 1, 2);
    let noise = input.u8();
    bytes.extend(repeated(input.rest(), noise, front_len + overflow_len));
    for run in 0..runs {
        for record in 0..per_run {
            let at = index(64 + run * run_stride + record * record_stride);
            let head = u32::from_le_bytes(*bytes[at..].first_chunk()?);
            let overflow_len = u32::try_from(overflow_len).ok()?;
            set(&mut bytes, at, heads.repair(head, overflow_len).into(), 4);
        }
    }
    seal(&mut bytes);
    Some(bytes)
}
