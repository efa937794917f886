//! Eight processes read one pool: its memory is counted once, a read makes no system call, and every row is right.
//!
//! Prints the median times of a read; nothing is asserted about them.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tierpack_client::{CodecChoice, CodecId, Dtype, PutOptions};
use tierpack_tests::data::{Source, Words};
use tierpack_tests::reports::{LatencyReport, ReadReport};
use tierpack_tests::{Daemon, Process, TestClient, eventually, full, memory, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

const POOL_BYTES: u64 = 1 << 30;
const ROW_BYTES: u64 = 512;
const PROCESSES: u64 = 8;
const BATCH: u64 = 256;
/// What all clients together may take besides their output buffers.
const PRIVATE_LIMIT: u64 = 64 << 20;

struct Reader {
    client: TestClient,
    pid: u32,
    thread: u32,
    private_when_connected: u64,
}

impl Reader {
    fn connect(daemon: &Daemon, codec: CodecId, k: u64) -> Self {
        let (batch, part) = (BATCH.to_string(), format!("{k}/{PROCESSES}"));
        let args = ["gather", "--tensor", "features", "--tensor-id", "7", "--version", "3"];
        let mut args = [&args[..], &["--batch", &batch, "--part", &part]].concat();
        args.extend((codec != CodecId::Raw).then_some("--compressible"));
        let mut client = TestClient::start(CLIENT, daemon, &args);
        let pid = number(&mut client, "connected");
        Self { client, pid, thread: 0, private_when_connected: memory::private(pid) }
    }
}

/// The number in the client's next line, which says `what`.
fn number(client: &mut TestClient, what: &str) -> u32 {
    let line = client.line().expect("a line of a test client");
    let number = line.strip_prefix(what).and_then(|rest| rest.trim().parse().ok());
    number.unwrap_or_else(|| unreachable!("expected {what:?}, got {line:?}"))
}

#[test]
fn eight_processes_share_one_pool_without_a_system_call() {
    prove(CodecId::Raw, POOL_BYTES);
}

#[test]
fn eight_processes_decode_one_pool_without_a_system_call() {
    prove(CodecId::Ibp, if full() { POOL_BYTES } else { POOL_BYTES / 8 });
}

#[test]
fn eight_processes_decode_planes_without_a_system_call() {
    prove(CodecId::Planes222, if full() { POOL_BYTES } else { POOL_BYTES / 32 });
}

/// One proof at a time: each prints figures.
static ALONE: Mutex<()> = Mutex::new(());

#[expect(clippy::print_stdout, reason = "figures of a test run")]
fn prove(codec: CodecId, raw_bytes: u64) {
    let _alone = ALONE.lock();
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "1200MiB", "--lock", "off"]);
    let shape = [raw_bytes / ROW_BYTES, ROW_BYTES / 8];
    let client = daemon.client();
    let mut source = Source::of(Words::new(codec != CodecId::Raw), 7, 3);
    let options = PutOptions::new().codec(CodecChoice::Only(codec));
    let entry = client.put_with("features", Dtype::F64, &shape, &mut source, &options);
    let entry = entry.expect("the pool has room");
    assert_eq!((entry.raw_bytes, entry.codec), (raw_bytes, codec));
    assert_eq!(codec == CodecId::Raw, entry.stored_bytes > raw_bytes, "{entry:?}");

    let mut readers: Vec<_> = (0..PROCESSES).map(|k| Reader::connect(&daemon, codec, k)).collect();
    for reader in &mut readers {
        reader.client.tell("go");
    }
    // Together the readers have checked every row when all have said this.
    for reader in &mut readers {
        reader.thread = number(&mut reader.client, "reader");
    }
    check_system_calls(readers[0].thread);
    check_memory(&readers);
    check_stats(&daemon, &readers);

    let reports: Vec<ReadReport> = readers.into_iter().map(|reader| report(reader.client)).collect();
    let rows: u64 = reports.iter().map(|report| report.rows).sum();
    assert!(rows >= shape[0], "{rows} rows were read");
    for report in &reports {
        assert_eq!((report.mismatches, report.errors), (0, 0), "{report:?}");
    }
    let mut medians: Vec<u64> = reports.iter().map(|report| report.median_ns).collect();
    medians.sort_unstable();
    println!("{rows} rows of codec {codec} checked by {PROCESSES} processes");
    println!(
        "row of a random batch of {BATCH}, eight processes at once: median {} ns",
        medians[medians.len() / 2]
    );

    let latency = TestClient::start(CLIENT, &daemon, &["latency", "--tensor", "features"]).finish();
    let latency: LatencyReport = serde_json::from_str(&latency).expect("a report");
    println!(
        "single gather of {ROW_BYTES} bytes: hot {} ns, random {} ns",
        latency.hot_ns, latency.random_ns
    );

    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, entry.stored_bytes);
}

