//! Puts of several tensors: all of them are visible from one step on, or none ever is; whatever others do meanwhile
//! stays.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use tierpack_client::{Client, Dtype, Error, PutMany, PutOptions};
use tierpack_shm::faults::Point;
use tierpack_tests::files::{self, FileTensor, Metadata};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::{Daemon, Process, eventually, heeded};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const MIB: usize = 1 << 20;

fn start(pool: &str) -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", pool, "--lock", "off"])
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("t{n:04}")).collect()
}

/// A client whose calls wait no longer than a moment.
fn hurried(daemon: &Daemon) -> Client {
    let builder = Client::builder().socket(daemon.socket()).deadline(Duration::from_millis(500));
    builder.connect().expect("a client")
}

/// Puts a tensor of one value under each name, in one transaction.
fn put_all(client: &Client, names: &[String], value: u8, overwrite: bool) -> Result<(), Error> {
    let put = client.put_many(names.iter().map(String::as_str), overwrite)?;
    for name in names {
        put.put(name, Dtype::U8, &[4, 16], &[value; 64])?;
    }
    put.commit()
}

/// The values that are visible under the names, one for each that is there.
fn values(client: &Client) -> BTreeMap<String, u8> {
    let list = client.list().expect("a list");
    let value = |name: &str| client.get(name).expect("it is listed").as_bytes()[0];
    list.into_iter().map(|entry| (entry.name.clone(), value(&entry.name))).collect()
}

#[test]
fn all_are_visible_from_one_step_on_and_none_before() {
    let daemon = start("128MiB");
    let (writer, reader) = (daemon.client(), daemon.client());
    let names = names(600);
    put_all(&writer, &names, 1, false).expect("room");
    assert_eq!(values(&reader).len(), 600);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Once the first or the last is new, all others are.
        scope.spawn(|| {
            let mut last = 1;
            for first in [&names[0], &names[599]].into_iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let opened = |name: &String| reader.open(name).expect("it is there").get();
                let newest = opened(first).expect("it is there").as_bytes()[0];
                assert!(newest >= last, "it went back from {last} to {newest}");
                last = newest;
                for name in names.iter().step_by(37) {
                    let value = opened(name).expect("it is there").as_bytes()[0];
                    assert!(value >= newest, "{name} is older than {first} of its transaction");
                }
                assert_eq!(reader.list().expect("a list").len(), 600, "nothing is missing and nothing twice");
            }
        });
        for value in 2..12 {
            put_all(&writer, &names, value, true).expect("room");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(values(&reader).values().all(|value| *value == 11));
}

#[test]
fn what_has_not_come_or_was_refused_leaves_what_was_there() {
    let mut daemon = start("64MiB");
    let client = daemon.client();
    let names = names(3);
    put_all(&client, &names, 1, false).expect("room");
    values(&client);
    let before = Baseline::take(&daemon, 1);
    // Not all came.
    let put = client.put_many(names.iter().map(String::as_str), true).expect("free claims");
    put.put(&names[0], Dtype::U8, &[4, 16], &[2; 64]).expect("room");
    let error = put.commit().expect_err("two are missing").to_string();
    assert!(error.contains("1 of 3 tensors came") && error.contains("t0001"), "{error}");
    // Dropped before the commit, with one under way.
    let put = client.put_many(names.iter().map(String::as_str), true).expect("free claims");
    put.put(&names[1], Dtype::U8, &[4, 16], &[2; 64]).expect("room");
    drop(put);
    // A name that is there, and one that was not claimed.
    let error = client.put_many(["new", "t0002"], false).expect_err("one exists");
    assert!(matches!(&error, Error::Exists { name, .. } if name == "t0002"), "{error:?}");
    let put = client.put_many(["new"], false).expect("it is free");
    let error = put.put("other", Dtype::U8, &[1], &[1]).expect_err("not claimed").to_string();
    assert!(error.contains("was not claimed"), "{error}");
    drop(put);
    // No room for the last.
    let put = client.put_many(["big", "bigger"], false).expect("they are free");
    let mut noise = tierpack_tests::data::Source::new(1, 1);
    put.put_with("big", Dtype::U8, &[40, MIB as u64], &mut noise, &PutOptions::new()).expect("room");
    let mut noise = tierpack_tests::data::Source::new(2, 1);
    let full = put.put_with("bigger", Dtype::U8, &[40, MIB as u64], &mut noise, &PutOptions::new());
    assert!(matches!(full, Err(Error::PoolFull { .. })), "{full:?}");
    drop(put);
    assert_eq!(values(&client).into_values().collect::<Vec<_>>(), [1, 1, 1]);
    before.returns(&mut daemon);
}

/// Bytes whose name is claimed while they are read.
struct Late<'a> {
    put: Option<PutMany<'a>>,
    client: &'a Client,
}

