//! Kill -9 of any client, at any moment: nothing leaks, and everyone else goes on with the right bytes.
//!
//! Clients are killed while they read and while they put; the exact moments of a put are in `kill_put.rs`, stopped
//! clients in `stopped_reader.rs`, many clients in `many_clients.rs`.

use std::time::{Duration, Instant};

use tierpack_client::{CodecChoice, CodecId, Dtype, PutOptions};
use tierpack_tests::data::{Random, Source, Words};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::ReadReport;
use tierpack_tests::{Daemon, TestClient, eventually, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

const READERS: usize = 8;
const PUTTERS: usize = 2;
const PAUSE: Duration = Duration::from_millis(100);

fn reader(daemon: &Daemon, codec: CodecId) -> TestClient {
    let args = ["gather", "--tensor", "features", "--tensor-id", "7", "--version", "3", "--batch", "64"];
    let mut args = [&args[..], &["--mixed", "small"]].concat();
    args.extend((codec != CodecId::Raw).then_some("--compressible"));
    let mut client = TestClient::start(CLIENT, daemon, &args);
    client.tell("go");
    client
}

fn putter(daemon: &Daemon, codec: CodecId) -> TestClient {
    TestClient::start(CLIENT, daemon, &["put-loop", "--codec", codec.name()])
}

/// Waits until a reader is in its steady state; shows why when it ends instead.
fn wait_steady(client: &mut TestClient) {
    let connected = client.line();
    let steady = client.line();
    assert!(steady.as_deref().is_some_and(|line| line.starts_with("reader")), "{connected:?}, {steady:?}");
}

/// Ends a reader that was not killed; what it read must be right.
fn check(client: TestClient) -> ReadReport {
    let lines = client.finish();
    let report: ReadReport = serde_json::from_str(lines.lines().last().expect("a line")).expect("a report");
    assert_eq!((report.mismatches, report.errors), (0, 0), "{report:?}");
    report
}

#[test]
fn killed_clients_leave_nothing_and_disturb_nobody() {
    kill_clients(CodecId::Raw);
}

#[test]
fn killed_clients_of_encoded_tensors_leave_nothing_and_disturb_nobody() {
    kill_clients(CodecId::Ibp);
}

#[expect(clippy::print_stdout, reason = "figures of a test run")]
fn kill_clients(codec: CodecId) {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off"]);
    let client = daemon.client();
    let small_codec = if codec == CodecId::Raw { codec } else { CodecId::Planes222 };
    let tensors = [("features", 7, 64 << 10, Dtype::U64, codec), ("small", 8, 512, Dtype::F64, small_codec)];
    for (name, id, rows, dtype, codec) in tensors {
        let mut source = Source::of(Words::new(codec != CodecId::Raw), id, 3);
        let options = PutOptions::new().codec(CodecChoice::Only(codec));
        let entry = client.put_with(name, dtype, &[rows, 64], &mut source, &options);
        assert_eq!(entry.expect("the pool has room").codec, codec);
    }
    let before = Baseline::take(&daemon, 1);

    let mut readers: Vec<_> = (0..READERS).map(|_| reader(&daemon, codec)).collect();
    readers.iter_mut().for_each(wait_steady);
    let mut putters: Vec<_> = (0..PUTTERS).map(|_| putter(&daemon, codec)).collect();
    let mut random = Random::new(40);
    let mut killed = 0;
    let end = Instant::now() + Duration::from_secs(if full() { 30 } else { 3 });
    while Instant::now() < end {
        std::thread::sleep(PAUSE);
        let victim = usize::try_from(random.below((READERS + PUTTERS) as u64)).expect("a small number");
        // The one that takes the place starts next to the others, and is waited for only at the end.
        match victim.checked_sub(READERS) {
            None => readers[victim] = reader(&daemon, codec),
            Some(putter_idx) => putters[putter_idx] = putter(&daemon, codec),
        }
        killed += 1;
        assert!(daemon.process().is_running(), "the daemon ended: {}", daemon.log());
    }
    drop(putters);
    let reads: u64 = readers.into_iter().map(check).map(|report| report.reads).sum();
    println!("{killed} clients were killed; the last {READERS} readers made {reads} reads");

    // A killed client may have left a tensor of its own that was visible: it is nobody's, and stays.
    let named = |name: &str| name.starts_with("loop-");
    eventually("the end of what killed clients had asked for", || {
        (daemon.stats().transfers == 0).then_some(())
    });
    for entry in client.list().expect("a list").iter().filter(|entry| named(&entry.name)) {
        client.remove(&entry.name).expect("it is there");
    }
    before.returns(&mut daemon);
    assert_eq!(daemon.stats().requests.sessions_ended, 0, "no session was ended by the daemon");
}
