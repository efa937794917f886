//! Timing: the best of several passes, how many bytes one second moves, and memcpy to compare with.
//!
//! `tierpack bench` and the benchmarks of the whole system take their time here, so that their figures mean the same.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long one figure is measured.
pub const PER_FIGURE: Duration = Duration::from_millis(60);

/// Passes that a figure is the best of, at least.
pub const LEAST_PASSES: usize = 3;

/// After this time there is no further pass, however few there were: slow encoders would take minutes from DRAM.
pub const LONGEST: Duration = Duration::from_millis(1500);

/// Bytes that do not fit any cache of the machines this runs on.
pub const DRAM_BYTES: usize = 128 << 20;

/// What a step should work on at least: reading the clock is then no part of it.
pub const STEP_BYTES: usize = 256 << 10;

/// GiB/s of threads that each run their own one of `works`, whose steps `0..n_steps` move `bytes` together.
///
/// Every thread warms up by one pass over the steps and then repeats them for the time of one figure.
/// A pass counts as the sum of each step's best time: a long pass would hardly ever go undisturbed on a machine that
/// does other things as well.
/// The figure is the sum over the threads.
pub fn throughput<W>(bytes: u64, n_steps: usize, works: Vec<W>) -> f64
where
    W: FnMut(usize) + Send,
{
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            works.into_iter().map(|work| scope.spawn(move || best_pass(n_steps, work))).collect();
        let bests = threads.into_iter().map(|thread| thread.join().unwrap_or(Duration::MAX));
        bests.map(|best| gib_per_s(bytes, best)).sum()
    })
}

fn best_pass(n_steps: usize, mut work: impl FnMut(usize)) -> Duration {
    // The first pass also maps the memory that it writes.
    (0..n_steps).for_each(&mut work);
    let (start, mut bests, mut passes) = (Instant::now(), vec![Duration::MAX; n_steps], 0);
    loop {
        for (step, best) in bests.iter_mut().enumerate() {
            let one = Instant::now();
            work(step);
            *best = one.elapsed().min(*best);
        }
        passes += 1;
        let all = start.elapsed();
        if all >= LONGEST || passes >= LEAST_PASSES && all >= PER_FIGURE {
            return bests.into_iter().sum();
        }
    }
}

/// GiB/s of threads that each copy their own source to their own target, of the same length.
///
/// The faster of two ways: in steps, and all at once, which the C library streams past the caches where it is long.
pub fn memcpy_throughput(mut pairs: Vec<(&[u8], &mut [u8])>) -> f64 {
    let bytes = pairs.first().map_or(0, |(source, _)| source.len());
    let mut rate = |step_bytes: usize| {
        let works = pairs.iter_mut().map(|(source, target)| {
            move |step: usize| {
                let start = step * step_bytes;
                let end = source.len().min(start + step_bytes);
                copy(&source[start..end], &mut target[start..end]);
            }
        });
        throughput(bytes as u64, bytes.div_ceil(step_bytes), works.collect())
    };
    let in_steps = rate(STEP_BYTES);
    if bytes <= STEP_BYTES { in_steps } else { in_steps.max(rate(bytes)) }
}

/// GiB/s of `bytes` in `time`.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub fn gib_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64 / time.as_secs_f64().max(1e-12)
}

/// A copy that the compiler cannot leave out.
fn copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(black_box(from));
    black_box(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcpy_copies_everything_of_every_thread() {
        for len in [1, 1000, STEP_BYTES, 2 * STEP_BYTES + 7] {
            let source: Vec<u8> = (0..=255).cycle().take(len).collect();
            let mut targets = vec![vec![0; len]; 2];
            let pairs = targets.iter_mut().map(|target| (&source[..], &mut target[..])).collect();
            assert!(memcpy_throughput(pairs) > 0.0);
            assert!(targets.iter().all(|target| *target == source), "{len} bytes");
        }
    }

    #[test]
    fn every_step_is_repeated_in_order() {
        let mut steps = Vec::new();
        best_pass(3, |step| {
            steps.push(step);
            std::thread::sleep(PER_FIGURE / 9);
        });
        assert!(steps.len() >= 3 * (1 + LEAST_PASSES), "{} steps", steps.len());
        assert!(steps.iter().zip([0, 1, 2].iter().cycle()).all(|(step, expected)| step == expected));
    }
}
