//! Forks: a child gets a clear error at once from everything that its parent opened, can connect again, and disturbs its
//! parent by no way of ending.
//!
//! The forks happen in a process of their own, `tierpack-test-client fork`, which checks the children; here the daemon's
//! side is checked.

use tierpack_client::Dtype;
use tierpack_tests::data::Source;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::ReadReport;
use tierpack_tests::{Daemon, TestClient, eventually, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

const ROWS: u64 = 16 << 10;

/// A daemon with one tensor, and what it has then.
fn daemon() -> (Daemon, Baseline) {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    let mut source = Source::new(7, 3);
    client.put_with("features", Dtype::U64, &[ROWS, 64], &mut source, &raw()).expect("room");
    drop(client);
    let before = Baseline::take(&daemon, 0);
    (daemon, before)
}

fn start(daemon: &Daemon, scenario: &str, count: u64) -> TestClient {
    let count = count.to_string();
    let args = ["fork", "--scenario", scenario, "--tensor", "features", "--tensor-id", "7", "--version", "3"];
    TestClient::start(CLIENT, daemon, &[&args[..], &["--count", &count]].concat())
}

fn report(line: &str) -> ReadReport {
    let report: ReadReport = serde_json::from_str(line).expect("a report");
    assert_eq!((report.mismatches, report.errors), (0, 0), "{report:?}");
    report
}

#[test]
fn children_leave_their_parents_session_alone_however_they_end() {
    let (mut daemon, before) = daemon();
    let mut parent = start(&daemon, "workers", if full() { 10_000 } else { 1000 });
    let line = parent.line().expect("a report; the child that failed has said why");
    assert!(report(&line).reads > 0);
    // All eight children have ended; the parent has its session, and the lease of its view.
    let pid = i32::try_from(parent.process().pid()).ok();
    let sessions = eventually("the end of the children's sessions", || {
        let sessions = daemon.stats().sessions;
        (sessions.len() == 1).then_some(sessions)
    });
    assert_eq!((sessions[0].pid, sessions[0].leases), (pid, 1));
    // What it views is kept for it.
    daemon.client().remove("features").expect("it is there");
    assert!(daemon.stats().pool.held_bytes > ROWS * 512);
    parent.tell("go on");
    parent.finish();
    let mut source = Source::new(7, 3);
    let client = daemon.client();
    client.put_with("features", Dtype::U64, &[ROWS, 64], &mut source, &raw()).expect("room");
    drop(client);
    before.returns(&mut daemon);
}

#[test]
fn a_fork_while_other_threads_are_busy_never_waits() {
    let (mut daemon, before) = daemon();
    let forks = if full() { 200 } else { 20 };
    let mut parent = start(&daemon, "busy", forks);
    let line = parent.line().expect("a report; the child that failed has said why");
    assert_eq!(report(&line).reads, forks);
    parent.finish();
    // The last put of the parent may have ended between put and remove.
    let client = daemon.client();
    let _ = client.remove("busy").is_ok();
    drop(client);
    before.returns(&mut daemon);
}

#[test]
fn a_killed_parent_is_gone_although_its_child_lives() {
    let (mut daemon, before) = daemon();
    let mut parent = start(&daemon, "orphan", 1);
    assert!(parent.line().expect("a line").starts_with("holding"));
    eventually("the lease of a view", || (daemon.stats().sessions[0].leases == 1).then_some(()));
    parent.tell("fork");
    let line = parent.line().expect("a line of the child");
    let child = line.strip_prefix("child ").expect("the number of the child").to_owned();
    parent.process().kill();
    eventually("the end of the parent's session", || daemon.stats().sessions.is_empty().then_some(()));
    let cmdline = std::fs::read(format!("/proc/{child}/cmdline")).expect("the child is there");
    assert!(!cmdline.is_empty(), "the child lives");
    before.returns(&mut daemon);
    daemon.client().remove("features").expect("it is there");
    assert_eq!(daemon.quiet().pool.used_bytes, 0, "nothing is held for the dead");
    // The end of its input ends the child.
    drop(parent);
    eventually("the end of the child", || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}
