//! libFuzzer over [`tierpack_fuzz::client_page`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tierpack_fuzz::client_page(data));
