//! Memory and streams of another runtime of the process, here cudarc.
#![expect(unsafe_code, reason = "addresses and streams are the caller's word")]

use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result};
use tierpack_client::{CodecId, DeviceGet, Error, Gpu, GpuConfig, GpuError, Handle, Result};
use tierpack_tests::device::{ACCESSES, in_child, put_with};
use tierpack_tests::{Daemon, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// A GPU of ours, and cudarc's view of the same device, which finds the driver that ours has loaded.
fn open() -> (Gpu, Arc<CudaContext>) {
    let gpu = Gpu::open(&GpuConfig::new()).expect("a GPU");
    let context = CudaContext::new(0).expect("the same GPU");
    // SAFETY: each test uses one stream, and waits for it. With tracking, cudarc waits for events of its own, which
    // would end a capture.
    unsafe { context.disable_event_tracking() };
    (gpu, context)
}

fn start() -> Daemon {
    Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"])
}

fn handle_of(stream: &CudaStream) -> u64 {
    stream.cu_stream().addr() as u64
}

/// Reads into memory of cudarc's, on a stream of cudarc's.
fn get(handle: &Handle, gpu: &Gpu, target: &CudaSlice<u8>, stream: &CudaStream) -> Result<DeviceGet> {
    let (address, _guard) = target.device_ptr(target.stream());
    // SAFETY: both are cudarc's, of the device's primary context, and outlive the read: every test waits for it.
    unsafe { handle.get_to_device_raw(gpu, address, target.len() as u64, handle_of(stream)) }
}

#[test]
fn a_read_on_a_stream_comes_before_what_is_behind_it() {
    if !in_child("a_read_on_a_stream_comes_before_what_is_behind_it", ACCESSES) {
        return;
    }
    let daemon = start();
    let (client, (gpu, context)) = (daemon.client(), open());
    let stream = context.new_stream().expect("a stream");
    for codec in [CodecId::Raw, CodecId::Ibp, CodecId::Sparse] {
        let (handle, bytes) = put_with(&client, "t", codec, 30, 4096);
        let target = stream.alloc_zeros::<u8>(bytes.len()).expect("memory");
        let read = get(&handle, &gpu, &target, &stream).expect("it fits");
        // No wait in between: the copy comes behind the read on the stream.
        assert!(stream.clone_dtoh(&target).expect("a copy") == bytes);
        stream.synchronize().expect("a stream that works");
        read.wait().expect("it is whole");
        assert!(read.is_ready());
        let short = stream.alloc_zeros::<u8>(100).expect("memory");
        let error = get(&handle, &gpu, &short, &stream).expect_err("too short");
        assert!(matches!(error, Error::BufferLength { needed: 122_880, got: 100 }), "{error}");
    }
    drop(gpu);
    daemon.quiet();
}

#[test]
fn a_stream_can_wait_for_a_prefetch() {
    if !in_child("a_stream_can_wait_for_a_prefetch", ACCESSES) {
        return;
    }
    let daemon = start();
    let (client, (gpu, context)) = (daemon.client(), open());
    let stream = context.new_stream().expect("a stream");
    let (handle, bytes) = put_with(&client, "t", CodecId::Planes222, 30, 4096);
    let prefetch = gpu.prefetch(&handle).expect("it fits");
    // SAFETY: a stream of the same context.
    unsafe { prefetch.wait_on(handle_of(&stream)) }.expect("a stream that works");
    let tensor = prefetch.into_tensor();
    let mut copy = vec![0_u8; bytes.len()];
    context.bind_to_thread().expect("a context");
    // SAFETY: the tensor has these bytes, and both outlive the copy, which is waited for.
    unsafe { result::memcpy_dtoh_async(&mut copy, tensor.address(), stream.cu_stream()) }.expect("a copy");
    stream.synchronize().expect("a stream that works");
    assert!(copy == bytes);
    tensor.wait().expect("it is whole");
}

#[test]
fn a_capture_is_refused_and_lives_on() {
    if !in_child("a_capture_is_refused_and_lives_on", ACCESSES) {
        return;
    }
    let daemon = start();
    let (client, (gpu, context)) = (daemon.client(), open());
    let stream = context.new_stream().expect("a stream");
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, 30, 4096);
    let mut target = stream.alloc_zeros::<u8>(bytes.len()).expect("memory");
    stream.synchronize().expect("a stream that works");
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        stream.begin_capture(mode).expect("a capture");
        // SAFETY: nothing is read: the stream is being captured.
        let refused = unsafe { handle.get_to_device_raw(&gpu, 64, bytes.len() as u64, handle_of(&stream)) };
        assert!(matches!(refused, Err(Error::Gpu(GpuError::Capturing { .. }))), "{refused:?}");
        stream.memset_zeros(&mut target).expect("the capture goes on");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture is whole").expect("a graph");
        graph.launch().expect("a launch of the graph");
    }
    assert!(handle.get_to_device(&gpu).expect("it fits").to_host().expect("it is whole") == bytes);
    daemon.quiet();
}

