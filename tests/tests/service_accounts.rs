//! Everything that a user causes counts: against the quota of the namespace, the pool, and the user's share.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;
use tierpack_client::{Dtype, Error};
use tierpack_shm::message::{ErrorCode, NamespaceChange, PutBegin, Reply, Request};
use tierpack_shm::stats::NamespaceStats;
use tierpack_tests::peer::{Peer, begin, chunk};
use tierpack_tests::program::assert_says;
use tierpack_tests::reports::TakeReport;
use tierpack_tests::{Daemon, TestClient, eventually, full, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
const MIB: u64 = 1 << 20;
/// Rows of one block of 256 KiB.
const BLOCK_ROWS: u64 = 512;

fn daemon(pool: &str) -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", pool, "--lock", "off", "--admit", "everyone"])
}

/// A daemon with a namespace `small`, which has a quota of 1 MiB.
fn daemon_with_quota(pool: &str) -> Daemon {
    let daemon = daemon(pool);
    daemon.run_ok(&["ns", "create", "small", "--quota", "1MiB"]);
    daemon
}

fn namespace(daemon: &Daemon, name: &str) -> NamespaceStats {
    let stats = daemon.stats();
    stats.namespaces.into_iter().find(|found| found.name == name).expect("the namespace")
}

/// A put into namespace `small`.
fn begin_small(name: &str, rows: u64) -> Request {
    Request::PutBegin(PutBegin { namespace: "small".to_owned(), ..begin(name, rows) })
}

fn transfer(reply: Result<Reply, tierpack_shm::message::Refusal>) -> u64 {
    match reply {
        Ok(Reply::Transfer { transfer }) => transfer,
        other => unreachable!("begin: {other:?}"),
    }
}

/// A peer of another user that takes what it is given; `None`, said aloud, where this process may not start one.
fn hoarder(daemon: &Daemon, args: &[&str]) -> Option<(TestClient, TakeReport)> {
    let probe = ["setpriv", "--reuid", "4001", "--regid", "4001", "--clear-groups", "true"];
    if !geteuid().is_root() || !tools::can("becoming other users", &probe) {
        tools::skip("becoming other users needs root");
        return None;
    }
    let program = daemon.dir().join("test-client");
    if !program.exists() {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(daemon.dir(), mode).expect("change a mode");
        // Copied by another process: a file that this one has open for writing cannot be run.
        let copied = Command::new("cp").arg(CLIENT).arg(&program).status();
        assert!(copied.expect("run cp").success(), "copy the program");
    }
    let mut command = Command::new("setpriv");
    command.args(&probe[1..probe.len() - 1]).arg(Path::new(&program)).arg("--socket").arg(daemon.socket());
    let mut peer = TestClient::run(command.arg("take").args(args));
    let report = serde_json::from_str(&peer.line().expect("a report")).expect("a report");
    Some((peer, report))
}

#[test]
fn what_readers_hold_counts_against_the_quota() {
    let daemon = daemon_with_quota("64MiB");
    let small = daemon.client().namespace("small").expect("a short name");
    let bytes = vec![7; 256 << 10];
    let mut views = Vec::new();
    let refused = loop {
        let mut source = &bytes[..];
        if let Err(error) = small.put_with("t", Dtype::U8, &[512, 512], &mut source, &raw()) {
            break error;
        }
        views.push(small.open("t").and_then(|handle| handle.view()).expect("a view"));
        small.remove("t").expect("it is there");
        assert!(views.len() < 8, "held bytes do not count");
    };
    assert!(matches!(refused, Error::Quota { .. }), "{refused}");
    assert_says(&refused.to_string(), &["quota of namespace \"small\" is 1 MiB", "clients may still read"]);
    let now = namespace(&daemon, "small");
    assert!(now.held_bytes > MIB / 2 && now.used_bytes <= MIB, "{now:?}");
    drop(views);
    small.put_with("t", Dtype::U8, &[512, 512], &mut &bytes[..], &raw()).expect("nothing is held any more");
}

#[test]
fn updates_count_what_they_store_and_leave_to_readers() {
    let daemon = daemon_with_quota("64MiB");
    let small = daemon.client().namespace("small").expect("a short name");
    let bytes = vec![7; 256 << 10];
    small.put_with("t", Dtype::U8, &[512, 512], &mut &bytes[..], &raw()).expect("room");
    let handle = small.open("t").expect("it is there");
    let rows: Vec<u64> = (0..512).collect();
    let mut views = Vec::new();
    let refused = loop {
        views.push(handle.view().expect("a view"));
        if let Err(error) = handle.update(&rows, &bytes) {
            break error;
        }
        assert!(views.len() < 8, "replaced blocks do not count");
    };
    assert!(matches!(refused, Error::Quota { .. }), "{refused}");
    assert!(namespace(&daemon, "small").used_bytes <= MIB);
    drop(views);
    // Every row at once, again and again: what is replaced does not count for what takes its place.
    (0..8).for_each(|_| drop(handle.update(&rows, &bytes).expect("nothing is held any more")));
}

#[test]
fn a_chunk_beyond_the_quota_ends_its_put_and_leaves_nothing() {
    let daemon = daemon_with_quota("64MiB");
    let mut peer = Peer::greeted(&daemon.socket());
    let id = transfer(peer.request(begin_small("big", 160 * BLOCK_ROWS), &[]));
    let (mut taken, mut refusals) = (0, Vec::new());
    for block in 0..10 {
        let (request, fd) = chunk(id, block, BLOCK_ROWS);
        match peer.request(request, &[fd.as_fd()]) {
            Ok(_) => taken += 1,
            Err(refusal) => refusals.push(refusal),
        }
    }
    assert_eq!((taken, refusals.len()), (3, 7), "{refusals:?}");
    assert_eq!(refusals[0].code(), Some(ErrorCode::Quota), "{}", refusals[0].text);
    assert_says(&refusals[0].text, &["1 MiB", "puts and updates under way", "\"big\""]);
    refusals[1..].iter().for_each(|refusal| assert_says(&refusal.text, &["does not exist"]));
    let now = namespace(&daemon, "small");
    assert_eq!((now.used_bytes, now.heap_bytes < 64 << 10), (0, true), "{now:?}");
    assert_eq!(daemon.stats().pool.reserved_bytes, 0);
}

#[test]
fn a_put_is_promised_no_more_than_its_quota() {
    let daemon = daemon_with_quota("64MiB");
    let mut peer = Peer::greeted(&daemon.socket());
    transfer(peer.request(begin_small("a", 200 * BLOCK_ROWS), &[]));
    transfer(peer.request(begin_small("b", 200 * BLOCK_ROWS), &[]));
    let reserved = daemon.stats().pool.reserved_bytes;
    assert!((MIB / 2..=MIB).contains(&reserved), "{reserved}");
    peer.begin("others", 200 * BLOCK_ROWS);
    // A quota that names and tables alone pass refuses at once.
    let refusal = peer.request(begin_small("c", 1 << 20), &[]).expect_err("too many blocks for the quota");
    assert_eq!(refusal.code(), Some(ErrorCode::Quota), "{}", refusal.text);
}
