//! `tierpack bench gather`: random rows of one tensor, read by a real client from a real daemon, per codec.
//!
//! Beside each codec stands the same gather of the same rows from a plain array in this process, by memcpy, with the
//! rows to come prefetched: what the best program without a pool could do.
//! Both take turns in slices of time, and of each the best slice counts, so that what else the machine does hits both.
//! With `--device cuda` rows are gathered on a GPU: see `on_gpu.rs`.

mod on_gpu;

use std::io::Write as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use tierpack_client::{Client, CodecChoice, CodecId, Entry, Handle, PutOptions};
use tierpack_daemon::{Config, Embedded};
use tierpack_kernels::prefetch;

use super::Codecs;
use super::weights::{FloatArg, Random, weights};
use crate::commands::demo;
use crate::device::{self, DeviceArg};
use crate::output::Output;
use crate::table;
use crate::table::{Align, Table};

/// Bytes of the tensor when nobody says how many rows.
const DEFAULT_BYTES: usize = 256 << 20;
/// Rows between the one that is copied and the one that is prefetched.
const AHEAD: usize = 8;
/// Turns of a codec and of memcpy.
const SLICES: u32 = 4;
/// Batches that a slice times, at least.
const LEAST_BATCHES: usize = 8;
/// Bytes of one gather, at most.
const MAX_GATHER_BYTES: usize = 1 << 30;
const NAME: &str = "weights";

/// Arguments of `bench gather`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows of the tensor [default: as many as make 256 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Option<u32>,
    /// Elements of a row
    #[arg(long, value_name = "C", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    width: u32,
    /// Rows of one gather [default: 1024, on a GPU 65536]
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: Option<u32>,
    /// Element type of the generated weights
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: FloatArg,
    #[command(flatten)]
    codecs: Codecs,
    /// Where rows are gathered: on a GPU by the Device tier, at several rates of hits in its cache
    #[arg(long, value_name = "cpu|cuda[:N]", default_value = "cpu", value_parser = device::parse)]
    device: DeviceArg,
    /// Seconds per codec and number of threads, half of them for memcpy; on a GPU per codec and cache, half of them
    /// for the raw gather
    #[arg(long, value_name = "S", default_value = "2", value_parser = demo::parse_seconds)]
    seconds: f64,
    /// Print {"results": [...]}
    #[arg(long)]
    json: bool,
}

impl Args {
    fn batch(&self) -> u32 {
        self.batch.unwrap_or(match self.device {
            DeviceArg::Cpu => 1024,
            DeviceArg::Cuda(_) => 1 << 16,
        })
    }

    /// The codecs that are measured; `raw` is always among them.
    fn codecs(&self) -> impl Iterator<Item = CodecId> {
        let is_wanted = |codec: &CodecId| *codec == CodecId::Raw || self.codecs.contains(*codec);
        CodecId::ALL.iter().copied().filter(is_wanted)
    }
}

/// One figure set.
#[derive(Debug, Serialize)]
struct Row {
    codec: &'static str,
    rows: usize,
    width: u32,
    dtype: &'static str,
    batch: u32,
    threads: usize,
    saved_percent: f64,
    rows_per_s: f64,
    gib_per_s: f64,
    memcpy_gather_gib_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Document {
    results: Vec<Row>,
}

/// The tensor in this process.
#[derive(Debug)]
struct Source {
    raw: Vec<u8>,
    n_rows: usize,
    row_bytes: usize,
}

/// Stores one tensor by each codec in turn and gathers from it.
///
/// # Errors
/// There is no GPU where one is asked for, no daemon can be started, the tensor does not fit, or it comes back other
/// than it was.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let (n_rows, row_bytes, len) = sizes(args)?;
    let gpu = args.device.open()?;
    let folder = demo::folder()?;
    // Beside a codec stands the raw tensor, which a GPU gathers from as well.
    let n_tensors = if gpu.is_some() { 2 } else { 1 };
    // An eighth for headers, metadata and what the pool rounds up.
    let pool_bytes = (n_tensors * (len + len / 8) + (64 << 20)) as u64;
    let config = Config::embedded(folder.path().join("control.sock"), pool_bytes)?;
    // First of all, since it refuses a pool that memory has no room for.
    let daemon = Embedded::start(&config)?;
    let source = Source { raw: weights(args.dtype, len), n_rows, row_bytes };
    let client = Client::builder().socket(daemon.socket()).connect()?;
    if let Some(gpu) = gpu {
        let document = on_gpu::measure(args, &source, &client, &gpu)?;
        drop((gpu, client));
        daemon.stop()?;
        return if args.json { out.json(&document) } else { document.write_table(out) };
    }
    let results = measure_all(args, &source, &client)?;
    drop(client);
    daemon.stop()?;
    if args.json {
        return out.json(&Document { results });
    }
    write_table(&results, out)
}

