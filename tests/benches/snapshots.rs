//! Snapshots of a namespace, alone and next to writers: how long one takes to look up, and what the writers do meanwhile.
//!
//! `cargo bench -p tierpack-tests --bench snapshots [-- --tensors N --samples N --updaters N]`
//!
//! Every snapshot is checked: of two values that are written one after the other, the second is never ahead of the first.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark prints, and ends where something fails"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tierpack_client::{Client, Dtype, PutOptions, Snapshot};
use tierpack_tests::{Daemon, option, percentile, raw};

/// Rows of 512 bytes of a table: one block.
const ROWS: u64 = 128;
const WORDS: usize = 64;
/// Threads that put the tensors to begin with.
const FILLERS: usize = 4;

fn main() {
    let (most, samples, updaters) =
        (option("--tensors", 10_000), option("--samples", 200), option("--updaters", 6));
    println!(
        "{:<32} {:>9} {:>10} {:>10} {:>10} {:>11} {:>9}",
        "", "snapshots", "p50", "p99", "longest", "updates/s", "puts/s"
    );
    for tensors in [100, most] {
        let daemon = Daemon::start(env!("CARGO_BIN_EXE_tierpack-under-test"), &["--pool-size", "2GiB"]);
        let client = daemon.client();
        std::thread::scope(|scope| {
            for filler in 0..FILLERS {
                let client = &client;
                scope.spawn(move || {
                    (filler..tensors)
                        .step_by(FILLERS)
                        .for_each(|n| put(client, &format!("t{n:07}"), 0, false));
                });
            }
        });
        for updater in 0..updaters {
            ["a", "b"].iter().for_each(|side| put(&client, &format!("pair-{side}-{updater}"), 0, false));
        }
        ["put-x", "put-y"].iter().for_each(|name| put(&client, name, 0, false));
        for (name, updates, puts) in [
            ("alone", 0, false),
            ("one-block updates", updaters, false),
            ("puts", 0, true),
            ("updates and puts", updaters, true),
        ] {
            row(&daemon, &format!("{tensors} tensors, {name}"), samples, (updates, puts));
        }
    }
}

fn put(client: &Client, name: &str, value: u64, overwrite: bool) {
    let bytes = value.to_le_bytes().repeat(WORDS * usize::try_from(ROWS).unwrap());
    let options: PutOptions = raw().overwrite(overwrite);
    client.put_with(name, Dtype::U64, &[ROWS, WORDS as u64], &mut &bytes[..], &options).unwrap();
}

/// The first word of a tensor.
fn value(snapshot: &Snapshot, name: &str) -> u64 {
    snapshot.tensor(name).unwrap().get().unwrap().as_slice::<u64>().unwrap()[0]
}

fn check(snapshot: &Snapshot, first: &str, second: &str) {
    let (first, second) = (value(snapshot, first), value(snapshot, second));
    assert!(first == second || first == second + 1, "two moments: {first} and {second}");
}

fn row(daemon: &Daemon, name: &str, samples: usize, (updaters, puts): (usize, bool)) {
    let (done, updated, replaced) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let goes_on = || !done.load(Ordering::Relaxed);
    let reader = daemon.client();
    let base = reader.snapshot_all().unwrap();
    let mut times = Vec::with_capacity(samples);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let (goes_on, updated, replaced, base) = (&goes_on, &updated, &replaced, &base);
        for updater in 0..updaters {
            scope.spawn(move || {
                let client = daemon.client();
                let names = ["a", "b"].map(|side| format!("pair-{side}-{updater}"));
                let start = value(base, &names[0]).max(value(base, &names[1]));
                let pair = names.map(|name| client.open(&name).unwrap());
                for n in (start + 1..).take_while(|_| goes_on()) {
                    for side in &pair {
                        side.update(&[0_u64], &n.to_le_bytes().repeat(WORDS)).unwrap();
                    }
                    updated.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        if puts {
            scope.spawn(move || {
                let client = daemon.client();
                let start = value(base, "put-x").max(value(base, "put-y"));
                for n in (start + 1..).take_while(|_| goes_on()) {
                    ["put-x", "put-y"].iter().for_each(|name| put(&client, name, n, true));
                    replaced.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..samples {
            let began = Instant::now();
            let snapshot = reader.snapshot_all().unwrap();
            times.push(began.elapsed().as_secs_f64() * 1e3);
            (0..updaters).for_each(|n| check(&snapshot, &format!("pair-a-{n}"), &format!("pair-b-{n}")));
            check(&snapshot, "put-x", "put-y");
        }
        done.store(true, Ordering::Relaxed);
    });
    let seconds = started.elapsed().as_secs_f64();
    let longest = times.iter().copied().fold(0.0, f64::max);
    println!(
        "{name:<32} {samples:>9} {:>8.2}ms {:>8.2}ms {:>8.2}ms {:>11.0} {:>9.0}",
        percentile(&mut times, 50),
        percentile(&mut times, 99),
        longest,
        updated.load(Ordering::Relaxed) as f64 / seconds,
        replaced.load(Ordering::Relaxed) as f64 / seconds
    );
}
