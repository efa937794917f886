//! When work runs: late, at once, by chance, on a thread; and in which order.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Shared, alone, device, enter, event, kernel, launch, open, stream, words};

const NOT_READY: u32 = 600;

/// Copies a word of registered memory, which changes after the call; what the device got.
fn copied_word() -> u32 {
    open();
    let stream = stream();
    let mut shared = Shared::new(4096);
    shared.store(0, 7);
    assert_eq!(shared.register(2), 0);
    let at = device(4);
    ok!(cuMemcpyHtoDAsync_v2(at, shared.host(), 4, stream));
    shared.store(0, 9);
    ok!(cuStreamSynchronize(stream));
    words(at, 1)[0]
}

#[test]
fn page_locked_memory_is_read_when_the_stream_gets_there() {
    alone("schedule::page_locked_memory_is_read_when_the_stream_gets_there", &[], || {
        assert_eq!(copied_word(), 9);
    });
}

#[test]
fn in_mode_sync_work_runs_within_the_call() {
    let variables = [("FAKE_CUDA_MODE", "sync")];
    alone("schedule::in_mode_sync_work_runs_within_the_call", &variables, || assert_eq!(copied_word(), 7));
}

#[test]
fn pageable_memory_is_read_within_the_call() {
    alone("schedule::pageable_memory_is_read_within_the_call", &[], || {
        open();
        let (stream, at) = (stream(), device(4));
        let mut source = [7_u32];
        ok!(cuMemcpyHtoDAsync_v2(at, source.as_ptr().cast(), 4, stream));
        source[0] = 9;
        ok!(cuStreamSynchronize(stream));
        assert_eq!(source, [9]);
        assert_eq!(words(at, 1), [7]);
    });
}

/// A fill on a stream, and an event after it.
fn filled() -> (u64, cudarc::driver::sys::CUstream, cudarc::driver::sys::CUevent) {
    let (stream, event, at) = (stream(), event(), device(4));
    ok!(cuMemsetD32Async(at, 5, 1, stream));
    ok!(cuEventRecord(event, stream));
    (at, stream, event)
}

#[test]
fn questions_run_nothing() {
    alone("schedule::questions_run_nothing", &[], || {
        open();
        let (at, stream, event) = filled();
        for _ in 0..100 {
            assert_eq!(cu!(cuEventQuery(event)), NOT_READY);
            assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
        }
        ok!(cuEventSynchronize(event));
        ok!(cuEventQuery(event));
        ok!(cuStreamQuery(stream));
        assert_eq!(words(at, 1), [5]);
    });
}

/// Until the driver answers that the event has come; the watchdog is far away.
fn poll(event: cudarc::driver::sys::CUevent) {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match cu!(cuEventQuery(event)) {
            0 => return,
            code => assert_eq!(code, NOT_READY),
        }
        assert!(Instant::now() < limit, "the work never runs");
        thread::yield_now();
    }
}

#[test]
fn in_mode_random_and_worker_polling_ends() {
    for mode in ["random", "worker"] {
        for seed in ["1", "2", "3"] {
            let variables = [("FAKE_CUDA_MODE", mode), ("FAKE_CUDA_SEED", seed)];
            alone("schedule::in_mode_random_and_worker_polling_ends", &variables, || {
                open();
                let (at, _, event) = filled();
                poll(event);
                assert_eq!(words(at, 1), [5]);
            });
        }
    }
}

#[test]
fn the_host_may_poll_what_a_kernel_writes() {
    let variables = [("FAKE_CUDA_MODE", "worker")];
    alone("schedule::the_host_may_poll_what_a_kernel_writes", &variables, || {
        open();
        let shared = Shared::new(4096);
        assert_eq!(shared.register(2), 0);
        let (flag, kernel) = (shared.device(), kernel("legal_flag", 2));
        assert_eq!(launch(kernel, 64, &mut [flag, flag + 64], stream()), 0);
        let limit = Instant::now() + Duration::from_secs(60);
        while shared.load(0) == 0 || shared.load(16) == 0 {
            assert!(Instant::now() < limit, "the kernel never runs");
            thread::yield_now();
        }
        assert_eq!((shared.load(0), shared.load(16)), (1, 42));
    });
}