fn report(client: TestClient) -> ReadReport {
    serde_json::from_str(&client.finish()).expect("a report")
}

#[expect(clippy::print_stdout, reason = "figures of a test run")]
fn check_memory(readers: &[Reader]) {
    let before: u64 = readers.iter().map(|reader| reader.private_when_connected).sum();
    let after: u64 = readers.iter().map(|reader| memory::private(reader.pid)).sum();
    let grown = after.saturating_sub(before);
    let buffers = PROCESSES * BATCH * (ROW_BYTES + 8);
    println!(
        "private memory of {PROCESSES} clients grew by {} KiB, output buffers {} KiB",
        grown >> 10,
        buffers >> 10
    );
    assert!(grown < PRIVATE_LIMIT + buffers, "private memory grew by {grown} bytes");
}

fn check_stats(daemon: &Daemon, readers: &[Reader]) {
    let pids: Vec<_> = readers.iter().map(|reader| i32::try_from(reader.pid).ok()).collect();
    let sessions = eventually("a lease in the stats", || {
        let sessions = daemon.stats().sessions;
        sessions.iter().any(|session| session.leases > 0).then_some(sessions)
    });
    for pid in pids {
        let session = sessions.iter().find(|session| session.pid == pid).expect("a session per reader");
        assert_eq!(session.namespaces, ["default"]);
        assert!(session.leases <= 1, "{session:?}");
        let counts = session.counts;
        assert!(counts.gathers > 0 && counts.gets == 0, "{counts:?}");
        // The counters of one call may be seen one by one.
        assert!(counts.rows.abs_diff(counts.gathers * BATCH) <= BATCH, "{counts:?}");
        assert!(counts.bytes.abs_diff(counts.rows * ROW_BYTES) <= BATCH * ROW_BYTES, "{counts:?}");
    }
}

/// Looks at the reader thread for a second.
#[expect(clippy::print_stdout, reason = "figures of a test run")]
fn check_system_calls(thread: u32) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let calls = folder.path().join("calls");
    let messages = folder.path().join("messages");
    let Some(mut strace) = start_strace(thread, &calls, &messages) else { return };
    std::thread::sleep(Duration::from_secs(1));
    strace.signal(Signal::SIGINT);
    strace.wait();
    let text = read(&calls);
    assert_eq!(text, "", "the reader made system calls");
    println!("no system call of the reader thread in one second");
}

/// `None` when strace is missing or may not look; the test fails then when tools are required.
fn start_strace(thread: u32, calls: &Path, messages: &Path) -> Option<Process> {
    if !tools::can("looking at system calls", &["strace", "-V"]) {
        return None;
    }
    let mut command = Command::new("strace");
    // Without -f: only this thread, which starts no other.
    command.args(["-p", &thread.to_string(), "-o"]).arg(calls).stdin(Stdio::null());
    command.stderr(std::fs::File::create(messages).expect("a file for strace's messages"));
    let mut strace = Process::start(&mut command);
    eventually("strace at work", || {
        let text = read(messages);
        if text.contains("attached") {
            return Some(true);
        }
        (!strace.is_running())
            .then(|| tools::skip(&format!("strace may not look at a process: {text}")))
            .map(|()| false)
    })
    .then_some(strace)
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = std::fs::File::open(path) {
        file.read_to_string(&mut text).expect("text");
    }
    text
}
