//! libFuzzer over [`tierpack_fuzz::block_header`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tierpack_fuzz::block_header(data));
