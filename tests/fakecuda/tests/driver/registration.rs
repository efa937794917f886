//! Registration of host memory: codes, rights, lifetimes.

use crate::harness::{Shared, alone, device, kernel, launch, open, stream};

const PORTABLE_MAPPED: u32 = 1 | 2;
const IOMEMORY: u32 = 4;
const READ_ONLY: u32 = 8;

#[test]
fn overlaps_and_unknown_addresses_have_their_codes() {
    alone("registration::overlaps_and_unknown_addresses_have_their_codes", &[], || {
        open();
        let shared = Shared::new(1 << 20);
        assert_eq!(shared.register(PORTABLE_MAPPED), 0);
        assert_eq!(shared.register(PORTABLE_MAPPED), 712);
        assert_eq!(cu!(cuMemHostRegister_v2(shared.host().wrapping_byte_add(4096), 4096, 2)), 712);
        assert_ne!(shared.device(), shared.host().expose_provenance() as u64);
        assert_eq!(cu!(cuMemHostUnregister(shared.host().wrapping_byte_add(4096))), 713);
        ok!(cuMemHostUnregister(shared.host()));
        assert_eq!(cu!(cuMemHostUnregister(shared.host())), 713);
        let mut at = 0;
        assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&raw mut at, shared.host(), 0)), 1);
        // Again, and without a place on the device.
        assert_eq!(shared.register(0), 0);
        assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&raw mut at, shared.host(), 0)), 1);
    });
}

#[test]
fn what_is_not_there_or_too_much_is_refused() {
    alone("registration::what_is_not_there_or_too_much_is_refused", &[], || {
        open();
        let shared = Shared::new(8192);
        assert_eq!(shared.register(PORTABLE_MAPPED | IOMEMORY), 801);
        assert_eq!(shared.register(16), 1);
        assert_eq!(cu!(cuMemHostRegister_v2(shared.host(), 0, 0)), 1);
        assert_eq!(cu!(cuMemHostRegister_v2(shared.host(), 512 << 30, 2)), 2);
        assert_eq!(cu!(cuMemHostRegister_v2(shared.host(), 1 << 30, 2)), 1);
        shared.unmap();
        assert_eq!(shared.register(PORTABLE_MAPPED), 1);
    });
}

#[test]
fn a_device_may_refuse_all_registration() {
    let variables = [("FAKE_CUDA_ATTR_99", "0")];
    alone("registration::a_device_may_refuse_all_registration", &variables, || {
        open();
        assert_eq!(Shared::new(4096).register(PORTABLE_MAPPED), 801);
    });
}

#[test]
fn a_read_only_mapping_wants_the_flag_and_a_device_that_knows_it() {
    let name = "registration::a_read_only_mapping_wants_the_flag_and_a_device_that_knows_it";
    let said = alone(name, &[], || {
        open();
        let shared = Shared::read_only(4096);
        let flagged = match std::env::var_os("FAKE_CUDA_ATTR_113") {
            None => 0,
            Some(_) => 801,
        };
        assert_eq!(shared.register(PORTABLE_MAPPED), 1);
        assert_eq!(shared.register(PORTABLE_MAPPED | READ_ONLY), flagged);
    });
    assert!(said.contains("which is read-only, without the flag READ_ONLY"), "{said}");
    let variables = [("FAKE_CUDA_ATTR_113", "0")];
    alone(name, &variables, || unreachable!("the process runs the first body"));
}

#[test]
fn a_kernel_that_writes_through_a_read_only_registration_faults() {
    alone("registration::a_kernel_that_writes_through_a_read_only_registration_faults", &[], || {
        open();
        let shared = Shared::new(4096);
        assert_eq!(shared.register(PORTABLE_MAPPED | READ_ONLY), 0);
        let at = shared.device();
        assert_eq!(launch(kernel("legal_order", 2), 32, &mut [device(4), at], stream()), 0);
        assert_eq!(cu!(cuCtxSynchronize()), 700);
    });
}

#[test]
fn without_an_alias_both_sides_have_one_address() {
    let variables = [("FAKE_CUDA_ALIAS", "0")];
    alone("registration::without_an_alias_both_sides_have_one_address", &variables, || {
        open();
        let shared = Shared::new(4096);
        assert_eq!(shared.register(PORTABLE_MAPPED), 0);
        assert_eq!(shared.device(), shared.host().expose_provenance() as u64);
    });
}

#[test]
fn unmapping_before_unregistering_is_an_error_that_stays() {
    let said = alone("registration::unmapping_before_unregistering_is_an_error_that_stays", &[], || {
        open();
        let shared = Shared::new(8192);
        assert_eq!(shared.register(PORTABLE_MAPPED), 0);
        shared.unmap();
        assert_eq!(cu!(cuMemHostUnregister(shared.host())), 700);
        assert_eq!(cu!(cuCtxSynchronize()), 700);
    });
    assert!(said.contains("were unmapped before cuMemHostUnregister"), "{said}");
}

#[test]
fn other_memory_at_the_same_address_is_not_what_was_registered() {
    let said =
        alone("registration::other_memory_at_the_same_address_is_not_what_was_registered", &[], || {
            open();
            let shared = Shared::new(8192);
            assert_eq!(shared.register(PORTABLE_MAPPED), 0);
            shared.replace();
            assert_eq!(cu!(cuMemHostUnregister(shared.host())), 700);
        });
    assert!(said.contains("8192 bytes at "), "{said}");
}

#[test]
fn what_was_unmapped_and_never_unregistered_is_told_at_the_end() {
    let said =
        alone("registration::what_was_unmapped_and_never_unregistered_is_told_at_the_end", &[], || {
            open();
            let shared = Shared::new(8192);
            assert_eq!(shared.register(PORTABLE_MAPPED), 0);
            shared.unmap();
        });
    assert!(said.contains("8192 bytes at ") && said.contains("never unregistered"), "{said}");
}

#[test]
fn work_that_comes_after_the_unregistration_faults() {
    alone("registration::work_that_comes_after_the_unregistration_faults", &[], || {
        open();
        let (shared, stream) = (Shared::new(4096), stream());
        assert_eq!(shared.register(PORTABLE_MAPPED), 0);
        let (from, to) = (shared.device(), device(4));
        ok!(cuMemcpyDtoDAsync_v2(to, from, 4, stream));
        ok!(cuMemHostUnregister(shared.host()));
        assert_eq!(cu!(cuStreamSynchronize(stream)), 700);
    });
}
