//! Readers while a tensor is refitted again and again: whole rows, right values, and in the end one generation.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, PutOptions, RefitMode, RefitState};
use tierpack_shm::faults::Point;
use tierpack_tests::data::{Random, Words};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::FaultReport;
use tierpack_tests::{Daemon, Stop, TestClient, eventually, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
/// As much of a core as the refits want, and room for many generations.
const SERVE: [&str; 10] = [
    "--pool-size",
    "64MiB",
    "--lock",
    "off",
    "--refit",
    "manual",
    "--refit-cpu-percent",
    "100",
    "--max-held-percent",
    "90",
];
const ROWS: u64 = 1024;
const LEN: usize = 1024 * 512;

fn put(client: &Client, name: &str, (id, version): (u16, u16)) {
    let mut bytes = vec![0; LEN];
    Words::Compressible.fill(&mut bytes, id, version, 0);
    let options = PutOptions::new().codec(CodecChoice::Only(CodecId::Ibp)).overwrite(true);
    client.put_with(name, Dtype::U64, &[ROWS, 64], &mut &bytes[..], &options).expect("room");
}

/// What is there is right, nothing is held, and one generation is alive.
fn check_rest(daemon: &Daemon, client: &Client, name: &str) {
    eventually("one generation", || {
        (client.drift(name).expect("it is there").generations_alive == 1).then_some(())
    });
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes);
    daemon.run_ok(&["verify"]);
}

/// C35: two threads read every word while refits follow each other as fast as they can.
#[test]
fn threads_that_read_during_refits_see_every_word_as_it_was_put() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    put(&client, "t", (7, 3));
    let stop = AtomicBool::new(false);
    let reads = [AtomicU64::new(0), AtomicU64::new(0)];
    let read = |n: usize| {
        let handle = daemon.client().open("t").expect("it is there");
        let mut random = Random::new(n as u64);
        while !stop.load(Ordering::Relaxed) {
            let whole = handle.get().expect("it is there");
            assert_eq!(Words::Compressible.mismatches(whole.as_bytes(), 7, 3, 0), 0, "get");
            let rows: Vec<u64> = (0..64).map(|_| random.below(ROWS)).collect();
            let gathered = handle.gather(&rows).expect("rows in range");
            for (row, bytes) in rows.iter().zip(gathered.as_bytes().chunks_exact(512)) {
                assert_eq!(Words::Compressible.mismatches(bytes, 7, 3, row * 64), 0, "row {row}");
            }
            reads[n].fetch_add(1, Ordering::Relaxed);
        }
    };
    let read = &read;
    let mut refits = 0;
    thread::scope(|scope| {
        let readers = [0, 1].map(|n| scope.spawn(move || read(n)));
        let end = Stop(&stop);
        let until = Instant::now() + Duration::from_secs(if full() { 60 } else { 3 });
        let have_read = || reads.iter().all(|reads| reads.load(Ordering::Relaxed) > 1);
        let are_well = || readers.iter().all(|reader| !reader.is_finished());
        while are_well() && (Instant::now() < until || refits < 20 || !have_read()) {
            // Not waited for by polls of 50 ms, so that they are as close as they can be.
            let output = client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit");
            assert_eq!(output.last_failure, None);
            refits = output.refits;
        }
        drop(end);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader saw a wrong word"));
    });
    check_rest(&daemon, &client, "t");
    println!("{refits} refits beside {reads:?} reads");
}

/// C35: a reader that has found an overlay stops; the block below it is folded, refitted, moved, removed and put again.
#[test]
fn a_reader_that_is_stopped_below_an_overlay_reads_what_it_found() {
    for operation in ["get", "gather"] {
        for refits in [1, 2, 20] {
            stopped_reader(operation, refits);
        }
    }
}

/// Guards that a client has taken again.
fn retries_of(daemon: &Daemon, pid: u32) -> u64 {
    let (stats, pid) = (daemon.stats(), i32::try_from(pid).ok());
    stats.sessions.iter().filter(|session| session.pid == pid).map(|session| session.counts.retries).sum()
}

