//! Memory of the device, and what is known of an address.

use std::os::unix::process::ExitStatusExt;
use std::ptr;

use cudarc::driver::sys::CUpointer_attribute as Attribute;

use crate::harness::{Shared, alone, alone_any, device, kernel, launch, open, stream, touch, words};

const MIB: usize = 1 << 20;

#[test]
fn memory_has_a_limit_and_freed_neighbors_are_one_piece() {
    let variables = [("FAKE_CUDA_MEM", "4194304")];
    alone("memory::memory_has_a_limit_and_freed_neighbors_are_one_piece", &variables, || {
        open();
        let (mut free, mut total, mut at) = (0, 0, 0);
        ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((free, total), (4 * MIB, 4 * MIB));
        let pieces = [(); 3].map(|()| device(MIB));
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, MIB)), 2);
        for piece in [pieces[0], pieces[2], pieces[1]] {
            ok!(cuMemFree_v2(piece));
        }
        ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(free, 4 * MIB);
        assert_eq!(device(4 * MIB - 1024), pieces[0]);
        assert_eq!(cu!(cuMemFree_v2(pieces[1])), 1);
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 0)), 1);
    });
}

#[test]
fn new_memory_is_poison_and_fills_reach_it() {
    alone("memory::new_memory_is_poison_and_fills_reach_it", &[], || {
        open();
        let (at, stream) = (device(16), stream());
        assert_eq!(words(at, 4), [0xA5A5_A5A5; 4]);
        ok!(cuMemsetD8Async(at, 1, 4, stream));
        ok!(cuMemsetD32Async(at + 4, 2, 2, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(words(at, 4), [0x0101_0101, 2, 2, 0xA5A5_A5A5]);
        assert_eq!(cu!(cuMemsetD8Async(at, 1, 17, stream)), 1);
    });
}

#[test]
fn a_write_past_the_end_is_found_at_the_free() {
    let said = alone("memory::a_write_past_the_end_is_found_at_the_free", &[], || {
        open();
        let (counter, short) = (device(4), device(64));
        assert_eq!(launch(kernel("legal_order", 2), 32, &mut [counter, short], stream()), 0);
        ok!(cuCtxSynchronize());
        assert_eq!(cu!(cuMemFree_v2(short)), 700);
        assert_eq!(cu!(cuCtxSynchronize()), 700);
    });
    assert!(said.contains("write past the end of a 64-byte device allocation, at +0"), "{said}");
}

#[test]
fn the_host_cannot_touch_device_memory() {
    let name = "memory::the_host_cannot_touch_device_memory";
    let touched = || {
        open();
        assert_eq!(touch(device(4)), 0xA5);
    };
    let output = alone_any(name, &[], touched);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
    alone(name, &[("FAKE_CUDA_PROTECT", "0")], touched);
}

#[test]
fn an_address_is_known_by_its_attributes() {
    alone("memory::an_address_is_known_by_its_attributes", &[], || {
        open();
        let (at, shared) = (device(4096), Shared::new(8192));
        assert_eq!(shared.register(2), 0);
        let host = shared.host().expose_provenance() as u64;
        let ask = |attribute, address: u64| {
            let mut value = 0_u64;
            let code = cu!(cuPointerGetAttribute((&raw mut value).cast(), attribute, address));
            (code, value)
        };
        use Attribute as A;
        assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 8), (0, 2));
        assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 8), (0, at));
        assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 8), (0, 4096));
        assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_HOST_POINTER, at).0, 1);
        for address in [host + 8, shared.device() + 8] {
            assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), (0, 1));
            assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address), (0, shared.device() + 8));
            assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_HOST_POINTER, address), (0, host + 8));
        }
        assert_eq!(ask(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000).0, 1);

        let mut asked = [A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE];
        let (mut kind, mut size) = (9_u32, 9_u64);
        let mut outs = [(&raw mut kind).cast(), (&raw mut size).cast()];
        ok!(cuPointerGetAttributes(2, asked.as_mut_ptr(), outs.as_mut_ptr(), at));
        assert_eq!((kind, size), (2, 4096));
        ok!(cuPointerGetAttributes(2, asked.as_mut_ptr(), outs.as_mut_ptr(), 0x1000));
        assert_eq!((kind, size), (0, 0));
    });
}

#[test]
fn page_locked_memory_has_one_address_and_is_freed_once() {
    alone("memory::page_locked_memory_has_one_address_and_is_freed_once", &[], || {
        open();
        let (mut at, mut on_device, mut flags) = (ptr::null_mut(), 0, 0);
        ok!(cuMemHostAlloc(&raw mut at, 4096, 1));
        ok!(cuMemHostGetDevicePointer_v2(&raw mut on_device, at, 0));
        ok!(cuMemHostGetFlags(&raw mut flags, at));
        assert_eq!((on_device, flags), (at.expose_provenance() as u64, 3));
        assert_eq!(cu!(cuMemHostUnregister(at)), 1);
        ok!(cuMemFreeHost(at));
        assert_eq!(cu!(cuMemFreeHost(at)), 1);
    });
}
