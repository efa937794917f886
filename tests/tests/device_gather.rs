//! Rows gathered on a GPU: every codec and way to read the pool, what its cache does, bad row numbers, several tensors.

use std::time::Duration;

use tierpack_client::{
    CacheConfig, CodecId, DeviceHandle, DeviceTensor, Dtype, Error, Gpu, GpuConfig, GpuError, Handle,
};
use tierpack_shm::faults::Point;
use tierpack_tests::data::Random;
use tierpack_tests::device::{ACCESSES, MODES, Needs, Trace, in_child, in_child_that, put_with};
use tierpack_tests::{Daemon, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off", "--refit", "manual"])
}

fn open() -> Gpu {
    Gpu::open(&GpuConfig::new()).expect("a GPU")
}

fn row_bytes(handle: &Handle) -> usize {
    usize::try_from(handle.row_bytes()).expect("a row of a test")
}

/// The rows of a tensor, one behind the other.
fn rows(bytes: &[u8], row_bytes: usize, ids: &[u64]) -> Vec<u8> {
    let at = |&id: &u64| &bytes[usize::try_from(id).expect("a row of a test") * row_bytes..][..row_bytes];
    ids.iter().flat_map(at).copied().collect()
}

/// Row numbers, some of them several times.
fn some_ids(random: &mut Random, n_rows: u64, len: usize) -> Vec<u64> {
    (0..len).map(|_| random.next_u64() % n_rows * (random.next_u64() % 3) / 2).collect()
}

#[track_caller]
fn check(handle: &DeviceHandle, gpu: &Gpu, bytes: &[u8], ids: &[u64], what: &str) {
    let tensor = handle.gather(&gpu.ids(ids).expect("few ids")).expect("rows that are there");
    same(&tensor, &rows(bytes, row_bytes(handle.handle()), ids), what);
}

#[track_caller]
fn same(tensor: &DeviceTensor, wanted: &[u8], what: &str) {
    let got = tensor.to_host().expect("rows that are there");
    assert_eq!(got.len(), wanted.len(), "{what}");
    let at = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    assert_eq!(at, None, "{what}: the first byte that is not what was put");
}

fn check_every_codec(daemon: &Daemon, gpu: &Gpu, is_cached: bool) {
    let client = daemon.client();
    let mut random = Random::new(5);
    for &codec in CodecId::ALL {
        for (n_rows, row_bytes) in [(600, 1024), (1, 72), (17, 5000), (90, 64)] {
            let (handle, bytes) = put_with(&client, "t", codec, n_rows, row_bytes);
            for cache_bytes in [0, 20_000, 1 << 20] {
                let device = handle.on_device(gpu, CacheConfig::new(cache_bytes)).expect("it fits");
                assert!(device.cache().bytes <= cache_bytes);
                for round in 0..3 {
                    let ids = some_ids(&mut random, n_rows, 40);
                    check(&device, gpu, &bytes, &ids, &format!("{codec} {n_rows} x {row_bytes} {round}"));
                }
            }
        }
    }
    let counts = daemon.stats().reads;
    assert_eq!(counts.device_hits > 0, is_cached);
    assert!(counts.device_gathers > 0 && counts.device_bytes > 0);
}

