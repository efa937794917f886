//! A put is refused for want of room only when there is none: not by its raw size, nor by where free bytes lie.

use std::io::Read;

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, PutOptions};
use tierpack_tests::data::{Source, Words};
use tierpack_tests::{Daemon, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const MIB: u64 = 1 << 20;

fn daemon(pool_bytes: u64) -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", &pool_bytes.to_string(), "--lock", "off"])
}

/// Puts `bytes` of a source, 512 to a row.
fn put(
    client: &Client,
    name: &str,
    bytes: u64,
    source: &mut dyn Read,
    options: &PutOptions,
) -> Result<(), Error> {
    client.put_with(name, Dtype::U64, &[bytes / 512, 64], source, options).map(drop)
}

fn zeros() -> impl Read {
    std::io::repeat(0)
}

#[test]
fn zeros_larger_than_the_pool_are_stored_alone_and_side_by_side() {
    let daemon = daemon(128 * MIB);
    let client = daemon.client();
    put(&client, "large", 400 * MIB, &mut zeros(), &PutOptions::new()).expect("they compress");
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let client = daemon.client();
            scope.spawn(move || {
                put(&client, name, 100 * MIB, &mut zeros(), &PutOptions::new()).expect("they compress");
            });
        }
    });
    let pool = daemon.stats().pool;
    println!("{} raw bytes take {} of {}", pool.raw_bytes, pool.stored_bytes, pool.size_bytes);
    assert_eq!((pool.raw_bytes, pool.reserved_bytes), (800 * MIB, 0));
}

#[test]
fn what_is_refused_while_it_comes_leaves_nothing_and_names_what_replaces_in_place() {
    let daemon = daemon(64 * MIB);
    let client = daemon.client();
    let mut noise = Source::of(Words::new(false), 1, 1);
    put(&client, "t", 40 * MIB, &mut noise, &PutOptions::new()).expect("room");
    let before = daemon.stats().pool;
    let mut noise = Source::of(Words::new(false), 1, 2);
    let error = put(&client, "t", 40 * MIB, &mut noise, &PutOptions::new().overwrite(true))
        .expect_err("no room for both");
    assert!(matches!(error, Error::PoolFull { .. }), "{error:?}");
    assert!(error.to_string().contains("update its rows in place"), "{error}");
    let after = daemon.stats().pool;
    assert_eq!((after.stored_bytes, after.reserved_bytes), (before.stored_bytes, 0));
}

/// Noise that fills a pool but for a twentieth, at every size of pool.
#[test]
fn what_does_not_compress_needs_little_more_than_its_bytes() {
    for pool in [64, 96, 128, 256].map(|mib| mib * MIB) {
        let daemon = daemon(pool);
        let client = daemon.client();
        // The heap's share of a pool, and the directory of a namespace.
        let usable = pool - (pool / 128).min(64 * MIB) - MIB;
        let bytes = usable * 20 / 21 / 512 * 512;
        let mut noise = Source::of(Words::new(false), 1, 1);
        let put = put(&client, "t", bytes, &mut noise, &raw());
        assert!(put.is_ok(), "{bytes} of {pool} bytes: {put:?}");
    }
}

#[test]
fn a_put_waits_for_room_that_lies_scattered() {
    let daemon = daemon(96 * MIB);
    let client = daemon.client();
    let only_raw = PutOptions::new().codec(CodecChoice::Only(CodecId::Raw));
    let small = |n: u64| {
        put(&client, &format!("small-{n}"), 64 << 10, &mut Source::of(Words::new(false), 1, 1), &only_raw)
    };
    let count = (0..).find(|n| small(*n).is_err()).expect("a pool has an end");
    for n in (0..count).step_by(2) {
        client.remove(&format!("small-{n}")).expect("it is there");
    }
    let pool = daemon.quiet().pool;
    let free = pool.size_bytes - pool.stored_bytes;
    let bytes = free * 3 / 10 / 512 * 512;
    let mut noise = Source::of(Words::new(false), 2, 1);
    let started = std::time::Instant::now();
    let done = put(&client, "large", bytes, &mut noise, &only_raw);
    assert!(done.is_ok(), "compaction makes room: {done:?} {}", daemon.log());
    println!(
        "{count} tensors, half of them removed: {bytes} of {free} free bytes found room in {:?}",
        started.elapsed()
    );
}
