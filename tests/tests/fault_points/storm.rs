//! Many clients at once that die at points and moments of their own choosing, while others read, put and remove.

use std::process::Command;
use std::time::{Duration, Instant};

use tierpack_tests::leaks::Baseline;
use tierpack_tests::{DEADLINE, Daemon, TestClient, eventually, full};

use super::{CLIENT, PROGRAM, RAW, ROWS, is_version, put};

/// What dies in whom: each time that it comes to such a point, with a small probability.
const READER: &str = "client.lease.taken=0.02%return(kill);client.lease.ending=0.02%return(kill);\
    client.get.word_loaded=0.02%return(kill);client.get.between_blocks=0.02%return(kill);\
    client.gather.word_loaded=0.001%return(kill);client.gather.between_rows=0.001%return(kill);\
    client.segment.received=2%return(kill);client.segment.unmapping=2%return(kill)";
const PUTTER: &str = "client.put.chunk_sent=5%return(kill);client.put.before_commit=5%return(kill);\
    client.segment.received=2%return(kill);client.segment.unmapping=2%return(kill)";

fn start(daemon: &Daemon, role: usize) -> TestClient {
    let mut command = Command::new(CLIENT);
    command.arg("--socket").arg(daemon.socket());
    if role.is_multiple_of(2) {
        command.args(["gather", "--tensor", "rows", "--tensor-id", "7", "--version", "3", "--batch", "64"]);
        command.args(["--mixed", "blocks"]).env("FAILPOINTS", READER);
    } else {
        command.args(["put-loop", "--bytes", "4194304"]).env("FAILPOINTS", PUTTER);
    }
    let mut client = TestClient::run(&mut command);
    if role.is_multiple_of(2) {
        client.tell("go");
    }
    client
}

#[test]
fn clients_that_die_at_random_points_leave_nothing_and_disturb_nobody() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "48MiB", "--lock", "off"]);
    let client = daemon.client();
    for (name, id) in [("rows", 7), ("blocks", 8)] {
        put(&client, name, (id, 3), RAW, ROWS).expect("room");
    }
    client.get("rows").expect("it is there");
    let before = Baseline::take(&daemon, 1);
    let mut clients: Vec<_> = (0..6).map(|role| start(&daemon, role)).collect();
    let (mut died, mut reads) = ([0_u64; 2], 0_u64);
    let end = Instant::now() + Duration::from_secs(if full() { 120 } else { 4 });
    // However slow the machine: some of each kind have died.
    while Instant::now() < end || died.iter().any(|n| *n < 3) {
        assert!(Instant::now() < end + DEADLINE, "only {died:?} clients died");
        for (role, slot) in clients.iter_mut().enumerate() {
            if !slot.process().is_running() {
                slot.process().wait_killed("a client with points");
                died[role % 2] += 1;
                *slot = start(&daemon, role);
            }
        }
        for (name, id) in [("rows", 7), ("blocks", 8)] {
            let tensor = client.get(name).expect("nobody touches it");
            assert!(is_version(tensor.as_bytes(), (id, 3), RAW), "{name} after {died:?}");
            reads += 1;
        }
        assert!(daemon.process().is_running(), "the daemon ended: {}", daemon.log());
    }
    drop(clients);
    eventually("the end of all puts", || (daemon.stats().transfers == 0).then_some(()));
    for entry in client.list().expect("a list").iter().filter(|entry| entry.name.starts_with("loop-")) {
        client.remove(&entry.name).expect("it is there");
    }
    before.returns(&mut daemon);
    assert_eq!(daemon.stats().requests.sessions_ended, 0, "{}", daemon.log());
    println!("storm: {died:?} readers and putters died at their points beside {reads} right reads");
}
