//! From requests to one launch of `gather`: tables brought up to date, then the calls, then the flight.
//!
//! ```text
//! lock     the state of each tensor's tier, in the order of their addresses
//! guard    a lease on each tensor; nothing is looked at before
//! sync     words that changed, with what they need -> copies                     (table.rs)
//! order    copies wait for launches before them, launches for the last copies    (below)
//! submit   copies, calls up, gather, reports down, event                         (the driver's gather.rs)
//! ```
//!
//! A launch on one stream and copies for another do not meet: copies wait for all launches of their tensor that are
//! under way, and a launch waits for the flight whose copies came last.

use std::sync::Arc;

use parking_lot::MutexGuard;
use tierpack_kernels::cuda::driver::{DeviceBuffer, GatherWork, GpuError, Stream};
use tierpack_kernels::cuda::gather::{GatherCall, GatherTensor, plan};
use tierpack_shm::attachment::NoGuard;
use tierpack_shm::page::{Counter, DeviceAccess};

use super::ids::Ids;
use super::raw;
use super::{State, Tier};
use crate::device::flight::{Flight, Load};
use crate::device::gpu;
use crate::device::plan::OwnedGuard;
use crate::error::Result;
use crate::handle::Fault;
use crate::together::are_current;

/// Rows to gather.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) tier: Arc<Tier>,
    pub(super) ids: Ids,
    /// The positions to gather; empty: all.
    pub(super) only: Vec<u32>,
    /// The device's address of the first row.
    pub(super) out: u64,
    /// Fill the cache, instead of an output.
    pub(super) is_keep: bool,
    /// Memory of ours that the launch uses.
    pub(super) buffers: Vec<Arc<DeviceBuffer>>,
}

impl Request {
    const fn n_items(&self) -> usize {
        if self.only.is_empty() { self.ids.len as usize } else { self.only.len() }
    }
}

/// The tiers of some requests, each once, locked.
struct Locked<'a> {
    tiers: Vec<&'a Arc<Tier>>,
    states: Vec<MutexGuard<'a, State>>,
}

impl<'a> Locked<'a> {
    fn new(requests: &'a [Request]) -> Self {
        let mut tiers: Vec<&Arc<Tier>> = requests.iter().map(|request| &request.tier).collect();
        // One order for everybody, so that nobody waits in a ring.
        tiers.sort_unstable_by_key(|tier| Arc::as_ptr(tier));
        tiers.dedup_by_key(|tier| Arc::as_ptr(tier));
        let states = tiers.iter().map(|tier| tier.state.lock()).collect();
        Self { tiers, states }
    }

    fn place(&self, tier: &Arc<Tier>) -> usize {
        self.tiers.iter().position(|known| Arc::ptr_eq(known, tier)).expect("every request's tier is locked")
    }
}

/// Launches one gather for all requests, which are of this GPU; `None` where there is nothing to do.
///
/// Without requests for ids the tables are brought up to date all the same.
pub(super) fn launch(gpu: &gpu::Inner, requests: &[Request], stream: &Stream) -> Result<Option<Arc<Flight>>> {
    let mut locked = Locked::new(requests);
    let mode = gpu.access.mode();
    let (mut work, guards) = prepare(gpu, &mut locked, mode)?;
    let mut load = load(&locked, guards, requests);
    let launched = calls(gpu, &locked, requests, &mut work, &mut load).and_then(|()| {
        if work.launch.is_none() && work.steps.is_empty() {
            return Ok(None);
        }
        order(&locked, stream)?;
        fly(gpu, &work, load, stream).map(Some)
    });
    let flight = match launched {
        Ok(flight) => flight,
        Err(error) => {
            locked.states.iter_mut().for_each(|state| state.fail());
            return Err(error);
        }
    };
    let Some(flight) = flight else {
        locked.states.iter_mut().for_each(|state| state.table.settle());
        return Ok(None);
    };
    for state in &mut locked.states {
        state.launched(&flight);
    }
    for request in requests.iter().filter(|request| request.n_items() > 0) {
        let page = locked.states[locked.place(&request.tier)].table.opened.page();
        page.count(0, Counter::DeviceGathers, 1);
        if !request.is_keep {
            let row_bytes = request.tier.handle.row_bytes();
            page.count(0, Counter::DeviceBytes, row_bytes.saturating_mul(request.n_items() as u64));
        }
        page.note_device_access(mode);
    }
    Ok(Some(flight))
}