#[test]
fn a_capture_takes_no_harm_from_what_is_done_beside_it() {
    if !in_child("a_capture_takes_no_harm_from_what_is_done_beside_it", ACCESSES) {
        return;
    }
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off"]);
    let (client, (gpu, context)) = (daemon.client(), open());
    let stream = context.new_stream().expect("a stream");
    let mut target = stream.alloc_zeros::<u8>(4096).expect("memory");
    stream.synchronize().expect("a stream that works");
    let (kept, bytes) = put_with(&client, "kept", CodecId::Ibp, 30, 4096);
    // Several segments, which are unmapped once the tensor is removed.
    let (long, _) = put_with(&client, "long", CodecId::Raw, 140, 1 << 20);
    let tensor = long.get_to_device(&gpu).expect("it fits");
    tensor.wait().expect("it is whole");
    let registered = gpu.access().registered_segments;
    assert!(registered >= 3 || gpu.access().mode.name() != "registered", "{registered} segments");
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("a capture");
    client.remove("long").expect("it is there");
    eventually("the end of the segments' registrations", || {
        (gpu.access().registered_segments <= 1).then_some(())
    });
    drop(tensor);
    let read = || kept.get_to_device(&gpu).expect("it fits").to_host().expect("it is whole");
    // From the thread that captures, and from another.
    assert!(
        read() == bytes && thread::scope(|scope| scope.spawn(read).join()).expect("it ends well") == bytes
    );
    // SAFETY: a stream of the same context.
    let waited = unsafe { kept.get_to_device(&gpu).expect("it fits").wait_on(handle_of(&stream)) };
    assert!(matches!(waited, Ok(()) | Err(Error::Gpu(GpuError::Capturing { .. }))), "{waited:?}");
    stream.memset_zeros(&mut target).expect("the capture goes on");
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("the capture is whole").expect("a graph");
    graph.launch().expect("a launch of the graph");
    stream.synchronize().expect("a stream that works");
    // What a thread takes from captures is as it was.
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the mode is read, and the thread's last one written.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result().expect("an answer");
    assert_eq!(mode, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    drop((long, gpu));
    daemon.quiet();
}

#[test]
fn the_current_context_of_a_thread_is_left_alone() {
    if !in_child("the_current_context_of_a_thread_is_left_alone", ACCESSES) {
        return;
    }
    let daemon = start();
    let (client, gpu) = (daemon.client(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let (handle, bytes) = put_with(&client, "t", CodecId::Ibp, 30, 4096);
    let current = || result::ctx::get_current().expect("an answer");
    assert_eq!(current(), None);
    let tensor = handle.get_to_device(&gpu).expect("it fits");
    assert!(tensor.to_host().expect("it is whole") == bytes);
    drop((tensor, gpu));
    assert_eq!(current(), None);
}
