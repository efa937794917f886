//! Captures and graphs: what is refused meanwhile, and what a replay does.

use std::ptr;
use std::thread;

use crate::harness::{
    CUgraph, CUgraphExec, CUstream, Shared, alone, device, enter, event, kernel, launch, open, ptx, stream,
    words,
};

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

fn begin(stream: CUstream, mode: i32) {
    use cudarc::driver::sys::CUstreamCaptureMode as Mode;
    let mode = match mode {
        GLOBAL => Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        THREAD_LOCAL => Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        _ => Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
    };
    ok!(cuStreamBeginCapture_v2(stream, mode));
}

fn end(stream: CUstream) -> (u32, CUgraph) {
    let mut graph = ptr::null_mut();
    let code = cu!(cuStreamEndCapture(stream, &raw mut graph));
    (code, graph)
}

/// Whether a stream captures: no, yes, or lost.
fn status(stream: CUstream) -> u32 {
    use cudarc::driver::sys::CUstreamCaptureStatus as Status;
    let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
    ok!(cuStreamIsCapturing(stream, &raw mut status));
    status as u32
}

/// The call answers 900 during a capture of these modes, and the capture is lost.
#[track_caller]
fn refused_in(modes: &[i32], stream: CUstream, call: impl Fn() -> u32) {
    for &mode in modes {
        begin(stream, mode);
        assert_eq!(status(stream), 1);
        assert_eq!(call(), 900);
        assert_eq!(status(stream), 2);
        let (code, graph) = end(stream);
        assert_eq!((code, graph), (901, ptr::null_mut()));
        assert_eq!(status(stream), 0);
    }
}

/// What might break a capture is refused unless the capture is relaxed, or the thread.
#[track_caller]
fn unsafe_then(stream: CUstream, call: impl Fn() -> u32) {
    refused_in(&[GLOBAL, THREAD_LOCAL], stream, call);
}

/// What waits for the captured stream is refused in every mode, also of the thread.
#[track_caller]
fn conflicting(stream: CUstream, call: impl Fn() -> u32) {
    refused_in(&[GLOBAL, THREAD_LOCAL, RELAXED], stream, &call);
    exchange(RELAXED);
    refused_in(&[GLOBAL, THREAD_LOCAL, RELAXED], stream, &call);
    assert_eq!(exchange(GLOBAL), RELAXED);
}

/// Sets what this thread takes from captures; returns what it was.
fn exchange(mode: i32) -> i32 {
    use cudarc::driver::sys::CUstreamCaptureMode as Mode;
    let mut exchanged = match mode {
        GLOBAL => Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        THREAD_LOCAL => Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        _ => Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
    };
    ok!(cuThreadExchangeStreamCaptureMode(&raw mut exchanged));
    exchanged as i32
}

#[test]
fn what_must_not_be_called_while_capturing_is_refused() {
    alone("capture::what_must_not_be_called_while_capturing_is_refused", &[], || {
        open();
        let (stream, shared, held) = (stream(), Shared::new(4096), Shared::new(4096));
        assert_eq!(held.register(3), 0);
        let (mut at, mut host, mut module, text) =
            (0, ptr::null_mut(), ptr::null_mut(), ptx("legal_order", 2));
        let (at, host, module) = (&raw mut at, &raw mut host, &raw mut module);
        unsafe_then(stream, || shared.register(3));
        unsafe_then(stream, || cu!(cuMemHostUnregister(held.host())));
        unsafe_then(stream, || cu!(cuMemAlloc_v2(at, 64)));
        conflicting(stream, || cu!(cuMemAllocAsync(at, 64, stream)));
        unsafe_then(stream, || cu!(cuMemHostAlloc(host, 64, 0)));
        unsafe_then(stream, || cu!(cuModuleLoadData(module, text.as_ptr().cast())));
        unsafe_then(stream, || cu!(cuMemsetD8_v2(0, 0, 0)));
        conflicting(stream, || cu!(cuStreamSynchronize(stream)));
        conflicting(stream, || cu!(cuStreamQuery(stream)));
        conflicting(stream, || cu!(cuCtxSynchronize()));
        // A thread that is relaxed may call them, and the capture is whole.
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            exchange(RELAXED);
            begin(stream, mode);
            let mut at = 0;
            ok!(cuMemAlloc_v2(&raw mut at, 64));
            ok!(cuMemFree_v2(at));
            assert_eq!(shared.register(3), 0);
            ok!(cuMemHostUnregister(shared.host()));
            ok!(cuModuleLoadData(module, text.as_ptr().cast()));
            assert_eq!(end(stream).0, 0);
            exchange(GLOBAL);
        }
        // The same calls succeed after it.
        assert_eq!(shared.register(3), 0);
        ok!(cuMemAlloc_v2(at, 64));
        ok!(cuMemHostUnregister(held.host()));
    });
}