/// Brings every table up to date, under guards that are all held; none is held while one is recovered.
fn prepare(
    gpu: &gpu::Inner,
    locked: &mut Locked<'_>,
    mode: DeviceAccess,
) -> Result<(GatherWork, Vec<OwnedGuard>)> {
    let mut deadline = None;
    loop {
        let (mut work, mut guards) = (GatherWork::default(), Vec::with_capacity(locked.tiers.len()));
        let mut failed = None;
        for (tier, state) in locked.tiers.iter().zip(&mut locked.states) {
            match state.sync(&tier.handle.opened(), (gpu, mode), &mut work) {
                Ok(guard) => guards.push(guard),
                Err(fault) => {
                    failed = Some((*tier, fault));
                    break;
                }
            }
        }
        if failed.is_none() && locked.tiers.len() > 1 {
            let opened: Vec<_> = locked.states.iter().map(|state| Arc::clone(&state.table.opened)).collect();
            let limit = *deadline.get_or_insert_with(|| locked.tiers[0].handle.client().shared.deadline());
            failed = are_current(&opened, &limit).err().map(|(idx, fault)| (locked.tiers[idx], fault));
        }
        let Some((tier, fault)) = failed else { return Ok((work, guards)) };
        drop(guards);
        locked.states.iter_mut().for_each(|state| state.fail());
        if let Fault::Failed(error) = fault {
            return Err(error.of(&tier.handle, locked.tiers.len()));
        }
        let deadline = deadline.get_or_insert_with(|| tier.handle.client().shared.deadline());
        if deadline.left().is_zero() {
            return Err(deadline.passed("read a tensor that is replaced again and again"));
        }
        match fault {
            // Flights that have ended may still have theirs.
            Fault::NoGuard(NoGuard::TooManyLeases) if gpu.reaper.wait_for_oldest() => {}
            // Waits for whatever it takes, as a read to host memory would; then all of them again.
            _ => {
                let place = locked.place(tier);
                let (n_tensors, state) = (locked.tiers.len(), &mut locked.states[place]);
                let synced = tier
                    .handle
                    .attempt(|opened| state.sync(opened, (gpu, mode), &mut GatherWork::default()).map(drop));
                synced.map_err(|error| error.of(&tier.handle, n_tensors))?;
                state.fail();
            }
        }
    }
}

/// Makes the calls, and plans their launch.
fn calls(
    gpu: &gpu::Inner,
    locked: &Locked<'_>,
    requests: &[Request],
    work: &mut GatherWork,
    load: &mut Load,
) -> Result<()> {
    let mut tensors: Vec<&GatherTensor> = Vec::with_capacity(requests.len());
    for request in requests {
        let state = &locked.states[locked.place(&request.tier)];
        tensors.push(state.table.tensor());
        work.calls.push(GatherCall {
            tensor: state.table.address(),
            ids: request.ids.address,
            out: request.out,
            n_ids: u32::try_from(request.n_items()).unwrap_or(u32::MAX),
            id_bytes: request.ids.bytes,
            flags: if request.is_keep { GatherCall::KEEP } else { 0 },
            turn: state.turn,
            ..GatherCall::default()
        });
    }
    if let [request] = requests {
        work.only.clone_from(&request.only);
    }
    // The smallest budget of those that have one.
    let budgets = requests.iter().map(|request| request.tier.config.max_blocks()).filter(|&most| most > 0);
    let max_blocks = budgets.min().unwrap_or(0);
    let mut planned: Vec<_> = tensors.into_iter().zip(&mut work.calls).collect();
    work.launch = plan(&mut planned, gpu.device.facts().n_multiprocessors, max_blocks);
    if let (Some(launch), [request]) = (&work.launch, requests) {
        let row_bytes = request.tier.handle.row_bytes();
        if request.is_keep && row_bytes > 0 {
            let scratch = DeviceBuffer::new(&gpu.device, u64::from(launch.scratch_rows) * row_bytes)?;
            work.calls[0].out = scratch.address();
            load.buffers.push(Arc::new(scratch));
        }
    }
    if work.launch.is_none() {
        work.calls.clear();
        load.n_calls = 0;
    }
    Ok(())
}

/// Has the launch wait for what it must not meet.
fn order(locked: &Locked<'_>, stream: &Stream) -> core::result::Result<(), GpuError> {
    for state in &locked.states {
        let before: &[Arc<Flight>] = if state.has_steps { &state.flying } else { state.synced.as_slice() };
        for event in before.iter().filter_map(|flight| flight.event()) {
            stream.wait(&event)?;
        }
    }
    Ok(())
}

/// All that the launch uses.
fn load(locked: &Locked<'_>, guards: Vec<OwnedGuard>, requests: &[Request]) -> Load {
    let mut load = Load { guards, n_calls: requests.len(), ..Load::default() };
    for state in &locked.states {
        load.buffers.extend(state.table.buffers());
        load.buffers.extend(state.cache.buffer().map(Arc::clone));
    }
    for request in requests {
        load.buffers.extend(request.buffers.iter().map(Arc::clone));
        load.opened.push(Arc::clone(&locked.states[locked.place(&request.tier)].table.opened));
    }
    load
}

/// Submits the work, and watches it from then on.
pub(super) fn fly(gpu: &gpu::Inner, work: &GatherWork, load: Load, stream: &Stream) -> Result<Arc<Flight>> {
    let kernels = gpu.gather_kernels()?;
    let submitted =
        gpu.start(work.needed(), load, |run, load| raw::submit(run, &kernels, work, stream, load));
    submitted.map_err(|failed| failed.error.into())
}
