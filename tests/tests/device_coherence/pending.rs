//! Changes that happen between a launch and its event, and while a reader is stopped at a point of its own.

use std::thread;
use std::time::Duration;

use tierpack_client::CacheConfig;
use tierpack_shm::faults::{Point, set};
use tierpack_tests::device::say;
use tierpack_tests::rows::{ROW_BYTES, Table, overwrite_what_is_free};
use tierpack_tests::{Daemon, eventually};

use super::change::{Change, FEW, Progress, ROWS, TARGET};
use super::readers::{Found, Gpus, Readers};
use super::stream::Other;
use super::{CODECS, PROGRAM, SERVE, in_mode};

/// Points of a client that lie on the way of a gather on a GPU.
const POINTS: [Point; 3] = [Point::LeaseTaken, Point::OverlayFound, Point::LeaseEnding];

/// All changes but the last: segments are not emptied while a lease holds what lies in them.
const CHANGES: &[Change] = Change::ALL.split_last().expect("there are changes").1;

/// Rows of the tensor, with the version that all of them must have.
fn check_all(bytes: &[u8], ids: &[u64], table: &Table, version: impl Fn(u64) -> u16, what: &str) -> u64 {
    for (&row, bytes) in ids.iter().zip(bytes.chunks_exact(ROW_BYTES)) {
        let found = table.version_of(bytes, row, 1..=20);
        assert_eq!(found, Some(version(row)), "{what}: row {row}");
    }
    ids.len() as u64
}

/// The launch is queued, the change is made to its end, free memory is written, and then the GPU works.
fn change_before_the_gpu_works(gpus: &Gpus, table: Table, change: Change) -> u64 {
    let what = format!("{} with {}", change.name(), table.codec);
    let (daemon, gpu) = (Daemon::start(PROGRAM, &SERVE), gpus.first());
    let (client, actor) = (daemon.client(), daemon.client());
    change.prepare(&client, &table).expect("room");
    let handle = client.open("target").expect("it is there");
    let caches = [6 << 10, 2 << 20].map(|bytes| handle.on_device(gpu, CacheConfig::new(bytes)));
    let ids: Vec<u64> = FEW.into_iter().chain((0..40).map(|n| n * 27 % ROWS)).collect();
    let on_gpu = gpu.ids(&ids).expect("few ids");
    let mut rows = 0;
    for device in &caches {
        let device = device.as_ref().expect("it fits");
        let gather = || device.gather(&on_gpu).expect("rows in range");
        // One finds a part in the cache.
        let half = gpu.ids(&ids[..20]).expect("few ids");
        device.gather(&half).and_then(|tensor| tensor.wait()).expect("rows in range");
        let pending = [gather(), gather()];
        assert!(!pending[0].is_ready(), "{what}: the GPU is not late");
        change.run((&daemon, &actor), &table, &Progress::new()).expect("room");
        overwrite_what_is_free(&actor);
        for tensor in &pending {
            rows += check_all(&tensor.to_host().expect("rows"), &ids, &table, |_| 1, &what);
        }
        drop(pending);
        let changed = change.rows();
        let last = |row: u64| if changed.contains(&row) { change.last() } else { 1 };
        for _ in 0..2 {
            rows += check_all(&gather().to_host().expect("rows"), &ids, &table, last, &what);
        }
        change.undo(&actor, &table).expect("room");
    }
    drop(caches);
    daemon.quiet();
    rows
}

#[test]
fn a_launch_that_is_pending_keeps_its_rows_whatever_changes() {
    if !in_mode("pending::a_launch_that_is_pending_keeps_its_rows_whatever_changes", "late") {
        return;
    }
    let gpus = Gpus::open();
    let (mut runs, mut rows) = (0, 0);
    for (n, &change) in CHANGES.iter().enumerate() {
        for codec in [CODECS[n % 4], CODECS[(n + 1) % 4]].map(|codec| change.codec(codec)) {
            rows += change_before_the_gpu_works(&gpus, Table { tensor: TARGET, codec, n_rows: ROWS }, change);
            runs += 1;
        }
    }
    say(&format!("| changes between a launch and its event: {runs} runs, {rows} rows, 0 stale, 0 mixed"));
}

