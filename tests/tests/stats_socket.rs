//! The stats socket beside slow, silent and rude peers: whoever reads gets a whole document, and nobody else notices.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use tierpack_client::{Client, Dtype, Stats, stats_socket};
use tierpack_tests::{DEADLINE, Daemon, data, eventually, full, memory};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const MIB: u64 = 1 << 20;

fn path(daemon: &Daemon) -> PathBuf {
    stats_socket::path_beside(&daemon.socket())
}

/// So many clients that the document does not fit a socket's buffer.
fn crowd(daemon: &Daemon, n: usize) -> Vec<Client> {
    (0..n).map(|_| daemon.client()).collect()
}

/// C79.
#[test]
fn readers_that_never_read_and_senders_that_never_stop_disturb_nobody() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"]);
    let pid = daemon.process().pid();
    let client = daemon.client();
    let mut bytes = vec![0; 1 << 20];
    data::fill(&mut bytes, 1, 1, 0);
    client.put("a", Dtype::U64, &[2048, 64], &bytes).unwrap();
    let handle = client.open("a").unwrap();
    let clients = crowd(&daemon, if full() { 900 } else { 200 });
    let memory_before = memory::private(pid);

    let silent: Vec<UnixStream> = (0..50).map(|_| UnixStream::connect(path(&daemon)).unwrap()).collect();
    let half: Vec<UnixStream> = (0..50)
        .map(|_| {
            let mut stream = UnixStream::connect(path(&daemon)).unwrap();
            drop(stream.write_all(b"GET /met"));
            stream
        })
        .collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Refused somewhere on the way, or swallowed: both end.
            let mut stream = UnixStream::connect(path(&daemon)).unwrap();
            stream.set_write_timeout(Some(DEADLINE)).unwrap();
            let junk = vec![b'x'; 1 << 20];
            drop((0..10).try_for_each(|_| stream.write_all(&junk)));
        });
        scope.spawn(|| {
            let mut slow = UnixStream::connect(path(&daemon)).unwrap();
            let mut byte = [0];
            drop((0..20).try_for_each(|_| slow.read_exact(&mut byte)));
        });
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
    let started = Instant::now();
    daemon.stats();
    println!("a document of {} sessions takes {:?}", clients.len() + 1, started.elapsed());
    let more = memory::private(pid).saturating_sub(memory_before);
    assert!(more < 32 * MIB, "{more} bytes for peers that do not read");
    drop((silent, half, clients));
    eventually("the end of the crowd", || (daemon.stats().sessions.len() == 1).then_some(()));
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
