//! Time: how long a piece of work takes when many of them follow each other.

use std::time::{Duration, Instant};

use anyhow::Result;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Once, of little work: that it works.
    Small,
    /// As much as a figure needs.
    Full,
}

/// A sample takes at least as long, so that the clock, a launch and a wait are little of it.
const SAMPLE: Duration = Duration::from_millis(30);
const SAMPLES: usize = 7;
/// A queue of more launches fills up, and then the host waits in it.
const MOST_ROUNDS: u32 = 500;

impl Effort {
    /// One of two.
    pub(crate) fn of<T>(self, small: T, full: T) -> T {
        match self {
            Self::Small => small,
            Self::Full => full,
        }
    }

    /// Seconds of one call of `queue`: the median of samples, each of several calls and one of `wait`.
    pub(crate) fn seconds(
        self,
        mut queue: impl FnMut() -> Result<()>,
        mut wait: impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        let mut sample = |rounds: u32| -> Result<Duration> {
            let start = Instant::now();
            for _ in 0..rounds {
                queue()?;
            }
            wait()?;
            Ok(start.elapsed() / rounds)
        };
        if self == Self::Small {
            return Ok(sample(1)?.as_secs_f64());
        }
        // The first one finds everything cold: it only says that it works.
        sample(1)?;
        let one = sample(2)?.max(Duration::from_nanos(1));
        let rounds = SAMPLE.as_nanos().div_ceil(one.as_nanos()).clamp(1, MOST_ROUNDS.into());
        let rounds = u32::try_from(rounds).unwrap_or(MOST_ROUNDS);
        let mut samples = (0..SAMPLES).map(|_| sample(rounds)).collect::<Result<Vec<_>>>()?;
        samples.sort_unstable();
        Ok(samples[SAMPLES / 2].as_secs_f64())
    }
}

/// GiB per second.
#[expect(clippy::cast_precision_loss, reason = "a figure has three digits")]
pub(crate) fn gib_per_s(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / f64::from(1 << 30)
}