/// Launches on several streams, of which the last runs first: copies for one do not meet the others.
#[test]
fn launches_on_several_streams_wait_for_each_other() {
    if !in_mode("pending::launches_on_several_streams_wait_for_each_other", "late") {
        return;
    }
    let (gpus, table) = (Gpus::open(), Table { tensor: TARGET, codec: CODECS[1], n_rows: ROWS });
    let (gpu, others) = (gpus.first(), [gpus.other(), &Other::open()]);
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    table.put(&client, "target", 1).expect("room");
    let handle = client.open("target").expect("it is there");
    let ids: Vec<u64> = FEW.into_iter().chain((0..40).map(|n| n * 27 % ROWS)).collect();
    let all: Vec<u64> = (0..ROWS).collect();
    let mut rows = 0;
    for cache_bytes in [0, 6 << 10, 2 << 20] {
        table.put(&client, "target", 1).expect("room");
        let device = handle.on_device(gpu, CacheConfig::new(cache_bytes)).expect("it fits");
        let mut check = |bytes: &[u8], version| {
            rows += check_all(bytes, &ids, &table, |_| version, &format!("a cache of {cache_bytes}"));
        };
        for version in (1..12).step_by(2) {
            if version > 1 {
                client.update("target", &all, &table.rows(0..ROWS, version)).expect("room");
            }
            // The first one brings the words, the second one finds nothing to do: it must not come before them.
            let brings = others[0].launch(&device, &ids).expect("rows in range");
            let second = others[1].launch(&device, &ids).expect("rows in range");
            check(&second.rows().expect("rows"), version);
            // The words of the next version must not come before who was launched with the ones before.
            let third = others[1].launch(&device, &ids).expect("rows in range");
            client.update("target", &all, &table.rows(0..ROWS, version + 1)).expect("room");
            let last = device.gather(&gpu.ids(&ids).expect("few ids")).expect("rows in range");
            check(&last.to_host().expect("rows"), version + 1);
            check(&third.rows().expect("rows"), version);
            check(&brings.rows().expect("rows"), version);
        }
    }
    say(&format!("| launches on several streams: {rows} rows, 0 stale, 0 mixed"));
    daemon.quiet();
}

/// A reader stops at its point, with its lease, until the change is made.
fn change_while_a_reader_is_stopped(gpus: &Gpus, table: Table, change: Change, point: Point) -> Found {
    let what = format!("{} at {} with {}", change.name(), point.name(), table.codec);
    let daemon = Daemon::with_faults(PROGRAM, &SERVE);
    let (client, actor) = (daemon.client(), daemon.client());
    change.prepare(&client, &table).expect("room");
    let (mut readers, progress) = (Readers::new(gpus, &client, table, change), Progress::new());
    let mut found = readers.read(&progress, false);
    // The readers are to find overlays, which are not put into their blocks yet.
    daemon.arm(Point::RewriteEncoded, "pause");
    actor.update("target", &FEW, &table.rows(FEW, 1)).expect("room");
    set(point, "1*pause").expect("a point of this process");
    thread::scope(|scope| {
        let reading = scope.spawn(|| readers.read(&progress, false));
        eventually(&what, || (leases(&daemon) > 0).then_some(()));
        thread::sleep(Duration::from_millis(30));
        daemon.arm(Point::RewriteEncoded, "off");
        let changed = change.run((&daemon, &actor), &table, &progress);
        // Who ends a lease may be the thread that looks after flights.
        let was_stopped = !reading.is_finished() || leases(&daemon) > 0;
        set(point, "off").expect("a point of this process");
        changed.expect("room");
        found.add(&reading.join().expect("no panic"));
        assert!(was_stopped, "{what}: nobody came to the point");
    });
    change.settle(&daemon, &actor);
    (0..2).for_each(|_| found.add(&readers.read(&progress, true)));
    found.check(&what);
    drop(readers);
    daemon.quiet();
    found
}

fn leases(daemon: &Daemon) -> u64 {
    daemon.stats().sessions.iter().map(|session| session.leases).sum()
}

#[test]
fn a_reader_that_is_stopped_at_a_point_of_its_own_reads_no_stale_row() {
    if !in_mode("pending::a_reader_that_is_stopped_at_a_point_of_its_own_reads_no_stale_row", "late") {
        return;
    }
    let (gpus, mut found, mut runs) = (Gpus::open(), Found::default(), 0);
    for (m, point) in POINTS.into_iter().enumerate() {
        for (n, &change) in CHANGES.iter().enumerate() {
            let table = Table { tensor: TARGET, codec: change.codec(CODECS[(n + m) % 4]), n_rows: ROWS };
            found.add(&change_while_a_reader_is_stopped(&gpus, table, change, point));
            runs += 1;
        }
    }
    let Found { rows, stale, mixed, .. } = found;
    say(&format!("| points of a reader: {runs} runs, {rows} rows, {stale} stale, {mixed} mixed"));
    say(&format!("|   {}", POINTS.map(Point::name).join(" ")));
}
