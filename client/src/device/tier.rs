//! The Device tier: rows gathered on a GPU, the hot ones from a compressed cache in its memory.
//!
//! ```text
//! DeviceHandle   a tensor on a GPU: gather, gather_into, keep, clear           (here)
//! config, ids    the size of a cache; row numbers on the GPU
//! table, cache   what the GPU knows of the tensor; its cache                   (table.rs, cache.rs)
//! launch         requests -> one launch of kernel `gather`                      (launch.rs)
//! report         what a launch reported; rows that were not there, once more   (report.rs)
//! graph          a gather within a CUDA graph                                   (graph.rs)
//! host           without access to the pool: the host gathers                   (host.rs)
//! ```
//!
//! A launch looks each row up in the cache, by row and block word; what is not there it reads from the pool over the
//! bus, decodes, and puts into the cache. Stores by the daemon send nothing to the cache: they store another block
//! word, and the lines of the old one are never hit again.

mod cache;
mod config;
mod graph;
mod host;
mod ids;
mod launch;
mod raw;
mod report;
mod table;

use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_kernels::cuda::driver::{DeviceBuffer, GatherWork, GpuError, Stream};
use tierpack_shm::page::DeviceAccess;

pub use self::config::CacheConfig;
pub use self::graph::GraphGather;
pub use self::ids::DeviceIds;
pub use self::raw::RawGather;
pub use self::report::{DeviceGather, GatherCounts};

pub(super) use self::cache::Snapshot;
pub(super) use self::report::Repair;

use self::cache::{Cache, CacheState};
use self::ids::Ids;
use self::launch::Request;
use self::table::Table;
use super::flight::{DeviceGet, Flight};
use super::gpu::{self, Gpu};
use super::plan::OwnedGuard;
use super::segments::Segments;
use super::tensor::{DeviceTensor, Form};
use crate::error::{Error, Result};
use crate::handle::{Fault, Handle, Opened};
use crate::row_id::RowId;

/// A tensor whose rows are gathered on one GPU, with a cache there; cheap to clone, for any number of threads.
///
/// It stays good as its [`Handle`] does; when the tensor is replaced, its cache starts empty.
/// Dropping it frees the cache once no gather uses it.
#[derive(Clone, Debug)]
pub struct DeviceHandle {
    tier: Arc<Tier>,
}

/// A tensor on a GPU.
#[derive(Debug)]
struct Tier {
    handle: Handle,
    gpu: Arc<gpu::Inner>,
    config: CacheConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: Table,
    cache: Arc<Cache>,
    /// The cache is to be empty.
    is_cleared: bool,
    /// Launches that may be under way.
    flying: Vec<Arc<Flight>>,
    /// The one whose copies came last.
    synced: Option<Arc<Flight>>,
    /// Launches so far, round and round.
    turn: u32,
    /// Whether the launch that is being made changes the device's table or the cache.
    has_steps: bool,
    /// How the cache was before.
    before: CacheState,
}

/// What a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheFacts {
    /// Its bytes, tags included.
    pub bytes: u64,
    /// Rows that it can hold.
    pub lines: u64,
    /// Bytes of a line: what 99 of 100 rows need as they are stored; longer ones go past the cache.
    pub line_bytes: u32,
}

