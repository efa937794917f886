//! Tensors read to a GPU: every codec, every way to read the pool, many at once, and what there is nothing of.

use std::thread;

use tierpack_client::{Client, CodecId, DeviceTensor, Dtype, Error, Gpu, GpuConfig, Handle};
use tierpack_tests::device::{ACCESSES, MODES, Needs, Trace, in_child, in_child_that, put_with};
use tierpack_tests::{Daemon, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off", "--refit", "manual"])
}

fn open() -> Gpu {
    Gpu::open(&GpuConfig::new()).expect("a GPU")
}

fn check(tensor: &DeviceTensor, bytes: &[u8], what: &str) {
    assert!(tensor.to_host().expect("it is whole") == bytes, "{what}: other bytes than were put");
}

/// Puts and reads tensors of every codec, and compares every byte.
fn check_every_codec(client: &Client, gpu: &Gpu) {
    for &codec in CodecId::ALL {
        for (rows, row_bytes) in [(60, 2048), (1, 72), (17, 5000), (2, 100_000)] {
            let (handle, bytes) = put_with(client, "t", codec, rows, row_bytes);
            let tensor = handle.get_to_device(gpu).expect("it fits");
            assert_eq!((tensor.dtype(), tensor.shape()), (handle.dtype(), &handle.shape()[..]));
            assert!(tensor.address().is_multiple_of(256) && tensor.len() == rows * row_bytes);
            check(&tensor, &bytes, &format!("{codec} {rows} x {row_bytes}"));
        }
    }
}

#[test]
fn every_codec_comes_bit_for_bit_in_every_way() {
    if !in_child("every_codec_comes_bit_for_bit_in_every_way", ACCESSES) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    check_every_codec(&client, &gpu);
    let access = gpu.access();
    let wanted = std::env::var("TIERPACK_DEVICE_ACCESS").expect("this test sets it");
    assert_eq!((access.mode.name(), access.reason), (&*wanted, None));
    assert_eq!(access.registered_segments > 0, wanted == "registered");
    let counts = daemon.stats().reads;
    assert_eq!(counts.device_gets, 4 * CodecId::ALL.len() as u64);
    assert!(counts.device_bytes > 0);
    drop((client, gpu));
    daemon.quiet();
}

#[test]
fn every_codec_comes_bit_for_bit_whenever_the_gpu_works() {
    if !in_child("every_codec_comes_bit_for_bit_whenever_the_gpu_works", MODES) {
        return;
    }
    let daemon = start();
    check_every_codec(&daemon.client(), &open());
    daemon.quiet();
}

/// Rows of a tensor that are changed one after the other, so that overlays lie over overlays.
fn update(handle: &Handle, bytes: &mut [u8], round: u8) {
    let row_bytes = usize::try_from(handle.row_bytes()).expect("a row of a test");
    let rows = [u64::from(round), 5, handle.n_rows() - 1];
    let values: Vec<u8> = (0..3 * row_bytes).map(|n| u8::try_from(n % 251).unwrap_or(0) ^ round).collect();
    handle.update(&rows, &values).expect("rows in range");
    for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
        let at = usize::try_from(*row).expect("a row of a test") * row_bytes;
        bytes[at..][..row_bytes].copy_from_slice(value);
    }
}

#[test]
fn rows_that_changed_are_there_with_their_newest_values() {
    if !in_child("rows_that_changed_are_there_with_their_newest_values", ACCESSES) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    for codec in [CodecId::Raw, CodecId::Ibp, CodecId::Planes3] {
        let (handle, mut bytes) = put_with(&client, codec.name(), codec, 300, 1024);
        let mut kept = handle.get_to_device(&gpu).expect("it fits");
        // More rounds than a chain has room for: some fold.
        for round in 0..11 {
            update(&handle, &mut bytes, round);
            handle.get_to_device_into(&gpu, &mut kept).expect("it fits");
            check(&kept, &bytes, &format!("{codec} after round {round}"));
        }
    }
}