fn stopped_reader(operation: &str, refits: u64) {
    let mut daemon = Daemon::with_faults(PROGRAM, &SERVE);
    let client = daemon.client();
    let before = Baseline::take(&daemon, 1);
    put(&client, "t", (7, 1));
    // The overlays stay until the reader is there; their rows have the values of the block.
    daemon.arm(Point::RewriteEncoded, "pause");
    let mut row = vec![0; 512];
    for n in [3_u64, 700, 1000] {
        Words::Compressible.fill(&mut row, 7, 1, n * 64);
        client.update("t", &[n], &row).expect("room");
    }
    let args = ["fault", "--point", Point::OverlayFound.name(), "--actions", "1*return(stop)", "--operation"];
    let args = [&args[..], &[operation, "--tensor", "t", "--tensor-id", "7", "--codec", "ibp"]].concat();
    let mut reader = TestClient::start(CLIENT, &daemon, &args);
    assert!(reader.line().expect("a line").starts_with("ready"));
    reader.tell("arm");
    assert_eq!(reader.line().as_deref(), Some("armed"));
    reader.tell("go");
    reader.process().wait_stopped(operation);
    // It may have waited for a segment when it attached.
    let pid = reader.process().pid();
    let retries = retries_of(&daemon, pid);
    daemon.arm(Point::RewriteEncoded, "off");

    eventually("all overlays in their blocks", || {
        (client.drift("t").expect("it is there").overlay_bytes == 0).then_some(())
    });
    let mut refused = 0;
    for _ in 0..refits {
        let drift = client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit");
        refused += u64::from(drift.last_failure.is_some_and(|text| text.contains("all 16 generations")));
        let tensor = client.get("t").expect("it is there");
        assert_eq!(Words::Compressible.mismatches(tensor.as_bytes(), 7, 1, 0), 0);
    }
    // Its lease keeps every index that was retired since.
    assert_eq!(refused > 0, refits > 16, "{refused} of {refits}");
    let alive = client.drift("t").expect("it is there").generations_alive;
    assert_eq!(u64::from(alive), refits.min(15) + 1);
    // Segments become sparse, and are emptied.
    let filler = Random::new(1).bytes(1 << 20);
    for n in 0..12 {
        client.put(&format!("filler-{n}"), Dtype::U8, &[1 << 20], &filler).expect("room");
    }
    for n in 0..12 {
        client.remove(&format!("filler-{n}")).expect("it is there");
    }
    put(&client, "t", (7, 2));
    client.remove("t").expect("it is there");
    put(&client, "t", (7, 3));
    assert!(daemon.stats().pool.held_bytes > 0);

    reader.process().signal(Signal::SIGCONT);
    let mut report = || -> FaultReport {
        serde_json::from_str(&reader.line().expect("the client reports")).expect("a report")
    };
    let found = report();
    // Later blocks may lie in segments that came while it was stopped: then it reads again, and all of what is there.
    let retries = retries_of(&daemon, pid) - retries;
    let version = if retries == 0 { 1 } else { 3 };
    let expected = FaultReport { version: Some(version), error: None };
    assert_eq!(found, expected, "{operation} across {refits} refits, {retries} retries");
    check_rest(&daemon, &client, "t");
    drop(reader);
    client.remove("t").expect("it is there");
    before.returns(&mut daemon);
}

/// C31: each tensor is updated and refitted by a thread of its own, and read by another that reads all.
#[test]
fn tensors_that_are_updated_and_refitted_side_by_side_are_not_mixed_up() {
    const TENSORS: u16 = 3;
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    (1..=TENSORS).for_each(|id| put(&client, &format!("t{id}"), (id, 0)));
    let until = Instant::now() + Duration::from_secs(if full() { 60 } else { 2 });
    let change = |id: u16| {
        let (client, name) = (daemon.client(), format!("t{id}"));
        let handle = client.open(&name).expect("it is there");
        let (mut random, mut row, mut version) = (Random::new(u64::from(id)), vec![0; 512], 0);
        while (Instant::now() < until || version < 40) && version < u16::MAX {
            version += 1;
            let n = random.below(ROWS);
            Words::Compressible.fill(&mut row, id, version, n * 64);
            handle.update(&[n], &row).expect("room");
            if version % 20 == 0 {
                client.refit(&name, RefitMode::Force, |_, _| ()).expect("a refit");
            }
        }
    };
    let read = || {
        let client = daemon.client();
        loop {
            for id in 1..=TENSORS {
                let tensor = client.get(&format!("t{id}")).expect("it is there");
                for (n, row) in (0..).zip(tensor.as_bytes().chunks_exact(512)) {
                    let first = row.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                    let (found, version) = Words::Compressible.origin(first);
                    assert_eq!(
                        (found, Words::Compressible.mismatches(row, id, version, n * 64)),
                        (id, 0),
                        "row {n}"
                    );
                }
            }
            if Instant::now() >= until {
                return;
            }
        }
    };
    let (change, read) = (&change, &read);
    thread::scope(|scope| {
        (1..=TENSORS).for_each(|id| drop(scope.spawn(move || change(id))));
        scope.spawn(read);
    });
    read();
    (1..=TENSORS).for_each(|id| check_rest(&daemon, &client, &format!("t{id}")));
}

/// C38: readers that are killed keep no generation alive.
#[test]
fn readers_that_are_killed_during_refits_leave_one_generation() {
    const WAVE: usize = 10;
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    put(&client, "t", (7, 3));
    let args =
        ["gather", "--tensor", "t", "--tensor-id", "7", "--version", "3", "--batch", "64", "--compressible"];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let refitting = scope.spawn(|| {
            let client = daemon.client();
            while !stop.load(Ordering::Relaxed) {
                client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit");
            }
        });
        let end = Stop(&stop);
        for _ in 0..if full() { 100 } else { 10 } {
            let mut wave: Vec<_> = (0..WAVE).map(|_| TestClient::start(CLIENT, &daemon, &args)).collect();
            wave.iter_mut().for_each(|reader| reader.tell("go"));
            for reader in &mut wave {
                let lines = (reader.line(), reader.line());
                assert!(lines.1.as_deref().is_some_and(|line| line.starts_with("reader")), "{lines:?}");
            }
            assert!(!refitting.is_finished(), "refits ended");
            // Dropped, and so killed, in the middle of their reads.
            drop(wave);
        }
        drop(end);
        refitting.join().expect("no panic");
    });
    check_rest(&daemon, &client, "t");
    let drift = client.drift("t").expect("it is there");
    assert_eq!(drift.last_failure, None);
    assert!(drift.refits > 0, "{drift:?}");
}

