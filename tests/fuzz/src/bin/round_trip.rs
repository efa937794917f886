//! libFuzzer over [`tierpack_fuzz::round_trip`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tierpack_fuzz::round_trip(data));