impl Handle {
    /// Brings the tensor's block words and metadata to a GPU, so that its rows can be gathered there.
    ///
    /// Registers the segments that hold its blocks, which may take a tenth of a second per GiB.
    /// A tensor whose rows are longer than a block, or parts of records (access `whole`), is gathered without a cache.
    ///
    /// # Errors
    /// [`Error::NotGatherable`]; [`Error::Gpu`], among others [`GpuError::OutOfMemory`]; else as [`Handle::get`].
    pub fn on_device(&self, gpu: &Gpu, config: CacheConfig) -> Result<DeviceHandle> {
        self.client().shared.check_here()?;
        let gpu = Arc::clone(&gpu.inner);
        // Not first within a capture.
        drop(gpu.gather_kernels()?);
        let is_staged = gpu.access.mode() == DeviceAccess::Staged;
        let bytes = if is_staged { 0 } else { config.bytes };
        let (layout, opened) = self.attempt(|opened| {
            let guard = opened.owned_guard()?;
            Segments::of_process().watch(guard.attachment());
            Ok((cache::layout(&guard, opened, bytes)?, Arc::clone(opened)))
        })?;
        let cache = Cache::new(&gpu, layout)?;
        let table = Table::new(&opened, &gpu, cache.place())?;
        let state = State {
            before: cache.state(),
            table,
            cache,
            is_cleared: false,
            flying: Vec::new(),
            synced: None,
            turn: 0,
            has_steps: false,
        };
        let tier = Tier { handle: self.clone(), gpu, config, state: Mutex::new(state) };
        let this = DeviceHandle { tier: Arc::new(tier) };
        if !is_staged {
            this.settle()?;
        }
        Ok(this)
    }
}

impl DeviceHandle {
    /// The tensor.
    pub fn handle(&self) -> &Handle {
        &self.tier.handle
    }

    /// What its cache is; all zeros where it has none.
    pub fn cache(&self) -> CacheFacts {
        let state = self.tier.state.lock();
        let layout = state.cache.layout();
        CacheFacts { bytes: layout.bytes(), lines: layout.n_lines(), line_bytes: layout.line_bytes() }
    }

    /// Gathers rows into new memory of the GPU, by a launch on a stream of that GPU's.
    ///
    /// It returns once the launch is queued. [`DeviceTensor::wait`] waits for the rows; it also reports a row number
    /// out of range, and gathers rows once more that were not in the pool.
    /// The result has the tensor's shape with `ids.len()` in front.
    ///
    /// # Errors
    /// [`GpuError::OtherDevice`]; else as [`Handle::get_to_device`].
    pub fn gather(&self, ids: &DeviceIds) -> Result<DeviceTensor> {
        let mut out = self.output(ids.len())?;
        // The tensor knows of it.
        drop(self.gather_into(ids, &mut out)?);
        Ok(out)
    }

    /// Gathers rows into the memory of a tensor that is not needed any more, and allocates none on the GPU.
    ///
    /// What was queued for `out` before comes first; all other users of its memory must be done.
    ///
    /// # Errors
    /// [`Error::BufferLength`] when it has another length than the rows; else as [`DeviceHandle::gather`].
    /// After an error `out` holds anything.
    pub fn gather_into(&self, ids: &DeviceIds, out: &mut DeviceTensor) -> Result<DeviceGather> {
        let gpu = &self.tier.gpu;
        let request = self.request_for(ids, out)?;
        out.settle_before(&gpu.stream)?;
        out.empty();
        let get = gather_all(gpu, vec![request], &gpu.stream)?;
        let rows = self.rows(ids.len());
        out.refill(rows.dtype, &rows.shape, get.clone(), &gpu.stream);
        Ok(DeviceGather::new(get))
    }

