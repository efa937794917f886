//! Many clients: none is turned away because others were killed, and the limit is told.

use tierpack_client::{Client, Dtype, Error};
use tierpack_tests::data::Source;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::Peer;
use tierpack_tests::reports::ReadReport;
use tierpack_tests::{Daemon, TestClient, eventually, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

/// Clients at a time while they are killed.
const WAVE: usize = 10;

/// Starts readers, and waits until each has read; they go on for `steps` gathers.
fn readers(daemon: &Daemon, n: usize, steps: &str) -> Vec<TestClient> {
    let args = ["gather", "--tensor", "features", "--tensor-id", "7", "--version", "3", "--batch", "16"];
    let args = [&args[..], &["--steps", steps]].concat();
    let mut readers: Vec<_> = (0..n).map(|_| TestClient::start(CLIENT, daemon, &args)).collect();
    readers.iter_mut().for_each(|reader| reader.tell("go"));
    for reader in &mut readers {
        let lines = (reader.line(), reader.line());
        assert!(lines.1.as_deref().is_some_and(|line| line.starts_with("reader")), "{lines:?}");
    }
    readers
}

#[test]
fn clients_find_room_after_many_were_killed() {
    let (killed, at_once) = if full() { (1000, 300) } else { (20, 40) };
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    let put = |id, options| {
        client.put_with("features", Dtype::U64, &[16 << 10, 64], &mut Source::new(7, id), &options)
    };
    put(3, raw()).expect("room");
    let before = Baseline::take(&daemon, 1);
    for _ in 0..killed / WAVE {
        // Dropped, and so killed, in the middle of their reads.
        drop(readers(&daemon, WAVE, "1000000000"));
    }
    before.returns(&mut daemon);

    // Few steps: three hundred processes that never rest would only wait for the processor.
    let readers = readers(&daemon, at_once, "1000");
    let stats = daemon.stats();
    assert_eq!(stats.sessions.len(), 1 + at_once);
    for reader in readers {
        let report: ReadReport = serde_json::from_str(&reader.finish()).expect("a report");
        assert_eq!((report.mismatches, report.errors), (0, 0), "{report:?}");
    }
    before.returns(&mut daemon);
    // What the killed ones read can be replaced, and its memory comes back.
    for _ in 0..20 {
        put(3, raw().overwrite(true)).expect("the memory of the one before came back");
    }
    before.returns(&mut daemon);
}

#[test]
fn the_limit_on_clients_is_told_and_ends_when_some_leave() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "16MiB", "--lock", "off", "--max-sessions", "256"]);
    eventually("no session", || daemon.stats().sessions.is_empty().then_some(()));
    let mut peers: Vec<_> = (0..256).map(|_| Peer::greeted(&daemon.socket())).collect();
    let connect = || Client::builder().socket(daemon.socket()).connect();
    let error = connect().expect_err("one client too many");
    assert!(matches!(error, Error::Limit { .. }), "{error:?}");
    assert!(error.to_string().contains("the limit is 256 (--max-sessions)"), "{error}");
    peers.pop();
    eventually("room for one client", || connect().ok());
}
