//! What a reader holds is what it looked up: however long it is stopped, and however often its tensor is stored again.

use nix::sys::signal::Signal;
use tierpack_client::{Client, CodecChoice, CodecId, Dtype, PutOptions, RefitMode};
use tierpack_shm::faults::Point;
use tierpack_tests::data::{Source, Words};
use tierpack_tests::reports::FaultReport;
use tierpack_tests::{Daemon, TestClient, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

const RAW: CodecId = CodecId::Raw;
/// Rows of 512 bytes: 2 MiB.
const ROWS: u64 = 4096;
const BYTES: u64 = ROWS * 512;
const TARGET: u16 = 3;
/// Rows that one lease of a gather covers.
const BATCH: u64 = 128;

fn put(client: &Client, version: u16, codec: CodecId) {
    let words = Words::new(codec != RAW);
    let options = PutOptions::new().codec(CodecChoice::Only(codec)).overwrite(true);
    let mut source = Source::of(words, TARGET, version);
    client.put_with("target", Dtype::U64, &[ROWS, 64], &mut source, &options).expect("room");
}

/// Stores every row of the raw tensor again.
fn store_again(client: &Client, version: u16) {
    let rows: Vec<u64> = (0..ROWS).collect();
    let mut values = vec![0; rows.len() * 512];
    Words::new(false).fill(&mut values, TARGET, version, 0);
    client.update("target", &rows, &values).expect("a writer finds room");
}

/// A client that is to stop at a point within a read of the target.
fn stopped(daemon: &Daemon, point: Point, actions: &str, operation: &str, codec: CodecId) -> TestClient {
    let (id, codec) = (TARGET.to_string(), codec.name());
    let args = ["fault", "--point", point.name(), "--actions", actions, "--operation", operation];
    let args = [&args[..], &["--tensor", "target", "--tensor-id", &id, "--codec", codec]].concat();
    let mut reader = TestClient::start(CLIENT, daemon, &args);
    assert!(reader.line().expect("a line").starts_with("ready"));
    reader.tell("arm");
    assert_eq!(reader.line().as_deref(), Some("armed"));
    reader.tell("go");
    reader.process().wait_stopped(operation);
    reader
}

fn go_on(reader: &mut TestClient) -> FaultReport {
    reader.process().signal(Signal::SIGCONT);
    serde_json::from_str(&reader.line().expect("the reader reports")).expect("a report")
}

fn held_and_leases(daemon: &Daemon) -> (u64, u64) {
    let stats = daemon.stats();
    (stats.pool.held_bytes, stats.sessions.iter().map(|session| session.leases).sum())
}

/// A hundred rewrites under a stopped reader; what it holds is in the stats with its process.
fn rewrite_under(operation: &str, point: Point) -> FaultReport {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, 1, RAW);
    let mut reader = stopped(&daemon, point, "1*return(stop)", operation, RAW);
    let pid = i32::try_from(reader.process().pid()).ok();
    for n in 0..100 {
        store_again(&client, 2 + n % 7);
        eventually(&format!("{operation}: little is held after {n} rewrites"), || {
            (held_and_leases(&daemon).0 <= 4 * BYTES).then_some(())
        });
    }
    // What it has found, and what the first rewrite stored: the epoch had not stepped since the last look-up.
    eventually("only what the reader can have found is held", || {
        let (held, leases) = held_and_leases(&daemon);
        ((BYTES..=2 * BYTES + (64 << 10)).contains(&held) && leases == 1).then_some(())
    });
    let stats = daemon.stats();
    let session = stats.sessions.iter().find(|session| session.pid == pid).expect("its line");
    assert_eq!(session.uid, nix::unistd::getuid().as_raw());
    assert_eq!(session.held_bytes, stats.pool.held_bytes);
    assert!(session.held_ms > 0);
    let report = go_on(&mut reader);
    daemon.quiet();
    report
}

#[test]
fn a_stopped_get_holds_what_it_found_through_a_hundred_rewrites() {
    let report = rewrite_under("get", Point::CopyBetweenBlocks);
    assert_eq!(report, FaultReport { version: Some(1), error: None });
}

