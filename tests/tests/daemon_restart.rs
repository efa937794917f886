//! Clients across the end of their daemon: by SIGKILL, by SIGTERM in the middle of a put, and the next one's tensors.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use nix::sys::signal::Signal;
use tierpack_client::{Client, Dtype, Error, Handle, View};
use tierpack_tests::program::assert_says;
use tierpack_tests::{DEADLINE, Daemon, data, eventually, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SERVE: [&str; 4] = ["--pool-size", "64MiB", "--lock", "off"];
const ROWS: u64 = 4096;
const ROW_BYTES: u64 = 512;

fn put(client: &Client, name: &str, id: u16, version: u16) -> tierpack_client::Result<()> {
    let mut source = data::Source::new(id, version);
    let shape = [ROWS, ROW_BYTES / 8];
    client.put_with(name, Dtype::U64, &shape, &mut source, &raw()).map(drop)
}

/// What a reader has seen, for its test to wait for.
#[derive(Default)]
struct Seen {
    reads: [AtomicU64; 3],
    lost: AtomicU64,
}

/// Gathers until version 2 was read a thousand times: a gather is of one version, and never of an earlier one again.
fn read_on(handle: &Handle, id: u16, seen: &Seen) {
    let mut random = data::Random::new(u64::from(id));
    let mut out = vec![0; 16 * usize::try_from(ROW_BYTES).expect("a row is short")];
    let (mut last, deadline) = (1, Instant::now() + DEADLINE);
    while seen.reads[2].load(Ordering::Relaxed) < 1000 {
        assert!(Instant::now() < deadline, "the new tensor is not seen");
        let rows: Vec<u64> = (0..16).map(|_| random.below(ROWS)).collect();
        match handle.gather_into(&rows, &mut out) {
            Ok(()) => {
                let version =
                    version_of(&out, id, &rows).expect("a gather of one version and the right tensor");
                assert!(version >= last, "version {version} after {last}");
                last = version;
                seen.reads[usize::from(version)].fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::Lost { .. }) => drop(seen.lost.fetch_add(1, Ordering::Relaxed)),
            // While there is no daemon, and when it dies in the middle of the next greeting.
            Err(error) => {
                assert!(matches!(error, Error::NoDaemon { .. } | Error::Disconnected { .. }), "{error}");
                thread::yield_now();
            }
        }
    }
}

fn version_of(out: &[u8], id: u16, rows: &[u64]) -> Option<u16> {
    let row_words = ROW_BYTES / 8;
    let row_bytes = usize::try_from(ROW_BYTES).expect("a row is short");
    let fits = |version: &u16| {
        let mut pairs = rows.iter().zip(out.chunks_exact(row_bytes));
        pairs.all(|(row, bytes)| data::mismatches(bytes, id, *version, row * row_words) == 0)
    };
    [1, 2].into_iter().find(fits)
}

fn check_view(view: &View, id: u16, version: u16) {
    let mut first_word = 0;
    for block_idx in 0..view.n_blocks() {
        let block = view.block(block_idx).expect("a view outlives its daemon");
        assert_eq!(data::mismatches(block, id, version, first_word), 0, "block {block_idx}");
        first_word += block.len() as u64 / 8;
    }
    assert_eq!(first_word, ROWS * ROW_BYTES / 8);
}

#[test]
fn held_views_keep_their_bytes_and_handles_find_the_next_tensor() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    let ids = [1, 2, 3];
    let handles: Vec<Handle> = ids
        .iter()
        .map(|&id| {
            put(&client, &id.to_string(), id, 1).unwrap();
            client.open(&id.to_string()).unwrap()
        })
        .collect();
    let views: Vec<View> = handles.iter().map(|handle| handle.view().unwrap()).collect();
    let seen: Vec<Seen> = ids.iter().map(|_| Seen::default()).collect();
    thread::scope(|scope| {
        for ((handle, &id), seen) in handles.iter().zip(&ids).zip(&seen) {
            scope.spawn(move || read_on(handle, id, seen));
        }
        let all = |what: &str, counter: &dyn Fn(&Seen) -> &AtomicU64| {
            eventually(what, || {
                seen.iter().all(|seen| counter(seen).load(Ordering::Relaxed) > 100).then_some(())
            });
        };
        all("reads of the old tensors", &|seen| &seen.reads[1]);
        daemon.kill();
        views.iter().zip(ids).for_each(|(view, id)| check_view(view, id, 1));
        daemon.restart();
        all("the news that the tensors are lost", &|seen| &seen.lost);
        // The names are the same, and in another order, so that nothing lies where it lay.
        let client = daemon.client();
        for id in [3, 1, 2] {
            put(&client, &id.to_string(), id, 2).unwrap();
        }
    });
    // The new pool is full of other bytes; the old view is what it was.
    put(&daemon.client(), "more", 9, 9).unwrap();
    views.iter().zip(ids).for_each(|(view, id)| check_view(view, id, 1));
    let retaken = handles[0].view().unwrap();
    check_view(&retaken, 1, 2);
}

