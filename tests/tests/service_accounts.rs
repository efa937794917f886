//! Everything that a user causes counts: against the quota of the namespace, the pool, and the user's share.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;
use tierpack_client::{Dtype, Error};
use tierpack_shm::message::{ErrorCode, PutBegin, Refusal, Reply, Request};
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

fn transfer(reply: Result<Reply, Refusal>) -> u64 {
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
    // One block besides: what is replaced does not count for what takes its place.
    assert!(namespace(&daemon, "small").used_bytes <= MIB + (257 << 10));
    drop(views);
    // Every row at once, again and again.
    for _ in 0..8 {
        handle.update(&rows, &bytes).expect("nothing is held any more");
    }
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
    // What cannot fit is refused at once.
    daemon.run_ok(&["ns", "chmod", "small", "--quota", "1KiB"]);
    let refusal = peer.request(begin_small("c", 1), &[]).expect_err("it cannot fit");
    assert_eq!(refusal.code(), Some(ErrorCode::Quota), "{}", refusal.text);
}

/// A field of `/proc/PID/status`, in bytes.
fn anonymous(daemon: &mut Daemon) -> u64 {
    let path = format!("/proc/{}/status", daemon.process().pid());
    let text = std::fs::read_to_string(path).expect("the daemon is alive");
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a field of Linux");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Puts tensors without a byte until one is refused.
fn put_empty(
    peer: &mut Peer,
    namespace: &str,
    names: impl Iterator<Item = String>,
) -> Option<(usize, Refusal)> {
    for (n, name) in names.enumerate() {
        let put = PutBegin { namespace: namespace.to_owned(), ..begin(&name, 0) };
        let done = match peer.request(Request::PutBegin(put), &[]) {
            Ok(reply) => peer.request(Request::PutCommit { transfer: transfer(Ok(reply)) }, &[]),
            other => other,
        };
        if let Err(refusal) = done {
            return Some((n, refusal));
        }
    }
    None
}

#[test]
fn the_heap_of_tensors_is_counted_and_returns_to_the_system() {
    let mut daemon = daemon("1GiB");
    let each = if full() { 25_000 } else { 5_000 };
    let counted = |daemon: &Daemon| daemon.stats().pool.heap_bytes;
    let (before, counted_before) = (anonymous(&mut daemon), counted(&daemon));
    let socket = daemon.socket();
    let put = |from: u64| {
        let mut peer = Peer::greeted(&socket);
        let names = (from..from + each).map(|n| format!("tensor {n}"));
        assert!(put_empty(&mut peer, "many", names).is_none());
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            let put = &put;
            scope.spawn(move || put(n * each));
        }
    });
    let heap = counted(&daemon) - counted_before;
    let grown = anonymous(&mut daemon).saturating_sub(before);
    println!("{} tensors: {} bytes of heap each, {} counted", 4 * each, grown / 4 / each, heap / 4 / each);
    assert!(grown < heap + 2 * MIB, "{grown} bytes grown, {heap} counted");
    daemon.run_ok(&["ns", "rm", "many", "--force"]);
    eventually("no heap counted any more", || (counted(&daemon) <= counted_before).then_some(()));
    eventually("the return of freed heap", || (anonymous(&mut daemon) < before + 4 * MIB).then_some(()));
}

/// 22.
#[test]
fn the_tables_of_removed_tensors_return_while_one_is_left() {
    let daemon = daemon("256MiB");
    let mut peer = Peer::greeted(&daemon.socket());
    let names = (0..8000).map(|n| format!("tensor {n}"));
    assert!(put_empty(&mut peer, "many", names).is_none());
    let full = daemon.stats().pool.segment_bytes;
    for n in 1..8000 {
        let remove = Request::Remove { namespace: "many".to_owned(), name: format!("tensor {n}") };
        peer.request(remove, &[]).expect("it is there");
    }
    let rest = eventually("the return of tables", || {
        let now = daemon.stats().pool.segment_bytes;
        (now < full / 2).then_some(now)
    });
    println!("directory of 8000 tensors: {full} bytes, of one that is left: {rest}");
}

