//! Data that drift: a real embedding table while it is trained, with refits and without.
//!
//! `cargo test -p tierpack-tests --test drift -- --nocapture` prints what is stored after each step.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tierpack_client::{Dtype, Handle, PutOptions};
use tierpack_tests::data::Random;
use tierpack_tests::{Daemon, eventually, files};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const NAME: &str = "embedding.weight";
const SHAPE: [u64; 2] = [4096, 64];
const ROW_BYTES: usize = 64 * 4;

/// The table before training, after 200 steps and after 1000.
fn table(step: &str) -> Vec<u8> {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| "tests".into(), PathBuf::from);
    let (tensors, _) = files::read(&folder.join(format!("data/embed_step{step}.safetensors")));
    tensors[NAME].bytes.clone()
}

/// Reads random rows until the end: each must be that of one of the tables. Gives how many it read.
fn read(handle: &Handle, tables: &[Vec<u8>; 3], seed: u64, is_over: &AtomicBool) -> u64 {
    let (mut random, mut row, mut reads) = (Random::new(seed), [0; ROW_BYTES], 0);
    while !is_over.load(Ordering::Relaxed) {
        let id = random.below(SHAPE[0]);
        handle.gather_into(&[id], &mut row).expect("the tensor is there");
        let at = usize::try_from(id).expect("a small table") * ROW_BYTES;
        let is_known = tables.iter().any(|table| table[at..at + ROW_BYTES] == row);
        assert!(is_known, "row {id} is none of the three");
        reads += 1;
    }
    reads
}

/// Stored bytes after the put, after each update, at the end, and of a fresh put of the last table.
fn stored(refit: &str, tables: &[Vec<u8>; 3]) -> ([u64; 5], u32, u64) {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "256MiB", "--lock", "off", "--refit", refit]);
    let client = daemon.client();
    let put = |name: &str, bytes: &[u8]| {
        let put = client.put_with(name, Dtype::F32, &SHAPE, &mut &bytes[..], &PutOptions::new());
        put.expect("room").stored_bytes
    };
    let bytes = || client.drift(NAME).expect("it is there").stored_bytes;
    let (mut all, is_over, reads) =
        ([put(NAME, &tables[0]), 0, 0, 0, 0], AtomicBool::new(false), AtomicU64::new(0));
    let handle = client.open(NAME).expect("it is there");
    let rows: Vec<u64> = (0..SHAPE[0]).collect();
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (handle, is_over, reads) = (&handle, &is_over, &reads);
            scope.spawn(move || reads.fetch_add(read(handle, tables, seed, is_over), Ordering::Relaxed));
        }
        for step in [1, 2] {
            handle.update(&rows, &tables[step]).expect("room");
            all[step] = bytes();
        }
        if refit == "auto" {
            eventually("a refit of the last table", || {
                let drift = client.drift(NAME).expect("it is there");
                let is_done = drift.refits > 0 && drift.blocks_left == 0 && drift.predicted_bytes > 0;
                (is_done && drift.stored_bytes * 100 <= drift.predicted_bytes * 101).then_some(())
            });
        } else {
            // As long as it takes a daemon that refits to notice that the table rests.
            std::thread::sleep(std::time::Duration::from_secs(4));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    if refit == "auto" {
        // Nothing changes any more: what came takes the place of what was promised.
        eventually("the outcome of the refit", || {
            let drift = client.drift(NAME).expect("it is there");
            let entries = client.list().expect("a list");
            let entry = entries.iter().find(|entry| entry.name == NAME)?;
            ([drift.predicted_bytes, entry.predicted_bytes] == [drift.stored_bytes; 2]).then_some(())
        });
    }
    all[3] = bytes();
    let whole = client.get(NAME).expect("it is there");
    assert_eq!(whole.as_bytes(), &tables[2][..], "the last table, bit for bit");
    let generation = client.drift(NAME).expect("it is there").generation;
    all[4] = put("fresh", &tables[2]);
    (all, generation, reads.into_inner())
}

#[test]
fn a_table_in_training_is_as_small_as_a_fresh_put_after_a_refit_and_not_without() {
    let tables = ["0000", "0200", "1000"].map(table);
    println!(
        "stored bytes         put   step 200  step 1000     at rest  fresh put  generation      rows read"
    );
    let [with, without] = ["auto", "manual"].map(|refit| {
        let (bytes, generation, reads) = stored(refit, &tables);
        let [put, first, second, rest, fresh] = bytes;
        println!(
            "--refit {refit:7} {put:9} {first:10} {second:10} {rest:11} {fresh:10} {generation:11} {reads:14}"
        );
        assert!(reads > 0);
        bytes
    });
    let [.., rest, fresh] = with;
    assert!(rest.abs_diff(fresh) * 100 <= fresh, "{rest} bytes with refits, {fresh} fresh");
    let [.., rest, fresh] = without;
    assert!(rest * 100 > fresh * 101, "{rest} bytes without refits, {fresh} fresh");
}
