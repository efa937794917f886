//! A session that is lost and made again while the daemon lives: what a GPU knew of the old one's segments is not
//! used any more.

use nix::sys::socket::{Shutdown, shutdown};
use tierpack_client::{CacheConfig, Client, CodecId, Gpu, GpuConfig};
use tierpack_tests::device::{MODES, in_child};
use tierpack_tests::rows::Table;
use tierpack_tests::{Daemon, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const ROWS: u64 = 1100;
const ROUNDS: u16 = 3;

/// Ends every connection of this process, as a fault of the system might.
fn hang_up() {
    let mut ended = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("a list of descriptors").flatten() {
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_str().is_some_and(|target| target.starts_with("socket:")));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|_| is_socket) {
            ended += usize::from(shutdown(number, Shutdown::Both).is_ok());
        }
    }
    assert!(ended > 0, "no connection was ended");
}

/// Puts a filler, and updates the tensor, so that its blocks lie in segments behind the filler's.
fn go_behind(client: &Client, table: &Table, version: u16) {
    let filler = Table { tensor: 80, codec: CodecId::Raw, n_rows: 12 << 10 };
    filler.put(client, "filler", version).expect("room");
    let all: Vec<u64> = (0..ROWS).collect();
    client.update("t", &all, &table.rows(0..ROWS, version)).expect("room");
}

/// Removes the filler; its segments are retired.
///
/// Their memory counts until the sessions that were lost have no view left: this process lives, and said no goodbye.
fn come_back(daemon: &Daemon, client: &Client) {
    client.remove("filler").expect("it is there");
    eventually("sparse segments that are retired", || {
        let pool = daemon.stats().pool;
        // Less than the filler: a view of a session that was lost keeps the segment that it reads.
        (pool.segment_bytes - pool.returning_bytes < pool.used_bytes + (6 << 20)).then_some(())
    });
}

#[test]
fn rows_are_right_after_a_session_is_made_anew() {
    if !in_child("rows_are_right_after_a_session_is_made_anew", &MODES[..2]) {
        return;
    }
    let args = ["--pool-size", "96MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"];
    let daemon = Daemon::start(PROGRAM, &args);
    let gpu = Gpu::open(&GpuConfig::new()).expect("a GPU");
    let client = daemon.client();
    let table = Table { tensor: 1, codec: CodecId::Raw, n_rows: ROWS };
    let kept = Table { tensor: 2, codec: CodecId::Raw, n_rows: 100 };
    table.put(&client, "t", 1).expect("room");
    kept.put(&client, "kept", 1).expect("room");
    let handle = client.open("t").expect("it is there");
    let device = handle.on_device(&gpu, CacheConfig::new(256 << 10)).expect("it fits");
    let ids: Vec<u64> = (0..ROWS).step_by(7).collect();
    let on_gpu = gpu.ids(&ids).expect("few ids");
    let check = |version: u16, what: &str| {
        let rows = device.gather(&on_gpu).and_then(|rows| rows.to_host()).expect("rows");
        assert!(rows == table.rows(ids.iter().copied(), version), "{what}: version {version}");
    };
    let mut views = Vec::new();
    for version in (2..2 + 2 * ROUNDS).step_by(2) {
        let actor = daemon.client();
        go_behind(&actor, &table, version);
        check(version, "with all segments known");
        // Its attachment lives on with it, and with it the segments that it has mapped.
        views.push(client.open("kept").and_then(|handle| handle.view()).expect("it is raw"));
        drop(actor);
        hang_up();
        let actor = daemon.client();
        come_back(&daemon, &actor);
        go_behind(&actor, &table, version + 1);
        (0..2).for_each(|_| check(version + 1, "after the session was lost"));
        come_back(&daemon, &actor);
        (0..2).for_each(|_| check(version + 1, "after more of it"));
    }
    for view in &views {
        let bytes = view.block(0).expect("a view outlives its session");
        assert!(bytes == kept.rows(0..100, 1), "a view");
    }
}

#[test]
fn segments_that_come_and_go_are_found_where_they_are_now() {
    if !in_child("segments_that_come_and_go_are_found_where_they_are_now", &MODES[..2]) {
        return;
    }
    let args = ["--pool-size", "24MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"];
    let (daemon, gpu) = (Daemon::start(PROGRAM, &args), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let client = daemon.client();
    let table = Table { tensor: 1, codec: CodecId::Raw, n_rows: ROWS };
    table.put(&client, "t", 1).expect("room");
    let device = client.open("t").and_then(|it| it.on_device(&gpu, CacheConfig::new(256 << 10)));
    let device = device.expect("it fits");
    let ids: Vec<u64> = (0..ROWS).step_by(7).collect();
    let on_gpu = gpu.ids(&ids).expect("few ids");
    let check = |version: u16, what: &str| {
        let rows = device.gather(&on_gpu).and_then(|rows| rows.to_host()).expect("rows");
        assert!(rows == table.rows(ids.iter().copied(), version), "{what}: version {version}");
    };
    for version in 2..6 {
        go_behind(&client, &table, version);
        (0..2).for_each(|_| check(version, "behind"));
        come_back(&daemon, &client);
        (0..2).for_each(|_| check(version, "moved"));
    }
    drop(device);
    daemon.quiet();
}
