//! The stats socket next to slow, silent and rude peers: who reads gets a whole document, and nobody else notices.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tierpack_client::{Client, Dtype, Handle, Stats, stats_socket};
use tierpack_tests::http::{self, ask, ask_and_end, connect};
use tierpack_tests::{DEADLINE, Daemon, data, eventually, full, memory};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const MIB: u64 = 1 << 20;
/// Readers at a time that the daemon serves.
const READERS: u64 = 64;

fn start(pool_size: &str) -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", pool_size, "--lock", "off"])
}

fn path(daemon: &Daemon) -> PathBuf {
    stats_socket::path_beside(&daemon.socket())
}

/// Many tensors, and clients that are attached to namespaces of long names: a document of several hundred KiB, which
/// no socket's buffer holds.
fn crowd(daemon: &Daemon, n_tensors: u32, n_clients: usize) -> Vec<Client> {
    let client = daemon.client();
    for n in 0..n_tensors {
        client.put(&n.to_string(), Dtype::U8, &[1], &[1]).expect("a put");
    }
    let names: Vec<String> = (0..3).map(|n| format!("{n}{}", "\"".repeat(254))).collect();
    for name in &names {
        client.namespace(name).expect("a name").put("a", Dtype::U8, &[1], &[1]).expect("a put");
    }
    let clients: Vec<Client> = (0..n_clients).map(|_| daemon.client()).collect();
    for (client, name) in clients.iter().flat_map(|client| names.iter().map(move |name| (client, name))) {
        let tensor = client.namespace(name).expect("a name").get("a").expect("a get");
        assert_eq!(tensor.as_bytes(), [1]);
    }
    clients
}