#[test]
fn the_legacy_stream_is_an_implicit_dependency_of_streams_that_wait_for_it() {
    alone("capture::the_legacy_stream_is_an_implicit_dependency_of_streams_that_wait_for_it", &[], || {
        open();
        let mut blocking = ptr::null_mut();
        ok!(cuStreamCreate(&raw mut blocking, 0));
        let at = device(4);
        begin(blocking, RELAXED);
        assert_eq!(cu!(cuMemsetD8_v2(at, 0, 4)), 906);
        assert_eq!(end(blocking).0, 901);
        assert_eq!(end(blocking).0, 401);
    });
}

#[test]
fn other_threads_are_refused_by_global_captures_only() {
    alone("capture::other_threads_are_refused_by_global_captures_only", &[], || {
        open();
        let stream = stream();
        let elsewhere = |own: i32| {
            let call = move || {
                enter();
                assert_eq!(exchange(own), GLOBAL);
                let mut at = 0;
                cu!(cuMemAlloc_v2(&raw mut at, 64))
            };
            thread::spawn(call).join().expect("the thread ends well")
        };
        for (mode, own, code) in [
            (GLOBAL, GLOBAL, 900),
            (GLOBAL, THREAD_LOCAL, 0),
            (GLOBAL, RELAXED, 0),
            (THREAD_LOCAL, GLOBAL, 0),
            (RELAXED, GLOBAL, 0),
        ] {
            begin(stream, mode);
            assert_eq!(elsewhere(own), code, "mode {mode}, {own}");
            assert_eq!(end(stream).0, if code == 0 { 0 } else { 901 });
        }
    });
}

#[test]
fn a_capture_does_not_reach_across_its_border() {
    alone("capture::a_capture_does_not_reach_across_its_border", &[], || {
        open();
        let (inside, outside, before, within) = (stream(), stream(), event(), event());
        ok!(cuEventRecord(before, outside));
        begin(inside, GLOBAL);
        ok!(cuEventRecord(within, inside));
        assert_eq!(cu!(cuEventQuery(within)), 907);
        assert_eq!(cu!(cuEventSynchronize(within)), 907);
        assert_eq!(cu!(cuStreamWaitEvent(inside, before, 0)), 905);
        assert_eq!(end(inside).0, 901);
    });
}

#[test]
fn a_graph_runs_what_was_captured_as_often_as_it_is_launched() {
    for mode in ["late", "sync", "random", "worker"] {
        let variables = [("FAKE_CUDA_MODE", mode)];
        alone("capture::a_graph_runs_what_was_captured_as_often_as_it_is_launched", &variables, || {
            open();
            let (stream, counter, out) = (stream(), device(4), device(128));
            let kernel = kernel("legal_order", 2);
            ok!(cuMemsetD8Async(counter, 0, 4, stream));
            ok!(cuStreamSynchronize(stream));
            begin(stream, THREAD_LOCAL);
            assert_eq!(launch(kernel, 32, &mut [counter, out], stream), 0);
            let (code, graph) = end(stream);
            assert_eq!(code, 0);
            let mut exec: CUgraphExec = ptr::null_mut();
            ok!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
            ok!(cuGraphDestroy(graph));
            for _ in 0..3 {
                ok!(cuGraphLaunch(exec, stream));
            }
            ok!(cuStreamSynchronize(stream));
            assert_eq!(words(counter, 1), [96]);
            ok!(cuGraphExecDestroy(exec));
            assert_eq!(cu!(cuGraphLaunch(exec, stream)), 400);
        });
    }
}
