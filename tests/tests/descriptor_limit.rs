//! The limit on open files: at the daemon's, new clients are told and old ones served; at a client's, it says so.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tierpack_client::{Client, Dtype, Error};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::Peer;
use tierpack_tests::{Daemon, eventually, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

/// Processor time that a process has used, in clock ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is alive");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in parentheses");
    let fields: Vec<_> = rest.split(' ').collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

fn prlimit(args: &[&str]) -> Output {
    Command::new("prlimit").args(args).stdin(Stdio::null()).output().expect("prlimit runs")
}

fn can_limit() -> bool {
    tools::can("limiting open files", &["prlimit", "--version"])
}

#[test]
fn a_daemon_without_descriptors_tells_new_clients_and_serves_old_ones() {
    if !can_limit() {
        return;
    }
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "16MiB", "--lock", "off"]);
    let client = daemon.client();
    client.put("kept", Dtype::U8, &[100], &[7; 100]).expect("room");
    client.get("kept").expect("it is there");
    let before = Baseline::take(&daemon, 1);
    let pid = daemon.process().pid();
    let output = prlimit(&["--pid", &pid.to_string(), "--nofile=64:64"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let peers: Vec<_> = (0..200).map(|_| Peer::connect(&daemon.socket())).collect();
    let error =
        eventually("a daemon at its limit", || Client::builder().socket(daemon.socket()).connect().err());
    assert!(matches!(error, Error::Limit { .. }), "{error:?}");
    assert!(error.to_string().contains("raise its limit on open files (ulimit -n)"), "{error}");
    for _ in 0..100 {
        assert_eq!(client.get("kept").expect("old clients are served").as_bytes(), [7; 100]);
        client.list().expect("old clients are served");
    }
    let used = ticks(pid);
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks(pid) - used;
    println!("a daemon at its limit on descriptors uses {used} % of a core");
    assert!(used < 50, "the daemon spins: {used} of 100 ticks");
    drop(peers);
    eventually("room for a new client", || Client::builder().socket(daemon.socket()).connect().ok());
    before.returns(&mut daemon);
}

#[test]
fn a_client_without_descriptors_says_so() {
    if !can_limit() {
        return;
    }
    let mut daemon =
        Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--segment-size", "2MiB", "--lock", "off"]);
    let client = daemon.client();
    let rows = (40 << 20) / 512;
    let mut source = tierpack_tests::data::Source::new(1, 1);
    client.put_with("large", Dtype::U64, &[rows, 64], &mut source, &raw()).expect("room");
    let before = Baseline::take(&daemon, 1);
    let socket = daemon.socket();
    let socket = socket.to_str().expect("a path of text");
    let hold = ["hold", "--tensor", "large", "--tensor-id", "1", "--version", "1"];
    let run = |limit: &str| prlimit(&[&[limit, CLIENT, "--socket", socket], &hold[..]].concat());

    // Standard streams, the socket, /dev/null and what the run-time needs; not 16 segments at once.
    let output = run("--nofile=12:12");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("raise the limit on open files (ulimit -n)"), "{text}");
    before.returns(&mut daemon);

    // Descriptors do not stay open: the same client reads twice as many segments as its limit.
    let output = run("--nofile=28:28");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    before.returns(&mut daemon);
}
