//! Numbers that are the same on every machine: random ones from a seed, and power laws.
//!
//! Power laws use the four basic operations of IEEE 754 and no `libm`, whose last bit differs between systems.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of `SplitMix64` (Steele, Lea, Flood 2014): a bijection in which every bit depends on all.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The upper half.
pub(crate) const fn high(x: u64) -> u32 {
    (x >> 32) as u32
}

/// `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        high(u64::from(high(self.draw())) * u64::from(n))
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: u32) -> bool {
        n == 1 || self.below(n) == 0
    }
}

/// Ranks 0 to n - 1, rank k with a probability in proportion to (k + 1) to the power of -exponent.
///
/// Walker's alias method: one random number and one look at a table for a draw.
#[derive(Debug)]
pub(crate) struct PowerLaw {
    /// The rank itself below this threshold of 2^32, else the other.
    columns: Vec<(u32, u32)>,
    /// Probabilities times n.
    weights: Vec<f64>,
}

impl PowerLaw {
    pub(crate) fn new(n: u32, exponent: f64) -> Self {
        let mut weights = Vec::new();
        let mut log = 0.0;
        for k in 0..n {
            weights.push(exp(-exponent * log));
            log += log_of_ratio(k + 1);
        }
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight *= f64::from(n) / total);
        Self { columns: alias(weights.clone()), weights }
    }

    pub(crate) fn draw(&self, random: u64) -> u32 {
        let n = self.columns.len() as u64;
        let column = high(u64::from(high(random)) * n);
        let (threshold, other) = self.columns[column as usize];
        if high(random << 32) < threshold { column } else { other }
    }

    /// Probability times the number of ranks, in the order of ranks.
    pub(crate) fn weights(&self) -> &[f64] {
        &self.weights
    }
}

const LN_2: f64 = std::f64::consts::LN_2;

/// ln((k + 1) / k), by the series of the inverse hyperbolic tangent.
fn log_of_ratio(k: u32) -> f64 {
    let x = 1.0 / (2.0 * f64::from(k) + 1.0);
    let (mut power, mut sum) = (x, 0.0);
    for n in 0..16 {
        sum += power / f64::from(2 * n + 1);
        power *= x * x;
    }
    2.0 * sum
}

/// e to the power of x, for x of 0 or less.
fn exp(x: f64) -> f64 {
    let (mut left, mut scale) = (x, 1.0);
    while left < -LN_2 {
        (left, scale) = (left + LN_2, scale * 0.5);
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..20 {
        term *= left / f64::from(n);
        sum += term;
    }
    sum * scale
}

/// Columns of Vose's alias method for weights whose mean is 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a weight of 0 to 1; ranks fit")]
fn alias(mut weights: Vec<f64>) -> Vec<(u32, u32)> {
    let mut columns: Vec<_> = (0..weights.len()).map(|k| (u32::MAX, k as u32)).collect();
    let (mut less, mut more): (Vec<_>, Vec<_>) = (0..weights.len()).partition(|&k| weights[k] < 1.0);
    while let (Some(&small), Some(&large)) = (less.last(), more.last()) {
        less.pop();
        columns[small] = ((weights[small] * 4_294_967_296.0) as u32, large as u32);
        weights[large] -= 1.0 - weights[small];
        if weights[large] < 1.0 {
            more.pop();
            less.push(large);
        }
    }
    columns
}