#[test]
fn a_stopped_gather_holds_what_it_found_through_a_hundred_rewrites() {
    // The rows of its later batches are those of the last rewrite, and all are when it has to wait for a new segment.
    let report = rewrite_under("gather", Point::GatherBetweenRows);
    assert!(matches!(report, FaultReport { version: None | Some(3), error: None }), "{report:?}");
}

#[test]
fn readers_that_overlap_for_ever_hold_what_they_found() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, 1, RAW);
    let handle = client.open("target").expect("it is there");
    let (first, mut last) = (handle.view().expect("raw"), (handle.view().expect("raw"), 1));
    for n in 0..40 {
        let version = 2 + n % 8;
        store_again(&client, version);
        // The view before goes only when the next is there; the first one stays.
        let next = (handle.view().expect("raw"), version);
        eventually("little more than what the first view and the last have found is held", || {
            (held_and_leases(&daemon).0 <= 4 * BYTES).then_some(())
        });
        let block = last.0.block(3).expect("a block");
        assert_eq!(Words::new(false).mismatches(block, TARGET, last.1, 3 * block.len() as u64 / 8), 0);
        last = next;
    }
    let block = first.block(3).expect("a block");
    assert_eq!(Words::new(false).mismatches(block, TARGET, 1, 3 * block.len() as u64 / 8), 0);
}

#[test]
fn background_work_waits_only_where_readers_hold_too_much() {
    let args = ["--pool-size", "64MiB", "--lock", "off", "--max-held-percent", "1"];
    let daemon = Daemon::start(PROGRAM, &args);
    let held = daemon.client();
    put(&held, 1, RAW);
    let view = held.open("target").expect("it is there").view().expect("raw");
    held.remove("target").expect("it is there");
    assert!(daemon.stats().pool.held_bytes >= BYTES);
    let free = Client::builder().socket(daemon.socket()).namespace("free").connect().expect("a client");
    put(&free, 1, RAW);
    let mut row = [0; 512];
    Words::new(false).fill(&mut row, TARGET, 1, 0);
    free.update("target", &[0_u64], &row).expect("room");
    eventually("overlays of another namespace are folded", || {
        (free.drift("target").expect("it is there").overlay_bytes == 0).then_some(())
    });
    assert!(daemon.stats().pool.held_bytes >= BYTES, "the reader still holds its own");
    drop(view);
    daemon.quiet();
}

#[test]
fn a_batch_that_finds_another_publication_begins_the_gather_again() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    for codec in [RAW, CodecId::Ibp] {
        put(&client, 1, codec);
        let actions = format!("{BATCH}*off->1*return(stop)");
        let mut reader = stopped(&daemon, Point::GatherBetweenRows, &actions, "gather", codec);
        assert_eq!(held_and_leases(&daemon).1, 0, "between two batches there is no lease");
        put(&client, 2, codec);
        assert_eq!(go_on(&mut reader), FaultReport { version: Some(2), error: None }, "{codec}");
    }
}

#[test]
fn what_a_batch_found_by_a_generations_index_ends_with_its_lease() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off", "--refit", "manual"]);
    let client = daemon.client();
    put(&client, 1, CodecId::Ibp);
    let actions = format!("{BATCH}*off->1*return(stop)");
    let mut reader = stopped(&daemon, Point::GatherBetweenRows, &actions, "gather", CodecId::Ibp);
    // The values change and the words of the next batch name the first index again, for another generation.
    let rows: Vec<u64> = (0..ROWS).collect();
    let mut values = vec![0; rows.len() * 512];
    Words::new(true).fill(&mut values, TARGET, 4, 0);
    client.update("target", &rows, &values).expect("room");
    for _ in 0..2 {
        client.refit("target", RefitMode::Force, |_, _| ()).expect("a refit");
    }
    eventually("the first index in use again", || {
        let drift = client.drift("target").expect("it is there");
        (drift.generation == 3 && drift.generations_alive == 1).then_some(())
    });
    let report = go_on(&mut reader);
    assert_eq!(report.error, None);
    // Its first batch is of the first version and all others of the last, or all when it has to wait for a new segment.
    assert!(matches!(report.version, None | Some(4)), "{report:?}");
    reader.tell("go");
    let again = serde_json::from_str::<FaultReport>(&reader.line().expect("a line")).expect("a report");
    assert_eq!(again, FaultReport { version: Some(4), error: None });
}