#[test]
fn every_codec_comes_bit_for_bit_in_every_way() {
    if !in_child("every_codec_comes_bit_for_bit_in_every_way", ACCESSES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    let is_staged = std::env::var("TIERPACK_DEVICE_ACCESS").is_ok_and(|access| access == "staged");
    check_every_codec(&daemon, &gpu, !is_staged);
    drop(gpu);
    daemon.quiet();
}

#[test]
fn every_codec_comes_bit_for_bit_whenever_the_gpu_works() {
    if !in_child_that(Needs::InPlace, "every_codec_comes_bit_for_bit_whenever_the_gpu_works", MODES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    check_every_codec(&daemon, &gpu, true);
    drop(gpu);
    daemon.quiet();
}

#[test]
fn a_row_number_out_of_range_is_named_with_its_position() {
    if !in_child("a_row_number_out_of_range_is_named_with_its_position", ACCESSES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    let (handle, bytes) = put_with(&daemon.client(), "t", CodecId::Ibp, 100, 256);
    let device = handle.on_device(&gpu, CacheConfig::new(1 << 20)).expect("it fits");
    for (position, bad) in [(0, 100), (7, i64::MAX), (39, -1), (12, -100)] {
        let mut ids: Vec<i64> = (0..40).map(|n| n * 2).collect();
        ids[position] = bad;
        let outcome = device.gather(&gpu.ids(&ids).expect("few ids")).and_then(|tensor| tensor.wait());
        let found = outcome.expect_err("a row number out of range");
        let is_it = matches!(found, Error::RowOutOfRange { position: at, row, n_rows: 100 }
            if at == position && row == i128::from(bad));
        assert!(is_it, "{found}");
        check(&device, &gpu, &bytes, &[99, 0], "the next gather");
    }
    assert_eq!(device.gather(&gpu.ids::<u32>(&[]).expect("none")).expect("nothing").shape(), [0, 32]);
}

#[test]
fn hot_rows_come_from_the_cache_and_are_counted() {
    if !in_child_that(Needs::InPlace, "hot_rows_come_from_the_cache_and_are_counted", MODES) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    let (handle, bytes) = put_with(&daemon.client(), "t", CodecId::Planes4, 2000, 512);
    let device = handle.on_device(&gpu, CacheConfig::new(2 << 20)).expect("it fits");
    let ids: Vec<u64> = (0..100).map(|n| n * 19).collect();
    let on_gpu = gpu.ids(&ids).expect("few ids");
    let mut out = device.output(100).expect("it fits");
    let mut total = (0, 0);
    for round in 0..3 {
        let counts = device.gather_into(&on_gpu, &mut out).expect("rows").wait().expect("rows");
        assert_eq!(counts.hits + counts.misses, 100);
        assert_eq!(counts.hits, if round == 0 { 0 } else { 100 });
        assert_eq!(counts.inserts, counts.misses);
        same(&out, &rows(&bytes, 512, &ids), "hot rows");
        total = (total.0 + counts.hits, total.1 + counts.misses);
    }
    let counts = daemon.stats().reads;
    assert_eq!((counts.device_hits, counts.device_misses), total);
    assert_eq!((counts.device_gathers, counts.device_inserts), (3, 100));
    // Emptied, it fetches every row again.
    device.clear();
    assert_eq!(device.gather_into(&on_gpu, &mut out).expect("rows").wait().expect("rows").hits, 0);
    // Kept rows stay while everything else passes by.
    device.clear();
    let kept = device.keep(&ids).expect("rows in range");
    assert_eq!((kept.inserts, kept.hits), (100, 0));
    for _ in 0..20 {
        check(&device, &gpu, &bytes, &(0..2000).collect::<Vec<_>>(), "all rows");
    }
    assert_eq!(device.gather_into(&on_gpu, &mut out).expect("rows").wait().expect("rows").hits, 100);
    same(&out, &rows(&bytes, 512, &ids), "kept rows");
}

#[test]
fn after_the_first_launches_nothing_is_allocated() {
    let trace = Trace::new();
    if !in_child("after_the_first_launches_nothing_is_allocated", &[&[("FAKE_CUDA_TRACE", trace.path())]]) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    // It leaves no room for the tensor, whose new segment then has some for its updates and folds: one more segment
    // would be registered.
    put_with(&daemon.client(), "filler", CodecId::Raw, 1500, 512);
    let (handle, mut bytes) = put_with(&daemon.client(), "t", CodecId::Ibp, 500, 512);
    let device = handle.on_device(&gpu, CacheConfig::new(100_000)).expect("it fits");
    let mut ids = gpu.ids(&[0_u64; 64]).expect("few ids");
    let mut out = device.output(64).expect("it fits");
    let made =
        || ["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostRegister_v2", "cuEventCreate"].map(Trace::count);
    let mut before = made();
    for round in 0..20_u8 {
        let rows_of_round: Vec<u64> = (0..64).map(|n| (n * 31 + u64::from(round)) % 500).collect();
        handle.update(&[u64::from(round)], &[round; 512]).expect("a row in range");
        bytes[usize::from(round) * 512..][..512].fill(round);
        ids.set(&rows_of_round).expect("few ids");
        device.gather_into(&ids, &mut out).expect("rows").wait().expect("rows");
        if round == 2 {
            before = made();
        }
        same(&out, &rows(&bytes, 512, &rows_of_round), "rows");
    }
    assert_eq!(made(), before);
}

#[test]
fn several_tensors_take_one_launch() {
    let trace = Trace::new();
    if !in_child("several_tensors_take_one_launch", &[&[("FAKE_CUDA_TRACE", trace.path())]]) {
        return;
    }
    let (daemon, gpu) = (start(), open());
    let client = daemon.client();
    let mut random = Random::new(3);
    let codecs = [CodecId::Raw, CodecId::Ibp, CodecId::Planes3, CodecId::Sparse];
    let tables: Vec<_> = codecs
        .iter()
        .zip([64, 512, 2048, 520])
        .map(|(&codec, row_bytes)| {
            let (handle, bytes) = put_with(&client, codec.name(), codec, 100, row_bytes);
            (handle.on_device(&gpu, CacheConfig::new(50_000).multiprocessors(2)).expect("it fits"), bytes)
        })
        .collect();
    for round in 0..3 {
        let ids: Vec<Vec<u64>> = (0..5).map(|n| some_ids(&mut random, 100, n * 7)).collect();
        let on_gpu: Vec<_> = ids.iter().map(|ids| gpu.ids(ids).expect("few ids")).collect();
        // One of them twice.
        let which = [0, 1, 2, 3, 1];
        let gathers: Vec<_> = which.iter().zip(&on_gpu).map(|(&n, ids)| (&tables[n].0, ids)).collect();
        let launches = Trace::count("cuLaunchKernel");
        let outputs = gpu.gather_many(&gathers).expect("rows that are there");
        for ((out, ids), n) in outputs.iter().zip(&ids).zip(which) {
            let (handle, bytes) = &tables[n];
            same(out, &rows(bytes, row_bytes(handle.handle()), ids), &format!("table {n}, round {round}"));
        }
        assert_eq!(Trace::count("cuLaunchKernel"), launches + 1);
    }
    assert!(gpu.gather_many(&[]).expect("nothing").is_empty());
    let other = open();
    let refused = other.gather_many(&[(&tables[0].0, &gpu.ids(&[1_u64]).expect("one"))]);
    assert!(matches!(refused, Err(Error::Gpu(GpuError::OtherDevice { .. }))));
}

#[test]
fn tensors_that_one_transaction_replaces_are_read_together() {
    if !in_child("tensors_that_one_transaction_replaces_are_read_together", ACCESSES) {
        return;
    }
    let daemon = Daemon::with_faults(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let (client, gpu) = (daemon.client(), open());
    let put_both = |value: u8| {
        let put = client.put_many(["a", "b"], true).expect("free claims");
        ["a", "b"]
            .iter()
            .for_each(|name| drop(put.put(name, Dtype::U8, &[8, 64], &[value; 512]).expect("room")));
        put.commit().expect("it is whole");
    };
    put_both(0);
    let old = client.open("a").expect("it is there");
    old.get().expect("it is there");
    let ids = gpu.ids(&[3_u64, 0]).expect("few ids");
    daemon.arm(Point::PutPublished, "pause");
    std::thread::scope(|scope| {
        scope.spawn(|| put_both(1));
        // It is visible, and what it replaces is not gone yet.
        let fresh = eventually("the new tensors", || {
            let fresh = client.open("b").expect("it is there");
            (fresh.get().expect("it is there").as_bytes()[0] == 1).then_some(fresh)
        });
        let device =
            [&old, &fresh].map(|handle| handle.on_device(&gpu, CacheConfig::new(0)).expect("it fits"));
        let (gpu, ids, old) = (&gpu, &ids, &old);
        let read = scope.spawn(move || {
            let both = gpu.get_many_to_device(&[old, &fresh]).expect("they are there");
            let rows = gpu.gather_many(&[(&device[0], ids), (&device[1], ids)]).expect("they are there");
            let first = |tensor: DeviceTensor| tensor.to_host().expect("rows that are there")[0];
            both.into_iter().chain(rows).map(first).collect::<Vec<_>>()
        });
        // Long enough for calls that do not wait.
        std::thread::sleep(Duration::from_millis(100));
        daemon.arm(Point::PutPublished, "off");
        assert_eq!(read.join().expect("a reader"), [1; 4]);
    });
}
