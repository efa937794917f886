//! A table of rows in registered segments, as the kernel `gather` sees it, with a cache in device memory.

use anyhow::{Context as _, Result, ensure};
use tierpack_kernels::block::Block;
use tierpack_kernels::cuda::driver::DeviceBuffer;
use tierpack_kernels::cuda::form::device_form;
use tierpack_kernels::cuda::gather::abi::{SET_BYTES, WAYS};
use tierpack_kernels::cuda::gather::{
    Addresses, Cache, CacheLayout, DeviceForm, GatherCall, GatherLaunch, GatherStatus, GatherTensor, Segment,
    describe, plan, row_sizes,
};
use tierpack_shm::layout::SEGMENT_SPAN_UNITS;
use tierpack_shm::types::{BlockWord, CodecId, UNIT_BYTES, index};
use zerocopy::IntoBytes;

use crate::decode::HostTensor;
use crate::device::Bench;
use crate::host::{Registered, Way};
use crate::work::{Place, Work};

/// The index that the words have for the one generation.
const GENERATION_IDX: u8 = 1;

/// Positions that the miss list has room for: every block is there, so that there are none.
const MISSED_ROOM: u32 = 64;

/// The table without a cache.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    work: &'a Work,
    words: DeviceBuffer,
    segments: DeviceBuffer,
    form: Option<DeviceBuffer>,
    host: HostTensor,
    /// Bytes that a line needs for each row of the blocks that are different.
    row_sizes: Vec<u32>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(bench: &Bench, way: Way, work: &'a Work) -> Result<Self> {
        let host = HostTensor::new(bench, way, work)?;
        let word = |(block_idx, place): (u64, &Place)| {
            let offset = place.segment as u64 * SEGMENT_SPAN_UNITS + place.offset / UNIT_BYTES;
            let is_raw = work.block(block_idx)[6] == CodecId::Raw as u8;
            let flags = if is_raw { BlockWord::RAW } else { 0 };
            BlockWord::resident(offset, GENERATION_IDX, flags, 1).bits()
        };
        let words: Vec<u64> = (0..).zip(&host.places).map(word).collect();
        let segment = |segment: &Registered| Segment { address: segment.address, bytes: segment.len() };
        let segments: Vec<Segment> = host.segments.iter().map(segment).collect();
        let form = work.coder.as_ref().map(|coder| bench.upload(&device_form(coder))).transpose()?;
        let block = Block::parse(work.block(0))?;
        Ok(Self {
            words: bench.upload_all(&words)?,
            segments: bench.upload_all(&segments)?,
            form,
            row_sizes: row_sizes(work.coder.as_ref(), &work.geometry, &block)?,
            host,
            work,
        })
    }

    pub(crate) const fn n_rows(&self) -> u64 {
        self.work.geometry.n_rows()
    }

    /// The layout of a cache for so many rows, rounded up to whole sets; none for 0.
    pub(crate) fn layout(&self, rows: u64) -> CacheLayout {
        let line_bytes = CacheLayout::new(1 << 30, &mut self.row_sizes.clone()).line_bytes();
        let set_bytes = SET_BYTES + u64::from(WAYS) * u64::from(line_bytes);
        CacheLayout::with_line(rows.div_ceil(WAYS.into()) * set_bytes, line_bytes)
    }

    /// Gathers of these batches of rows, through an empty cache of that layout.
    pub(crate) fn gathers(
        &self,
        bench: &Bench,
        layout: CacheLayout,
        batches: &[Vec<u64>],
    ) -> Result<Gathers<'_>> {
        // Zeros are an empty cache.
        let cache = match layout {
            CacheLayout::NONE => None,
            layout => {
                let mut memory = bench.memory(layout.bytes())?;
                memory.write(&vec![0; index(layout.tag_bytes())], &bench.stream)?;
                Some(memory)
            }
        };
        let cache_at = cache.as_ref().map_or_else(Cache::default, |memory| layout.at(memory.address()));
        let addresses = Addresses {
            words: self.words.address(),
            segments: self.segments.address(),
            n_segments: u32::try_from(self.host.segments.len())?,
            cache: cache_at,
        };
        let forms = self.work.coder.iter().zip(&self.form);
        let forms: Vec<DeviceForm<'_>> = forms
            .map(|(coder, form)| DeviceForm {
                generation_idx: GENERATION_IDX,
                coder,
                address: form.address(),
            })
            .collect();
        Gathers::new(bench, self.work, describe(&self.work.geometry, &forms, &addresses)?, cache, batches)
    }
}

