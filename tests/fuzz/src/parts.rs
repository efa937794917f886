//! Metadata and blocks whose headers are right and whose bodies are the fuzzer's.
//!
//! Written from FORMAT.md and not with the encoder, so that the parser is held to the text: what these functions
//! give must be accepted.

use tierpack_kernels::RECORD_ELEMS;
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, CodecId, Dtype, index};

use crate::front::{Front, StrideRules, runs_of, tail_elems};
use crate::input::{Input, repeated};
use crate::planes::Planes;

/// Rows of more bytes have one mask and one base.
const MAX_COLUMNS_ROW_BYTES: u64 = 64 << 10;

/// The end of a head without a rest in the overflow.
const NO_REST: u32 = 0x7FFF_FFFF;

/// Sets the little-endian field at `at`.
pub(crate) fn set(bytes: &mut [u8], at: usize, value: u64, len: usize) {
    bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

/// Sets the checksum of a block or of metadata, which is at byte 40 of both.
pub(crate) fn seal(bytes: &mut [u8]) {
    set(bytes, 40, 0, 4);
    let checksum = crc32c::crc32c(bytes);
    set(bytes, 40, checksum.into(), 4);
}

const fn has_sign_and_exponent(dtype: Dtype) -> bool {
    use Dtype::{Bf16, C64, F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz, F16, F32, F64};
    matches!(dtype, F16 | Bf16 | F32 | F64 | C64 | F8E5m2 | F8E4m3 | F8E4m3Fnuz | F8E5m2Fnuz)
}

/// What is the codec's own in metadata.
struct Own {
    codec: CodecId,
    /// Bytes 13 to 16 of the header.
    fields: [u8; 4],
    /// What follows the header.
    body: Vec<u8>,
}

/// Metadata for a tensor that has blocks.
///
/// Twelve bytes (form, noise, generation, record stride, tail stride, bytes of the pattern), then the pattern of
/// what follows the header; for `planes` two bytes more, the dropped bits.
/// Form: bits 6 and 7, 0 = `ibp` or `ibp:window`, else one of `planes` if the dtype has it.
pub(crate) fn metadata(geometry: &Geometry, input: &mut Input<'_>) -> Vec<u8> {
    let [form, noise] = input.array();
    let generation = input.u32().max(1);
    let wanted = [input.u16(), input.u16()];
    let len = input.u16();
    let pattern = input.take(len.into());
    let codec =
        [CodecId::Ibp, CodecId::Planes4, CodecId::Planes3, CodecId::Planes222][usize::from(form >> 6)];
    let own = match Planes::new(codec, geometry.dtype(), [0; 2]) {
        Some(planes) => planes_of(form, geometry, codec, planes.dropping(input.array()), (pattern, noise)),
        None => ibp_of(form, geometry, pattern, noise),
    };
    finish(geometry, generation, wanted, &own)
}

/// Form: bit 0, whether bits are dropped; bit 3, bases per column.
fn planes_of(
    form: u8,
    geometry: &Geometry,
    codec: CodecId,
    planes: Planes,
    (pattern, noise): (&[u8], u8),
) -> Own {
    let planes = if form & 1 == 0 { planes.dropping([0; 2]) } else { planes };
    let by_column = form & 8 != 0 && geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES;
    let body = planes.body(geometry, by_column, pattern, noise);
    Own { codec, fields: planes.fields(by_column), body }
}

/// Form: bit 0, `ibp:window`; bits 1 and 2, bytes of a chunk; bit 3, masks per column; bits 4 and 5, bases.
fn ibp_of(form: u8, geometry: &Geometry, pattern: &[u8], noise: u8) -> Own {
    let (dtype, access, row_bytes) = (geometry.dtype(), geometry.access(), geometry.row_bytes());
    let codec = if form & 1 == 0 { CodecId::Ibp } else { CodecId::IbpWindow };
    let window = codec == CodecId::IbpWindow;
    let chunk_bytes = [2, 4, 8, 2][usize::from(form >> 1 & 3)];
    let short = row_bytes <= MAX_COLUMNS_ROW_BYTES;
    let aligned = access == Access::Rows || row_bytes.is_multiple_of(chunk_bytes.into());
    let (masks, mask_len) =
        if form & 8 != 0 && short && aligned { (2, row_bytes) } else { (1, chunk_bytes.into()) };
    let word_bytes = if dtype == Dtype::C64 { 4 } else { u64::from(dtype.bits()).div_ceil(8) };
    let (base, bases_len) = match form >> 4 & 3 {
        1 if window => (1, word_bytes),
        2 if window && short => (2, row_bytes),
        _ => (0, 0),
    };
    let mut body = repeated(pattern, noise, 2 * mask_len + bases_len);
    let (mask, rest) = body.split_at_mut(index(mask_len));
    rest.iter_mut().zip(mask).for_each(|(value, mask)| *value &= *mask);
    let rotate = u8::from(window && has_sign_and_exponent(dtype));
    Own { codec, fields: [chunk_bytes, masks, rotate, base], body }
}

/// Adds the header, with strides near those wanted.
fn finish(geometry: &Geometry, generation: u32, wanted: [u16; 2], own: &Own) -> Vec<u8> {
    let (dtype, tail_elems) = (geometry.dtype(), tail_elems(geometry));
    let rules = StrideRules::of(own.codec, dtype, own.fields);
    let (_, first) = runs_of(geometry, &geometry.block(0));
    let record_stride = if first >= RECORD_ELEMS { rules.near(wanted[0], RECORD_ELEMS) } else { 0 };
    let tail_stride = match tail_elems {
        RECORD_ELEMS => record_stride,
        n_elems => rules.near(wanted[1], n_elems),
    };
    let mut bytes = vec![0; 48];
    bytes[..4].copy_from_slice(b"TPM1");
    bytes[13..17].copy_from_slice(&own.fields);
    for (at, value, len) in [
        (4, 1, 2),
        (6, own.codec as u64, 1),
        (7, dtype as u64, 1),
        (8, generation.into(), 4),
        (12, geometry.access() as u64, 1),
        (20, record_stride, 4),
        (24, geometry.row_bytes(), 8),
        (32, tail_stride, 4),
        (36, 48 + own.body.len() as u64, 4),
    ] {
        set(&mut bytes, at, value, len);
    }
    bytes.extend(&own.body);
    seal(&mut bytes);
    bytes
}

/// What is done to the heads of the records of a block; for `planes:4`, see [`list_of`].
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
    metadata: &[u8],
    geometry: &Geometry,
    block_idx: u64,
    heads: Heads,
    mut input: Input<'_>,
) -> Option<Vec<u8>> {
    let shape = geometry.block(block_idx);
    let front = Front::of(geometry, metadata, block_idx)?;
    let room = shape.raw_bytes.checked_sub(front.len() + 1)?;
    let planes = StrideRules::of_metadata(geometry, metadata)?.planes;
    let wanted = u64::from(input.u16()).min(room);
    let noise = input.u8();
    let mut body = repeated(input.rest(), noise, front.len() + wanted);
    match planes.filter(|planes| !planes.has_heads()) {
        Some(planes) => {
            let (records, list) = body.split_at(index(front.len()));
            let list = list_of(heads, &front, &planes, records, list, room);
            body.truncate(index(front.len()));
            body.extend(list);
        }
        None => {
            for (at, _) in front.records() {
                let head = u32::from_le_bytes(*body[at..].first_chunk()?);
                set(&mut body, at, heads.repair(head, u32::try_from(wanted).ok()?).into(), 4);
            }
        }
    }
    let body_len = body.len() as u64;
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"TPB1");
    set(&mut bytes, 4, 1, 2);
    bytes[6..12].copy_from_slice(&metadata[6..12]);
    bytes[44] = metadata[12];
    for (at, value) in [
        (12, shape.rows),
        (16, shape.columns),
        (20, front.runs * front.per_run),
        (24, front.record_stride),
        (28, front.tail_stride),
        (32, body_len - front.len()),
        (36, 64 + body_len),
    ] {
        set(&mut bytes, at, value, 4);
    }
    bytes.extend(body);
    seal(&mut bytes);
    Some(bytes)
}

