//! C36: clients that get, gather and update are killed at any moment, and nobody waits for them.

use std::time::{Duration, Instant};

use tierpack_client::{CodecChoice, CodecId, Dtype, PutOptions};
use tierpack_tests::data::{Random, Words};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::ChurnReport;
use tierpack_tests::{Daemon, TestClient, eventually, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
const PROCESSES: u16 = 4;
const ROWS: u64 = 2100;
const PAUSE: Duration = Duration::from_millis(50);

fn start(daemon: &Daemon, process: usize) -> TestClient {
    let (process, processes) = (process.to_string(), PROCESSES.to_string());
    // A second is what the case allows; a machine that is shared with other tests may need more.
    let slowest_ms = if full() { "1000" } else { "10000" };
    let args =
        ["update", "--tensor", "t", "--process", &process, "--processes", &processes, "--compressible"];
    let args = [&args[..], &["--millis", "100000000", "--killed", "--slowest-ms", slowest_ms]].concat();
    let mut client = TestClient::start(CLIENT, daemon, &args);
    client.tell("go");
    client
}

#[test]
fn no_call_waits_for_clients_that_are_killed_while_they_update() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    let mut bytes = vec![0; 2100 * 256];
    for (row, target) in (0..).zip(bytes.chunks_exact_mut(256)) {
        let owner = if row < 16 { 0 } else { row % u64::from(PROCESSES) };
        Words::Compressible.fill(target, u16::try_from(owner).expect("a process"), 0, row * 32);
    }
    let options = PutOptions::new().codec(CodecChoice::Only(CodecId::Ibp));
    let before = Baseline::take(&daemon, 1);
    client.put_with("t", Dtype::U64, &[ROWS, 32], &mut &bytes[..], &options).expect("room");

    let mut clients: Vec<_> = (0..usize::from(PROCESSES)).map(|process| start(&daemon, process)).collect();
    let (mut random, mut killed) = (Random::new(36), 0_u64);
    let end = Instant::now() + Duration::from_secs(if full() { 600 } else { 8 });
    while Instant::now() < end {
        std::thread::sleep(PAUSE);
        let victim = usize::try_from(random.below(u64::from(PROCESSES))).expect("a process");
        for (process, client) in clients.iter_mut().enumerate() {
            assert!(client.process().is_running(), "process {process} found a fault: it is in its output");
        }
        clients[victim] = start(&daemon, victim);
        killed += 1;
        assert!(daemon.process().is_running(), "the daemon ended: {}", daemon.log());
    }
    let revision = || client.open("t").and_then(|handle| handle.revision()).expect("it is there");
    // Those who are left go on.
    let (at_end, handle) = (revision(), client.open("t").expect("it is there"));
    eventually("another update", || (revision() > at_end).then_some(()));
    let reports = clients.into_iter().map(|mut client| {
        client.tell("stop");
        serde_json::from_str(client.finish().lines().last().expect("a line")).expect("a report")
    });
    let reports: Vec<ChurnReport> = reports.collect();
    assert!(reports.iter().all(|report| report.faults.is_empty()), "{reports:?}");

    let whole = handle.get().expect("it is there");
    for (row, bytes) in (0..).zip(whole.as_bytes().chunks_exact(256)) {
        let first = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (writer, version) = Words::Compressible.origin(first);
        let wrong = Words::Compressible.mismatches(bytes, writer, version, row * 32);
        assert_eq!((wrong, writer < PROCESSES), (0, true), "row {row}");
        assert!(row < 16 || u64::from(writer) == row % u64::from(PROCESSES), "row {row} by process {writer}");
    }
    daemon.run_ok(&["verify"]);
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes);
    println!("{killed} clients were killed; {} updates were made", revision());
    drop(handle);
    client.remove("t").expect("it is there");
    before.returns(&mut daemon);
    assert_eq!(daemon.stats().requests.sessions_ended, 0, "{}", daemon.log());
}
