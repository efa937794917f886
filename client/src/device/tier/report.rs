//! What a gather reported, and rows that were not there.
//!
//! A row that is not in the pool is on a list of its launch: the caller that waits has its block brought there, and
//! gathers these rows alone once more.

use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_kernels::cuda::driver::MISSED_ROOM;
use tierpack_kernels::cuda::gather::GatherStatus;
use tierpack_shm::types::index;

use super::launch::{self, Request};
use super::raw;
use crate::blocks::{check_readable, word};
use crate::device::flight::{DeviceGet, Flight, Report, fault};
use crate::device::gpu;
use crate::error::{Error, Result};
use crate::overlays::chain;

/// What a gather did, all of its tensors together; a row that is longer than a block counts once per block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatherCounts {
    /// Rows that the cache had.
    pub hits: u64,
    /// Rows that came from the pool.
    pub misses: u64,
    /// Of these, rows that went into the cache.
    pub inserts: u64,
    /// Lines that changed while they were read, or that another row was being written to.
    pub conflicts: u64,
    /// Rows from the pool that no line can hold.
    pub bypasses: u64,
}

impl GatherCounts {
    const fn add(&mut self, status: &GatherStatus) {
        self.hits += status.hits;
        self.misses += status.misses;
        self.inserts += status.inserts;
        self.conflicts += status.conflicts;
        self.bypasses += status.bypasses;
    }
}

/// A gather that is on its way; dropping this changes nothing for it.
#[derive(Clone, Debug)]
#[must_use = "whether the rows were all there is only known after `wait`"]
pub struct DeviceGather {
    pub(super) get: DeviceGet,
}

impl DeviceGather {
    pub(super) const fn new(get: DeviceGet) -> Self {
        Self { get }
    }

    /// Waits until the rows are on the GPU.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] with the least position of one; the rows in range are there all the same.
    /// [`Error::Damaged`], [`Error::Unsupported`], [`Error::Gpu`].
    pub fn wait(&self) -> Result<GatherCounts> {
        self.get.wait()?;
        Ok(self.get.repair.as_ref().map_or_else(GatherCounts::default, |repair| repair.counts()))
    }

    /// Whether the launch is over; [`DeviceGather::wait`] then rarely has to wait.
    pub fn is_ready(&self) -> bool {
        self.get.is_ready()
    }
}

/// What is done about a gather once its launch is over.
#[derive(Debug)]
pub(in crate::device) struct Repair {
    gpu: Arc<gpu::Inner>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Until every row is there.
    Open(Vec<Request>),
    Done(GatherCounts),
}

impl Repair {
    pub(super) fn new(gpu: &Arc<gpu::Inner>, requests: Vec<Request>) -> Self {
        Self { gpu: Arc::clone(gpu), state: Mutex::new(State::Open(requests)) }
    }

    fn counts(&self) -> GatherCounts {
        match &*self.state.lock() {
            State::Open(_) => GatherCounts::default(),
            State::Done(counts) => *counts,
        }
    }

    /// Looks at the reports of a launch that is over, and gathers what was not there.
    ///
    /// Who comes meanwhile waits for it.
    pub(in crate::device) fn finish(&self, flight: &Flight) -> Result<()> {
        let mut state = self.state.lock();
        let State::Open(requests) = &*state else { return Ok(()) };
        let counts = settle(&self.gpu, requests, &flight.reports())?;
        let requests = std::mem::replace(&mut *state, State::Done(counts));
        drop(state);
        // Frees memory, perhaps, which is not for under the lock.
        drop(requests);
        Ok(())
    }
}

/// Looks at what was reported for each request, and gathers what was not there.
pub(super) fn settle(gpu: &gpu::Inner, requests: &[Request], reports: &[Report]) -> Result<GatherCounts> {
    let mut counts = GatherCounts::default();
    for (request, report) in requests.iter().zip(reports) {
        counts.add(&report.status);
        let checked = check(gpu, request, report);
        checked.map_err(|error| error.of(&request.tier.handle, requests.len()))?;
    }
    for (request, report) in requests.iter().zip(reports) {
        let gathered = gather_missed(gpu, request, report.clone(), &mut counts);
        gathered.map_err(|error| error.of(&request.tier.handle, requests.len()))?;
    }
    Ok(counts)
}

/// What is wrong with a call, but for rows that were not there.
fn check(gpu: &gpu::Inner, request: &Request, report: &Report) -> Result<()> {
    let handle = &request.tier.handle;
    let status = &report.status;
    if let Ok(position) = u32::try_from(status.bad_position) {
        let row = raw::read_id(gpu, request, position)?;
        return Err(Error::RowOutOfRange {
            position: index(u64::from(position)),
            row,
            n_rows: handle.n_rows(),
        });
    }
    let Some(fault) = fault(status.status) else { return Ok(()) };
    let row = raw::read_id(gpu, request, status.status.first)?;
    let (block_idx, _) = handle.geometry().locate(u64::try_from(row).unwrap_or(0));
    let (namespace, name) = (handle.client().namespace_name().to_owned(), handle.name().to_owned());
    Err(Error::Damaged { namespace, name, block_idx, fault: fault.to_owned() })
}

/// Gathers rows that were not there, until all are.
fn gather_missed(
    gpu: &gpu::Inner,
    request: &Request,
    mut report: Report,
    counts: &mut GatherCounts,
) -> Result<()> {
    let mut deadline = None;
    while report.status.n_missed > 0 {
        let deadline = deadline.get_or_insert_with(|| request.tier.handle.client().shared.deadline());
        if deadline.left().is_zero() {
            return Err(deadline.passed("gather rows that leave the pool again and again"));
        }
        check_resident(gpu, request, &report.missed)?;
        let again = Request { only: positions(&report), ..request.clone() };
        let Some(flight) = launch::launch(gpu, &[again], &gpu.stream)? else { return Ok(()) };
        flight.wait()?;
        let Some(next) = flight.reports().first().cloned() else { return Ok(()) };
        counts.add(&next.status);
        check(gpu, request, &next)?;
        report = next;
    }
    Ok(())
}

/// Has the blocks of these positions brought to the pool.
///
/// No other tier holds blocks yet: a block that is not resident now is one that this version cannot read.
fn check_resident(gpu: &gpu::Inner, request: &Request, missed: &[u32]) -> Result<()> {
    let handle = &request.tier.handle;
    let rows: Vec<i128> =
        missed.iter().map(|&position| raw::read_id(gpu, request, position)).collect::<Result<_>>()?;
    handle.attempt(|opened| {
        let (guard, geometry) = (opened.guard()?, &opened.geometry);
        let words = guard.words()?;
        for row in rows.iter().filter_map(|&row| u64::try_from(row).ok()) {
            let (first, _) = geometry.locate(row);
            for block_idx in first..first + geometry.pieces_per_row() {
                let newest = word(words, block_idx)?;
                let row_bytes = geometry.block(block_idx).row_bytes;
                let mut below = chain(&guard, newest, row_bytes);
                while below.at().is_resident() && below.next()?.is_some() {}
                check_readable(&guard, below.at(), block_idx)?;
            }
        }
        Ok(())
    })
}

/// The positions to gather alone; none where the list had no room for all.
fn positions(report: &Report) -> Vec<u32> {
    if report.status.n_missed > u64::from(MISSED_ROOM) {
        return Vec::new();
    }
    // A row of several blocks may be there several times.
    let mut positions = report.missed.clone();
    positions.sort_unstable();
    positions.dedup();
    positions
}
