//! One client, many threads: every call from every thread gives what it would give alone.

use std::time::{Duration, Instant};

use tierpack_client::{Client, Dtype, Error, Handle};
use tierpack_tests::data::{Random, Source, mismatches};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::{Daemon, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

const THREADS: u16 = 32;
const ROWS: u64 = 4096;

fn put(client: &Client, name: &str, id: u16, rows: u64) -> Result<(), Error> {
    let options = raw().overwrite(true);
    client.put_with(name, Dtype::U64, &[rows, 64], &mut Source::new(id, 1), &options).map(drop)
}

/// Gathers random rows of the shared tensor.
fn gather(handle: &Handle, random: &mut Random) {
    let rows: Vec<u64> = (0..1 + random.below(16)).map(|_| random.below(ROWS)).collect();
    let got = handle.gather(&rows).expect("it is there");
    for (row, bytes) in rows.iter().zip(got.as_bytes().chunks_exact(512)) {
        assert_eq!(mismatches(bytes, 1, 1, row * 64), 0);
    }
}

/// One of the calls, chosen at random, with its result checked.
fn mixed_call(client: &Client, handle: &Handle, thread: u16, random: &mut Random) {
    let own = format!("own-{thread}");
    match random.below(20) {
        0 => put(client, &own, 100 + thread, 16).expect("room"),
        1 => {
            // Only this thread puts and removes it.
            let got = client.get(&own);
            let is_right = match &got {
                Ok(tensor) => mismatches(tensor.as_bytes(), 100 + thread, 1, 0) == 0,
                Err(error) => matches!(error, Error::NotFound { .. }),
            };
            assert!(is_right, "{got:?}");
            let removed = client.remove(&own);
            assert_eq!(removed.is_ok(), got.is_ok(), "{removed:?}");
        }
        2 => assert!(client.list().expect("a list").iter().any(|entry| entry.name == "shared")),
        3 => drop(client.stats().expect("stats")),
        4 => {
            let view = handle.view().expect("a lease is free");
            assert_eq!(mismatches(view.block(0).expect("a block"), 1, 1, 0), 0);
        }
        5 => assert_eq!(client.open("shared").expect("it is there").n_rows(), ROWS),
        6 => {
            let other = client.namespace(&format!("other-{}", thread % 4)).expect("a short name");
            put(&other, &own, thread, 1).expect("room");
            assert_eq!(mismatches(other.get(&own).expect("it is there").as_bytes(), thread, 1, 0), 0);
            other.remove(&own).expect("it is there");
        }
        7 => assert_eq!(mismatches(client.get("shared").expect("it is there").as_bytes(), 1, 1, 0), 0),
        _ => gather(handle, random),
    }
}

#[test]
fn one_client_serves_thirty_two_threads() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, "shared", 1, ROWS).expect("room");
    let handle = client.open("shared").expect("it is there");
    // Namespaces stay, and keep a segment each.
    for n in 0..4 {
        let other = client.namespace(&format!("other-{n}")).expect("a short name");
        put(&other, "first", 0, 1).expect("room");
        other.remove("first").expect("it is there");
    }
    let before = Baseline::take(&daemon, 1);
    let calls = if full() { 10_000 } else { 300 };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, handle) = (client.clone(), handle.clone());
            scope.spawn(move || {
                let mut random = Random::new(u64::from(thread) + 1);
                for _ in 0..calls {
                    mixed_call(&client, &handle, thread, &mut random);
                }
                // Removed, if it was there.
                let _ = client.remove(&format!("own-{thread}")).is_ok();
            });
        }
    });
    let stats = daemon.quiet();
    assert_eq!(stats.sessions.len(), 1, "all threads share one session");
    before.returns(&mut daemon);
}

#[test]
fn one_handle_is_read_by_several_threads_at_once() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, "shared", 1, ROWS).expect("room");
    let handle = client.open("shared").expect("it is there");
    let before = Baseline::take(&daemon, 1);
    let limit = Duration::from_millis(if full() { 3000 } else { 500 });
    let reads_by = |threads: u64| -> u64 {
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..threads)
                .map(|thread| {
                    let handle = &handle;
                    scope.spawn(move || {
                        let (mut random, mut reads) = (Random::new(thread + 1), 0);
                        let end = Instant::now() + limit;
                        while Instant::now() < end {
                            gather(handle, &mut random);
                            reads += 1;
                        }
                        reads
                    })
                })
                .collect();
            readers.into_iter().map(|reader| reader.join().expect("every row is right")).sum()
        })
    };
    let (one, two) = (reads_by(1), reads_by(2));
    println!("reads of one handle: {one} by one thread, {two} by two in the same time");
    before.returns(&mut daemon);
}

#[test]
fn leases_run_out_with_a_clear_error_and_come_back() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, "shared", 1, ROWS).expect("room");
    let handle = client.open("shared").expect("it is there");
    let before = Baseline::take(&daemon, 1);
    let mut views: Vec<_> = (0..1024).map(|_| handle.view().expect("a lease is free")).collect();
    let error = handle.get().expect_err("all leases are taken");
    assert!(matches!(error, Error::TooManyLeases { limit: 1024 }), "{error:?}");
    assert!(matches!(handle.view(), Err(Error::TooManyLeases { .. })));
    client.list().expect("requests need no lease");
    views.pop();
    handle.get().expect("one lease is free");
    drop(views);
    before.returns(&mut daemon);
}
