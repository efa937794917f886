//! Rows gathered on a GPU through warm caches while their tensor changes: never a stale row, never a mixed one.
//!
//! The daemon is stopped at every point on the way of every change, and everybody gathers: rows are those that were
//! acknowledged or those that come, whole, and none goes back. When the daemon goes on, all are the new ones.
//! `TIERPACK_CASES=full` also tries the points that no change is known to reach.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tierpack_client::CodecId;
use tierpack_shm::faults::Point;
use tierpack_tests::device::{child, is_child, is_real, say};
use tierpack_tests::faults::is_stopped;
use tierpack_tests::rows::Table;
use tierpack_tests::{Daemon, full};

#[path = "device_coherence/change.rs"]
mod change;
#[path = "device_coherence/pending.rs"]
mod pending;
#[path = "device_coherence/readers.rs"]
mod readers;
#[path = "device_coherence/stream.rs"]
mod stream;

use change::{Change, Progress, ROWS, TARGET};
use readers::{Found, Gpus, Readers};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SERVE: [&str; 8] =
    ["--pool-size", "24MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"];
const CODECS: [CodecId; 4] = [CodecId::Raw, CodecId::Ibp, CodecId::Planes4, CodecId::Sparse];
/// How long readers that have to ask a stopped daemon are left to it.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same for readers that find everything in the pool, unless the daemon was stopped before it had announced a new
/// segment.
const LONG_PATIENCE: Duration = Duration::from_secs(3);

/// What one run has found; `None` where the change does not come to the point.
fn run(gpus: &Gpus, table: Table, change: Change, point: Point) -> Option<Found> {
    let what = format!("{} at {} with {}", change.name(), point.name(), table.codec);
    let mut daemon = Daemon::with_faults(PROGRAM, &SERVE);
    let (client, actor) = (daemon.client(), daemon.client());
    change.prepare(&client, &table).expect("room");
    let (mut readers, progress) = (Readers::new(gpus, &client, table, change), Progress::new());
    assert!(readers.lines() > 0, "{what}: no cache");
    let mut found = Found::default();
    (0..2).for_each(|_| found.add(&readers.read(&progress, false)));
    daemon.arm(point, "1*return(stop)");
    let pid = daemon.process().pid();
    let is_reached = thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let done = change.run((&daemon, &actor), &table, &progress);
            change.settle(&daemon, &actor);
            done
        });
        // What is freed in the background comes to its point after the change was acknowledged.
        let (mut is_reached, mut since) = (is_stopped(pid), Instant::now());
        let known = change.points().contains(&point);
        while !is_reached && (!acting.is_finished() || known && since.elapsed() < LONG_PATIENCE) {
            if !acting.is_finished() {
                since = Instant::now();
            }
            thread::sleep(Duration::from_millis(1));
            is_reached = is_stopped(pid);
        }
        if is_reached {
            let reading = scope.spawn(|| {
                let mut found = Found::default();
                (0..3).for_each(|_| found.add(&readers.read(&progress, false)));
                found
            });
            let since = Instant::now();
            let patience = if change.replaces() { PATIENCE } else { LONG_PATIENCE };
            while !reading.is_finished() && since.elapsed() < patience {
                thread::sleep(Duration::from_millis(1));
            }
            continue_daemon(pid);
            found.add(&reading.join().expect("no panic"));
        }
        acting.join().expect("no panic").expect("a daemon that was stopped goes on");
        is_reached
    });
    if !is_reached {
        daemon.arm(point, "off");
        continue_daemon(pid);
    }
    (0..2).for_each(|_| found.add(&readers.read(&progress, true)));
    found.check(&what);
    drop(readers);
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes, "{what}");
    is_reached.then_some(found)
}

fn continue_daemon(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"));
    nix::sys::signal::kill(pid, Signal::SIGCONT).expect("the daemon is alive");
}

/// The points of a daemon that runs and has clients.
fn all_points() -> impl Iterator<Item = Point> {
    let is_ours = |point: &Point| point.name().starts_with("daemon.") && !point.name().contains(".start.");
    Point::ALL.iter().copied().filter(move |point| is_ours(point) && !point.can_fail())
}

/// Every change at each of its points, with codecs in turn.
fn run_all(first_codec: usize) {
    let gpus = Gpus::open();
    let mut total = (0, Found::default());
    for (n, &change) in Change::ALL.iter().enumerate() {
        let mut points = BTreeMap::new();
        let mut of_change = Found::default();
        for (m, point) in all_points().enumerate() {
            let is_known = change.points().contains(&point);
            if !is_known && !full() {
                continue;
            }
            let codec = change.codec(CODECS[(first_codec + n + m) % CODECS.len()]);
            let found = run(&gpus, Table { tensor: TARGET, codec, n_rows: ROWS }, change, point);
            assert!(found.is_some() || !is_known, "{change:?} does not come to {point:?} with {codec}");
            let Some(found) = found else { continue };
            *points.entry(point.name()).or_insert(0) += 1;
            of_change.add(&found);
        }
        let runs: u32 = points.values().sum();
        assert!(runs > 0, "{change:?} was stopped nowhere");
        let Found { rows, stale, mixed, .. } = of_change;
        say(&format!(
            "| {:20} | {:2} points | {runs:3} runs | {rows:6} rows | {stale} stale | {mixed} mixed |",
            change.name(),
            points.len()
        ));
        say(&format!("|   {}", points.into_keys().collect::<Vec<_>>().join(" ")));
        total.0 += runs;
        total.1.add(&of_change);
    }
    let (runs, Found { rows, stale, mixed, .. }) = total;
    say(&format!("| all changes: {runs} runs, {rows} rows, {stale} stale, {mixed} mixed"));
}

/// Runs a test in a child with a stand-in in this mode, and shows its table; `true` in the child.
fn in_mode(name: &str, mode: &str) -> bool {
    if is_child() {
        return true;
    }
    if is_real() {
        say("skipped: the modes are the stand-in's, and the driver is the installed one");
        return false;
    }
    let (succeeded, text) = child(name, &[("FAKE_CUDA_MODE", mode), ("FAKE_CUDA_SEED", "5")]);
    let is_clean = succeeded && text.contains("1 passed") && !text.contains("fakecuda: ");
    assert!(is_clean, "{name}:\n{text}");
    text.lines().filter(|line| line.starts_with("| ")).for_each(|line| say(&format!("{mode:6} {line}")));
    false
}

#[test]
fn no_stale_row_at_any_point_when_the_gpu_is_late() {
    if in_mode("no_stale_row_at_any_point_when_the_gpu_is_late", "late") {
        run_all(0);
    }
}

#[test]
fn no_stale_row_at_any_point_when_the_gpu_works_at_once() {
    if in_mode("no_stale_row_at_any_point_when_the_gpu_works_at_once", "sync") {
        run_all(1);
    }
}

#[test]
fn no_stale_row_at_any_point_when_the_gpu_works_by_chance() {
    if in_mode("no_stale_row_at_any_point_when_the_gpu_works_by_chance", "random") {
        run_all(2);
    }
}

#[test]
fn no_stale_row_at_any_point_when_the_gpu_works_beside() {
    if in_mode("no_stale_row_at_any_point_when_the_gpu_works_beside", "worker") {
        run_all(3);
    }
}
