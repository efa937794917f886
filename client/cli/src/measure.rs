//! Timing: the best of several calls, how many bytes one second moves, and memcpy to compare with.
//!
//! `tierpack bench` and the benchmarks of the whole system take their time here, so that their figures mean the same.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long one figure is measured.
pub const PER_FIGURE: Duration = Duration::from_millis(60);

/// Calls that a figure is the best of, at least.
pub const LEAST_CALLS: usize = 3;

/// A call of this length is a figure alone: what disturbs a short one is a small part of it.
pub const LONG_CALL: Duration = Duration::from_millis(500);

/// Bytes that do not fit any cache of the machines this runs on.
pub const DRAM_BYTES: usize = 128 << 20;

/// GiB/s of threads that each run their own one of `works`, which moves `bytes` per call.
///
/// Every thread warms up by one call and then repeats its work for the time of one figure; the figure is the sum of the threads' best calls.
pub fn throughput<W>(bytes: u64, works: Vec<W>) -> f64
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
    let (start, mut best, mut calls) = (Instant::now(), Duration::MAX, 0);
    loop {
        let one = Instant::now();
        work();
        best = best.min(one.elapsed());
        calls += 1;
        let all = start.elapsed();
        if all >= LONG_CALL || calls >= LEAST_CALLS && all >= PER_FIGURE {
            return best;
        }
    }
}

/// GiB/s of threads that each copy their own source to their own target, of the same length.
///
/// The faster of two ways: pieces of `piece_bytes`, and all at once, which the C library streams past the caches where
/// it is long.
pub fn memcpy_throughput(mut pairs: Vec<(&[u8], &mut [u8])>, piece_bytes: usize) -> f64 {
    let bytes = pairs.first().map_or(0, |(source, _)| source.len());
    let mut rate = |piece_bytes: usize| {
        let works = pairs.iter_mut().map(|(source, target)| {
            move || {
                let pieces = target.chunks_mut(piece_bytes).zip(source.chunks(piece_bytes));
                pieces.for_each(|(target, source)| copy(source, target));
            }
        });
        throughput(bytes as u64, works.collect())
    };
    let in_pieces = rate(piece_bytes.max(1));
    if bytes <= piece_bytes { in_pieces } else { in_pieces.max(rate(bytes)) }
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
    fn both_ways_of_memcpy_copy_everything() {
        let source: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for piece_bytes in [0, 1, 7, 999, 1000, 5000] {
            let mut targets = vec![vec![0; 1000]; 2];
            let pairs = targets.iter_mut().map(|target| (&source[..], &mut target[..])).collect();
            assert!(memcpy_throughput(pairs, piece_bytes) > 0.0);
            assert!(targets.iter().all(|target| *target == source), "pieces of {piece_bytes}");
        }
    }

    #[test]
    fn the_first_call_is_not_timed_and_short_ones_are_repeated() {
        let mut calls = 0;
        best(|| calls += 1);
        assert!(calls > LEAST_CALLS, "{calls} calls");
    }
}