fn measure_all(args: &Args, source: &Source, client: &Client) -> Result<Vec<Row>> {
    let mut results = Vec::new();
    for codec in args.codecs() {
        let entry = source.put(args, client, NAME, codec)?;
        let handle = client.open(NAME)?;
        for threads in [1, 2] {
            results.push(measure(args, source, &handle, &entry, codec, threads)?);
        }
        drop(handle);
        client.remove(NAME)?;
    }
    Ok(results)
}

/// Rows, bytes of a row, bytes of all rows.
///
/// # Errors
/// They are too many to count, or a gather is more than a process should ask for.
fn sizes(args: &Args) -> Result<(usize, usize, usize)> {
    let row_bytes = args.width as usize * args.dtype.bytes();
    let n_rows = args.rows.map_or((DEFAULT_BYTES / row_bytes).max(1), |rows| rows as usize);
    let gathered = args.batch() as usize * row_bytes;
    ensure!(
        gathered <= MAX_GATHER_BYTES,
        "a gather of {gathered} bytes is above the limit of {MAX_GATHER_BYTES}: choose a smaller --batch or --width"
    );
    let len = n_rows.checked_mul(row_bytes).filter(|len| *len <= isize::MAX.unsigned_abs() / 2);
    let len = len.with_context(|| format!("{n_rows} rows of {row_bytes} bytes: choose fewer --rows"))?;
    Ok((n_rows, row_bytes, len))
}

impl Source {
    fn put(&self, args: &Args, client: &Client, name: &str, codec: CodecId) -> Result<Entry> {
        let shape = [self.n_rows as u64, args.width.into()];
        let options = PutOptions::new().codec(CodecChoice::Only(codec));
        let put = client.put_with(name, args.dtype.dtype(), &shape, &mut &self.raw[..], &options);
        put.with_context(|| format!("put by codec {codec}"))
    }

    #[inline]
    fn row(&self, id: u32) -> &[u8] {
        &self.raw[id as usize * self.row_bytes..][..self.row_bytes]
    }

    /// Copies rows, as a program would that has the array to itself.
    fn gather_into(&self, ids: &[u32], out: &mut [u8]) {
        for (n, (id, target)) in ids.iter().zip(out.chunks_exact_mut(self.row_bytes)).enumerate() {
            if let Some(ahead) = ids.get(n + AHEAD) {
                prefetch(self.row(*ahead));
            }
            target.copy_from_slice(self.row(*id));
        }
    }
}

/// The gathers of one thread: its rows, its buffer, its times.
#[derive(Debug)]
struct Work {
    random: Random,
    n_rows: u64,
    ids: Vec<u32>,
    out: Vec<u8>,
    times: Vec<Duration>,
}

impl Work {
    fn new(args: &Args, source: &Source, seed: u64) -> Self {
        let batch = args.batch() as usize;
        Self {
            random: Random::new(seed),
            n_rows: source.n_rows as u64,
            ids: vec![0; batch],
            out: vec![0; batch * source.row_bytes],
            times: Vec::new(),
        }
    }

    fn choose_rows(&mut self) {
        let Self { random, n_rows, ids, .. } = self;
        ids.fill_with(|| u32::try_from(random.below(*n_rows)).expect("rows are counted in 32 bits"));
    }

