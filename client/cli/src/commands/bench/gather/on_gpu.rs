//! `tierpack bench gather --device cuda`: hot rows of one tensor, gathered on a GPU by the Device tier.
//!
//! Rows are drawn by a power law.
//! A cache keeps as many hot rows as make a rate of hits of 0, 10, 50 and 100 percent, and its other lines cold ones,
//! so that the rate stays; what was hit in the end is counted, and shown.
//! Next to each stand the same gather of the raw tensor without a cache, in turns with it, and a get of the whole
//! tensor.
//! Some gathers are queued ahead, as a training loop would; times are taken by the host's clock.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use tierpack_client::{
    CacheConfig, Client, CodecId, DeviceAccess, DeviceGather, DeviceHandle, DeviceIds, DeviceTensor, Entry,
    Gpu, Handle,
};

use super::{Args, LEAST_BATCHES, NAME, SLICES, Source, gib};
use crate::commands::bench::weights::Random;
use crate::commands::hot_rows::{EXPONENT, HotRows};
use crate::device;
use crate::measure::{LEAST_PASSES, gib_per_s};
use crate::output::Output;
use crate::table::{self, Align, Table};

/// The tensor that is next to the others.
const RAW_NAME: &str = "raw";
/// Shares of the draws that the cache is to have.
const SHARES: [f64; 4] = [0.0, 0.1, 0.5, 1.0];
/// Gathers that are queued at a time.
const DEPTH: usize = 4;
/// Batches of row numbers, which are on the GPU before anything is timed.
const N_BATCHES: usize = 16;
/// Lines of a cache for each row that is to be kept: then few sets have more rows than lines.
const LINES_PER_ROW: u64 = 2;
/// Lines of a cache, at least: some sets.
const LEAST_LINES: u64 = 64;
/// Cold rows for each line: then hardly a set has a line left.
const COLD_PER_LINE: u64 = 4;
/// Bytes of the cache that tells how long a line is.
const PROBE_BYTES: u64 = 1 << 20;

/// One figure set.
#[derive(Debug, Serialize)]
struct Row {
    codec: &'static str,
    saved_percent: f64,
    /// What the cache takes of the GPU's memory; 0: there is none.
    cache_bytes: u64,
    cache_lines: u64,
    /// Of rows that were looked for; null where there is no cache, since the GPU cannot read the pool in place.
    hit_percent: Option<f64>,
    rows_per_s: f64,
    gib_per_s: f64,
    raw_zero_copy_gib_per_s: f64,
    of_raw_zero_copy: f64,
    get_to_device_gib_per_s: f64,
}

/// All figures, and where they come from.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    device: String,
    access: &'static str,
    stand_in: bool,
    note: Option<&'static str>,
    power_law: f64,
    rows: usize,
    width: u32,
    dtype: &'static str,
    batch: u32,
    results: Vec<Row>,
}

/// Measures every codec.
///
/// # Errors
/// A tensor does not fit the pool or the GPU, or comes back other than it was.
pub(super) fn measure(args: &Args, source: &Source, client: &Client, gpu: &Gpu) -> Result<Document> {
    source.put(args, client, RAW_NAME, CodecId::Raw)?;
    let raw = client.open(RAW_NAME)?.on_device(gpu, CacheConfig::new(0))?;
    let mut bench = Bench::new(args, source, gpu, raw)?;
    let mut results = Vec::new();
    for codec in args.codecs() {
        let entry = source.put(args, client, NAME, codec)?;
        results.extend(bench.measure(codec, &client.open(NAME)?, &entry)?);
        client.remove(NAME)?;
    }
    Ok(Document {
        device: gpu.name().to_owned(),
        access: gpu.access().mode.name(),
        stand_in: device::note(gpu).is_some(),
        note: device::note(gpu),
        power_law: EXPONENT,
        rows: source.n_rows,
        width: args.width,
        dtype: args.dtype.dtype().name(),
        batch: args.batch(),
        results,
    })
}

struct Bench<'a> {
    source: &'a Source,
    gpu: &'a Gpu,
    time: Duration,
    hot: HotRows,
    /// The rows of the first batch.
    rows: Vec<u64>,
    batches: Vec<DeviceIds>,
    raw: Lane,
}