    /// Memory for so many rows.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn output(&self, n_rows: usize) -> Result<DeviceTensor> {
        self.tier.handle.client().shared.check_here()?;
        let gpu = &self.tier.gpu;
        let rows = self.rows(n_rows);
        let buffer = match rows.len {
            0 => None,
            len => Some(Arc::new(DeviceBuffer::new(&gpu.device, len)?)),
        };
        Ok(DeviceTensor::new(gpu.device.ordinal(), rows, buffer, DeviceGet::default(), &gpu.stream))
    }

    /// Fills the cache with rows, hottest first, and keeps them there until [`DeviceHandle::clear`]; waits for that.
    ///
    /// A row that changes later leaves its line to its new value at the next gather that reads it.
    /// Rows for which their set has no line left are counted as neither inserts nor hits.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`]; else as [`DeviceHandle::gather`].
    pub fn keep<I: RowId>(&self, rows: &[I]) -> Result<GatherCounts> {
        self.tier.handle.check_rows(rows)?;
        let gpu = &self.tier.gpu;
        if self.cache().lines == 0 || gpu.access.mode() == DeviceAccess::Staged {
            return Ok(GatherCounts { bypasses: rows.len() as u64, ..GatherCounts::default() });
        }
        let ids = DeviceIds::new(gpu, rows)?;
        let request = Request { is_keep: true, ..self.request(ids.at(), 0, ids.buffer().map(Arc::clone)) };
        DeviceGather::new(gather_all(gpu, vec![request], &gpu.stream)?).wait()
    }

    /// Empties the cache before the next gather, rows that were to be kept too.
    pub fn clear(&self) {
        self.tier.state.lock().is_cleared = true;
    }

    /// Brings the GPU up to date now, so that the next gather, perhaps within a capture, has little to do; waits.
    ///
    /// # Errors
    /// As [`DeviceHandle::gather`].
    pub fn settle(&self) -> Result<()> {
        let gpu = &self.tier.gpu;
        let request = self.request(Ids { address: 0, len: 0, bytes: 8 }, 0, None);
        match launch::launch(gpu, &[request], &gpu.stream) {
            Ok(flight) => flight.map_or(Ok(()), |flight| flight.wait()),
            Err(Error::Gpu(error)) => Ok(gpu.access.fall_back(error)?),
            Err(error) => Err(error),
        }
    }

    fn rows(&self, n_rows: usize) -> Form {
        let handle = &self.tier.handle;
        let len = handle.row_bytes().saturating_mul(n_rows as u64);
        Form { dtype: handle.dtype(), shape: handle.gathered_shape(n_rows), len }
    }

    fn request(&self, ids: Ids, out: u64, buffer: Option<Arc<DeviceBuffer>>) -> Request {
        let (tier, buffers) = (Arc::clone(&self.tier), buffer.into_iter().collect());
        Request { tier, ids, only: Vec::new(), out, is_keep: false, buffers }
    }

    /// A request over memory of ours.
    fn request_for(&self, ids: &DeviceIds, out: &DeviceTensor) -> Result<Request> {
        self.tier.handle.client().shared.check_here()?;
        let needed = self.tier.gpu.device.ordinal();
        for found in [ids.gpu().device.ordinal(), out.ordinal()] {
            if found != needed {
                return Err(GpuError::OtherDevice { found, needed }.into());
            }
        }
        let bytes = u128::from(self.tier.handle.row_bytes()) * ids.len() as u128;
        if u128::from(out.len()) != bytes {
            return Err(Error::BufferLength { needed: bytes, got: out.len() });
        }
        let mut request = self.request(ids.at(), out.address(), ids.buffer().map(Arc::clone));
        request.buffers.extend(out.buffer().map(Arc::clone));
        Ok(request)
    }
}

impl Gpu {
    /// Gathers rows of several tensors with one launch, each with row numbers of its own, into new memory.
    ///
    /// They are of one moment as by [`Client::get_many`](crate::Client::get_many).
    /// They end together: an error of one is an error of [`DeviceTensor::wait`] for all of them.
    ///
    /// # Errors
    /// As [`DeviceHandle::gather`]; then none is gathered.
    pub fn gather_many(&self, gathers: &[(&DeviceHandle, &DeviceIds)]) -> Result<Vec<DeviceTensor>> {
        let each = gathers.iter().map(|(handle, ids)| handle.output(ids.len()));
        let mut outputs = each.collect::<Result<Vec<_>>>()?;
        // The tensors know of it.
        drop(self.gather_many_into(gathers, &mut outputs)?);
        Ok(outputs)
    }

