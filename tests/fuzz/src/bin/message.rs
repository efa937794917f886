//! libFuzzer over [`tierpack_fuzz::message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tierpack_fuzz::message(data));