impl<'a> Bench<'a> {
    fn new(args: &Args, source: &'a Source, gpu: &'a Gpu, raw: DeviceHandle) -> Result<Self> {
        let (hot, mut random) = (HotRows::new(source.n_rows as u64), Random::new(1));
        let mut draw = || (0..args.batch()).map(|_| hot.draw(|| random.next_u64())).collect::<Vec<_>>();
        let mut batches = Vec::with_capacity(N_BATCHES);
        let rows = draw();
        batches.push(gpu.ids(&rows)?);
        for _ in 1..N_BATCHES {
            batches.push(gpu.ids(&draw())?);
        }
        let raw = Lane::new(raw, rows.len())?;
        Ok(Self { source, gpu, time: Duration::from_secs_f64(args.seconds), hot, rows, batches, raw })
    }

    /// One row per rate of hits; only the first where the tensor or the GPU allows no cache.
    fn measure(&mut self, codec: CodecId, handle: &Handle, entry: &Entry) -> Result<Vec<Row>> {
        let mut results = Vec::with_capacity(SHARES.len());
        let whole = self.get_whole(handle)?;
        let slice = self.time / (2 * SLICES);
        for share in SHARES {
            let Some(device) = self.with_cache(handle, share)? else { break };
            let mut lane = Lane::new(device, self.rows.len())?;
            self.check(handle, &lane.device)?;
            let (mut best, mut raw) = (Slice::default(), Slice::default());
            for _ in 0..SLICES {
                raw.take(&self.raw.run(&self.batches, slice)?);
                best.take(&lane.run(&self.batches, slice)?);
            }
            let (facts, rate, plain) =
                (lane.device.cache(), gib(self.source, best.rate), gib(self.source, raw.rate));
            results.push(Row {
                codec: codec.name(),
                saved_percent: table::saved_percent(entry.raw_bytes, entry.stored_bytes),
                cache_bytes: facts.bytes,
                cache_lines: facts.lines,
                hit_percent: best.hit_percent(),
                rows_per_s: best.rate,
                gib_per_s: rate,
                raw_zero_copy_gib_per_s: plain,
                of_raw_zero_copy: rate / plain,
                get_to_device_gib_per_s: whole,
            });
        }
        Ok(results)
    }

    /// A handle whose cache has rows that make `share` of the draws; `None` where there can be no cache.
    fn with_cache(&self, handle: &Handle, share: f64) -> Result<Option<DeviceHandle>> {
        if share <= 0.0 {
            return Ok(Some(handle.on_device(self.gpu, CacheConfig::new(0))?));
        }
        let probe = handle.on_device(self.gpu, CacheConfig::new(PROBE_BYTES))?.cache();
        if probe.lines == 0 {
            return Ok(None);
        }
        let rows = self.hot.with_share(share);
        let lines = (LINES_PER_ROW * rows.len() as u64).max(LEAST_LINES);
        let device =
            handle.on_device(self.gpu, CacheConfig::new(lines * probe.bytes.div_ceil(probe.lines)))?;
        device.keep(&rows)?;
        if share < 1.0 {
            // Not in one call, in which these might be first.
            device.keep(&self.hot.coldest(COLD_PER_LINE * lines).collect::<Vec<_>>())?;
        }
        Ok(Some(device))
    }

    /// Compares one batch with what the CPU gathers, and that with what was put.
    fn check(&self, handle: &Handle, device: &DeviceHandle) -> Result<()> {
        let wanted = handle.gather(&self.rows)?;
        let found = device.gather(&self.batches[0])?.to_host()?;
        let row_bytes = self.source.row_bytes;
        let each = found.chunks_exact(row_bytes).zip(wanted.as_bytes().chunks_exact(row_bytes));
        let is_same = |(row, (found, wanted)): (&u64, (&[u8], &[u8]))| {
            found == wanted && u32::try_from(*row).is_ok_and(|row| self.source.row(row) == wanted)
        };
        let right = self.rows.iter().zip(each).filter(|row| is_same(*row)).count();
        let wrong = self.rows.len() - right;
        ensure!(wrong == 0, "{wrong} of {} rows of the GPU are not what was put", self.rows.len());
        Ok(())
    }