#[test]
fn many_tensors_take_one_launch_per_codec() {
    let trace = Trace::new();
    if !in_child("many_tensors_take_one_launch_per_codec", &[&[("FAKE_CUDA_TRACE", trace.path())]]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    let codecs = [CodecId::Raw, CodecId::Ibp, CodecId::Sparse];
    let put = |n: usize| put_with(&client, &format!("t{n}"), codecs[n % 3], 20 + n as u64, 512);
    let (handles, bytes): (Vec<_>, Vec<_>) = (0..30).map(put).unzip();
    let handles: Vec<&Handle> = handles.iter().collect();
    for _ in 0..2 {
        let launches = Trace::count("cuLaunchKernel");
        let allocations = Trace::count("cuMemAlloc_v2");
        let tensors = gpu.get_many_to_device(&handles).expect("they fit");
        assert_eq!(Trace::count("cuLaunchKernel"), launches + codecs.len());
        for (tensor, bytes) in tensors.iter().zip(&bytes) {
            check(tensor, bytes, "one of many");
        }
        assert!(Trace::count("cuMemAlloc_v2") >= allocations + handles.len());
    }
    assert_eq!(gpu.get_many_to_device(&[]).expect("nothing").len(), 0);
}

#[test]
fn a_read_into_a_tensor_allocates_nothing_once_it_has_been_done() {
    let trace = Trace::new();
    let (name, path) = ("a_read_into_a_tensor_allocates_nothing_once_it_has_been_done", trace.path());
    let staged = [("FAKE_CUDA_TRACE", path), ("TIERPACK_DEVICE_ACCESS", "staged")];
    if !in_child(name, &[&[("FAKE_CUDA_TRACE", path)], &staged]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, 100, 2048);
    let mut tensor = handle.get_to_device(&gpu).expect("it fits");
    let calls =
        ["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostRegister_v2", "cuEventCreate", "cuModuleGetFunction"];
    let mut grown = 0;
    for _ in 0..16 {
        tensor.wait().expect("it is whole");
        let before = calls.map(Trace::count);
        handle.get_to_device_into(&gpu, &mut tensor).expect("it fits");
        grown += u32::from(calls.map(Trace::count) != before);
    }
    // Two staging buffers are made before they take turns; a read that comes while another thread is about to give a
    // run back makes one more.
    assert!(grown <= 4, "{grown} of 16 reads allocated: {calls:?}: {:?}", calls.map(Trace::count));
    check(&tensor, &bytes, "after sixteen reads");
}

#[test]
fn what_does_not_fit_is_refused() {
    if !in_child("what_does_not_fit_is_refused", &[&[]]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    let (short, _) = put_with(&client, "short", CodecId::Raw, 4, 64);
    let (long, bytes) = put_with(&client, "long", CodecId::Raw, 8, 64);
    let mut tensor = short.get_to_device(&gpu).expect("it fits");
    let error = long.get_to_device_into(&gpu, &mut tensor).expect_err("it is longer");
    assert!(matches!(error, Error::BufferLength { needed: 512, got: 256 }), "{error}");
    client.remove("long").expect("it is there");
    assert!(matches!(long.get_to_device(&gpu), Err(Error::NotFound { .. })));
    // The same dtype and shape under the same name: the handle finds it again.
    put_with(&client, "long", CodecId::Ibp, 8, 64);
    check(&long.get_to_device(&gpu).expect("it is there again"), &bytes, "after a replacement");
    client.put_with("long", Dtype::U8, &[3], &mut &[1, 2, 3][..], &raw().overwrite(true)).expect("room");
    assert!(matches!(long.get_to_device(&gpu), Err(Error::Replaced { .. })));
}

#[test]
fn tensors_of_nothing_need_no_launch() {
    let trace = Trace::new();
    if !in_child("tensors_of_nothing_need_no_launch", &[&[("FAKE_CUDA_TRACE", trace.path())]]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    for shape in [&[0][..], &[0, 7], &[3, 0]] {
        client.put_with("t", Dtype::F32, shape, &mut &[][..], &raw().overwrite(true)).expect("room");
        let tensor = client.open("t").expect("it is there").get_to_device(&gpu).expect("nothing to read");
        assert!(tensor.is_empty() && tensor.is_ready() && tensor.shape() == shape && tensor.address() == 0);
        assert!(tensor.to_host().expect("nothing").is_empty());
    }
    assert_eq!(Trace::count("cuLaunchKernel"), 0);
}

#[test]
fn a_staging_buffer_may_be_shorter_than_the_tensor_and_than_a_block() {
    if !in_child_that(
        Needs::Staged,
        "a_staging_buffer_may_be_shorter_than_the_tensor_and_than_a_block",
        MODES,
    ) {
        return;
    }
    let daemon = start();
    let client = daemon.client();
    for (bytes, buffers) in [(4096, 2), (300_000, 3)] {
        let config = GpuConfig::new().access(tierpack_client::AccessChoice::Staged);
        let gpu = Gpu::open(&config.staging_bytes(bytes).staging_buffers(buffers)).expect("a GPU");
        let (handle, mut bytes) = put_with(&client, "t", CodecId::Raw, 2000, 1024);
        check(&handle.get_to_device(&gpu).expect("it fits"), &bytes, "staged");
        update(&handle, &mut bytes, 3);
        let tensors = gpu.get_many_to_device(&[&handle, &handle]).expect("they fit");
        tensors.iter().for_each(|tensor| check(tensor, &bytes, "staged, with overlays"));
        let sessions = daemon.stats().sessions;
        assert!(sessions.iter().any(|session| session.device_access.iter().any(|access| access == "staged")));
    }
}

#[test]
fn a_prefetch_is_a_tensor_in_the_end() {
    if !in_child("a_prefetch_is_a_tensor_in_the_end", &[&[], &[("FAKE_CUDA_MODE", "worker")]]) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), open());
    let (handle, bytes) = put_with(&client, "t", CodecId::Planes4, 50, 1000);
    let prefetch = gpu.prefetch(&handle).expect("it fits");
    client.remove("t").expect("it is there");
    prefetch.wait().expect("it is whole");
    assert!(prefetch.is_ready());
    let mut tensor = prefetch.into_tensor();
    check(&tensor, &bytes, "a prefetch");
    // Another stream than that of the prefetch.
    let (other, bytes) = put_with(&client, "other", CodecId::Ibp, 50, 1000);
    other.get_to_device_into(&gpu, &mut tensor).expect("as long");
    check(&tensor, &bytes, "into a prefetch");
}

#[test]
fn a_process_may_open_gpus_and_use_them_from_any_thread() {
    let settings: &[_] = &[&[][..], &[("FAKE_CUDA_MODE", "worker")], &[("TIERPACK_DEVICE_ACCESS", "staged")]];
    if !in_child("a_process_may_open_gpus_and_use_them_from_any_thread", settings) {
        return;
    }
    let daemon = start();
    let client = daemon.client();
    // The same device twice: segments are registered once, for both.
    let gpus = [open(), open()];
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, 100, 1024);
    let read = |n: usize| {
        for round in 0..10 {
            let gpu = &gpus[(n + round) % 2];
            let tensor = handle.get_to_device(gpu).expect("it fits");
            // Every third is dropped before it is there.
            if round % 3 > 0 {
                check(&tensor, &bytes, "one of many threads'");
            }
        }
    };
    let read = &read;
    thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || read(n)))));
    let [first, second] = gpus;
    let (segments, mode) = (first.access().registered_segments, first.access().mode.name());
    assert!(second.access().registered_segments == segments && (segments > 0) == (mode == "registered"));
    drop(first);
    check(&handle.get_to_device(&second).expect("it fits"), &bytes, "the GPU that is left");
    let tensor = handle.get_to_device(&second).expect("it fits");
    drop(second);
    check(&tensor, &bytes, "a tensor that outlives its GPU");
    daemon.quiet();
}