#[test]
fn a_handle_says_when_the_next_daemon_has_another_tensor_or_none() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    put(&client, "a", 1, 1).unwrap();
    let handle = client.open("a").unwrap();
    daemon.kill();
    // Until the client's thread has seen the end of its session, reads give the old bytes.
    let error = eventually("the end of the session", || match handle.get() {
        Ok(tensor) => {
            assert_eq!(data::mismatches(tensor.as_bytes(), 1, 1, 0), 0);
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
    assert_says(&error.to_string(), &["control.sock", "tierpack serve"]);
    daemon.restart();
    let error = handle.get().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert_says(&error.to_string(), &["\"a\"", "restarted", "put the tensor again"]);
    client.put("a", Dtype::F32, &[2, 2], &[0; 16]).unwrap();
    let error = handle.gather(&[0]).unwrap_err();
    assert!(matches!(error, Error::Replaced { .. }), "{error}");
    assert_says(&error.to_string(), &["U64 [4096, 64]", "F32 [2, 2]", "open it again"]);
    client.remove("a").unwrap();
    put(&client, "a", 1, 2).unwrap();
    assert_eq!(data::mismatches(handle.get().unwrap().as_bytes(), 1, 2, 0), 0);
}

/// Yields bytes as they are allowed.
struct Gated {
    gate: Receiver<usize>,
    open: usize,
}

impl Read for Gated {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        while self.open == 0 {
            self.open = self.gate.recv_timeout(DEADLINE).map_err(std::io::Error::other)?;
        }
        let n = buf.len().min(self.open);
        buf[..n].fill(1);
        self.open -= n;
        Ok(n)
    }
}

#[test]
fn a_shutdown_ends_a_put_under_way_with_a_clear_error() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let mut daemon = Daemon::start(PROGRAM, &SERVE);
        let client = daemon.client();
        put(&client, "whole", 1, 1).unwrap();
        let (gate, receiver) = channel();
        let outcome = thread::scope(|scope| {
            let putting = scope.spawn(|| {
                let mut source = Gated { gate: receiver, open: 0 };
                client.put_with("half", Dtype::U8, &[40, 1 << 20], &mut source, &raw())
            });
            gate.send(17 << 20).unwrap();
            eventually("half of the put", || (daemon.stats().pool.used_bytes > 16 << 20).then_some(()));
            daemon.process().signal(signal);
            let status = daemon.process().wait();
            assert_eq!(status.success(), signal != Signal::SIGKILL, "{signal}: {}", daemon.log());
            let left = daemon.socket().exists();
            assert_eq!(left, signal == Signal::SIGKILL, "{signal}: the socket's file");
            gate.send(usize::MAX).unwrap();
            putting.join().expect("no panic")
        });
        let error = outcome.unwrap_err();
        let is_clear =
            matches!(error, Error::Disconnected { .. } | Error::Stopping { .. } | Error::NoDaemon { .. });
        assert!(is_clear, "{signal}: {error}");
        // The next daemon and the same client go on.
        daemon.kill();
        daemon.restart();
        put(&client, "half", 2, 2).unwrap();
        assert_eq!(data::mismatches(client.get("half").unwrap().as_bytes(), 2, 2, 0), 0);
        assert_eq!(daemon.stats().pool.reserved_bytes, 0);
    }
}

#[test]
fn a_shutdown_does_not_wait_for_clients() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let clients: Vec<Client> = (0..20).map(|_| daemon.client()).collect();
    put(&clients[0], "a", 1, 1).unwrap();
    let views: Vec<View> = clients.iter().map(|client| client.open("a").unwrap().view().unwrap()).collect();
    // One that says hello and never reads.
    let _silent = tierpack_tests::peer::Peer::greeted(&daemon.socket());
    let started = Instant::now();
    assert!(daemon.stop().success(), "{}", daemon.log());
    println!("stopped after {:?}", started.elapsed());
    views.iter().for_each(|view| check_view(view, 1, 1));
}
