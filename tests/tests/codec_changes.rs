//! A tensor that is replaced, again and again, by one of another codec: readers see old bytes or new ones, never a mixture.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tierpack_client::{Dtype, PutOptions};
use tierpack_tests::data::{Random, Words};
use tierpack_tests::{Daemon, Stop, eventually, full};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CODECS: [&str; 5] = ["auto", "raw", "ibp", "ibp:window", "planes:2-2-2"];

/// Words that a codec shortens.
fn compressible(version: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Words::Compressible.fill(&mut bytes, 7, version, 0);
    bytes
}

/// Two contents of one tensor, put by turns with every codec after every other.
#[test]
fn readers_of_a_tensor_that_changes_its_codec_never_see_a_mixture() {
    const ROWS: u64 = 512;
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    let versions = [compressible(1, 256 << 10), compressible(2, 256 << 10)];
    let put = |n: usize, codec: &str| {
        let options = PutOptions::new().codec(codec.parse().expect("a codec of this test")).overwrite(true);
        let mut bytes = &*versions[n % 2];
        client.put_with("t", Dtype::F64, &[ROWS, 64], &mut bytes, &options).expect("room");
    };
    put(0, "raw");
    let stop = AtomicBool::new(false);
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    let read = |seed: u64| {
        let handle = daemon.client().open("t").expect("it is there");
        let mut random = Random::new(seed);
        while !stop.load(Ordering::Relaxed) {
            let whole = handle.get().expect("a tensor of the same shape");
            let of = versions.iter().position(|version| whole.as_bytes() == version);
            seen[of.expect("a mixture of two puts")].fetch_add(1, Ordering::Relaxed);
            let rows: Vec<u64> = (0..64).map(|_| random.below(ROWS)).collect();
            let gathered = handle.gather(&rows).expect("rows of the same shape");
            let is_of = |version: &Vec<u8>| {
                rows.iter().zip(gathered.as_bytes().chunks_exact(512)).all(|(row, found)| {
                    let at = usize::try_from(*row).expect("a small tensor") * 512;
                    found == &version[at..][..512]
                })
            };
            assert!(versions.iter().any(is_of), "a mixture of two puts in rows {rows:?}");
        }
    };
    let read = &read;
    thread::scope(|scope| {
        let readers = [1, 2].map(|seed| scope.spawn(move || read(seed)));
        // Also when a put fails: the scope waits for its threads.
        let end = Stop(&stop);
        let mut n = 0;
        for _ in 0..if full() { 20 } else { 2 } {
            for before in CODECS {
                for after in CODECS {
                    put(n + 1, before);
                    put(n + 2, after);
                    n += 2;
                }
            }
        }
        let both = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 0);
        while !both() && readers.iter().all(|reader| !reader.is_finished()) {
            n += 1;
            put(n, "ibp");
        }
        drop(end);
        for reader in readers {
            reader.join().expect("a reader saw a mixture");
        }
    });
    client.remove("t").expect("it is there");
    eventually("the return of all replaced bytes", || (daemon.stats().pool.used_bytes == 0).then_some(()));
}
