//! `tierpack bench gather` on the CPU: random rows, next to a memcpy of the same rows from an array of this process.
//!
//! The memcpy prefetches rows to come: it is what the best program without a pool could do.

use std::io::Write as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use tierpack_client::{Client, CodecId, Entry, Handle};
use tierpack_kernels::prefetch;

use super::{Args, LEAST_BATCHES, NAME, SLICES, Source, gib};
use crate::commands::bench::weights::Random;
use crate::output::Output;
use crate::table::{self, Align, Table};

/// Rows between the one that is copied and the one that is prefetched.
const AHEAD: usize = 8;

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

/// All figures.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    results: Vec<Row>,
}

/// Measures every codec, with one thread and with two.
///
/// # Errors
/// A tensor does not fit the pool, or comes back other than it was.
pub(super) fn measure(args: &Args, source: &Source, client: &Client) -> Result<Document> {
    let mut results = Vec::new();
    for codec in args.codecs() {
        let entry = source.put(args, client, NAME, codec)?;
        let handle = client.open(NAME)?;
        for threads in [1, 2] {
            results.push(measure_codec(args, source, &handle, &entry, codec, threads)?);
        }
        drop(handle);
        client.remove(NAME)?;
    }
    Ok(Document { results })
}

impl Source {
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

fn measure_codec(
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

impl Document {
    /// Writes a table, and what was gathered.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(super) fn write_table(&self, out: &mut Output) -> Result<()> {
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
        for row in &self.results {
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
        if let Some(row) = self.results.first() {
            writeln!(out, "\n{} rows of {} {}, {} a gather.", row.rows, row.width, row.dtype, row.batch)?;
        }
        Ok(())
    }
}
