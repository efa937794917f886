//! A gather within a CUDA graph: a replay gathers the tensor as it was at the last refresh, whatever happens to it.
#![expect(unsafe_code, reason = "addresses, streams and graphs are the caller's word")]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr};
use tierpack_client::{
    CacheConfig, Client, CodecId, DeviceHandle, Dtype, Error, Gpu, GpuConfig, GpuError, GraphGather,
    RefitMode, Result,
};
use tierpack_tests::device::{ACCESSES, MODES, in_child};
use tierpack_tests::rows::{ROW_BYTES, Table};
use tierpack_tests::{Daemon, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const IDS: [u64; 12] = [3, 600, 1030, 1099, 0, 3, 77, 1030, 512, 511, 900, 3];
const ROWS: u64 = 1100;

fn start() -> Daemon {
    let args =
        ["--pool-size", "24MiB", "--lock", "off", "--refit", "manual", "--max-held-percent", "90"];
    Daemon::start(PROGRAM, &args)
}

fn table(codec: CodecId) -> Table {
    Table { tensor: 1, codec, n_rows: ROWS }
}

/// Puts tensors until the pool is full, and removes them, so that all memory that is free has been written.
fn overwrite_what_is_free(client: &Client) {
    let bytes = vec![0x5A; 128 << 10];
    let name = |n: usize| format!("filler-{n}");
    let put = |n| client.put_with(&name(n), Dtype::U8, &[128 << 10], &mut &bytes[..], &raw());
    let n = (0..).find(|&n| put(n).is_err()).expect("a pool gets full");
    assert!(n > 1, "only {n} fillers fit: nothing was overwritten");
    (0..n).for_each(|n| client.remove(&name(n)).expect("it was put"));
}

/// A gather that was captured, and what it reads and writes.
struct Captured {
    // Before what the graph uses.
    graph: CudaGraph,
    gather: GraphGather,
    stream: Arc<CudaStream>,
    out: CudaSlice<u8>,
    _ids: CudaSlice<u64>,
}

impl Captured {
    fn new(handle: &DeviceHandle) -> Self {
        let context = CudaContext::new(0).expect("the same GPU");
        // SAFETY: each test uses one stream, and waits for it. With tracking, cudarc waits for events of its own,
        // which would end a capture.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().expect("a stream");
        let mut gather = handle.graph().expect("a GPU that reads the pool");
        let out = stream.alloc_zeros::<u8>(IDS.len() * ROW_BYTES).expect("memory");
        let ids = stream.clone_htod(&IDS).expect("memory");
        stream.synchronize().expect("a stream that works");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("a capture");
        let places = ((ids.device_ptr(&stream).0, IDS.len() as u64, 8), (out.device_ptr(&stream).0, out.len() as u64));
        // SAFETY: memory and stream are kept beside the graph.
        unsafe { gather.capture(places.0, places.1, stream.cu_stream().addr() as u64) }.expect("a capture");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture is whole").expect("a graph");
        Self { graph, gather, stream, out, _ids: ids }
    }

    /// Runs the graph; every row must have this version.
    fn check(&self, table: &Table, version: u16, what: &str) {
        self.graph.launch().expect("a launch of the graph");
        let rows = self.stream.clone_dtoh(&self.out).expect("a copy");
        self.stream.synchronize().expect("a stream that works");
        for (row, bytes) in IDS.into_iter().zip(rows.chunks_exact(ROW_BYTES)) {
            assert_eq!(table.version_of(bytes, row, 1..10), Some(version), "{what}: row {row}");
        }
        // SAFETY: the replay is over.
        let counts = unsafe { self.gather.outcome() }.expect("rows that are there");
        assert_eq!(counts.hits + counts.misses, IDS.len() as u64, "{what}");
    }

    fn refresh(&mut self) -> Result<()> {
        // SAFETY: replays come on this stream alone, which is not being captured.
        unsafe { self.gather.refresh(self.stream.cu_stream().addr() as u64) }
    }
}

fn update(client: &Client, table: &Table, rows: &[u64], version: u16) {
    client.update("t", rows, &table.rows(rows.iter().copied(), version)).expect("room");
}

#[test]
fn a_replay_reads_what_the_last_refresh_saw() {
    if !in_child("a_replay_reads_what_the_last_refresh_saw", MODES) {
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
            captured.check(&table, version - 1, "before a refresh, the old memory written anew where it is free");
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
    if !in_child("a_graph_of_a_tensor_that_was_replaced_says_so", MODES) {
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
