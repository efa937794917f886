//! Faults that users of caches in GPU memory met: C17, C20, C25, C34, C71 and C76 of CASES.md on the Device tier.

use std::thread;

use cudarc::driver::result;
use tierpack_client::{CacheConfig, Client, DeviceHandle, Dtype, Error, Gpu, GpuConfig, GpuError};
use tierpack_tests::data::Random;
use tierpack_tests::device::{ACCESSES, MODES, Needs, Trace, in_child, in_child_that};
use tierpack_tests::{Daemon, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"])
}

fn open() -> Gpu {
    Gpu::open(&GpuConfig::new()).expect("a GPU")
}

/// A table of 16 numbers in a row, all of them what `value` says of the row.
fn put(client: &Client, name: &str, n_rows: u64, value: impl Fn(u64) -> u64) {
    let bytes: Vec<u8> = (0..n_rows).flat_map(|row| value(row).to_le_bytes().repeat(16)).collect();
    client.put_with(name, Dtype::U64, &[n_rows, 16], &mut &bytes[..], &raw()).expect("room");
}

/// What a row has at its start and its end.
fn ends(row: &[u8]) -> (u64, u64) {
    let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("a number"));
    (number(row), number(&row[120..]))
}

/// C17, C20: the row is named, no neighbor comes instead, and everything works afterwards.
#[test]
fn a_bad_row_is_an_error_and_the_gpu_works_on() {
    if !in_child("a_bad_row_is_an_error_and_the_gpu_works_on", ACCESSES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    let client = daemon.client();
    put(&client, "t1", 100, |_| 1);
    put(&client, "t2", 100, |_| 2);
    let handle = client.open("t1").expect("it is there");
    let neighbor = client.open("t2").and_then(|handle| handle.on_device(&gpu, CacheConfig::new(1 << 20)));
    let neighbor = neighbor.expect("it fits");
    for cache_bytes in [0, 1 << 20] {
        let device = handle.on_device(&gpu, CacheConfig::new(cache_bytes)).expect("it fits");
        let bad_rows = [100, 101, (1 << 31) - 1, 1 << 31, i64::MAX, -1];
        for (bad, position) in bad_rows.iter().flat_map(|&bad| [0, 2048, 4095].map(|at| (bad, at))) {
            let mut ids: Vec<i64> = (0..4096).map(|n| n % 100).collect();
            ids[position] = bad;
            let mut out = device.output(4096).expect("it fits");
            let outcome = device.gather_into(&gpu.ids(&ids).expect("few ids"), &mut out);
            let error = outcome.and_then(|gather| gather.wait()).expect_err("a row that is not there");
            let is_it = matches!(error, Error::RowOutOfRange { position: at, row, n_rows: 100 }
                if at == position && row == i128::from(bad));
            assert!(is_it, "{bad} at {position}: {error}");
            let alone = device.gather(&gpu.ids(&[bad]).expect("one")).and_then(|rows| rows.to_host());
            assert!(matches!(alone, Err(Error::RowOutOfRange { position: 0, .. })), "{alone:?}");
            // Memory, copies and gathers as before.
            let whole = handle.get_to_device(&gpu).and_then(|tensor| tensor.to_host()).expect("it is whole");
            assert!(whole.chunks_exact(128).all(|row| ends(row) == (1, 1)));
            ids[position] = 99;
            let ids = gpu.ids(&ids).expect("few ids");
            let both = gpu.gather_many(&[(&device, &ids), (&neighbor, &ids)]).expect("rows that are there");
            for (rows, value) in both.iter().zip([1, 2]) {
                let rows = rows.to_host().expect("rows that are there");
                assert!(rows.chunks_exact(128).all(|row| ends(row) == (value, value)), "table {value}");
            }
        }
    }
    // Of a gather over several tensors, the tensor is named too.
    let device = handle.on_device(&gpu, CacheConfig::new(0)).expect("it fits");
    let (good, bad) = (gpu.ids(&[1_i64, 2]).expect("few ids"), gpu.ids(&[3_i64, -7]).expect("few ids"));
    for (gathers, name) in
        [([(&device, &good), (&neighbor, &bad)], "t2"), ([(&device, &bad), (&neighbor, &good)], "t1")]
    {
        let outcome = gpu.gather_many(&gathers).and_then(|both| both[0].wait());
        let error = outcome.expect_err("a row that is not there");
        let text = error.to_string();
        assert!(text.contains(&format!("{name:?}")) && text.contains("row -7 at position 1"), "{text}");
        let Error::OfTensor { name: named, source, .. } = error else { panic!("{error:?}") };
        assert!(named == name && matches!(*source, Error::RowOutOfRange { row: -7, .. }), "{source}");
    }
    let mut short = [device.output(2).expect("it fits"), neighbor.output(1).expect("it fits")];
    let error = gpu.gather_many_into(&[(&device, &good), (&neighbor, &good)], &mut short);
    let error = error.expect_err("an output that is too short").to_string();
    assert!(error.contains("\"t2\"") && error.contains("256 are needed"), "{error}");
    drop((device, short, gpu));
    daemon.quiet();
}

fn check(device: &DeviceHandle, gpu: &Gpu, ids: &[u64]) {
    let rows = device.gather(&gpu.ids(ids).expect("few ids")).and_then(|rows| rows.to_host()).expect("rows");
    for (&id, row) in ids.iter().zip(rows.chunks_exact(128)) {
        assert_eq!(ends(row), (id, id), "row {id}");
    }
}

/// C25: rows that are being read keep their lines, or are read from the pool.
#[test]
fn rows_in_use_are_not_evicted_under_their_reader() {
    if !in_child_that(Needs::InPlace, "rows_in_use_are_not_evicted_under_their_reader", MODES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    put(&daemon.client(), "t", 10_000, |row| row);
    let handle = daemon.client().open("t").expect("it is there");
    // Room for some 256 rows.
    let device = handle.on_device(&gpu, CacheConfig::new(256 * 160)).expect("it fits");
    let lines = device.cache().lines;
    assert!((128..512).contains(&lines), "{lines} lines");
    let rounds = if full() { 10_000 } else { 40 };
    let set = |random: &mut Random, residue: u64| -> Vec<u64> {
        (0..256).map(|_| random.below(10_000 / 3) * 3 + residue).collect()
    };
    thread::scope(|scope| {
        for residue in [1, 2] {
            let (device, gpu) = (device.clone(), &gpu);
            scope.spawn(move || {
                let mut random = Random::new(residue);
                (0..rounds).for_each(|_| check(&device, gpu, &set(&mut random, residue)));
            });
        }
        let mut random = Random::new(0);
        for _ in 0..rounds {
            // Launched, and looked at only after two others were.
            let ids = set(&mut random, 0);
            let pending = device.gather(&gpu.ids(&ids).expect("few ids")).expect("rows in range");
            (1..3).for_each(|residue| check(&device, &gpu, &set(&mut random, residue)));
            let rows = pending.to_host().expect("rows");
            for (&id, row) in ids.iter().zip(rows.chunks_exact(128)) {
                assert_eq!(ends(row), (id, id), "row {id}");
            }
        }
    });
    drop((device, gpu));
    daemon.quiet();
}

/// C76: a handle is made, used and dropped by different threads, and no thread's context changes.
#[test]
fn a_cache_is_used_and_dropped_by_any_thread_and_leaves_contexts_alone() {
    if !in_child("a_cache_is_used_and_dropped_by_any_thread_and_leaves_contexts_alone", ACCESSES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    assert_eq!(open().uuid(), gpu.uuid());
    put(&daemon.client(), "t", 100, |row| row);
    let handle = daemon.client().open("t").expect("it is there");
    let context = || result::ctx::get_current().expect("an answer");
    let in_thread = |work: &(dyn Fn() + Sync)| {
        thread::scope(|scope| {
            let done = scope.spawn(|| {
                assert_eq!(context(), None);
                work();
                assert_eq!(context(), None, "the context of a thread was changed");
            });
            done.join().expect("no panic");
        });
    };
    let slot = parking_lot::Mutex::new(None);
    in_thread(&|| *slot.lock() = Some(handle.on_device(&gpu, CacheConfig::new(1 << 20)).expect("it fits")));
    in_thread(&|| {
        let device = slot.lock().clone().expect("it was made");
        (0..2).for_each(|_| check(&device, &gpu, &[99, 0, 42]));
        assert_eq!(device.keep(&[7_u64, 8]).expect("rows in range").conflicts, 0);
        device.clear();
    });
    in_thread(&|| drop(slot.lock().take()));
    assert_eq!(context(), None);
    drop(gpu);
    daemon.quiet();
}

/// C76: without a device the pool is read by the CPU.
#[test]
fn a_process_that_sees_no_device_gathers_by_the_cpu() {
    if !in_child("a_process_that_sees_no_device_gathers_by_the_cpu", &[&[("FAKE_CUDA_DEVICES", "0")]]) {
        return;
    }
    let daemon = start();
    put(&daemon.client(), "t", 100, |row| row);
    let refused = Gpu::open(&GpuConfig::new());
    assert!(matches!(refused, Err(Error::Gpu(GpuError::NoDevice))), "{refused:?}");
    let handle = daemon.client().open("t").expect("it is there");
    let rows = handle.gather(&[99_u64, 5]).expect("rows in range");
    assert_eq!(rows.as_bytes().chunks_exact(128).map(ends).collect::<Vec<_>>(), [(99, 99), (5, 5)]);
}

/// C34: more gathers than there are leases, none waited for, each with rows of its own.
#[test]
fn gathers_back_to_back_keep_what_they_read() {
    // A thousand launches at a time are slow where a stand-in runs them one by one.
    let settings = if full() { [MODES, ACCESSES].concat() } else { vec![MODES[0], ACCESSES[1]] };
    if !in_child("gathers_back_to_back_keep_what_they_read", &settings) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    let client = daemon.client();
    put(&client, "t", 1000, |row| row * 7);
    let handle = client.open("t").expect("it is there");
    let device = handle.on_device(&gpu, CacheConfig::new(20_000)).expect("it fits");
    let batch = |n: u64| (0..4).map(move |k| (n * 13 + k * 251) % 1000);
    let gather = |n: u64| device.gather(&gpu.ids(&batch(n).collect::<Vec<_>>())?);
    let pending: Vec<_> = (0..1100).map(|n| gather(n).expect("rows that are there")).collect();
    for (rows, n) in pending.iter().zip(0..) {
        let rows = rows.to_host().expect("rows that are there");
        let is_right =
            rows.chunks_exact(128).zip(batch(n)).all(|(bytes, row)| ends(bytes) == (row * 7, row * 7));
        assert!(is_right, "gather {n}");
    }
    drop((pending, device));
    daemon.quiet();
}

/// C71: caches that come and go in other sizes, clients and GPUs with them: what is registered is unregistered.
#[test]
fn caches_that_come_and_go_leave_nothing_registered() {
    let trace = Trace::new();
    if !in_child("caches_that_come_and_go_leave_nothing_registered", &[&[("FAKE_CUDA_TRACE", trace.path())]])
    {
        return;
    }
    let daemon = start();
    let owner = daemon.client();
    for round in 0..if full() { 200 } else { 20 } {
        // The pool grows on the way.
        put(&owner, &format!("t{round}"), 2000, |row| row + round);
        let (client, gpu) = (daemon.client(), open());
        let handle = client.open(&format!("t{round}")).expect("it is there");
        let device = handle.on_device(&gpu, CacheConfig::new(round * 5000)).expect("it fits");
        for _ in 0..2 {
            let rows =
                device.gather(&gpu.ids(&[round, 1999]).expect("few ids")).expect("rows that are there");
            let rows = rows.to_host().expect("rows that are there");
            assert_eq!(ends(&rows[..128]), (2 * round, 2 * round));
            assert_eq!(ends(&rows[128..]), (1999 + round, 1999 + round));
        }
        drop((device, handle, client, gpu));
        let [made, ended] = ["cuMemHostRegister_v2", "cuMemHostUnregister"].map(Trace::count);
        assert!(made > 0 && made == ended, "round {round}: {made} registered, {ended} unregistered");
    }
    daemon.quiet();
}
