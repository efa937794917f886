//! Snapshots and calls over several tensors: what they return is of one moment, whatever writers do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tierpack_client::{Client, Dtype, Error, Handle, Snapshot};
use tierpack_shm::faults::Point;
use tierpack_shm::message::{Blob, ErrorCode, Reply, Request, Update};
use tierpack_tests::files::{self, FileTensor, Metadata};
use tierpack_tests::peer::Peer;
use tierpack_tests::{Daemon, Stop, TestClient, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
const ROWS: u64 = 512;
const ROW_BYTES: usize = 1024;
/// Snapshots that one test takes, and changes that its writers make meanwhile, at least.
const SNAPSHOTS: usize = 60;
const LEAST_CHANGES: u64 = 200;

fn start(pool: &str) -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", pool, "--lock", "off"])
}

fn table(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(index(ROWS) * ROW_BYTES / 8)
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a small number")
}

/// The value of a tensor all of whose words are the same, from one of its rows on.
fn value(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

/// Row 300 of the table of a name.
fn row_of(snapshot: &Snapshot, name: &str) -> u64 {
    let tensor = snapshot.tensor(name).expect("it is in the snapshot").get().expect("it is held");
    value(&tensor.as_bytes()[300 * ROW_BYTES..])
}

#[test]
fn snapshots_under_updates_and_puts_are_of_one_moment() {
    let daemon = start("256MiB");
    let (writer, putter, reader) = (daemon.client(), daemon.client(), daemon.client());
    for name in ["a", "b"] {
        writer.put(name, Dtype::U8, &[ROWS, ROW_BYTES as u64], &table(0)).expect("room");
    }
    for name in ["x", "y"] {
        putter.put(name, Dtype::U64, &[1], &0_u64.to_le_bytes()).expect("room");
    }
    let (done, updates, puts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let goes_on = || !done.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _ends = Stop(&done);
        // Each value is in "a" before it is in "b", and in "x" before it is in "y".
        scope.spawn(|| {
            let (a, b) = (writer.open("a").expect("it is there"), writer.open("b").expect("it is there"));
            for n in (1_u64..).take_while(|_| goes_on()) {
                let row = n.to_le_bytes().repeat(ROW_BYTES / 8);
                for table in [&a, &b] {
                    table.update(&[300_u64], &row).expect("room");
                }
                updates.store(2 * n, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            for n in (1_u64..).take_while(|_| goes_on()) {
                for name in ["x", "y"] {
                    let put = putter.put_with(
                        name,
                        Dtype::U64,
                        &[1],
                        &mut &n.to_le_bytes()[..],
                        &tierpack_tests::raw().overwrite(true),
                    );
                    put.expect("room");
                }
                puts.store(2 * n, Ordering::Relaxed);
            }
        });
        eventually("writers", || (puts.load(Ordering::Relaxed) > 0).then_some(()));
        let (mut last, started, mut taken) = ([0; 4], Instant::now(), 0);
        while taken < SNAPSHOTS || last.iter().any(|value| *value < LEAST_CHANGES) {
            let snapshot = reader.snapshot_all().expect("it succeeds however busy the writers are");
            let found = ["a", "b"].map(|name| row_of(&snapshot, name));
            let put = ["x", "y"].map(|name| {
                value(snapshot.tensor(name).expect("it is there").get().expect("it is held").as_bytes())
            });
            assert!(found[0] == found[1] || found[0] == found[1] + 1, "updates of two moments: {found:?}");
            assert!(put[0] == put[1] || put[0] == put[1] + 1, "puts of two moments: {put:?}");
            let now = [found[0], found[1], put[0], put[1]];
            assert!(
                now.iter().zip(last).all(|(now, last)| *now >= last),
                "it went back from {last:?} to {now:?}"
            );
            // The same values, however long it is kept.
            assert_eq!(["a", "b"].map(|name| row_of(&snapshot, name)), found);
            (last, taken) = (now, taken + 1);
        }
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{taken} snapshots in {seconds:.2} s next to {:.0} updates/s and {:.0} puts/s",
            updates.load(Ordering::Relaxed) as f64 / seconds,
            puts.load(Ordering::Relaxed) as f64 / seconds
        );
    });
}

fn names() -> Vec<String> {
    (0..40).map(|n| format!("t{n:02}")).collect()
}

fn put_all(client: &Client, n: u64) {
    let names = names();
    let put = client.put_many(names.iter().map(String::as_str), true).expect("free claims");
    for name in &names {
        put.put(name, Dtype::U64, &[8, 2], &n.to_le_bytes().repeat(16)).expect("room");
    }
    put.commit().expect("it is whole");
}

#[test]
fn calls_over_several_tensors_never_mix_two_transactions() {
    let daemon = start("256MiB");
    let (writer, reader) = (daemon.client(), daemon.client());
    put_all(&writer, 0);
    let handles: Vec<Handle> = names().iter().map(|name| reader.open(name).expect("it is there")).collect();
    let handles: Vec<&Handle> = handles.iter().collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Stop(&done);
        scope.spawn(|| (1..).take_while(|_| !done.load(Ordering::Relaxed)).for_each(|n| put_all(&writer, n)));
        let check = |values: Vec<u64>| {
            assert_eq!(values.len(), 40);
            assert!(values.iter().all(|value| *value == values[0]), "two transactions: {values:?}");
            values[0]
        };
        let mut last = 0;
        while last < 20 {
            let all = reader.get_many(&handles).expect("they are there");
            let got = check(all.iter().map(|tensor| value(tensor.as_bytes())).collect());
            let gathers: Vec<_> = handles.iter().map(|handle| (*handle, &[7_u64, 0][..])).collect();
            let rows = reader.gather_many(&gathers).expect("they are there");
            assert!(rows.iter().all(|rows| rows.shape() == [2, 2]));
            let gathered = check(rows.iter().map(|rows| value(rows.as_bytes())).collect());
            let snapshot = reader.snapshot(&names()).expect("they are there");
            let of = |name: String| value(snapshot.tensor(&name)?.get().ok()?.as_bytes()).into();
            let held = check(names().into_iter().filter_map(of).collect());
            assert!(last <= got && got <= gathered && gathered <= held, "time goes on");
            last = held;
        }
    });
    let missing = reader.snapshot(&["t00", "none"]).expect_err("one is not there");
    assert!(matches!(&missing, Error::NotFound { name, .. } if name == "none"), "{missing:?}");
    let error = reader.gather_many(&[(handles[0], &[0_u64][..]), (handles[1], &[8][..])]);
    assert!(error.expect_err("row 8 of 8").to_string().contains("\"t01\""));
}