    /// As [`Gpu::gather_many`], into the memory of tensors that are not needed any more: one per gather.
    ///
    /// # Errors
    /// As [`DeviceHandle::gather_into`]. After an error `outputs` hold anything.
    ///
    /// # Panics
    /// When there are not as many outputs as gathers.
    pub fn gather_many_into(
        &self,
        gathers: &[(&DeviceHandle, &DeviceIds)],
        outputs: &mut [DeviceTensor],
    ) -> Result<DeviceGather> {
        assert_eq!(gathers.len(), outputs.len(), "one output per gather");
        let stream = &self.inner.stream;
        let mut requests = Vec::with_capacity(gathers.len());
        for ((handle, ids), out) in gathers.iter().zip(&mut *outputs) {
            self.inner.check_is(&handle.tier.gpu)?;
            let request = handle.request_for(ids, out);
            requests.push(request.map_err(|error| error.of(handle.handle(), gathers.len()))?);
            out.settle_before(stream)?;
        }
        outputs.iter_mut().for_each(DeviceTensor::empty);
        let get = gather_all(&self.inner, requests, stream)?;
        for ((handle, ids), out) in gathers.iter().zip(&mut *outputs) {
            let rows = handle.rows(ids.len());
            out.refill(rows.dtype, &rows.shape, get.clone(), stream);
        }
        Ok(DeviceGather::new(get))
    }
}

/// Gathers for all requests, which are of this GPU, on a stream that is not being captured.
fn gather_all(gpu: &Arc<gpu::Inner>, requests: Vec<Request>, stream: &Stream) -> Result<DeviceGet> {
    if gpu.access.mode() != DeviceAccess::Staged {
        match launch::launch(gpu, &requests, stream) {
            Ok(None) => return Ok(DeviceGet::default()),
            Ok(Some(flight)) => {
                let repair = Some(Arc::new(Repair::new(gpu, requests)));
                return Ok(DeviceGet { flights: vec![flight], repair });
            }
            Err(Error::Gpu(error)) => gpu.access.fall_back(error)?,
            Err(error) => return Err(error),
        }
    }
    host::gather(gpu, &requests, stream)?;
    Ok(DeviceGet::default())
}

impl State {
    /// Brings the table up to date with `opened`; the copies and what is due to the cache are in `work`.
    ///
    /// The guard that it returns is to be held until the launch has ended.
    fn sync(
        &mut self,
        opened: &Arc<Opened>,
        (gpu, mode): (&gpu::Inner, DeviceAccess),
        work: &mut GatherWork,
    ) -> core::result::Result<OwnedGuard, Fault> {
        let guard = opened.owned_guard()?;
        self.renew(opened, gpu)?;
        self.before = self.cache.state();
        let first = work.steps.len();
        self.cache.sync(&mut self.table, &guard, (gpu, mode), work)?;
        self.has_steps = work.steps.len() > first;
        self.turn = self.turn.wrapping_add(1);
        Ok(guard)
    }

    /// Starts with an empty cache, where that was asked for, or the tensor is another: words of one say nothing of
    /// lines of the other.
    fn renew(&mut self, opened: &Arc<Opened>, gpu: &gpu::Inner) -> Result<()> {
        let is_same = self.table.is_of(opened);
        if is_same && !self.is_cleared {
            return Ok(());
        }
        if Arc::strong_count(&self.cache) == 1 {
            self.cache.unset();
        } else {
            // A graph may be using it at any time.
            self.cache = Cache::new(gpu, *self.cache.layout())?;
        }
        self.table = Table::new(opened, gpu, self.cache.place())?;
        self.is_cleared = false;
        Ok(())
    }

    /// What `sync` asked for did not happen.
    fn fail(&mut self) {
        self.table.spoil();
        self.cache.restore(self.before);
    }

    /// What `sync` asked for is on a stream.
    fn launched(&mut self, flight: &Arc<Flight>) {
        self.table.settle();
        if self.has_steps {
            // It waits for all others.
            self.flying.clear();
            self.synced = Some(Arc::clone(flight));
        }
        self.flying.retain(|flight| flight.event().is_some());
        self.flying.push(Arc::clone(flight));
    }
}
