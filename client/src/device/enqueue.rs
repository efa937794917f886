//! From plans to launches: where the GPU finds the bytes, and one flight per batch of blocks.

use std::collections::HashMap;
use std::sync::Arc;

use tierpack_kernels::cuda::abi::{BlockJob, OverlayJob};
use tierpack_kernels::cuda::driver::{DeviceBuffer, GpuError, Run, Stage, Stream, Unqueued, Work};
use tierpack_kernels::cuda::launch::{READ_UNIT, decode_launches, overlay_launch};
use tierpack_shm::attachment::{Attachment, NoGuard};
use tierpack_shm::page::{Counter, DeviceAccess};
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::types::{CodecId, index};

use super::flight::{DeviceGet, Flight, Load, abandon};
use super::gpu::Inner;
use super::plan::{OwnedGuard, Plan, PlannedBlock, Stored, Target, Upload};
use super::raw;
use super::segments::{Segments, moved};
use crate::error::{Error, Result};
use crate::handle::Fault;
use crate::together::are_current;

/// Tensors of one launch: their leases are a part of those that a client has.
pub(super) const MOST_TENSORS: usize = 256;

/// Jobs that are on their way into a run.
#[derive(Debug, Default)]
struct Batch {
    blocks: Vec<(CodecId, BlockJob)>,
    overlays: Vec<(u64, OverlayJob)>,
}

impl Batch {
    /// Takes a block with its overlays, of which `address` tells where they are.
    fn push<E>(
        &mut self,
        block: &PlannedBlock,
        mut address: impl FnMut(Stored) -> core::result::Result<u64, E>,
    ) -> core::result::Result<(), E> {
        self.blocks.push((block.codec, BlockJob { src: address(block.stored)?, ..block.job }));
        for overlay in &block.overlays {
            let job = OverlayJob { src: address(overlay.stored)?, ..overlay.job };
            self.overlays.push((overlay.level, job));
        }
        Ok(())
    }

    /// One launch per codec, then one per level of the chains, from the lowest on.
    fn into_work(mut self, n_multiprocessors: u32) -> Work {
        let launches = decode_launches(&mut self.blocks, n_multiprocessors);
        self.overlays.sort_by_key(|(level, _)| *level);
        let mut overlay_launches = Vec::new();
        let mut start = 0;
        for level in self.overlays.chunk_by(|a, b| a.0 == b.0) {
            overlay_launches.push(overlay_launch(start..start + level.len()));
            start += level.len();
        }
        Work {
            blocks: self.blocks.into_iter().map(|(_, job)| job).collect(),
            launches,
            overlays: self.overlays.into_iter().map(|(_, job)| job).collect(),
            overlay_launches,
        }
    }
}