#[test]
fn an_export_next_to_a_writer_of_checkpoints_is_one_of_them() {
    let daemon = start("256MiB");
    let checkpoint = |n: u8| {
        let path = daemon.dir().join(format!("checkpoint-{n}.safetensors"));
        let tensor =
            |at: u8| (format!("layer.{at:02}"), FileTensor::new("U8", &[64, 256], vec![n; 64 * 256]));
        let metadata = Metadata::from([("step".to_owned(), n.to_string())]);
        std::fs::write(&path, files::safetensors(&(0..24).map(tensor).collect(), &metadata)).expect("room");
        path
    };
    let checkpoints = [checkpoint(1), checkpoint(2)];
    let put =
        |at: usize| daemon.run_ok(&["put", "--overwrite", checkpoints[at].to_str().expect("a test's path")]);
    put(0);
    let (done, puts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = Stop(&done);
        scope.spawn(|| {
            for n in (1..).take_while(|_| !done.load(Ordering::Relaxed)) {
                put(n % 2);
                puts.fetch_add(1, Ordering::Relaxed);
            }
        });
        let out = daemon.dir().join("out.safetensors");
        let mut exports = 0;
        while exports < 40 || puts.load(Ordering::Relaxed) < 10 {
            exports += 1;
            daemon.run_ok(&["get", "--all", "-o", out.to_str().expect("a test's path")]);
            let (tensors, metadata) = files::read(&out);
            let first = tensors["layer.00"].bytes[0];
            assert_eq!(tensors.len(), 24);
            assert!(tensors.values().all(|tensor| tensor.bytes.iter().all(|byte| *byte == first)), "mixed");
            assert_eq!(metadata["step"], first.to_string(), "the metadata are of the same checkpoint");
        }
    });
}

