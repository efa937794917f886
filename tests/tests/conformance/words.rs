//! The codec's own part of metadata, and words for it: most fit, some do not.

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{Access, CodecId, Dtype, index};

use crate::random::Random;

/// Rows of more bytes have nothing per column.
const MAX_COLUMNS_ROW_BYTES: u64 = 64 << 10;

/// What is the codec's own in metadata.
pub(crate) struct Own {
    pub(crate) codec: CodecId,
    /// Bytes 13 to 16 of the header.
    pub(crate) fields: [u8; 4],
    /// What follows the header.
    pub(crate) body: Vec<u8>,
    dtype: Dtype,
    form: Form,
}

enum Form {
    Ibp(Ibp),
    Planes(Planes),
    Sparse(Sparse),
}

struct Ibp {
    chunk_bytes: usize,
    mask: Vec<u8>,
    values: Vec<u8>,
    word_bytes: usize,
    rotate: bool,
    bases: Vec<u8>,
}

struct Planes {
    word_bits: u32,
    exponent_bits: u32,
    dropped: [u32; 2],
    dropped_value: u64,
    table: Vec<u64>,
    bases: Vec<u64>,
}

struct Sparse {
    word_bytes: usize,
    common: u64,
    dictionary: Vec<u64>,
}

const fn low(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn small(value: u64) -> u8 {
    u8::try_from(value).expect("a small number")
}

impl Own {
    /// A random variant; `None` where the dtype has no such codec.
    pub(crate) fn new(codec: CodecId, geometry: &Geometry, random: &mut Random) -> Option<Self> {
        match codec {
            CodecId::Ibp | CodecId::IbpWindow => Some(Self::ibp(codec, geometry, random)),
            CodecId::Sparse => Some(Self::sparse(geometry, random)),
            _ => Self::planes(codec, geometry, random),
        }
    }

    fn ibp(codec: CodecId, geometry: &Geometry, random: &mut Random) -> Self {
        use Dtype::{Bf16, C64, F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz, F16, F32, F64};
        let (dtype, row_bytes) = (geometry.dtype(), geometry.row_bytes());
        let chunk_bytes = random.pick(&[2, 4, 8]);
        let short = row_bytes <= MAX_COLUMNS_ROW_BYTES;
        let aligned = geometry.access() == Access::Rows || row_bytes.is_multiple_of(chunk_bytes);
        let masks = if short && aligned && random.chance(50) { 2 } else { 1 };
        let mask_len = index(if masks == 2 { row_bytes } else { chunk_bytes });
        let bits = u32::from(small(8 * chunk_bytes));
        // One run of kept bits for all chunks, at the bottom or higher up, or any bits.
        let (style, len) = (random.below(4), u32::from(small(random.below(u64::from(bits) + 1))));
        let start = if style == 0 { 0 } else { u32::from(small(random.below(u64::from(bits - len) + 1))) };
        let run = low(len).checked_shl(start).unwrap_or(0);
        let mask: Vec<u8> = (0..mask_len.div_ceil(index(chunk_bytes)))
            .flat_map(|_| {
                let kept = if style < 2 { run } else { random.next() & random.next() };
                (!kept).to_le_bytes().into_iter().take(index(chunk_bytes))
            })
            .take(mask_len)
            .collect();
        let values: Vec<u8> = mask.iter().map(|mask| mask & random.byte()).collect();
        let window = codec == CodecId::IbpWindow;
        let floats =
            matches!(dtype, F16 | Bf16 | F32 | F64 | C64 | F8E5m2 | F8E4m3 | F8E4m3Fnuz | F8E5m2Fnuz);
        let rotate = window && floats;
        let word_bytes = if dtype == C64 { 4 } else { (dtype.bits() as usize).div_ceil(8) };
        let base = if window { random.below(if short { 3 } else { 2 }) } else { 0 };
        let bases = random.bytes([0, word_bytes, index(row_bytes)][index(base)]);
        let fields = [small(chunk_bytes), masks, u8::from(rotate), small(base)];
        let body = [&mask[..], &values, &bases].concat();
        let form = Ibp { chunk_bytes: index(chunk_bytes), mask, values, word_bytes, rotate, bases };
        Self { codec, fields, body, dtype, form: Form::Ibp(form) }
    }

    fn planes(codec: CodecId, geometry: &Geometry, random: &mut Random) -> Option<Self> {
        let dtype = geometry.dtype();
        let exponent_bits = match dtype {
            Dtype::F64 => 11,
            Dtype::F32 | Dtype::Bf16 => 8,
            Dtype::F16 | Dtype::F8E5m2 | Dtype::F8E5m2Fnuz => 5,
            Dtype::F8E4m3 | Dtype::F8E4m3Fnuz => 4,
            _ => return None,
        };
        let (code_bits, n_codes) = match codec {
            CodecId::Planes4 => (4, 15),
            CodecId::Planes3 => (3, 7),
            _ => (2, 9),
        };
        if code_bits >= exponent_bits {
            return None;
        }
        let low_bits = u64::from(dtype.bits() - exponent_bits);
        let bits = if random.chance(50) { 0 } else { random.below(low_bits + 1) };
        let first = if bits == 0 { 0 } else { random.below(low_bits - bits + 1) };
        let dropped = [first, bits].map(|bits| u32::from(small(bits)));
        let dropped_value = random.next() & low(dropped[1]);
        let by_column = geometry.row_bytes() <= MAX_COLUMNS_ROW_BYTES && random.chance(50);
        let mut exponents = |n: u64| (0..n).map(|_| random.next() & low(exponent_bits)).collect::<Vec<_>>();
        let table = exponents(n_codes);
        let bases = exponents(if by_column { geometry.row_elems() } else { 0 });
        let width = if exponent_bits > 8 { 2 } else { 1 };
        let bytes = |words: &[u64], width: usize| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(width)).collect()
        };
        let value = if bits == 0 { Vec::new() } else { bytes(&[dropped_value], dtype.bits() as usize / 8) };
        let body = [bytes(&table, width), value, bytes(&bases, width)].concat();
        let fields = [small(first), small(bits), if by_column { 2 } else { 0 }, 0];
        let word_bits = dtype.bits();
        let form = Planes { word_bits, exponent_bits, dropped, dropped_value, table, bases };
        Some(Self { codec, fields, body, dtype, form: Form::Planes(form) })
    }

    fn sparse(geometry: &Geometry, random: &mut Random) -> Self {
        let dtype = geometry.dtype();
        let word_bytes = (dtype.bits() as usize).div_ceil(8);
        let mask = low(dtype.bits().max(8));
        let group_elems = random.pick(&[8_u8, 16, 32, 64]);
        let dictionary_bits = random.pick(&[None, Some(0), Some(1), Some(3), Some(8)]);
        let common = random.next() & mask;
        let dictionary: Vec<u64> = match dictionary_bits {
            None => Vec::new(),
            Some(bits) => (0..1 << bits).map(|_| random.next() & mask).collect(),
        };
        let words = core::iter::once(&common).chain(&dictionary);
        let body = words.flat_map(|word| word.to_le_bytes().into_iter().take(word_bytes)).collect();
        let fields = [group_elems, dictionary_bits.map_or(0, |bits| 1 + bits), 0, 0];
        let form = Sparse { word_bytes, common, dictionary };
        Self { codec: CodecId::Sparse, fields, body, dtype, form: Form::Sparse(form) }
    }

    /// Bytes that every record of `n` elements has.
    pub(crate) fn least_bytes(&self, n: u64) -> u64 {
        let raw_bytes = n * u64::from(self.dtype.bits()) / 8;
        match &self.form {
            Form::Ibp(ibp) => 4 + raw_bytes.div_ceil(ibp.chunk_bytes as u64).div_ceil(8),
            Form::Sparse(sparse) => {
                let n_words = raw_bytes / sparse.word_bytes as u64;
                4 + (1 + n_words.div_ceil(self.fields[0].into())).div_ceil(8)
            }
            Form::Planes(planes) => {
                let kept = u64::from(planes.word_bits - planes.exponent_bits - planes.dropped[1]);
                let group = |m: u64| match self.codec {
                    CodecId::Planes4 => m.div_ceil(2) * 8 + kept % 8 * m,
                    CodecId::Planes3 => (3 + kept % 8) * m,
                    _ => (2 + kept % 8) * m,
                };
                let head = if self.codec == CodecId::Planes4 { 0 } else { 4 };
                head + kept / 8 * n + (n / 64 * group(64) + group(n % 64)).div_ceil(8)
            }
        }
    }
}

