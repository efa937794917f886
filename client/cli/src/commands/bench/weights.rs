//! Generated weights: Gaussian, of standard deviation 0.02, as language models start with, from a fixed seed.

use tierpack_client::Dtype;

/// What a transformer's weights are drawn with (GPT-2, BERT), and about what trained ones spread by.
const DEVIATION: f32 = 0.02;

/// Bytes that one seed makes: pieces are made by as many threads as there are cores.
const PIECE_BYTES: usize = 4 << 20;

/// The dtype of generated weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum FloatArg {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
}

impl FloatArg {
    /// The dtype that it is for.
    pub(super) const fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::Bf16,
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
        }
    }

    /// Bytes of an element.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// A small generator of numbers with a fixed seed (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub(in crate::commands) struct Random(u64);

impl Random {
    /// A generator; the same seed gives the same numbers.
    pub(in crate::commands) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// 64 random bits.
    pub(in crate::commands) fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// Two independent numbers of the standard normal distribution (Box and Muller, 1958).
    #[expect(clippy::cast_precision_loss, reason = "24 bits are what an f32 holds")]
    fn normal_pair(&mut self) -> [f32; 2] {
        let word = self.next_u64();
        let share = |bits: u64| (bits & 0xFF_FFFF) as f32 / (1 << 24) as f32;
        // Never 0, whose logarithm is none.
        let radius = (-2.0 * (1.0 - share(word >> 40)).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * share(word >> 16)).sin_cos();
        [radius * cos, radius * sin]
    }
}

/// `len` bytes of weights, whole elements.
pub(super) fn weights(float: FloatArg, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut pieces: Vec<_> = bytes.chunks_mut(PIECE_BYTES).zip(1..).collect();
    let share = pieces.len().div_ceil(n_threads).max(1);
    std::thread::scope(|scope| {
        for pieces in pieces.chunks_mut(share) {
            scope.spawn(|| pieces.iter_mut().for_each(|(piece, seed)| fill(float, piece, *seed)));
        }
    });
    bytes
}

fn fill(float: FloatArg, piece: &mut [u8], seed: u64) {
    let mut random = Random::new(seed);
    for pair in piece.chunks_mut(2 * float.bytes()) {
        for (element, normal) in pair.chunks_mut(float.bytes()).zip(random.normal_pair()) {
            let value = DEVIATION * normal;
            match float {
                FloatArg::Bf16 => element.copy_from_slice(&bf16(value).to_le_bytes()),
                FloatArg::F16 => element.copy_from_slice(&f16(value).to_le_bytes()),
                FloatArg::F32 => element.copy_from_slice(&value.to_le_bytes()),
            }
        }
    }
}

/// `bits` without its low `dropped` bits, to nearest, ties to even, as 16 bits.
#[expect(clippy::cast_possible_truncation, reason = "what is above 16 bits is not there for these values")]
const fn rounded(bits: u32, dropped: u32) -> u16 {
    let half = (1 << (dropped - 1)) - 1;
    ((bits + half + (bits >> dropped & 1)) >> dropped) as u16
}

/// The nearest bfloat16 of a finite value.
const fn bf16(value: f32) -> u16 {
    rounded(value.to_bits(), 16)
}

/// The nearest half of a value below 65504.
///
/// Times 2^-112, a single has the exponent of a half, subnormal ones included; 13 bits of mantissa are dropped.
fn f16(value: f32) -> u16 {
    let scale = f32::from_bits((127 - 112) << 23);
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    sign | rounded((value.abs() * scale).to_bits(), 13)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!([0.0, 1.0, -2.0, 0.02].map(bf16), [0, 0x3F80, 0xC000, 0x3CA4]);
        assert_eq!(
            [0x3F80_8000, 0x3F81_8000, 0x3F80_8001].map(f32::from_bits).map(bf16),
            [0x3F80, 0x3F82, 0x3F81]
        );
        assert_eq!([0.0, 1.0, -2.0, 0.02, 65504.0].map(f16), [0, 0x3C00, 0xC000, 0x251F, 0x7BFF]);
        // The smallest half, half of it, and a little more than half of it.
        let least = 2.0_f32.powi(-24);
        assert_eq!([least, least / 2.0, least * 0.51, 2.0_f32.powi(-14)].map(f16), [1, 0, 1, 0x0400]);
    }

    #[test]
    fn weights_spread_as_they_should_and_come_again() {
        let bytes = weights(FloatArg::F32, 9 << 20);
        assert_eq!(bytes, weights(FloatArg::F32, 9 << 20));
        assert_ne!(bytes[..1 << 20], bytes[4 << 20..5 << 20], "every piece is made by another seed");
        let values = bytes.as_chunks::<4>().0.iter().map(|word| f64::from(f32::from_le_bytes(*word)));
        let n = f64::from(9 << 18);
        let within = values.clone().filter(|value| value.abs() < f64::from(DEVIATION)).count();
        let deviation = (values.clone().map(|value| value * value).sum::<f64>() / n).sqrt();
        assert!((values.sum::<f64>() / n).abs() < 1e-4 && (deviation - 0.02).abs() < 1e-4, "{deviation}");
        let share = f64::from(u32::try_from(within).unwrap()) / n;
        assert!((share - 0.6827).abs() < 0.002, "{share} within one standard deviation");
    }

    #[test]
    fn any_length_is_filled() {
        for float in [FloatArg::Bf16, FloatArg::F16, FloatArg::F32] {
            for n in [0, 1, 3, 1000] {
                let bytes = weights(float, n * float.bytes());
                assert!(bytes.chunks(float.bytes()).all(|element| element.iter().any(|byte| *byte != 0)));
            }
        }
    }
}
