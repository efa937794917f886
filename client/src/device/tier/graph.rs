//! A gather within a CUDA graph.
//!
//! A graph is launched by the caller, at any time and without a word to us.
//! So what it reads stays as it is until the caller says so: block words of its own, and a lease that is held.
//! A replay gathers from the tensor as it was at the last refresh; only the cache is shared with the handle.

use std::sync::Arc;

use tierpack_kernels::cuda::driver::{GatherWork, GpuError, Kernels, Run, Stream};
use tierpack_kernels::cuda::gather::{GatherCall, plan};
use tierpack_shm::page::{Counter, DeviceAccess};

use super::DeviceHandle;
use super::cache::{Cache, Snapshot};
use super::launch::{Request, fly};
use super::report::{GatherCounts, settle};
use super::table::Table;
use crate::device::flight::{Load, Report, count};
use crate::device::gpu;
use crate::device::plan::OwnedGuard;
use crate::error::{Error, Result};
use crate::handle::{Fault, Opened};

/// A gather that a CUDA graph does, and the snapshot that it reads.
///
/// ```text
/// let mut gather = handle.graph()?;            // before the capture
/// begin capture on `stream`
/// gather.capture(ids, out, stream)?;
/// end capture, instantiate
/// loop { gather.refresh(stream)?; launch the graph on `stream` }
/// ```
#[derive(Debug)]
pub struct GraphGather {
    // The lease ends before what keeps its session.
    held: Option<(Snapshot, OwnedGuard)>,
    handle: DeviceHandle,
    table: Table,
    cache: Arc<Cache>,
    pub(super) run: Run,
    pub(super) kernels: Arc<Kernels>,
    /// What the graph has in it, and what that was planned for.
    captured: Option<(Request, (u64, u32, u32))>,
}

impl DeviceHandle {
    /// Prepares a gather for a CUDA graph: takes a lease, and brings the block words to memory of the graph's own.
    ///
    /// # Errors
    /// [`GpuError::NoAccess`] where the GPU cannot read the pool in place; else as [`crate::Handle::on_device`].
    pub fn graph(&self) -> Result<GraphGather> {
        self.settle()?;
        let gpu = &self.tier.gpu;
        if gpu.access.mode() == DeviceAccess::Staged {
            let reason = "the host gathers the rows, which no graph can do".to_owned();
            return Err(GpuError::NoAccess { asked: "graph", reason }.into());
        }
        let kernels = gpu.gather_kernels()?;
        let run = Run::new(&gpu.device, 0)?;
        let state = self.tier.state.lock();
        let cache = Arc::clone(&state.cache);
        let table = Table::new(&state.table.opened, gpu, cache.place())?;
        drop(state);
        let mut this =
            GraphGather { held: None, handle: self.clone(), table, cache, run, kernels, captured: None };
        this.renew(&gpu.stream)?;
        gpu.stream.synchronize()?;
        Ok(this)
    }
}

impl GraphGather {
    /// Takes a new lease, and brings the words that changed to the device, on a stream that replays come on.
    pub(super) fn renew(&mut self, stream: &Stream) -> Result<()> {
        let handle = self.handle.clone();
        let (gpu, before) = (&handle.tier.gpu, self.cache.state());
        let synced = handle.tier.handle.attempt(|opened| self.sync(opened, gpu));
        let flown = synced.and_then(|(guard, work)| {
            self.check_shape()?;
            // The lease until now is for replays that are under way.
            let snapshot = Snapshot::new(&self.cache, &self.table);
            let (snapshots, guards) = self.held.replace((snapshot, guard)).into_iter().unzip();
            let mut buffers: Vec<_> = self.table.buffers().collect();
            buffers.extend(self.cache.buffer().map(Arc::clone));
            let opened = vec![Arc::clone(&self.table.opened)];
            fly(gpu, &work, Load { snapshots, guards, opened, buffers, ..Load::default() }, stream)
        });
        match flown {
            Ok(_) => self.table.settle(),
            Err(_) => {
                self.table.spoil();
                self.cache.restore(before);
            }
        }
        flown.map(drop)
    }

    fn sync(
        &mut self,
        opened: &Arc<Opened>,
        gpu: &gpu::Inner,
    ) -> core::result::Result<(OwnedGuard, GatherWork), Fault> {
        if !self.table.is_of(opened) {
            return Err(Error::Gpu(GpuError::StaleGraph { reason: "the tensor was replaced" }).into());
        }
        let guard = opened.owned_guard()?;
        let mut work = GatherWork::default();
        self.cache.sync(&mut self.table, &guard, (gpu, gpu.access.mode()), &mut work)?;
        Ok((guard, work))
    }

    /// Whether the launch that was captured still suits the tensor.
    fn check_shape(&self) -> Result<()> {
        match &self.captured {
            Some((_, shape)) if *shape != self.shape() => {
                Err(GpuError::StaleGraph { reason: "its metadata or the pool has outgrown it" }.into())
            }
            _ => Ok(()),
        }
    }

    /// What the launch depends on: where the table is, lanes and shared memory of a row.
    fn shape(&self) -> (u64, u32, u32) {
        (self.table.address(), self.table.tensor().lanes, self.table.tensor().window_bytes)
    }

    /// What was captured.
    pub(super) fn has_captured(&mut self, request: Request) {
        self.captured = Some((request, self.shape()));
    }

    pub(super) const fn handle(&self) -> &DeviceHandle {
        &self.handle
    }

    pub(super) fn gpu(&self) -> &Arc<gpu::Inner> {
        &self.handle.tier.gpu
    }

    /// What the last replay reported.
    pub(super) fn last(&self) -> Result<GatherCounts> {
        let Some((request, _)) = &self.captured else { return Ok(GatherCounts::default()) };
        let (status, missed) = self.run.gathered(0, 1);
        let opened = &self.table.opened;
        opened.page().count(0, Counter::DeviceGathers, 1);
        count(opened, &status);
        let report = Report { status, missed: missed.to_vec() };
        settle(self.gpu(), std::slice::from_ref(request), &[report])
    }

    /// The work of the launch itself.
    pub(super) fn work(&self, request: &Request) -> GatherWork {
        let mut call = GatherCall {
            tensor: self.table.address(),
            ids: request.ids.address,
            out: request.out,
            n_ids: request.ids.len,
            id_bytes: request.ids.bytes,
            ..GatherCall::default()
        };
        let facts = self.handle.tier.gpu.device.facts();
        let max_blocks = self.handle.tier.config.max_blocks();
        let launch = plan(&mut [(self.table.tensor(), &mut call)], facts.n_multiprocessors, max_blocks);
        GatherWork { calls: vec![call], launch, ..GatherWork::default() }
    }
}