/// Raw bytes of a tensor: how many words do not fit differs from row to row, from none to all.
pub(crate) fn raw(own: &Own, geometry: &Geometry, random: &mut Random) -> Vec<u8> {
    let mut raw = Vec::with_capacity(index(geometry.raw_bytes()));
    let most = random.pick(&[0, 3, 30]);
    for _ in 0..geometry.n_rows() {
        let strays = if random.chance(4) { 100 } else { random.below(most + 1) };
        match &own.form {
            Form::Ibp(ibp) => ibp.row(index(geometry.row_bytes()), strays, random, &mut raw),
            Form::Planes(planes) => planes.row(geometry.row_elems(), strays, random, &mut raw),
            Form::Sparse(sparse) => sparse.row(index(geometry.row_bytes()), strays, random, &mut raw),
        }
    }
    raw
}

impl Ibp {
    fn row(&self, row_bytes: usize, strays: u64, random: &mut Random, raw: &mut Vec<u8>) {
        let start = raw.len();
        for at in (0..row_bytes).step_by(self.chunk_bytes) {
            let fits = !random.chance(strays);
            for at in at..row_bytes.min(at + self.chunk_bytes) {
                let (mask, value) = (self.mask[at % self.mask.len()], self.values[at % self.mask.len()]);
                let byte = random.byte();
                raw.push(if fits { byte & !mask | value } else { byte });
            }
        }
        for (i, bytes) in raw[start..].chunks_exact_mut(self.word_bytes).enumerate() {
            let read =
                |bytes: &[u8]| (0..).zip(bytes).fold(0, |word, (i, &byte)| word | u64::from(byte) << (8 * i));
            let at = i * self.word_bytes % self.bases.len().max(1);
            let base = read(self.bases.get(at..at + self.word_bytes).unwrap_or(&[]));
            let bits = 8 * u32::from(small(self.word_bytes as u64));
            let word = read(bytes).wrapping_add(base) & low(bits);
            let word = if self.rotate { word >> 1 | word << (bits - 1) } else { word };
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }
}

impl Planes {
    fn row(&self, columns: u64, strays: u64, random: &mut Random, raw: &mut Vec<u8>) {
        let low_bits = self.word_bits - self.exponent_bits;
        let [first, bits] = self.dropped;
        // Other dropped bits make a record raw, and a block of `planes:4`.
        let fits = strays < 100 || random.chance(50);
        for column in 0..columns {
            let base = self.bases.get(index(column)).copied().unwrap_or(0);
            let exponent =
                if random.chance(strays) { random.next() } else { random.pick(&self.table) + base };
            let mut kept = random.next() & low(low_bits);
            if fits {
                kept = kept & !(low(bits) << first) | self.dropped_value << first;
            }
            let word = (exponent & low(self.exponent_bits)) << low_bits | kept;
            let word = (word >> 1 | word << (self.word_bits - 1)) & low(self.word_bits);
            raw.extend(&word.to_le_bytes()[..self.word_bits as usize / 8]);
        }
    }
}

impl Sparse {
    fn row(&self, row_bytes: usize, strays: u64, random: &mut Random, raw: &mut Vec<u8>) {
        for _ in 0..row_bytes / self.word_bytes {
            let word = match &self.dictionary[..] {
                _ if !random.chance(strays) => self.common,
                [] => random.next(),
                _ if strays == 100 => random.next(),
                words => random.pick(words),
            };
            raw.extend(&word.to_le_bytes()[..self.word_bytes]);
        }
    }
}
