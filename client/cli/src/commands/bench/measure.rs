//! Timing: the best of several runs, and how many bytes one second moves.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long one figure is measured.
const PER_FIGURE: Duration = Duration::from_millis(60);

/// Calls that a figure is the best of, at least.
const LEAST_RUNS: usize = 3;

/// Bytes that do not fit any cache of the machines this runs on.
pub(super) const DRAM_BYTES: usize = 128 << 20;

/// GiB/s of `n_threads` threads that each run their own `work`, which moves `bytes` per call.
///
/// Every thread warms up by one call and then repeats its work for the time of one figure; the figure is the sum of the threads' best calls.
pub(super) fn throughput<W>(bytes: u64, works: Vec<W>) -> f64
where
    W: FnMut() + Send,
{
    std::thread::scope(|scope| {
        let threads: Vec<_> = works.into_iter().map(|work| scope.spawn(move || best(work))).collect();
        let bests = threads.into_iter().map(|thread| thread.join().unwrap_or(Duration::MAX));
        bests.map(|best| gib_per_s(bytes, best)).sum()
    })
}

fn best(mut work: impl FnMut()) -> Duration {
    // The first call also maps the memory that it writes.
    work();
    let (start, mut best, mut runs) = (Instant::now(), Duration::MAX, 0);
    loop {
        let one = Instant::now();
        work();
        best = best.min(one.elapsed());
        runs += 1;
        if runs >= LEAST_RUNS && start.elapsed() >= PER_FIGURE {
            return best;
        }
    }
}

/// GiB/s of `bytes` in `time`.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(super) fn gib_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64 / time.as_secs_f64().max(1e-12)
}

/// A copy that the compiler cannot leave out.
pub(super) fn copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(black_box(from));
    black_box(to);
}