    /// GiB/s of gets of the whole tensor, the best of some, after one that is compared.
    fn get_whole(&self, handle: &Handle) -> Result<f64> {
        let mut tensor = handle.get_to_device(self.gpu)?;
        ensure!(tensor.to_host()? == self.source.raw, "the tensor on the GPU is not what was put");
        let (start, mut best) = (Instant::now(), Duration::MAX);
        let mut passes = 0;
        while passes < LEAST_PASSES || start.elapsed() < self.time / 2 {
            let one = Instant::now();
            handle.get_to_device_into(self.gpu, &mut tensor)?;
            tensor.wait()?;
            best = best.min(one.elapsed());
            passes += 1;
        }
        Ok(gib_per_s(handle.raw_bytes(), best))
    }
}

/// A tensor on the GPU, and memory for the rows of gathers that are queued.
struct Lane {
    device: DeviceHandle,
    outputs: Vec<DeviceTensor>,
}

impl Lane {
    fn new(device: DeviceHandle, batch: usize) -> Result<Self> {
        let outputs = (0..DEPTH).map(|_| device.output(batch)).collect::<Result<_, _>>()?;
        Ok(Self { device, outputs })
    }

    /// Gathers one batch after the other for a while.
    fn run(&mut self, batches: &[DeviceIds], time: Duration) -> Result<Slice> {
        let mut slice = Slice::default();
        let mut queued: [Option<DeviceGather>; DEPTH] = [const { None }; DEPTH];
        let (start, mut n, mut n_rows) = (Instant::now(), 0, 0);
        while n < LEAST_BATCHES || start.elapsed() < time {
            let (place, batch) = (n % DEPTH, &batches[n % batches.len()]);
            if let Some(gather) = queued[place].take() {
                slice.count(&gather)?;
            }
            queued[place] = Some(self.device.gather_into(batch, &mut self.outputs[place])?);
            (n, n_rows) = (n + 1, n_rows + batch.len());
        }
        queued.iter().flatten().try_for_each(|gather| slice.count(gather))?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = n_rows as f64 / start.elapsed().as_secs_f64().max(1e-9);
        Ok(Slice { rate, ..slice })
    }
}

/// What one slice of time, or the best of some, had.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    rate: f64,
    hits: u64,
    misses: u64,
}

impl Slice {
    fn count(&mut self, gather: &DeviceGather) -> Result<()> {
        let counts = gather.wait()?;
        self.hits += counts.hits;
        self.misses += counts.misses;
        Ok(())
    }

    /// The better rate, and the hits of both.
    fn take(&mut self, other: &Self) {
        self.rate = self.rate.max(other.rate);
        self.hits += other.hits;
        self.misses += other.misses;
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn hit_percent(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| 100.0 * self.hits as f64 / all as f64)
    }
}

impl Document {
    /// Writes a table, and what its figures mean.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(super) fn write_table(&self, out: &mut Output) -> Result<()> {
        let right = Align::Right;
        let mut table = Table::new(&[
            ("codec", Align::Left),
            ("saved %", right),
            ("cache", right),
            ("hit %", right),
            ("rows/s", right),
            ("GiB/s", right),
            ("raw zero-copy GiB/s", right),
            ("of raw zero-copy", right),
            ("whole get GiB/s", right),
        ]);
        for row in &self.results {
            table.row(vec![
                row.codec.to_owned(),
                format!("{:.2}", row.saved_percent),
                table::size(row.cache_bytes),
                row.hit_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
                format!("{:.0}", row.rows_per_s),
                format!("{:.3}", row.gib_per_s),
                format!("{:.3}", row.raw_zero_copy_gib_per_s),
                format!("{:.2}", row.of_raw_zero_copy),
                format!("{:.3}", row.get_to_device_gib_per_s),
            ]);
        }
        table.write(out)?;
        let Self { device, access, rows, width, dtype, batch, .. } = self;
        writeln!(out)?;
        writeln!(
            out,
            "{rows} rows of {width} {dtype}, {batch} a gather, drawn by a power law of {EXPONENT}."
        )?;
        writeln!(
            out,
            "{device}, access {access}; GiB/s of raw bytes; every row of the table was compared once."
        )?;
        if self.access == DeviceAccess::Staged.name() {
            writeln!(
                out,
                "With access staged the host gathers: there is no cache, and nothing is zero-copy."
            )?;
        }
        if let Some(note) = self.note {
            writeln!(out, "Note: {note}.")?;
        }
        Ok(())
    }
}
