//! What FORMAT.md says of codecs `planes`: lengths, metadata, and which elements of a block have an escape code.

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{CodecId, Dtype, index};

use crate::input::repeated;

/// Elements of a group.
const GROUP_ELEMS: u64 = 64;

/// A `planes` codec of one dtype, with its dropped bits.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    codec: CodecId,
    word_bits: u64,
    exponent_bits: u64,
    code_bits: u64,
    n_codes: u64,
    /// The first, and how many.
    dropped: [u8; 2],
}

impl Planes {
    /// `None` for other codecs, and for dtypes that the codec does not shorten.
    pub(crate) fn new(codec: CodecId, dtype: Dtype, dropped: [u8; 2]) -> Option<Self> {
        let (code_bits, n_codes) = match codec {
            CodecId::Planes4 => (4, 15),
            CodecId::Planes3 => (3, 7),
            CodecId::Planes222 => (2, 9),
            _ => return None,
        };
        let exponent_bits = match dtype {
            Dtype::F64 => 11,
            Dtype::F32 | Dtype::Bf16 => 8,
            Dtype::F16 | Dtype::F8E5m2 | Dtype::F8E5m2Fnuz => 5,
            Dtype::F8E4m3 | Dtype::F8E4m3Fnuz => 4,
            _ => return None,
        };
        let word_bits = u64::from(dtype.bits());
        (code_bits < exponent_bits).then_some(Self {
            codec,
            word_bits,
            exponent_bits,
            code_bits,
            n_codes,
            dropped,
        })
    }

    /// Whether records have a head, and may have a rest.
    pub(crate) fn has_heads(&self) -> bool {
        self.codec != CodecId::Planes4
    }

    /// The same, without some of the low bits that there are: any two bytes say which.
    pub(crate) fn dropping(self, [first, bits]: [u8; 2]) -> Self {
        let low_bits = u8::try_from(self.word_bits - self.exponent_bits).unwrap_or(0);
        let bits = bits % (low_bits + 1);
        let first = if bits == 0 { 0 } else { first % (low_bits - bits + 1) };
        Self { dropped: [first, bits], ..self }
    }

    fn kept_bits(&self) -> u64 {
        self.word_bits - self.exponent_bits - u64::from(self.dropped[1])
    }

    fn group_bits(&self, n: u64) -> u64 {
        let codes = if self.has_heads() { self.code_bits * n } else { n.div_ceil(2) * 8 };
        codes + self.kept_bits() % 8 * n
    }

    /// Bytes of what every record of `n` elements has.
    pub(crate) fn fixed_bytes(&self, n: u64) -> u64 {
        let groups = n / GROUP_ELEMS * self.group_bits(GROUP_ELEMS) + self.group_bits(n % GROUP_ELEMS);
        self.kept_bits() / 8 * n + groups.div_ceil(8)
    }

    /// Bytes 13 to 16 of the header of metadata.
    pub(crate) fn fields(&self, by_column: bool) -> [u8; 4] {
        [self.dropped[0], self.dropped[1], if by_column { 2 } else { 0 }, 0]
    }

    /// The table, the value of the dropped bits, the bases: a pattern, as far as they may have its bits.
    pub(crate) fn body(&self, geometry: &Geometry, by_column: bool, pattern: &[u8], noise: u8) -> Vec<u8> {
        let exponent_bytes = self.exponent_bits.div_ceil(8);
        let n_bases = if by_column { geometry.row_elems() } else { 0 };
        let dropped_bits = u32::from(self.dropped[1]);
        let value_len = if dropped_bits == 0 { 0 } else { self.word_bits / 8 };
        let len = (self.n_codes + n_bases) * exponent_bytes + value_len;
        let mut body = repeated(pattern, noise, len);
        let (table, rest) = body.split_at_mut(index(self.n_codes * exponent_bytes));
        let (value, bases) = rest.split_at_mut(index(value_len));
        let top = 0xFF >> (8 * exponent_bytes - self.exponent_bits);
        for exponents in [table, bases] {
            exponents.chunks_exact_mut(index(exponent_bytes)).for_each(|exponent| {
                if let Some(last) = exponent.last_mut() {
                    *last &= top;
                }
            });
        }
        let mask = ((1_u64 << dropped_bits) - 1).to_le_bytes();
        value.iter_mut().zip(mask).for_each(|(byte, mask)| *byte &= mask);
        body
    }

    /// The elements of a record of `n` elements of `planes:4` whose code is 15.
    pub(crate) fn escapes<'a>(&self, record: &'a [u8], n: u64) -> impl Iterator<Item = u64> + use<'a> {
        let (start, full) = (self.kept_bits() / 8 * n, self.group_bits(GROUP_ELEMS) / 8);
        (0..n).filter(move |elem| {
            let (group, i) = (elem / GROUP_ELEMS, elem % GROUP_ELEMS);
            let half = (n - group * GROUP_ELEMS).min(GROUP_ELEMS).div_ceil(2);
            let byte = record[index(start + group * full + i % half)];
            (if i < half { byte & 15 } else { byte >> 4 }) == 15
        })
    }
}
