//! A reader that is stopped in the middle of a read, for however long, reads the right bytes when it goes on: its lease
//! ends when it ends it, and by no clock.

use std::time::Duration;

use nix::sys::signal::Signal;
use tierpack_client::{Client, Dtype, Error};
use tierpack_tests::data::Source;
use tierpack_tests::faults::is_stopped;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::ReadReport;
use tierpack_tests::{Daemon, TestClient, eventually, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

const HELD_BYTES: u64 = 64 << 20;
const FILLER_BYTES: u64 = 8 << 20;

fn put(client: &Client, name: &str, id: u16, bytes: u64) -> Result<(), Error> {
    let mut source = Source::new(id, 1);
    client.put_with(name, Dtype::U64, &[bytes / 512, 64], &mut source, &raw()).map(drop)
}

/// Stops a client while it has a lease.
fn stop_within_a_read(daemon: &Daemon, client: &mut TestClient) {
    let pid = client.process().pid();
    eventually("a reader that is stopped within a read", || {
        client.process().signal(Signal::SIGSTOP);
        eventually("a stopped process", || is_stopped(pid).then_some(()));
        let sessions = daemon.stats().sessions;
        let session = sessions.iter().find(|session| session.pid == i32::try_from(pid).ok());
        let has_lease = session.expect("its session").leases == 1;
        if !has_lease {
            client.process().signal(Signal::SIGCONT);
        }
        has_lease.then_some(())
    });
}

/// Removes what the stopped client reads, fills the pool with other bytes, and lets the client go on.
fn go_on_after_the_pool_was_filled(how: &str) {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "160MiB", "--lock", "off"]);
    let client = daemon.client();
    let before = Baseline::take(&daemon, 1);
    put(&client, "held", 1, HELD_BYTES).expect("room");

    let args = ["hold", "--tensor", "held", "--tensor-id", "1", "--version", "1", "--how", how];
    let mut reader = TestClient::start(CLIENT, &daemon, &args);
    assert!(reader.line().expect("a line").starts_with("holding"));
    stop_within_a_read(&daemon, &mut reader);

    let stored_bytes = daemon.stats().pool.stored_bytes;
    client.remove("held").expect("it is there");
    let mut fillers = 0;
    while let Ok(()) = put(&client, &format!("filler-{fillers}"), 2, FILLER_BYTES) {
        fillers += 1;
    }
    let text = put(&client, "one-more", 2, FILLER_BYTES).expect_err("the pool is full").to_string();
    let holder = format!("removed or replaced bytes that clients still read {stored_bytes} bytes");
    assert!(text.contains(&holder), "the error names what holds the room: {text}");
    assert!(fillers >= 8, "{fillers} fillers found room");
    if full() {
        // No clock may end a lease: much longer than every deadline of the daemon.
        std::thread::sleep(Duration::from_secs(40));
    }
    assert_eq!(daemon.stats().pool.held_bytes, stored_bytes);

    reader.process().signal(Signal::SIGCONT);
    reader.tell("go on");
    let report: ReadReport = serde_json::from_str(&reader.finish()).expect("a report");
    assert_eq!((report.mismatches, report.errors), (0, 0), "{report:?}");
    // A long gather takes a lease per batch, so one that is stopped begins again, and finds no tensor.
    assert!(how == "gather" || report.reads > 0, "{report:?}");
    assert_eq!(daemon.quiet().pool.stored_bytes, fillers * stored_bytes / (HELD_BYTES / FILLER_BYTES));
    for n in 0..fillers {
        client.remove(&format!("filler-{n}")).expect("it is there");
    }
    before.returns(&mut daemon);
}

#[test]
fn a_view_outlives_its_tensor() {
    go_on_after_the_pool_was_filled("view");
}

#[test]
fn a_stopped_get_reads_the_right_bytes() {
    go_on_after_the_pool_was_filled("get");
}

#[test]
fn a_stopped_gather_reads_the_right_bytes() {
    go_on_after_the_pool_was_filled("gather");
}
