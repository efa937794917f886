//! Faults that are asked for, errors that stay, and the names of all codes.

use std::os::unix::process::ExitStatusExt;
use std::ptr;

use crate::harness::{alone, alone_any, device, kernel, launch, load, open, stream, text};

#[test]
fn the_call_that_is_named_fails_with_the_code_that_is_named() {
    let variables = [("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:2,cuStreamSynchronize:0:719")];
    alone("faults::the_call_that_is_named_fails_with_the_code_that_is_named", &variables, || {
        open();
        let (stream, mut at) = (stream(), 0);
        device(4);
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 4)), 2);
        device(4);
        assert_eq!([0; 3].map(|_| cu!(cuStreamSynchronize(stream))), [719; 3]);
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn a_variable_that_cannot_be_read_ends_the_process() {
    for (variable, value) in
        [("FAKE_CUDA_MODE", "later"), ("FAKE_CUDA_MEM", "4K"), ("FAKE_CUDA_FAIL", "cuInit")]
    {
        let name = "faults::a_variable_that_cannot_be_read_ends_the_process";
        let output = alone_any(name, &[(variable, value)], open);
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(&format!("{variable}={value} cannot be read"))
        );
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    }
}

#[test]
fn there_may_be_no_device() {
    alone("faults::there_may_be_no_device", &[("FAKE_CUDA_DEVICES", "0")], || {
        load();
        assert_eq!(cu!(cuInit(0)), 100);
        let mut count = 0;
        assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), 3);
    });
}

#[test]
fn the_first_steps_come_in_order() {
    alone("faults::the_first_steps_come_in_order", &[], || {
        load();
        let (mut device, mut at) = (0, 0);
        assert_eq!(cu!(cuDeviceGet(&raw mut device, 0)), 3);
        ok!(cuInit(0));
        ok!(cuDeviceGet(&raw mut device, 0));
        assert_eq!(cu!(cuDeviceGet(&raw mut device, 1)), 101);
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 4)), 201);
    });
}

#[test]
fn a_kernel_that_breaks_a_rule_ends_all_work() {
    let said = alone("faults::a_kernel_that_breaks_a_rule_ends_all_work", &[], || {
        open();
        let (stream, at, mut other) = (stream(), device(4096), 0);
        assert_eq!(launch(kernel("broken_masks_never_meet", 1), 32, &mut [at], stream), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), 719);
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut other, 4)), 719);
        assert_eq!(launch(kernel("legal_syncwarp", 1), 32, &mut [at], stream), 719);
    });
    assert!(said.contains("deadlock in kernel broken_masks_never_meet"), "{said}");
}

#[test]
fn a_kernel_that_touches_freed_or_host_memory_faults() {
    for which in ["host", "null"] {
        let name = "faults::a_kernel_that_touches_freed_or_host_memory_faults";
        let said = alone(name, &[("FAKE_CUDA_TEST_WHICH", which)], || {
            open();
            let of_host = std::env::var("FAKE_CUDA_TEST_WHICH").is_ok_and(|which| which == "host");
            let address = if of_host { 0x1000 } else { 0 };
            assert_eq!(launch(kernel("broken_address", 1), 32, &mut [address], stream()), 0);
            assert_eq!(cu!(cuCtxSynchronize()), 700);
        });
        assert!(said.contains("illegal memory access at "), "{said}");
    }
}

#[test]
fn every_code_of_the_bindings_has_its_name() {
    alone("faults::every_code_of_the_bindings_has_its_name", &[], || {
        load();
        use cudarc::driver::sys::CUresult as Code;
        for code in [
            Code::CUDA_SUCCESS,
            Code::CUDA_ERROR_OUT_OF_MEMORY,
            Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
            Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            Code::CUDA_ERROR_EXTERNAL_DEVICE,
            Code::CUDA_ERROR_UNKNOWN,
        ] {
            let (mut name, mut said) = (ptr::null(), ptr::null());
            ok!(cuGetErrorName(code, &raw mut name));
            ok!(cuGetErrorString(code, &raw mut said));
            assert_eq!(text(name), format!("{code:?}"));
            assert!(!text(said).is_empty());
        }
    });
}