    /// Gathers other rows again and again, and gives the median batch; choosing rows does not count.
    fn run(&mut self, time: Duration, gather: impl Fn(&[u32], &mut [u8]) -> Result<()>) -> Result<Duration> {
        self.times.clear();
        let start = Instant::now();
        while self.times.len() < LEAST_BATCHES || start.elapsed() < time {
            self.choose_rows();
            let one = Instant::now();
            gather(&self.ids, &mut self.out)?;
            self.times.push(one.elapsed());
        }
        let middle = self.times.len() / 2;
        Ok(*self.times.select_nth_unstable(middle).1)
    }
}

/// Rows per second of all threads together, during one slice.
fn rows_per_s(
    works: &mut [Work],
    time: Duration,
    gather: impl Fn(&[u32], &mut [u8]) -> Result<()> + Sync,
) -> Result<f64> {
    let (gather, barrier) = (&gather, &Barrier::new(works.len()));
    std::thread::scope(|scope| {
        let one = |work: &mut Work| {
            barrier.wait();
            let batch = f64::from(u32::try_from(work.ids.len())?);
            Ok(batch / work.run(time, gather)?.as_secs_f64().max(1e-9))
        };
        let threads: Vec<_> = works.iter_mut().map(|work| scope.spawn(move || one(work))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a gather does not panic")).sum()
    })
}

fn measure(
    args: &Args,
    source: &Source,
    handle: &Handle,
    entry: &Entry,
    codec: CodecId,
    threads: usize,
) -> Result<Row> {
    let mut works: Vec<_> = (1..).map(|seed| Work::new(args, source, seed)).take(threads).collect();
    check(&mut works[0], source, handle)?;
    let slice = Duration::from_secs_f64(args.seconds) / (2 * SLICES);
    let (mut plain, mut pooled) = (0.0_f64, 0.0_f64);
    for _ in 0..SLICES {
        let memcpy = |ids: &[u32], out: &mut [u8]| {
            source.gather_into(ids, out);
            Ok(())
        };
        plain = plain.max(rows_per_s(&mut works, slice, memcpy)?);
        let client = |ids: &[u32], out: &mut [u8]| Ok(handle.gather_into(ids, out)?);
        pooled = pooled.max(rows_per_s(&mut works, slice, client)?);
    }
    Ok(Row {
        codec: codec.name(),
        rows: source.n_rows,
        width: args.width,
        dtype: args.dtype.dtype().name(),
        batch: args.batch(),
        threads,
        saved_percent: table::saved_percent(entry.raw_bytes, entry.stored_bytes),
        rows_per_s: pooled,
        gib_per_s: gib(source, pooled),
        memcpy_gather_gib_per_s: gib(source, plain),
    })
}

/// Compares one batch before anything is timed.
fn check(work: &mut Work, source: &Source, handle: &Handle) -> Result<()> {
    work.choose_rows();
    handle.gather_into(&work.ids, &mut work.out)?;
    let is_same = |(id, row): (&u32, &[u8])| source.row(*id) == row;
    let rows = work.ids.iter().zip(work.out.chunks_exact(source.row_bytes));
    let wrong = rows.filter(|row| !is_same(*row)).count();
    ensure!(wrong == 0, "{wrong} of {} rows are not what was put", work.ids.len());
    Ok(())
}

/// GiB of that many rows.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn gib(source: &Source, rows: f64) -> f64 {
    rows * source.row_bytes as f64 / f64::from(1 << 30)
}

fn write_table(results: &[Row], out: &mut Output) -> Result<()> {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("codec", Align::Left),
        ("threads", right),
        ("saved %", right),
        ("rows/s", right),
        ("GiB/s", right),
        ("memcpy gather GiB/s", right),
        ("of memcpy", right),
    ]);
    for row in results {
        table.row(vec![
            row.codec.to_owned(),
            row.threads.to_string(),
            format!("{:.2}", row.saved_percent),
            format!("{:.0}", row.rows_per_s),
            format!("{:.2}", row.gib_per_s),
            format!("{:.2}", row.memcpy_gather_gib_per_s),
            format!("{:.2}", row.gib_per_s / row.memcpy_gather_gib_per_s),
        ]);
    }
    table.write(out)?;
    if let Some(row) = results.first() {
        writeln!(out, "\n{} rows of {} {}, {} a gather.", row.rows, row.width, row.dtype, row.batch)?;
    }
    Ok(())
}