/// A gather of one row, at the 99th percentile of a few hundred milliseconds: silent peers get their document meanwhile.
fn p99(handle: &Handle) -> Duration {
    let mut out = vec![0; 64 * 8];
    let mut times: Vec<Duration> = (0..1_000_000_u64)
        .map(|n| {
            let started = Instant::now();
            handle.gather_into(&[n % 2048], &mut out).expect("a gather");
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Ten MiB without a line's end: refused somewhere on the way, or swallowed.
fn send_junk(path: &Path) {
    let mut stream = connect(path);
    let junk = vec![b'x'; 1 << 20];
    drop((0..10).try_for_each(|_| stream.write_all(&junk)));
}

/// A byte a second, until the daemon has hung up: what the socket holds by then would take days.
fn read_slowly(path: &Path) {
    let mut stream = connect(path);
    while stream.read(&mut [0]).is_ok_and(|n| n > 0) && stream.write(b"x").is_ok() {
        thread::sleep(Duration::from_secs(1));
    }
}

/// C79.
#[test]
fn readers_that_never_read_and_senders_that_never_stop_disturb_nobody() {
    let mut daemon = start(if full() { "512MiB" } else { "64MiB" });
    let pid = daemon.process().pid();
    let client = daemon.client();
    let mut bytes = vec![0; 1 << 20];
    data::fill(&mut bytes, 1, 1, 0);
    client.put("a", Dtype::U64, &[2048, 64], &bytes).unwrap();
    let handle = client.open("a").unwrap();
    let clients = if full() { crowd(&daemon, 100_000, 900) } else { crowd(&daemon, 2000, 200) };
    let document_bytes = stats_socket::read(&path(&daemon), DEADLINE).unwrap().len() as u64;
    assert!(document_bytes > 300 << 10, "a document of {document_bytes} bytes fits the buffer of a socket");
    let (descriptors, memory_before, p99_before) = (daemon.descriptors(), memory::private(pid), p99(&handle));

    let silent: Vec<UnixStream> = (0..50).map(|_| connect(&path(&daemon))).collect();
    let half: Vec<UnixStream> = (0..50)
        .map(|_| {
            let mut stream = connect(&path(&daemon));
            drop(stream.write_all(b"GET /met"));
            stream
        })
        .collect();
    thread::scope(|scope| {
        scope.spawn(|| send_junk(&path(&daemon)));
        scope.spawn(|| read_slowly(&path(&daemon)));
        println!("p99 of a gather: {p99_before:?} alone, {:?} beside these peers", p99(&handle));
        for _ in 0..20 {
            // All places may be taken for a moment: then the connection ends early, and the next try has room.
            let stats = eventually("a whole document", || {
                let text = stats_socket::read(&path(&daemon), DEADLINE).ok()?;
                serde_json::from_str::<Stats>(&text).ok()
            });
            assert_eq!(stats.sessions.len(), clients.len() + 1);
            assert_eq!(data::mismatches(handle.gather(&[7_u8]).unwrap().as_bytes(), 1, 1, 7 * 64), 0);
        }
    });
    let more = memory::private(pid).saturating_sub(memory_before);
    assert!(more < READERS * document_bytes + 16 * MIB, "{more} bytes for peers that do not read");
    // Every one of them was let go, at the latest at its deadline, and never with more than it was sent.
    eventually("the end of all readers", || (daemon.descriptors() <= descriptors).then_some(()));
    for mut stream in silent.into_iter().chain(half) {
        let mut received = Vec::new();
        drop(stream.read_to_end(&mut received));
        assert!((received.len() as u64) < document_bytes, "{} bytes", received.len());
    }

    let started = Instant::now();
    let metrics = http::metrics(&path(&daemon));
    println!("{} bytes of metrics take {:?}", metrics.len(), started.elapsed());
    assert_eq!(http::sample(&metrics, "tierpack_sessions"), clients.len() as u64 + 1);
    let started = Instant::now();
    daemon.stats();
    println!("a document of {document_bytes} bytes takes {:?}", started.elapsed());
    drop(clients);
    eventually("the end of the crowd", || (daemon.stats().sessions.len() == 1).then_some(()));
}

#[test]
fn http_gives_the_document_the_metrics_or_an_error() {
    let daemon = start("32MiB");
    let path = path(&daemon);
    let metrics = ask(&path, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
    assert_eq!(
        (metrics.status, metrics.header("Content-Type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(metrics.body.starts_with("# HELP tierpack_build_info ") && metrics.body.ends_with('\n'));
    for request in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let response = ask(&path, request);
        assert_eq!((response.status, response.header("Content-Type")), (200, "application/json"));
        let stats: Stats = serde_json::from_str(&response.body).unwrap();
        assert_eq!(stats.pool.size_bytes, 32 * MIB);
    }
    assert_eq!(ask_and_end(&path, b"GET /stats HTTP/1.0\r\n").status, 200);
    assert_eq!(ask(&path, b"GET /other HTTP/1.1\r\n\r\n").status, 404);
    let response = ask(&path, b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!((response.status, response.header("Allow")), (405, "GET"));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1024));
    for request in [&b"hello\r\n"[..], b"\0\n", b"GET /metrics\r\n", long.as_bytes()] {
        assert_eq!(ask(&path, request).status, 400, "{}", String::from_utf8_lossy(request));
    }
    assert_eq!(ask_and_end(&path, b"GET /metr").status, 400);
}

/// A scraper on a machine under load: it connects, and is slow to send its request.
#[test]
fn the_metrics_socket_answers_nobody_before_it_has_a_request() {
    let daemon = start("32MiB");
    let path = daemon.dir().join("metrics.sock");
    let mut scraper = connect(&path);
    scraper.set_read_timeout(Some(Duration::from_millis(500))).expect("set a deadline");
    let silence = scraper.read(&mut [0; 16]).expect_err("nothing was asked");
    assert_eq!(silence.kind(), ErrorKind::WouldBlock);
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("send the request");
    let mut text = String::new();
    scraper.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
    scraper.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.0 200 ") && text.contains("tierpack_build_info"), "{text}");
    assert_eq!(ask_and_end(&path, b"").status, 400);
}

#[test]
fn who_asks_for_nothing_gets_the_plain_document() {
    let daemon = start("32MiB");
    for ends in [true, false] {
        let mut stream = connect(&path(&daemon));
        if ends {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("}\n"), "{text}");
        assert_eq!(serde_json::from_str::<Stats>(&text).unwrap().pool.size_bytes, 32 * MIB);
    }
}

#[test]
fn the_document_is_whole_while_everything_changes() {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for n in 0..300 {
                let client = client.namespace(&format!("n{}", n % 7)).unwrap();
                let name = n.to_string();
                client.put(&name, Dtype::U8, &[1 << 16], &[7; 1 << 16]).unwrap();
                client.get(&name).unwrap();
                client.remove(&name).unwrap();
            }
        });
        while !busy.is_finished() {
            let stats = daemon.stats();
            assert!(stats.pool.segment_bytes <= stats.pool.size_bytes, "{:?}", stats.pool);
            assert!(stats.namespaces.iter().all(|namespace| namespace.tensors <= 1));
        }
    });
    let stats = daemon.quiet();
    assert_eq!((stats.pool.used_bytes, stats.namespaces.len()), (0, 7));
}
