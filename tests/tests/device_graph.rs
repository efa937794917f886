//! A gather within a CUDA graph: a replay gathers the tensor as it was at the last refresh, whatever happens to it.

use tierpack_client::{CacheConfig, Client, CodecId, Error, Gpu, GpuConfig, GpuError, RefitMode};
use tierpack_tests::Daemon;
use tierpack_tests::device::{ACCESSES, MODES, Needs, in_child, in_child_that};
use tierpack_tests::rows::{ROW_BYTES, Table, overwrite_what_is_free};

#[path = "device_graph/captured.rs"]
mod captured;

use captured::{Captured, IDS};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const ROWS: u64 = 1100;

fn start() -> Daemon {
    let args = ["--pool-size", "24MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"];
    Daemon::start(PROGRAM, &args)
}

fn table(codec: CodecId) -> Table {
    Table { tensor: 1, codec, n_rows: ROWS }
}

fn update(client: &Client, table: &Table, rows: &[u64], version: u16) {
    client.update("t", rows, &table.rows(rows.iter().copied(), version)).expect("room");
}

#[test]
fn a_replay_reads_what_the_last_refresh_saw() {
    if !in_child_that(Needs::InPlace, "a_replay_reads_what_the_last_refresh_saw", MODES) {
        return;
    }
    let (daemon, gpu) = (start(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let client = daemon.client();
    let all: Vec<u64> = (0..ROWS).collect();
    for codec in [CodecId::Raw, CodecId::Ibp, CodecId::Planes4, CodecId::Sparse] {
        let table = table(codec);
        table.put(&client, "t", 1).expect("room");
        let handle = client.open("t").expect("it is there");
        let handle = handle.on_device(&gpu, CacheConfig::new(1 << 20)).expect("it fits");
        let mut captured = Captured::new(&handle);
        let now = |version: u16| {
            let rows = handle.gather(&gpu.ids(&IDS).expect("few ids")).and_then(|rows| rows.to_host());
            for (row, bytes) in IDS.into_iter().zip(rows.expect("rows").chunks_exact(ROW_BYTES)) {
                assert_eq!(table.version_of(bytes, row, 1..10), Some(version), "{codec}: row {row}");
            }
        };
        (0..2).for_each(|_| captured.check(&table, 1, "as it was put"));
        for version in 2..5 {
            // Overlays, then blocks; the handle sees them at once and fills the cache that both use.
            if version == 2 {
                let mut some = IDS.to_vec();
                some.sort_unstable();
                some.dedup();
                update(&client, &table, &some, version);
            } else {
                update(&client, &table, &all, version);
            }
            now(version);
            captured.check(&table, version - 1, "before a refresh");
            client.refit("t", RefitMode::Force, |_, _| ()).expect("a refit");
            overwrite_what_is_free(&client);
            captured.check(
                &table,
                version - 1,
                "before a refresh, the old memory written anew where it is free",
            );
            now(version);
            captured.refresh().expect("the same tensor");
            (0..2).for_each(|_| captured.check(&table, version, "after a refresh"));
            now(version);
        }
        client.remove("t").expect("it is there");
        overwrite_what_is_free(&client);
        captured.check(&table, 4, "the tensor is gone, and leased");
        assert!(daemon.stats().pool.held_bytes > 0, "nothing is held for the graph");
        assert!(matches!(captured.refresh(), Err(Error::NotFound { .. })));
        captured.check(&table, 4, "after a refresh that failed");
        drop(captured);
        daemon.quiet();
    }
}

#[test]
fn a_graph_of_a_tensor_that_was_replaced_says_so() {
    if !in_child_that(Needs::InPlace, "a_graph_of_a_tensor_that_was_replaced_says_so", MODES) {
        return;
    }
    let (daemon, gpu) = (start(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    let (client, table) = (daemon.client(), table(CodecId::Ibp));
    table.put(&client, "t", 1).expect("room");
    let handle = client.open("t").and_then(|handle| handle.on_device(&gpu, CacheConfig::new(1 << 20)));
    let handle = handle.expect("it fits");
    let mut captured = Captured::new(&handle);
    captured.check(&table, 1, "as it was put");
    for version in 2..4 {
        table.put(&client, "t", version).expect("room");
        let refused = captured.refresh();
        assert!(matches!(refused, Err(Error::Gpu(GpuError::StaleGraph { .. }))), "{refused:?}");
        overwrite_what_is_free(&client);
        captured.check(&table, 1, "what it leased");
        let rows = handle.gather(&gpu.ids(&IDS).expect("few ids")).and_then(|rows| rows.to_host());
        assert!(rows.expect("rows") == table.rows(IDS, version));
    }
    let again = Captured::new(&handle);
    again.check(&table, 3, "a graph of the new tensor");
    captured.check(&table, 1, "beside a graph of the new tensor");
    drop((captured, again));
    daemon.quiet();
}

#[test]
fn a_graph_needs_a_gpu_that_reads_the_pool() {
    if !in_child("a_graph_needs_a_gpu_that_reads_the_pool", &ACCESSES[1..2]) {
        return;
    }
    let (daemon, gpu) = (start(), Gpu::open(&GpuConfig::new()).expect("a GPU"));
    table(CodecId::Ibp).put(&daemon.client(), "t", 1).expect("room");
    let handle = daemon.client().open("t").expect("it is there");
    let handle = handle.on_device(&gpu, CacheConfig::new(1 << 20)).expect("it fits");
    let refused = handle.graph().expect_err("the host gathers");
    assert!(matches!(refused, Error::Gpu(GpuError::NoAccess { asked: "graph", .. })), "{refused}");
}