#[test]
fn long_names_of_empty_tensors_meet_the_quota_and_the_pool() {
    let mut daemon = daemon_with_quota("16MiB");
    let mut peer = Peer::greeted(&daemon.socket());
    let names = || (0..).map(|n| format!("{n:0>4096}"));
    let before = anonymous(&mut daemon);
    let (n, refusal) = put_empty(&mut peer, "small", names().take(1000)).expect("it is refused");
    assert_eq!((refusal.code(), (50..200).contains(&n)), (Some(ErrorCode::Quota), true), "{n}: {refusal:?}");
    assert_says(&refusal.text, &["names and tables"]);
    let (n, refusal) = put_empty(&mut peer, "default", names().take(20_000)).expect("it is refused");
    assert_eq!((refusal.code(), n > 1000), (Some(ErrorCode::PoolFull), true), "{n}: {refusal:?}");
    assert_says(&refusal.text, &["pool is full", "16 MiB", "the daemon's tables"]);
    let grown = anonymous(&mut daemon).saturating_sub(before);
    assert!(grown < 16 * MIB, "{grown} bytes of heap next to a pool of 16 MiB");
}

#[test]
fn one_user_does_not_take_all_puts() {
    let daemon = daemon("64MiB");
    let args = ["puts", "--namespace", "theirs"];
    let Some((_first, report)) = hoarder(&daemon, &args) else { return };
    assert_eq!(report.taken, 1024);
    assert_says(&report.refusal.expect("a limit"), &["this session has 1024 puts under way"]);
    let (_second, report) = hoarder(&daemon, &args).expect("as before");
    assert_eq!(report.taken, 1024);
    let (_third, report) = hoarder(&daemon, &args).expect("as before");
    assert_eq!(report.taken, 0);
    assert_says(&report.refusal.expect("a limit"), &["user 4001 has 2048 puts under way", "share of 4096"]);
    daemon.client().put("t", Dtype::U8, &[1], &[1]).expect("the others' share is free");
}

#[test]
fn one_user_does_not_take_all_namespaces_and_removed_ones_count() {
    let daemon = daemon("768MiB");
    let Some((_ghosts, report)) = hoarder(&daemon, &["ghosts", "--namespace", "g", "--count", "8"]) else {
        return;
    };
    assert_eq!(report.taken, 8, "{report:?}");
    let (_peer, report) = hoarder(&daemon, &["namespaces", "--namespace", "n"]).expect("as before");
    assert_eq!(report.taken, 2040, "{report:?}");
    assert_says(&report.refusal.expect("a limit"), &["user 4001 has 2048 namespaces", "share of 4096"]);
    daemon.run_ok(&["ns", "create", "others"]);
}

#[test]
fn one_user_is_not_promised_the_whole_pool() {
    let daemon = daemon("64MiB");
    let args = ["puts", "--namespace", "theirs", "--rows", "122880", "--count", "8"];
    let Some((_peer, report)) = hoarder(&daemon, &args) else { return };
    assert_eq!(report.taken, 1, "{report:?}");
    let refusal = report.refusal.expect("the pool does not hold two of them");
    assert_says(&refusal, &["pool is full", "in the namespaces of user 4001 tensors take 0 bytes"]);
    assert!(!refusal.contains("session"), "{refusal}");
    let reserved = daemon.stats().pool.reserved_bytes;
    assert!(reserved <= 32 * MIB, "{reserved}");
    Peer::greeted(&daemon.socket()).begin("others", 24 * MIB / 512);
}

#[test]
fn one_user_does_not_fill_the_pool() {
    let daemon = daemon("64MiB");
    let args = ["bytes", "--namespace", "theirs", "--rows", "4096"];
    let Some((_peer, report)) = hoarder(&daemon, &args) else { return };
    let refusal = report.refusal.expect("a share");
    assert_says(
        &refusal,
        &[
            "the share that user 4001 may take of the pool is full",
            "of the 48 MiB that one user may take (--user-percent)",
        ],
    );
    // 75 % of 64 MiB in puts of 2 MiB, some of it tables and what a segment has left.
    assert!((20..24).contains(&report.taken), "{} puts", report.taken);
    let args = ["take", "bytes", "--namespace", "others", "--rows", "4096", "--count", "6"];
    let mut other = TestClient::start(CLIENT, &daemon, &args);
    let report: TakeReport = serde_json::from_str(&other.line().expect("a report")).expect("a report");
    assert_eq!(report.taken, 6, "{report:?}");
}

