//! Tensors read to a GPU: every codec, every way to read the pool, whatever happens to the tensor meanwhile.

use tierpack_client::{Client, CodecId, Dtype, Error, Gpu, GpuConfig, GpuError};
use tierpack_tests::device::{ACCESSES, MODES, in_child, put_with, words_for};
use tierpack_tests::{Daemon, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"])
}

fn open() -> Gpu {
    Gpu::open(&GpuConfig::new()).expect("a GPU")
}

/// Puts and reads a tensor of every codec, and compares every byte with what `get` gives.
fn check_every_codec(client: &Client, gpu: &Gpu) {
    for &codec in CodecId::ALL {
        for (rows, row_bytes) in [(300, 2048), (1, 72), (77, 5000), (3, 400_000)] {
            let (handle, bytes) = put_with(client, "t", codec, rows, row_bytes);
            let tensor = handle.get_to_device(gpu).expect("it fits");
            assert_eq!((tensor.dtype(), tensor.shape()), (handle.dtype(), &handle.shape()[..]));
            assert!(tensor.address() % 256 == 0 && tensor.len() == rows * row_bytes);
            assert!(tensor.to_host().expect("it is whole") == bytes, "{codec} {rows} x {row_bytes}");
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
    assert_eq!((Some(access.mode.name()), access.reason), (std::env::var("TIERPACK_DEVICE_ACCESS").ok().as_deref(), None));
    assert_eq!(access.registered_segments > 0, access.mode.name() == "registered");
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
