//! Tensors for the tests: words with few exponents, and strays, so that records have rests and escapes.

use tierpack_kernels::geometry::Geometry;
use tierpack_kernels::{Coder, fit};
use tierpack_shm::types::{Access, CodecId, Dtype, index};

/// A generator of 64-bit numbers (`SplitMix64`, Steele et al. 2014): the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The raw bytes of a tensor: of every word most bits are the same, or few patterns; some rows do not fit at all.
pub(crate) fn raw(geometry: &Geometry, codec: CodecId, random: &mut Random) -> Vec<u8> {
    let mut raw = Vec::with_capacity(index(geometry.raw_bytes()));
    let word_bytes = index(u64::from(geometry.dtype().bits()).div_ceil(8));
    for _ in 0..geometry.n_rows() {
        let strays = if random.below(12) == 0 { 100 } else { [0, 0, 1, 2, 5][index(random.below(5))] };
        let end = raw.len() + index(geometry.row_bytes());
        while raw.len() < end {
            let fits = random.below(100) >= strays;
            let word = match codec {
                _ if !fits => random.next(),
                CodecId::Sparse if random.below(20) > 0 => 0x3F3F_3F3F_3F3F_3F3F,
                CodecId::Sparse => 0x0101_0101_0101_0101 * random.below(4),
                // The top byte is one of four, so the exponent of a float is one of few.
                _ => {
                    let top = (0x38 + random.below(4)) << (8 * word_bytes - 8);
                    random.next() & 0x00FF_FFFF_FFFF_FFFF >> (64 - 8 * word_bytes) | top
                }
            };
            let left = end - raw.len();
            raw.extend(&word.to_le_bytes()[..word_bytes.min(left)]);
        }
    }
    raw
}

/// A coder that was fitted to the first block; `None` where that is raw.
pub(crate) fn fitted(geometry: &Geometry, codec: CodecId, generation: u32, raw: &[u8]) -> Option<Coder> {
    if codec == CodecId::Raw || geometry.n_blocks() == 0 {
        return None;
    }
    let sample = &raw[..index(geometry.block(0).raw_bytes)];
    let metadata =
        fit::fit(codec, geometry, &[(fit::Piece::block(geometry, 0), sample)]).expect("a fit").metadata?;
    Some(Coder::new(&metadata.with_generation(generation), geometry).expect("a coder"))
}

/// A tensor of rows; `None` where there is none of such rows.
pub(crate) fn geometry(dtype: Dtype, rows: u64, columns: u64, access: Access) -> Option<Geometry> {
    let geometry = Geometry::new(dtype, &[rows, columns], access, None).ok()?;
    geometry.is_gatherable().then_some(geometry)
}
