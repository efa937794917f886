//! The thread that measures how long a get of one small row takes, without load and under it.
//!
//! It pauses between its calls, so that it is no load itself, and checks what it reads outside the time.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;

use super::super::weights::Random;
use super::check::{Care, Process};
use super::spec::MEASURED;
use super::tally::{Line, Times};

/// Calls between two pauses.
const BURST: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// How often it tells its figures.
const TICK: Duration = Duration::from_millis(200);
/// The longest time that is told apart from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;

/// Measures until the end.
///
/// # Errors
/// A call fails for a reason that it must not have.
pub(super) fn measure(process: &Process, mut random: Random) -> Result<()> {
    let spec = &process.specs[MEASURED];
    let mut bytes = vec![0; spec.row_bytes()];
    let (mut floors, mut told, mut was_loaded) = (Vec::new(), Instant::now(), false);
    let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).context("make a histogram")?;
    while !process.is_over() {
        let under_load = process.under_load.load(Ordering::Relaxed);
        if under_load != was_loaded {
            histogram.reset();
            was_loaded = under_load;
        }
        for _ in 0..BURST {
            let row = random.below(spec.n_rows());
            process.floors(spec, spec.units_of(row), Care::Seen, &mut floors)?;
            let start = Instant::now();
            let got = process.handle(spec).and_then(|handle| handle.gather_into(&[row], &mut bytes));
            let time = start.elapsed();
            if let Err(error) = got {
                process.excuse(error)?;
                sleep(PAUSE);
                continue;
            }
            process.counts.reads.add(1);
            histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS));
            for (unit, floor) in spec.units_of(row).zip(&floors) {
                process.check(spec, unit, &bytes, *floor)?;
            }
        }
        if told.elapsed() >= TICK {
            told = Instant::now();
            let times = times(&histogram);
            drop(process.lines.send(Line::Latency { under_load, times }));
        }
        sleep(PAUSE);
    }
    Ok(())
}

fn times(histogram: &Histogram<u64>) -> Times {
    Times {
        calls: histogram.len(),
        p50_ns: histogram.value_at_quantile(0.5),
        p99_ns: histogram.value_at_quantile(0.99),
        p999_ns: histogram.value_at_quantile(0.999),
    }
}