/// Gathers of batches of rows, which take turns.
#[derive(Debug)]
pub(crate) struct Gathers<'a> {
    work: &'a Work,
    launch: GatherLaunch,
    calls: DeviceBuffer,
    status: DeviceBuffer,
    out: DeviceBuffer,
    n_batches: u64,
    turn: u64,
    /// What the calls lead to: tensor, ids, miss list, and the cache where there is one.
    _kept: Vec<DeviceBuffer>,
}

impl<'a> Gathers<'a> {
    fn new(
        bench: &Bench,
        work: &'a Work,
        tensor: GatherTensor,
        cache: Option<DeviceBuffer>,
        batches: &[Vec<u64>],
    ) -> Result<Self> {
        let n_ids = u32::try_from(batches[0].len())?;
        let tensor_memory = bench.upload_all(&[tensor])?;
        let ids = bench.upload_all(&batches.concat())?;
        let missed = bench.memory(u64::from(MISSED_ROOM) * 4)?;
        let status = bench.upload_all(&[GatherStatus::CLEAR])?;
        let out = bench.memory(u64::from(n_ids) * tensor.row_bytes)?;
        let call = |batch: u32| GatherCall {
            tensor: tensor_memory.address(),
            ids: ids.address() + u64::from(batch) * u64::from(n_ids) * 8,
            out: out.address(),
            missed: missed.address(),
            status: status.address(),
            n_ids,
            id_bytes: 8,
            missed_room: MISSED_ROOM,
            turn: batch,
            ..GatherCall::default()
        };
        let mut calls: Vec<GatherCall> = (0..u32::try_from(batches.len())?).map(call).collect();
        let planned = |call: &mut GatherCall| plan(&mut [(&tensor, call)], bench.n_multiprocessors(), 0);
        let launches: Option<Vec<GatherLaunch>> = calls.iter_mut().map(planned).collect();
        let launch = *launches.context("batches of no rows")?.first().context("no batches")?;
        let calls = bench.upload_all(&calls)?;
        let _kept = [tensor_memory, ids, missed].into_iter().chain(cache).collect();
        Ok(Self { work, launch, calls, status, out, n_batches: batches.len() as u64, turn: 0, _kept })
    }

    /// Raw bytes of a batch.
    pub(crate) const fn bytes(&self) -> u64 {
        self.out.len()
    }

    /// Queues the next batch.
    pub(crate) fn queue(&mut self, bench: &Bench) -> Result<()> {
        let call = self.calls.address() + self.turn % self.n_batches * size_of::<GatherCall>() as u64;
        self.turn += 1;
        bench.gather(&self.launch, call)
    }

    /// Queues every batch once.
    pub(crate) fn queue_all(&mut self, bench: &Bench) -> Result<()> {
        (0..self.n_batches).try_for_each(|_| self.queue(bench))
    }

    /// The share of rows that came from the cache since this was asked last; every row came, and none was damaged.
    #[expect(clippy::cast_precision_loss, reason = "a figure has three digits")]
    pub(crate) fn hit_rate(&mut self, bench: &Bench) -> Result<f64> {
        let status: GatherStatus = bench.value(&self.status)?;
        let is_whole = status.status.flags == 0 && status.bad_position == u64::MAX && status.n_missed == 0;
        ensure!(is_whole, "a gather found damage: {status:?}");
        self.status.write(GatherStatus::CLEAR.as_bytes(), &bench.stream)?;
        Ok(status.hits as f64 / (status.hits + status.misses).max(1) as f64)
    }

    /// Gathers a batch, and compares its rows.
    pub(crate) fn check(&mut self, bench: &Bench, batch: &[u64]) -> Result<()> {
        self.turn = 0;
        self.queue(bench)?;
        let rows = bench.download(&self.out, self.out.len())?;
        let row_bytes = index(self.work.geometry.row_bytes());
        let differs =
            batch.iter().zip(rows.chunks(row_bytes)).find(|(row, got)| *got != self.work.row(**row));
        ensure!(differs.is_none(), "{}: row {:?} differs", self.work.codec, differs.map(|(row, _)| row));
        Ok(())
    }
}