/// The escapes of a block of `planes:4`: those of the pattern, the same in their order, or those that its records
/// ask for, with exponents of the pattern.
fn list_of(
    heads: Heads,
    front: &Front,
    planes: &Planes,
    records: &[u8],
    pattern: &[u8],
    room: u64,
) -> Vec<u8> {
    const ELEM: u32 = (1 << 18) - 1;
    let mut entries: Vec<u32> =
        pattern.as_chunks().0.iter().map(|&entry| u32::from_le_bytes(entry)).collect();
    if matches!(heads, Heads::WithoutRest) {
        entries.sort_by_key(|entry| entry & ELEM);
    }
    if matches!(heads, Heads::Within | Heads::Mixed) {
        let mut first = 0;
        let mut elems = Vec::new();
        for (at, n_elems) in front.records() {
            elems.extend(planes.escapes(&records[at..], n_elems).map(|elem| first + elem));
            first += n_elems;
        }
        let exponents = if entries.is_empty() { vec![0] } else { entries };
        let entry = |(elem, exponent): (u64, &u32)| u32::try_from(elem).unwrap_or(ELEM) | exponent & !ELEM;
        entries = elems.into_iter().zip(exponents.iter().cycle()).map(entry).collect();
    }
    entries.truncate(index(room / 4));
    entries.into_iter().flat_map(u32::to_le_bytes).collect()
}