#[test]
fn one_users_file_metadata_leave_room_for_those_of_others() {
    let daemon = daemon("256MiB");
    let Some((_peer, report)) = hoarder(&daemon, &["texts", "--namespace", "theirs"]) else { return };
    assert_eq!(report.taken, 2, "{report:?}");
    assert_says(&report.refusal.expect("a limit"), &["file metadata", "user 4001", "the share is 32 MiB"]);
    let args = ["take", "texts", "--namespace", "others", "--count", "2"];
    let mut other = TestClient::start(CLIENT, &daemon, &args);
    let report: TakeReport = serde_json::from_str(&other.line().expect("a report")).expect("a report");
    assert_eq!(report.taken, 2, "{report:?}");
    // A text goes with its last tensor.
    assert!(daemon.stats().pool.heap_bytes > 64 * MIB);
    daemon.run_ok(&["ns", "rm", "theirs", "--force"]);
    daemon.run_ok(&["ns", "rm", "others", "--force"]);
    eventually("the end of the texts", || (daemon.stats().pool.heap_bytes < MIB).then_some(()));
}

#[test]
fn who_may_not_write_learns_nothing_of_the_pool() {
    let daemon = daemon("64MiB");
    daemon.run_ok(&["ns", "create", "private"]);
    let rows = (1_u64 << 31).to_string();
    let Some((_peer, report)) = hoarder(&daemon, &["puts", "--namespace", "private", "--rows", &rows]) else {
        return;
    };
    let refusal = report.refusal.expect("it is not theirs");
    assert_says(&refusal, &["user 4001 may not write namespace \"private\""]);
    assert!(!refusal.contains("owner 0") && !refusal.contains("mode"), "{refusal}");
}

/// The bytes that a refusal names after these words.
fn named(text: &str, words: &str) -> u64 {
    let rest = text.split_once(words).expect("the words").1;
    let mut parts = rest.split_whitespace().map(|part| part.trim_end_matches([',', ';']));
    let number: u64 = parts.next().and_then(|part| part.parse().ok()).expect("a number");
    match parts.next() {
        Some("MiB") => number << 20,
        Some("KiB") => number << 10,
        other => {
            assert_eq!(other, Some("bytes"), "{text}");
            number
        }
    }
}

#[test]
fn the_parts_that_a_refusal_names_add_up_to_the_pool() {
    let daemon = daemon("64MiB");
    let client = daemon.client();
    let put = |name: &str, rows: u64| {
        client.put_with(name, Dtype::U8, &[rows, 512], &mut std::io::repeat(7), &raw()).expect("room");
    };
    put("kept", 20_000);
    put("gone", 3_000);
    let view = client.open("gone").and_then(|handle| handle.view()).expect("a view");
    client.remove("gone").expect("it is there");
    let mut peer = Peer::greeted(&daemon.socket());
    let id = peer.begin("half", 2 * BLOCK_ROWS);
    let (request, fd) = chunk(id, 0, BLOCK_ROWS);
    peer.request(request, &[fd.as_fd()]).expect("room");
    let refusal = peer.request(Request::PutBegin(begin("b", 120_000)), &[]).expect_err("no room");
    let text = refusal.text;
    let parts = [
        "tensors take ",
        "under way ",
        "still read ",
        "directories ",
        "idle room in segments ",
        "yet to unmap ",
        "the daemon's tables ",
        "; ",
    ];
    let bytes = parts.map(|words| named(&text, words));
    assert_eq!(bytes.iter().sum::<u64>(), 64 * MIB, "{text}");
    assert!(bytes[..3].iter().all(|part| *part >= 256 << 10), "{text}");
    assert_says(&text, &["(session ", "(user 0 ", "are free"]);
    drop(view);
}
