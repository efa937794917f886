//! Rows as they are asked for in practice: few of them often, most of them hardly ever.
//!
//! Rank k of n is drawn with a probability in proportion to k to the power of -1.05, as benchmarks of embedding
//! caches do.
//! Ranks are spread over the rows, so that hot rows are no neighbors.

/// The power law of embedding benchmarks.
pub(super) const EXPONENT: f64 = 1.05;
/// The golden ratio: its multiples are spread most evenly.
const GOLDEN: f64 = 1.618_033_988_749_895;

/// The rows of a tensor, hot and cold.
///
/// Draws need no table: rejection-inversion (Hörmann and Derflinger, 1996).
#[derive(Clone, Debug)]
pub(super) struct HotRows {
    n_rows: u64,
    /// From the row of a rank to the row of the next; it has no divisor in common with `n_rows`.
    step: u64,
    /// Integrals of the law up to half a rank before the first rank and behind the last.
    ends: [f64; 2],
    /// How far left of a rank a draw is surely its.
    sure: f64,
}

impl HotRows {
    /// Those of a tensor of `n_rows` rows, one at least.
    pub(super) fn new(n_rows: u64) -> Self {
        let start = real(n_rows) / GOLDEN;
        let mut step = rank(start, n_rows);
        while gcd(step, n_rows) != 1 {
            step += 1;
        }
        let ends = [integral(1.5) - 1.0, integral(real(n_rows) + 0.5)];
        Self { n_rows, step, ends, sure: 2.0 - inverse(integral(2.5) - weight(2.0)) }
    }

    /// The row of a rank, which counts from 0.
    pub(super) fn row(&self, rank: u64) -> u64 {
        let row = u128::from(rank) * u128::from(self.step) % u128::from(self.n_rows);
        u64::try_from(row).unwrap_or(0)
    }

    /// Draws a row; `random` returns 64 random bits each time.
    pub(super) fn draw(&self, mut random: impl FnMut() -> u64) -> u64 {
        let [first, last] = self.ends;
        loop {
            let share = real(random() >> 11) / real(1 << 53);
            let at = last + share * (first - last);
            let x = inverse(at);
            let k = rank(x + 0.5, self.n_rows);
            if real(k) - x <= self.sure || at >= integral(real(k) + 0.5) - weight(real(k)) {
                return self.row(k - 1);
            }
        }
    }

    /// Rows that draws name with a probability of `share` together: the hottest that do not exceed it.
    pub(super) fn with_share(&self, share: f64) -> Vec<u64> {
        if share >= 1.0 {
            return (0..self.n_rows).map(|rank| self.row(rank)).collect();
        }
        let total: f64 = (1..=self.n_rows).map(|k| weight(real(k))).sum();
        let (mut rows, mut left) = (Vec::new(), share * total);
        for k in 1..=self.n_rows {
            let weight = weight(real(k));
            if weight <= left {
                left -= weight;
                rows.push(self.row(k - 1));
            }
            // Hundreds of cold rows more would change nothing that is shown.
            if left < 0.002 * total {
                break;
            }
        }
        rows
    }

    /// The coldest rows, at most `count`.
    pub(super) fn coldest(&self, count: u64) -> impl Iterator<Item = u64> {
        (self.n_rows.saturating_sub(count)..self.n_rows).rev().map(|rank| self.row(rank))
    }
}

fn weight(k: f64) -> f64 {
    k.powf(-EXPONENT)
}

fn integral(x: f64) -> f64 {
    (x.powf(1.0 - EXPONENT) - 1.0) / (1.0 - EXPONENT)
}

fn inverse(y: f64) -> f64 {
    (1.0 + (1.0 - EXPONENT) * y).powf(1.0 / (1.0 - EXPONENT))
}

#[expect(clippy::cast_precision_loss, reason = "tensors have fewer than 2^53 rows")]
fn real(n: u64) -> f64 {
    n as f64
}

/// The whole part, from 1 to `n`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is limited on both sides")]
fn rank(x: f64, n: u64) -> u64 {
    (x.max(1.0) as u64).min(n)
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::super::bench::Random;
    use super::*;

    #[test]
    fn every_rank_has_a_row_of_its_own() {
        for n_rows in [1, 2, 3, 6, 64, 1000, 1536] {
            let hot = HotRows::new(n_rows);
            let mut rows: Vec<u64> = (0..n_rows).map(|rank| hot.row(rank)).collect();
            rows.sort_unstable();
            assert_eq!(rows, (0..n_rows).collect::<Vec<_>>());
            assert_eq!(hot.with_share(1.0).len() as u64, n_rows);
            assert_eq!(hot.coldest(3).count() as u64, n_rows.min(3));
        }
    }

    #[test]
    fn rows_are_drawn_as_often_as_the_law_says() {
        const DRAWS: u32 = 200_000;
        let (hot, mut random) = (HotRows::new(1000), Random::new(5));
        let mut counts = vec![0_u32; 1000];
        for _ in 0..DRAWS {
            counts[usize::try_from(hot.draw(|| random.next_u64())).unwrap()] += 1;
        }
        let total: f64 = (1..=1000).map(|k| weight(real(k))).sum();
        for rank in [0, 1, 2, 5, 20, 100] {
            let found = f64::from(counts[usize::try_from(hot.row(rank)).unwrap()]);
            let expected = f64::from(DRAWS) * weight(real(rank + 1)) / total;
            assert!((found - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {found}, {expected}");
        }
        assert!((0..100).all(|_| HotRows::new(1).draw(|| random.next_u64()) == 0));
    }

    #[test]
    fn rows_with_a_share_are_drawn_that_often() {
        let (hot, mut random) = (HotRows::new(600), Random::new(6));
        for share in [0.1, 0.5, 0.9] {
            let rows = hot.with_share(share);
            let found = (0..20_000).filter(|_| rows.contains(&hot.draw(|| random.next_u64()))).count();
            let found = f64::from(u32::try_from(found).unwrap()) / 20_000.0;
            assert!((found - share).abs() < 0.02, "{share}: {found}");
        }
    }
}