impl Read for Late<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.put = Some(self.client.put_many(["t0001"], true).expect("a free claim"));
        buf.fill(9);
        Ok(buf.len())
    }
}

#[test]
fn nobody_else_changes_what_is_claimed_and_claims_end_with_their_session() {
    let daemon = start("64MiB");
    let client = daemon.client();
    put_all(&client, &names(2), 1, false).expect("room");
    let other = hurried(&daemon);
    let handle = other.open("t0000").expect("it is there");
    let put = client.put_many(["t0000"], true).expect("a free claim");
    let refused = [
        other.put_with("t0000", Dtype::U8, &[1], &mut &[9][..], &PutOptions::new().overwrite(true)).err(),
        other.remove("t0000").err(),
        handle.update(&[0_u64], &[9; 16]).err(),
        other.put_many(["t0001", "t0000"], true).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(Error::Busy { .. } | Error::Deadline { .. })), "{error:?}");
    }
    assert_eq!(handle.get().expect("it is read").as_bytes(), [1; 64]);
    other
        .put_with("t0001", Dtype::U8, &[1], &mut &[5][..], &PutOptions::new().overwrite(true))
        .expect("not claimed");
    // One that began before the claim, and would be committed after it.
    let mut late = Late { put: None, client: &client };
    let error = other.put_with("t0001", Dtype::U8, &[1], &mut late, &PutOptions::new().overwrite(true)).err();
    assert!(matches!(error, Some(Error::Busy { .. } | Error::Deadline { .. })), "{error:?}");
    drop(late);
    drop(put);
    drop(client);
    eventually("the end of the claim", || other.remove("t0000").ok());
    assert_eq!(values(&other), BTreeMap::from([("t0001".to_owned(), 5)]));
}

/// A file of tensors that do not compress.
fn checkpoint(daemon: &Daemon, n: usize, seed: u8) -> String {
    let noise = |i: usize| {
        let mut random = tierpack_tests::data::Random::new(u64::from(seed) << 32 | i as u64);
        random.bytes(8 * MIB)
    };
    let tensor = |i| (format!("t{i:04}"), FileTensor::new("U8", &[8, MIB as u64], noise(i)));
    let bytes = files::safetensors(&(0..n).map(tensor).collect(), &Metadata::default());
    daemon.file(&format!("{n}-{seed}.safetensors"), &bytes)
}

/// A `put` of a file that stops in its middle, once the fourth of its tensors is on its way.
fn stopped_put(daemon: &Daemon, file: &str) -> Process {
    let faults = format!("{}=3*off->1*return(stop)", Point::ChunkSent.name());
    let mut put = Process::start(daemon.command().args(["put", file]).env("FAILPOINTS", faults));
    put.wait_stopped("put");
    put
}

/// One writer's failure is not undone by name: what another has put meanwhile stays.
#[test]
fn a_put_of_a_file_that_fails_leaves_what_another_process_has_put() {
    let daemon = start("64MiB");
    let large = checkpoint(&daemon, 9, 1);
    let other = hurried(&daemon);
    let mut failing = stopped_put(&daemon, &large);
    other.put("mine", Dtype::U8, &[4], &[7; 4]).expect("room");
    let error = other.put("t0000", Dtype::U8, &[4], &[7; 4]).expect_err("it is claimed");
    assert!(matches!(error, Error::Busy { .. } | Error::Deadline { .. }), "{error:?}");
    failing.signal(Signal::SIGCONT);
    assert!(!failing.wait().success(), "it does not fit");
    // Its names are free again, and what was put meanwhile is there.
    eventually("the end of its claims", || other.put("t0000", Dtype::U8, &[4], &[7; 4]).ok());
    assert_eq!(values(&other), BTreeMap::from([("mine".to_owned(), 7), ("t0000".to_owned(), 7)]));
}

#[test]
fn a_put_of_a_file_that_is_interrupted_leaves_nothing_and_can_be_repeated() {
    let mut daemon = start("96MiB");
    let file = checkpoint(&daemon, 6, 2);
    let client = daemon.client();
    client.put("kept", Dtype::U8, &[4], &[7; 4]).expect("room");
    client.get("kept").expect("it is there");
    let before = Baseline::take(&daemon, 1);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL].map(heeded) {
        let mut put = stopped_put(&daemon, &file);
        assert!(daemon.stats().pool.used_bytes > 8 << 20, "some of it has come");
        put.signal(signal);
        put.signal(Signal::SIGCONT);
        assert!(!put.wait().success());
        assert_eq!(client.list().expect("a list").len(), 1, "nothing of it");
        before.returns(&mut daemon);
    }
    assert_eq!(client.get("kept").expect("it is there").as_bytes(), [7; 4]);
    assert_says(&daemon.run_ok(&["put", &file]), &["put 6 tensors"]);
    let refused = daemon.run(&["put", &file]);
    assert_says(&error_line(&refused), &["has 6 of the 6 tensors"]);
}
