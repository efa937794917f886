//! The cache's probe and insert on many threads of the host: no row is a mixture.
//!
//! Under `tests/cusim/sanitize.sh thread` every access of two threads to a line is checked to be atomic as well.
#![expect(unsafe_code, reason = "calls into the library of the simulator")]

unsafe extern "C" {
    fn cusim_cache_threads(n_threads: u32, n_sets: u32, n_rows: u32, steps: u32, out: *mut u64);
}

#[test]
fn no_row_is_mixed_on_many_threads() {
    let steps = if cfg!(sanitizer) { 20_000 } else { 200_000 };
    for (n_threads, n_sets, n_rows) in [(8, 1, 12), (8, 1, 100), (6, 4, 40), (4, 16, 500)] {
        let mut out = [0; 5];
        // SAFETY: a place for five numbers; the function keeps nothing.
        unsafe { cusim_cache_threads(n_threads, n_sets, n_rows, steps, out.as_mut_ptr()) };
        let [hits, inserts, changed, lost, mixed] = out;
        println!(
            "{n_threads} threads, {n_rows} rows, {n_sets} sets: {hits} hits, {inserts} inserts, {changed} changed, {lost} lost"
        );
        assert_eq!(mixed, 0);
        assert!(hits > 0 && inserts > 0);
        assert!(hits + inserts + lost <= u64::from(n_threads * steps));
    }
}
