//! libFuzzer over [`tierpack_fuzz::decode`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tierpack_fuzz::decode(data));