/// C26: a table of 64 columns becomes one of 32 while others read it.
#[test]
fn readers_of_a_table_that_becomes_narrower_get_its_rows_or_an_error() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    let put = |columns: u64, version: u16| {
        let mut bytes = vec![0; usize::try_from(ROWS * columns * 8).expect("a small tensor")];
        Words::Compressible.fill(&mut bytes, 7, version, 0);
        let options = PutOptions::new().overwrite(true);
        client.put_with("t", Dtype::U64, &[ROWS, columns], &mut &bytes[..], &options).expect("room");
    };
    put(64, 1);
    let stop = AtomicBool::new(false);
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    let read = || {
        let client = daemon.client();
        while !stop.load(Ordering::Relaxed) {
            let handle = client.open("t").expect("it is there");
            let columns = handle.row_bytes() / 8;
            let (version, which) = if columns == 64 { (1, 0) } else { (2, 1) };
            loop {
                match handle.gather(&[ROWS - 1, 5]) {
                    Ok(rows) => {
                        let (last, fifth) = rows.as_bytes().split_at(rows.as_bytes().len() / 2);
                        let wrong =
                            |bytes, row| Words::Compressible.mismatches(bytes, 7, version, row * columns);
                        assert_eq!(
                            (last.len() as u64, wrong(last, ROWS - 1), wrong(fifth, 5)),
                            (columns * 8, 0, 0)
                        );
                        seen[which].fetch_add(1, Ordering::Relaxed);
                    }
                    Err(Error::Replaced { .. }) => break,
                    Err(error) => unreachable!("{error}"),
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
    };
    let read = &read;
    thread::scope(|scope| {
        let readers = [0, 1].map(|_| scope.spawn(read));
        let end = Stop(&stop);
        let both = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 10);
        for round in 0.. {
            if round >= 30 && both() || readers.iter().any(thread::ScopedJoinHandle::is_finished) {
                break;
            }
            put(32, 2);
            put(64, 1);
        }
        drop(end);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader saw a wrong row"));
    });
}

/// C26: a thousand updates, each read by two others once it was made.
#[test]
fn what_was_updated_is_read_by_others_a_thousand_times() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    put(&client, "t", (7, 0));
    let handle = client.open("t").expect("it is there");
    let (done, stop) = (AtomicU16::new(0), AtomicBool::new(false));
    let read = || {
        let handle = daemon.client().open("t").expect("it is there");
        let mut last = 0;
        while !stop.load(Ordering::Relaxed) {
            let at_least = done.load(Ordering::Acquire).max(last);
            let row = handle.gather(&[500_u64]).expect("a row in range");
            let first = row.as_bytes().first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let (_, version) = Words::Compressible.origin(first);
            assert_eq!(Words::Compressible.mismatches(row.as_bytes(), 7, version, 500 * 64), 0);
            assert!(version >= at_least, "version {version} after {at_least}");
            last = version;
        }
    };
    let read = &read;
    thread::scope(|scope| {
        let readers = [0, 1].map(|_| scope.spawn(read));
        let end = Stop(&stop);
        let mut row = vec![0; 512];
        for version in 1..=1000 {
            Words::Compressible.fill(&mut row, 7, version, 500 * 64);
            assert_eq!(handle.update(&[500_u64], &row).expect("room"), u64::from(version));
            done.store(version, Ordering::Release);
            if version % 250 == 0 {
                client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit");
            }
        }
        drop(end);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader saw an old row"));
    });
    check_rest(&daemon, &client, "t");
}

#[test]
fn a_tensor_that_is_removed_while_its_block_is_stored_anew_leaves_nothing() {
    let daemon = Daemon::with_faults(PROGRAM, &SERVE);
    let client = daemon.client();
    put(&client, "t", (1, 1));
    daemon.arm(Point::RewriteEncoded, "pause");
    thread::scope(|scope| {
        scope.spawn(|| client.refit("t", RefitMode::Force, |_, _| ()).expect_err("the tensor is gone"));
        eventually("a refit that runs", || {
            (client.drift("t").expect("it is there").state == RefitState::Running).then_some(())
        });
        // It has begun; long enough to encode its first block.
        thread::sleep(Duration::from_millis(100));
        client.remove("t").expect("it is there");
        daemon.arm(Point::RewriteEncoded, "off");
    });
    eventually("the return of all that the tensor had", || {
        (daemon.stats().pool.used_bytes == 0).then_some(())
    });
}
