//! Several processes put, overwrite, remove and read the same tensors in a pool that is too small for them: every word
//! that is read belongs to the tensor asked for and to a version that was current during the call.

use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::ChurnReport;
use tierpack_tests::{Daemon, TestClient, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

#[expect(clippy::print_stdout, reason = "figures of a test run")]
fn run(pool: &str, segment: &str, tensors: u16, processes: usize) {
    let daemon_args = ["--pool-size", pool, "--segment-size", segment, "--lock", "off"];
    let mut daemon = Daemon::start(PROGRAM, &daemon_args);
    let before = Baseline::take(&daemon, 0);
    let steps = daemon.dir().join("steps");
    std::fs::write(&steps, vec![0; usize::from(tensors) * 16]).expect("a small file");
    let steps = steps.to_str().expect("a path of text").to_owned();
    let (tensors, n) = (tensors.to_string(), processes.to_string());
    let millis = if full() { "120000" } else { "4000" };
    let start = |process: usize| {
        let process = process.to_string();
        let args = ["churn", "--process", &process, "--processes", &n, "--tensors", &tensors];
        let args = [&args[..], &["--millis", millis, "--steps", &steps]].concat();
        let mut client = TestClient::start(CLIENT, &daemon, &args);
        assert!(client.line().expect("a line").starts_with("connected"));
        client
    };
    let mut clients: Vec<_> = (0..processes).map(start).collect();
    clients.iter_mut().for_each(|client| client.tell("go"));
    let mut total = ChurnReport::default();
    for client in clients {
        let report: ChurnReport = serde_json::from_str(&client.finish()).expect("a report");
        total.reads += report.reads;
        total.puts += report.puts;
        total.full += report.full;
        total.removes += report.removes;
        total.missing += report.missing;
        total.faults.extend(report.faults);
    }
    println!("pool of {pool}, {tensors} tensors, {processes} processes: {total:?}");
    assert_eq!(total.faults, [""; 0], "{}", daemon.log());
    assert!(total.reads > 100 && total.puts > 100 && total.removes > 0, "{total:?}");
    assert_eq!(daemon.stats().requests.sessions_ended, 0);
    let client = daemon.client();
    for entry in client.list().expect("a list") {
        client.remove(&entry.name).expect("it is there");
    }
    drop(client);
    before.returns(&mut daemon);
}

#[test]
fn a_pool_that_is_always_full_mixes_nothing_up() {
    // 64 KiB each, with headers a little more: room for about half of them.
    run("10MiB", "2MiB", 300, 4);
}

#[test]
fn a_pool_with_room_mixes_nothing_up() {
    run("64MiB", "8MiB", 100, 4);
}
