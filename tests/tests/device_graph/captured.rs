//! A gather in a graph that was captured on a stream of cudarc's.
#![expect(unsafe_code, reason = "addresses, streams and graphs are the caller's word")]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr};
use tierpack_client::{DeviceHandle, GraphGather, Result};
use tierpack_tests::rows::{ROW_BYTES, Table};

/// The rows that it gathers.
pub(crate) const IDS: [u64; 12] = [3, 600, 1030, 1099, 0, 3, 77, 1030, 512, 511, 900, 3];

/// A gather that was captured, and what it reads and writes.
pub(crate) struct Captured {
    // Before what the graph uses.
    graph: CudaGraph,
    gather: GraphGather,
    stream: Arc<CudaStream>,
    out: CudaSlice<u8>,
    _ids: CudaSlice<u64>,
}

impl Captured {
    pub(crate) fn new(handle: &DeviceHandle) -> Self {
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
        let places =
            ((ids.device_ptr(&stream).0, IDS.len() as u64, 8), (out.device_ptr(&stream).0, out.len() as u64));
        // SAFETY: memory and stream are kept next to the graph.
        unsafe { gather.capture(places.0, places.1, stream.cu_stream().addr() as u64) }.expect("a capture");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture is whole").expect("a graph");
        Self { graph, gather, stream, out, _ids: ids }
    }

    /// Runs the graph; every row must have this version.
    pub(crate) fn check(&self, table: &Table, version: u16, what: &str) {
        self.check_each(table, |_| version, what);
    }

    /// Runs the graph; each row must have the version that is its.
    pub(crate) fn check_each(&self, table: &Table, version: impl Fn(u64) -> u16, what: &str) {
        self.graph.launch().expect("a launch of the graph");
        let rows = self.stream.clone_dtoh(&self.out).expect("a copy");
        self.stream.synchronize().expect("a stream that works");
        for (row, bytes) in IDS.into_iter().zip(rows.chunks_exact(ROW_BYTES)) {
            assert_eq!(table.version_of(bytes, row, 1..10), Some(version(row)), "{what}: row {row}");
        }
        // SAFETY: the replay is over.
        let counts = unsafe { self.gather.outcome() }.expect("rows that are there");
        assert_eq!(counts.hits + counts.misses, IDS.len() as u64, "{what}");
    }

    pub(crate) fn refresh(&mut self) -> Result<()> {
        // SAFETY: replays come on this stream alone, which is not being captured.
        unsafe { self.gather.refresh(self.stream.cu_stream().addr() as u64) }
    }
}