/// Rows of 512 bytes in a block: a few of them become overlays, which lie in segments that clients map already.
const BLOCK_ROWS: u64 = 512;

/// A tensor of two blocks, of one word that is repeated.
fn put_blocks(client: &Client, name: &str, value: u64) {
    let bytes = value.to_le_bytes().repeat(1 << 16);
    client.put(name, Dtype::U64, &[BLOCK_ROWS * 2, 64], &bytes).expect("room");
}

fn update(client: &Client, name: &str, rows: &[u64], value: u64) {
    client.update(name, rows, &value.to_le_bytes().repeat(rows.len() * 64)).expect("room");
}

/// A client process that takes a snapshot and stops after words of it, as `actions` say.
fn snapshot_taker(daemon: &Daemon, actions: &str) -> TestClient {
    let mut taker = TestClient::start(CLIENT, daemon, &["snapshot", "--actions", actions]);
    assert_eq!(taker.line().as_deref(), Some("ready"));
    taker.tell("go");
    taker.process().wait_stopped("a snapshot stops after a word");
    taker
}

fn go_on(taker: &mut TestClient) {
    taker.process().signal(Signal::SIGCONT);
}

#[test]
fn updates_between_two_words_make_a_snapshot_look_again() {
    let daemon = start("64MiB");
    let client = daemon.client();
    ["a", "b"].iter().for_each(|name| put_blocks(&client, name, 0));
    let set = |value| ["a", "b"].iter().for_each(|name| update(&client, name, &[0], value));
    // It has four words; then it loads the first of each again, since they have changed.
    let mut taker = snapshot_taker(&daemon, "3*off->2*return(stop)");
    set(1);
    go_on(&mut taker);
    taker.process().wait_stopped("between the words that it loads again");
    set(2);
    go_on(&mut taker);
    assert_eq!(taker.line().as_deref(), Some(r#"{"a":[2,0],"b":[2,0]}"#));
    taker.finish();
}

#[test]
fn an_update_that_is_half_stored_is_in_no_snapshot() {
    let daemon = Daemon::with_faults(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    put_blocks(&client, "c", 0);
    let seen = client.open("c").expect("it is there");
    let ends = || {
        let tensor = seen.get().expect("it is there");
        let words: &[u64] = tensor.as_slice().expect("words");
        (words[0], words[words.len() - 1])
    };
    ends();
    let mut taker = snapshot_taker(&daemon, "1*off->1*return(stop)");
    daemon.arm(Point::BetweenWords, "pause");
    std::thread::scope(|scope| {
        scope.spawn(|| update(&client, "c", &[0, 2 * BLOCK_ROWS - 1], 1));
        eventually("one of two words is stored", || (ends() == (1, 0)).then_some(()));
        go_on(&mut taker);
        // Long enough for a snapshot that does not wait.
        std::thread::sleep(Duration::from_millis(100));
        daemon.arm(Point::BetweenWords, "off");
    });
    assert_eq!(taker.line().as_deref(), Some(r#"{"c":[1,1]}"#));
    taker.finish();
}

#[test]
fn tensors_of_a_transaction_that_is_being_revealed_are_read_together() {
    let daemon = Daemon::with_faults(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let (writer, reader) = (daemon.client(), daemon.client());
    put_all(&writer, 0);
    let old = reader.open("t00").expect("it is there");
    assert_eq!(value(old.get().expect("it is there").as_bytes()), 0);
    daemon.arm(Point::PutPublished, "pause");
    std::thread::scope(|scope| {
        scope.spawn(|| put_all(&writer, 1));
        // It is visible, and what it replaces is not gone yet.
        let fresh = eventually("the new tensors", || {
            let fresh = reader.open("t01").expect("it is there");
            (value(fresh.get().expect("it is there").as_bytes()) == 1).then_some(fresh)
        });
        assert_eq!(value(old.get().expect("it is there").as_bytes()), 0);
        let (reader, old) = (&reader, &old);
        let read = scope.spawn(move || {
            let both = reader.get_many(&[old, &fresh]).expect("they are there");
            let rows = reader.gather_many(&[(old, &[0_u64][..]), (&fresh, &[0])]).expect("they are there");
            both.into_iter().chain(rows).map(|tensor| value(tensor.as_bytes())).collect::<Vec<_>>()
        });
        // Long enough for calls that do not wait.
        std::thread::sleep(Duration::from_millis(100));
        daemon.arm(Point::PutPublished, "off");
        assert_eq!(read.join().expect("a reader"), [1; 4]);
    });
}

/// Prepares a commit; returns the request for it.
type Make<'a> = &'a dyn Fn(&mut Peer) -> Request;

#[test]
fn a_hold_refuses_every_commit_and_ends_by_itself() {
    let daemon = start("64MiB");
    let client = daemon.client();
    let put = || {
        client.put_with("t", Dtype::U8, &[4, 4], &mut &[1; 16][..], &tierpack_tests::raw().overwrite(true))
    };
    put().expect("room");
    let namespace = || "default".to_owned();
    let (mut holder, mut peer) = (Peer::greeted(&daemon.socket()), Peer::greeted(&daemon.socket()));
    let remove = |_: &mut Peer| Request::Remove { namespace: namespace(), name: "t".to_owned() };
    let puts = AtomicU64::new(0);
    let commit = |peer: &mut Peer| {
        let transfer = peer.begin(&format!("u{}", puts.fetch_add(1, Ordering::Relaxed)), 0);
        Request::PutCommit { transfer }
    };
    let transaction = |peer: &mut Peer| {
        let begin = Request::TransactionBegin { namespace: namespace(), overwrite: true };
        let Ok(Reply::Transaction { transaction }) = peer.request(begin, &[]) else { panic!("it begins") };
        Request::TransactionCommit { transaction }
    };
    let update = |peer: &mut Peer| {
        let open = Request::Open { namespace: namespace(), name: "t".to_owned() };
        let Ok(Reply::Opened { slot, .. }) = peer.request(open, &[]) else { panic!("it is there") };
        let data = Blob::Inline([&1_u64.to_le_bytes()[..], &[2; 4]].concat());
        Request::Update(Update { namespace: namespace(), name: "t".to_owned(), slot, n_pieces: 1, data })
    };
    let commits: [(&str, Make<'_>); 4] =
        [("remove", &remove), ("put", &commit), ("transaction", &transaction), ("update", &update)];
    for (what, request) in commits {
        // A user waits for a while between two holds, and a hold may be over before the commit is asked for.
        eventually("a commit that is refused", || {
            put().expect("a client waits until the hold ends by itself");
            let request = request(&mut peer);
            let hold = Request::Hold { namespace: namespace() };
            holder.request(hold.clone(), &[]).ok()?;
            let refusal = peer.request(request.clone(), &[]).err()?;
            assert_eq!(refusal.code(), Some(ErrorCode::Busy), "{what}: {refusal:?}");
            peer.request(hold, &[]).expect_err("one at a time");
            holder.request(Request::Release { namespace: namespace() }, &[]).expect("it ends");
            peer.request(request, &[]).unwrap_or_else(|refusal| panic!("{what} after the hold: {refusal:?}"));
            Some(())
        });
    }
}