#[test]
fn a_stream_waits_for_the_event_of_another() {
    for mode in ["late", "sync", "random", "worker"] {
        let variables = [("FAKE_CUDA_MODE", mode)];
        alone("schedule::a_stream_waits_for_the_event_of_another", &variables, || {
            open();
            let (first, second, at, copy) = (stream(), stream(), device(4), device(4));
            let event = event();
            for value in 1..50 {
                ok!(cuMemsetD32Async(at, value, 1, first));
                ok!(cuEventRecord(event, first));
                ok!(cuStreamWaitEvent(second, event, 0));
                ok!(cuMemcpyDtoDAsync_v2(copy, at, 4, second));
                ok!(cuStreamSynchronize(second));
                assert_eq!(words(copy, 1), [value]);
            }
        });
    }
}

#[test]
fn threads_that_synchronize_at_once_keep_the_order_of_each_stream() {
    for mode in ["late", "sync", "random", "worker"] {
        let variables = [("FAKE_CUDA_MODE", mode)];
        alone("schedule::threads_that_synchronize_at_once_keep_the_order_of_each_stream", &variables, || {
            open();
            let (counter, out) = (device(4), device(4096));
            let shared = stream().expose_provenance();
            ok!(cuMemsetD8_v2(counter, 0, 4));
            ok!(cuCtxSynchronize());
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(move || {
                        enter();
                        let shared = ptr::with_exposed_provenance_mut(shared);
                        let kernel = kernel("legal_order", 2);
                        for _ in 0..20 {
                            assert_eq!(launch(kernel, 32, &mut [counter, out], shared), 0);
                            ok!(cuStreamSynchronize(shared));
                        }
                    });
                }
            });
            // Each launch drew 32 numbers in a row.
            assert_eq!(words(counter, 1), [4 * 20 * 32]);
            let drawn = words(out, 32);
            assert!(drawn.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{drawn:?}");
        });
    }
}

static CALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn called(by: *mut c_void) {
    CALLED.fetch_add(u32::try_from(by.addr()).unwrap_or(0), Ordering::Relaxed);
}

#[test]
fn host_functions_run_in_order_and_not_before() {
    alone("schedule::host_functions_run_in_order_and_not_before", &[], || {
        open();
        let stream = stream();
        ok!(cuLaunchHostFunc(stream, Some(called), ptr::without_provenance_mut(3)));
        assert_eq!(CALLED.load(Ordering::Relaxed), 0);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(CALLED.load(Ordering::Relaxed), 3);
        assert_eq!(cu!(cuLaunchHostFunc(stream, None, ptr::null_mut())), 1);
    });
}

#[test]
fn streams_have_priorities_within_the_range() {
    alone("schedule::streams_have_priorities_within_the_range", &[], || {
        open();
        let (mut least, mut greatest) = (1, 1);
        ok!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest));
        assert_eq!((least, greatest), (0, -5));
        let priority = |asked| {
            let (mut stream, mut given) = (ptr::null_mut(), 0);
            ok!(cuStreamCreateWithPriority(&raw mut stream, 1, asked));
            ok!(cuStreamGetPriority(stream, &raw mut given));
            given
        };
        assert_eq!([1, 0, -3, -9].map(priority), [0, 0, -3, -5]);
    });
}

#[test]
fn elapsed_time_wants_events_that_have_come_and_take_time() {
    alone("schedule::elapsed_time_wants_events_that_have_come_and_take_time", &[], || {
        open();
        let stream = stream();
        let (mut timed, mut other, mut time) = (ptr::null_mut(), ptr::null_mut(), -1.0);
        ok!(cuEventCreate(&raw mut timed, 0));
        ok!(cuEventCreate(&raw mut other, 0));
        ok!(cuEventRecord(timed, stream));
        ok!(cuEventRecord(other, stream));
        assert_eq!(cu!(cuEventElapsedTime_v2(&raw mut time, timed, other)), NOT_READY);
        ok!(cuStreamSynchronize(stream));
        ok!(cuEventElapsedTime_v2(&raw mut time, timed, other));
        assert!(time >= 0.0);
        assert_eq!(cu!(cuEventElapsedTime_v2(&raw mut time, timed, event())), 400);
        ok!(cuEventDestroy_v2(other));
        assert_eq!(cu!(cuEventQuery(other)), 400);
    });
}
