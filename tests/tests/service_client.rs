//! Clients that share the machine well: their children keep no memory, and at their own limits they read on.

use std::process::{Command, Stdio};

use tierpack_client::{Client, Dtype};
use tierpack_tests::{Daemon, TestClient, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

fn put(client: &Client, name: &str, byte: u8, bytes: u64) {
    let mut source = std::io::Read::take(std::io::repeat(byte), bytes);
    client.put_with(name, Dtype::U8, &[bytes / 512, 512], &mut source, &raw()).expect("room");
}

#[test]
fn a_sleeping_child_keeps_nothing_of_its_parents_pool() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, "features", 7, 16 << 20);
    let args = ["fork", "--scenario", "memory", "--tensor", "features", "--tensor-id", "7", "--version", "3"];
    let mut parent = TestClient::start(CLIENT, &daemon, &args);
    let line = parent.line().expect("a line; the child that failed has said why");
    let child = line.strip_prefix("child ").expect("the number of the child").to_owned();
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).expect("the child lives");
    let kept: Vec<&str> = maps.lines().filter(|line| line.contains("memfd:tierpack")).collect();
    assert!(kept.is_empty(), "{kept:#?}");
    client.remove("features").expect("it is there");
    assert_eq!(daemon.quiet().pool.used_bytes, 0, "nothing is held");
    parent.finish();
}

/// One line of `/proc/PID/status`, in its unit.
fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the client lives");
    let line = text.lines().find(|line| line.starts_with(field)).expect("a field of the status");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

fn limit(pid: u32, what: &str) {
    let pid = pid.to_string();
    let output = Command::new("prlimit").args(["--pid", &pid, what]).stdin(Stdio::null()).output();
    let output = output.expect("prlimit runs");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The pool grows while a client is at a limit: it reads on, and reads the new memory when there is room again.
fn reads_on_at(tight: impl FnOnce(u32) -> String, wide: &str, says: &str) {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "96MiB", "--segment-size", "2MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, "small", 7, 4096);
    let mut reader = TestClient::start(CLIENT, &daemon, &["ask"]);
    assert_eq!(reader.line().as_deref(), Some("ready"));
    let pid = reader.process().pid();
    let mut read = |name: &str| {
        reader.tell(name);
        reader.line().expect("the client says what it has read")
    };
    assert_eq!(read("small"), "row [7, 7, 7, 7]");
    let session = |daemon: &Daemon| daemon.stats().sessions.iter().map(|one| one.session).max();
    let before = session(&daemon);
    limit(pid, &tight(pid));
    put(&client, "big", 9, 64 << 20);
    assert_eq!(read("small"), "row [7, 7, 7, 7]");
    let refused = read("big");
    assert!(refused.starts_with("error ") && refused.contains(says), "{refused}");
    assert!(!refused.contains("no daemon"), "{refused}");
    assert_eq!(read("small"), "row [7, 7, 7, 7]");
    limit(pid, wide);
    assert_eq!(read("big"), "row [9, 9, 9, 9]");
    assert_eq!(read("small"), "row [7, 7, 7, 7]");
    assert_eq!(session(&daemon), before, "all that in one session");
}

#[test]
fn a_client_without_addresses_or_descriptors_reads_on() {
    if !tools::can("limiting processes", &["prlimit", "--version"]) {
        return;
    }
    let addresses = |pid| format!("--as={}:", (status(pid, "VmSize:") << 10) + (12 << 20));
    reads_on_at(addresses, "--as=unlimited:", "bytes of shared memory: ENOMEM");
    // Below what is open: no number is free for another.
    let descriptors = |_| "--nofile=3:".to_owned();
    reads_on_at(descriptors, "--nofile=256:", "raise the limit on open files (ulimit -n)");
}