impl Inner {
    /// Queues the reads of up to [`MOST_TENSORS`] tensors on `stream`.
    ///
    /// After an error nothing of it is being read any more.
    pub(super) fn enqueue(&self, targets: &[Target<'_>], stream: &Stream) -> Result<DeviceGet> {
        let plans = self.plan(targets)?;
        let opened: Vec<_> = plans.iter().map(|plan| Arc::clone(&plan.opened)).collect();
        let get = self.enqueue_planned(targets, plans, stream)?;
        let mode = self.access.mode();
        for (target, opened) in targets.iter().zip(opened) {
            opened.page().count(0, Counter::DeviceGets, 1);
            opened.page().count(0, Counter::DeviceBytes, target.handle.raw_bytes());
            opened.page().note_device_access(mode);
        }
        Ok(get)
    }

    fn enqueue_planned(
        &self,
        targets: &[Target<'_>],
        plans: Vec<Plan>,
        stream: &Stream,
    ) -> Result<DeviceGet> {
        if plans.iter().all(|plan| plan.blocks.is_empty()) {
            return Ok(DeviceGet::default());
        }
        let mode = self.access.mode();
        if mode != DeviceAccess::Staged {
            match self.in_place(mode, &plans) {
                Ok(batch) => {
                    let flown = self.fly(batch, load(targets, plans), stream);
                    let flight = flown.map_err(|failed| failed.error)?;
                    return Ok(DeviceGet { flights: vec![flight], repair: None });
                }
                Err(error) => self.access.fall_back(error)?,
            }
        }
        self.staged(targets, plans, stream)
    }

    /// Plans every read, under guards that are all held; none is held while one is recovered.
    fn plan(&self, targets: &[Target<'_>]) -> Result<Vec<Plan>> {
        let upload: Upload<'_> = &|opened, coder| Ok(self.form(opened, coder).map_err(Error::from)?);
        let mut deadline = None;
        loop {
            let mut plans = Vec::with_capacity(targets.len());
            let mut failed = None;
            for (target, number) in targets.iter().zip(numbers(targets)) {
                match Plan::new(target, &target.handle.opened(), number, upload) {
                    Ok(plan) => plans.push(plan),
                    Err(fault) => {
                        failed = Some((target, number, fault));
                        break;
                    }
                }
            }
            if failed.is_none() && targets.len() > 1 {
                let opened: Vec<_> = plans.iter().map(|plan| Arc::clone(&plan.opened)).collect();
                let limit = *deadline.get_or_insert_with(|| targets[0].handle.client().shared.deadline());
                let replaced = are_current(&opened, &limit).err();
                failed = replaced.map(|(idx, fault)| (&targets[idx], 0, fault));
            }
            let Some((target, number, fault)) = failed else { return Ok(plans) };
            drop(plans);
            if let Fault::Failed(error) = fault {
                return Err(error.of(target.handle, targets.len()));
            }
            let deadline = deadline.get_or_insert_with(|| target.handle.client().shared.deadline());
            if deadline.left().is_zero() {
                return Err(deadline.passed("read a tensor that is replaced again and again"));
            }
            match fault {
                // Flights that have ended may still have theirs.
                Fault::NoGuard(NoGuard::TooManyLeases) if self.reaper.wait_for_oldest() => {}
                // Waits for whatever it takes, as a read to host memory would; then all of them again.
                _ => {
                    let read = |opened: &_| Plan::new(target, opened, number, upload).map(drop);
                    let read = target.handle.attempt(read);
                    read.map_err(|error| error.of(target.handle, targets.len()))?;
                }
            }
        }
    }

    /// The jobs of all plans, where the GPU finds the bytes in place.
    fn in_place(&self, mode: DeviceAccess, plans: &[Plan]) -> core::result::Result<Batch, GpuError> {
        let mut batch = Batch::default();
        for plan in plans {
            let mut bases = HashMap::new();
            for block in &plan.blocks {
                batch.push(block, |stored| self.find(mode, &plan.guard, stored, &mut bases))?;
            }
        }
        Ok(batch)
    }

    /// The GPU's address of stored bytes.
    fn find(
        &self,
        mode: DeviceAccess,
        guard: &OwnedGuard,
        stored: Stored,
        bases: &mut HashMap<usize, u64>,
    ) -> core::result::Result<u64, GpuError> {
        // The plan has read these bytes under the same guard.
        let place = guard.place(stored.word, stored.len).map_err(|_| moved())?;
        let base = match bases.get(&place.0) {
            Some(&base) => base,
            None => {
                let base = self.base(mode, guard.attachment(), place.0)?;
                bases.insert(place.0, base);
                base
            }
        };
        Ok(base + place.1)
    }

    pub(super) fn base(
        &self,
        mode: DeviceAccess,
        attachment: &Attachment,
        segment_idx: usize,
    ) -> core::result::Result<u64, GpuError> {
        if mode == DeviceAccess::Ats {
            let range = attachment.segment_range(SegmentKind::Data, segment_idx).ok_or_else(moved)?;
            return Ok(range.0.addr().get() as u64);
        }
        Segments::of_process().address((self.id, &self.device), attachment, segment_idx)
    }

    /// Copies the bytes of all plans into staging buffers, a batch for each.
    fn staged(&self, targets: &[Target<'_>], plans: Vec<Plan>, stream: &Stream) -> Result<DeviceGet> {
        let mut get = DeviceGet::default();
        let filled = self.stage_all(targets, &plans, stream, &mut get);
        // Every byte was copied: the leases end here.
        drop(plans);
        match filled {
            Ok(()) => Ok(get),
            Err(error) => {
                // What was queued before the failure still writes: this returns once that is over, or abandoned.
                drop(get.wait());
                Err(error)
            }
        }
    }

    fn stage_all(
        &self,
        targets: &[Target<'_>],
        plans: &[Plan],
        stream: &Stream,
        get: &mut DeviceGet,
    ) -> Result<()> {
        let mut blocks =
            plans.iter().flat_map(|plan| plan.blocks.iter().map(move |block| (plan, block))).peekable();
        while let Some((_, first)) = blocks.peek() {
            let mut stage = self.staging.take(&self.device, staged_len(first))?;
            let (mut batch, mut end) = (Batch::default(), 0);
            let filled = fill(&mut stage, &mut blocks, &mut batch, &mut end);
            let flown = filled.and_then(|()| {
                stage.upload(end, &self.copies, stream)?;
                let flight = self.fly(batch, shared_load(targets, plans), stream).map_err(|failed| {
                    if !failed.is_quiet {
                        // What was launched before the failure may read it.
                        stage.abandon();
                    }
                    failed.error
                })?;
                get.flights.push(flight);
                Ok(stage.mark_used(stream)?)
            });
            self.staging.give_back(stage);
            flown?;
        }
        Ok(())
    }

    /// Submits a batch, and watches it from then on.
    fn fly(&self, batch: Batch, load: Load, stream: &Stream) -> core::result::Result<Arc<Flight>, Unqueued> {
        let work = batch.into_work(self.device.facts().n_multiprocessors);
        self.start(work.bytes(), load, |run, load| raw::submit(run, &self.kernels, &work, stream, load))
    }

    /// Submits what needs a run of so many bytes, and watches it from then on.
    pub(super) fn start(
        &self,
        bytes: u64,
        load: Load,
        submit: impl FnOnce(&mut Run, &Load) -> core::result::Result<(), Unqueued>,
    ) -> core::result::Result<Arc<Flight>, Unqueued> {
        let mut run = self.run(bytes)?;
        if let Err(failed) = submit(&mut run, &load) {
            if !failed.is_quiet {
                abandon(run, load, &failed.error);
            }
            return Err(failed);
        }
        let flight = Flight::new(run, load, &self.runs);
        self.reaper.watch(Arc::clone(&flight));
        Ok(flight)
    }

    /// A run that is free, or a new one.
    fn run(&self, bytes: u64) -> core::result::Result<Run, GpuError> {
        if let Some(run) = self.runs.take(bytes) {
            return Ok(run);
        }
        self.reaper.look();
        self.runs.take(bytes).map_or_else(|| Run::new(&self.device, bytes), Ok)
    }
}

/// The number of each target's first block.
fn numbers<'a>(targets: &'a [Target<'_>]) -> impl Iterator<Item = u32> + 'a {
    targets.iter().scan(0_u32, |next, target| {
        let number = *next;
        // Wrong numbers only name another block in an error; no GPU holds so many.
        *next = next.saturating_add(u32::try_from(target.handle.geometry().n_blocks()).unwrap_or(u32::MAX));
        Some(number)
    })
}

/// All that launches in place use, the guards with it.
fn load(targets: &[Target<'_>], plans: Vec<Plan>) -> Load {
    let mut load = shared_load(targets, &plans);
    for plan in plans {
        let Plan { guard, opened, .. } = plan;
        load.guards.push(guard);
        load.opened.push(opened);
    }
    load
}

/// All that launches over staged bytes use.
fn shared_load(targets: &[Target<'_>], plans: &[Plan]) -> Load {
    let ours = targets.iter().filter_map(|target| target.buffer.as_ref());
    let forms = plans.iter().flat_map(|plan| plan.forms.iter().map(|(_, form)| form));
    let buffers: Vec<Arc<DeviceBuffer>> = ours.chain(forms).map(Arc::clone).collect();
    let tensors =
        numbers(targets).zip(targets).map(|(first, target)| (first, target.handle.clone())).collect();
    Load { buffers, tensors, ..Load::default() }
}

/// Bytes of a block with its overlays in a staging buffer.
fn staged_len(block: &PlannedBlock) -> u64 {
    let of = |stored: Stored| stored.len.next_multiple_of(READ_UNIT);
    of(block.stored) + block.overlays.iter().map(|overlay| of(overlay.stored)).sum::<u64>()
}

/// Copies blocks while they fit.
fn fill<'p>(
    stage: &mut Stage,
    blocks: &mut std::iter::Peekable<impl Iterator<Item = (&'p Plan, &'p PlannedBlock)>>,
    batch: &mut Batch,
    end: &mut u64,
) -> Result<()> {
    let room = stage.len();
    let (address, target) = stage.fill()?;
    while let Some((plan, block)) = blocks.next_if(|(_, block)| *end + staged_len(block) <= room) {
        let copied = batch.push(block, |stored| {
            let bytes = plan.guard.stored(stored.word, stored.len)?;
            target[index(*end)..][..bytes.len()].copy_from_slice(bytes);
            let at = address + *end;
            *end += stored.len.next_multiple_of(READ_UNIT);
            Ok::<_, NoGuard>(at)
        });
        // Cannot be: the plan has read the same bytes under the same guard.
        copied.map_err(|_| moved())?;
    }
    Ok(())
}
