//! `tierpack bench pool`: how much of the memory that the daemon has taken is in use, under a long trace.
//!
//! The trace puts, updates and removes tensors of mixed sizes, so that holes of all lengths come and go, and lets the
//! total rise and fall.
//! Next to the allocator it so measures the background thread, which empties segments of which little is used.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use tierpack_client::{Client, CodecChoice, CodecId, Dtype, PutOptions, Stats};
use tierpack_daemon::{Config, Embedded};

use super::weights::{FloatArg, Random, weights};
use crate::commands::demo;
use crate::output::Output;
use crate::table::{Align, Table};

/// Bytes of a row of every tensor.
const ROW_BYTES: u64 = 512;
/// Lengths of tensors are spread evenly over their logarithms, in rows: from 4 KiB to 16 MiB.
const ROWS_LOG2: (u64, u64) = (3, 15);
/// Parts of the pool that tensors fill, from the least to the most: the total wanders between them.
const FILL_PERCENT: (u64, u64) = (30, 80);
/// Steps from one end of that to the other.
const SWING_STEPS: u64 = 4_000;
/// Between two looks at the pool.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the background thread may take to return what the end of the trace leaves.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `bench pool`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds of the trace
    #[arg(long, value_name = "S", default_value = "120", value_parser = demo::parse_seconds)]
    seconds: f64,
    /// The trace: the same seed makes the same operations in the same order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// MiB of the pool
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    mib: u32,
    /// Operations per second at most: the background thread works by time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Print one object
    #[arg(long)]
    json: bool,
}

/// What the trace did, and how the pool looked meanwhile.
#[derive(Debug, Default, Serialize)]
struct Document {
    seed: u64,
    seconds: f64,
    puts: u64,
    updates: u64,
    removals: u64,
    pool_full: u64,
    looks: usize,
    /// Bytes in use by extents of all bytes of data segments, over all looks after the first tenth.
    used_of_allocated_mean: f64,
    used_of_allocated_p5: f64,
    used_of_allocated_least: f64,
    rewritten_bytes: u64,
    /// After everything was removed: bytes of data segments that have not returned.
    left_bytes: u64,
    left_after_s: f64,
}

/// Runs the trace and prints.
///
/// # Errors
/// No daemon can be started, or it refuses what it should not.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let folder = demo::folder()?;
    let pool_bytes = u64::from(args.mib) << 20;
    let daemon = Embedded::start(&Config::embedded(folder.path().join("control.sock"), pool_bytes)?)?;
    let client = Client::builder().socket(daemon.socket()).connect()?;
    let mut trace = Trace::new(&client, pool_bytes, args.seed);
    let document = trace.run(args)?;
    drop(client);
    daemon.stop()?;
    if args.json {
        return out.json(&document);
    }
    write_table(&document, out)
}

struct Trace<'a> {
    client: &'a Client,
    pool_bytes: u64,
    random: Random,
    source: Vec<u8>,
    /// Names and rows of what is there, the oldest first.
    live: VecDeque<(String, u64)>,
    live_bytes: u64,
    steps: u64,
    document: Document,
}

impl<'a> Trace<'a> {
    fn new(client: &'a Client, pool_bytes: u64, seed: u64) -> Self {
        let len = usize::try_from(ROW_BYTES << ROWS_LOG2.1).unwrap_or(usize::MAX);
        Self {
            client,
            pool_bytes,
            random: Random::new(seed),
            source: weights(FloatArg::Bf16, len),
            live: VecDeque::new(),
            live_bytes: 0,
            steps: 0,
            document: Document { seed, ..Document::default() },
        }
    }

    fn run(&mut self, args: &Args) -> Result<Document> {
        let time = Duration::from_secs_f64(args.seconds);
        let (start, mut next_look, mut looks) = (Instant::now(), Instant::now(), Vec::new());
        let bar = ProgressBar::new(time.as_secs()).with_message("trace");
        let pause = Duration::from_secs(1) / args.rate;
        while start.elapsed() < time {
            self.step()?;
            let due = pause * u32::try_from(self.steps).unwrap_or(u32::MAX);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            if Instant::now() >= next_look {
                next_look += LOOK_EVERY;
                let (used, allocated) = in_use(&self.client.stats()?);
                bar.set_position(start.elapsed().as_secs());
                if start.elapsed() > time / 10 && allocated > 0 {
                    looks.push(ratio(used, allocated));
                }
            }
        }
        bar.finish_and_clear();
        self.document.seconds = start.elapsed().as_secs_f64();
        looks.sort_by(f64::total_cmp);
        #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
        let mean = looks.iter().sum::<f64>() / looks.len().max(1) as f64;
        self.document.looks = looks.len();
        self.document.used_of_allocated_mean = mean;
        self.document.used_of_allocated_p5 = looks.get(looks.len() / 20).copied().unwrap_or(0.0);
        self.document.used_of_allocated_least = looks.first().copied().unwrap_or(0.0);
        self.empty()?;
        Ok(std::mem::take(&mut self.document))
    }

    /// Removes everything and waits for the memory to return.
    fn empty(&mut self) -> Result<()> {
        while let Some((name, _)) = self.live.pop_front() {
            self.client.remove(&name)?;
        }
        let start = Instant::now();
        loop {
            let stats = self.client.stats()?;
            self.document.rewritten_bytes = stats.background.rewritten_bytes;
            self.document.left_bytes = in_use(&stats).1;
            self.document.left_after_s = start.elapsed().as_secs_f64();
            if self.document.left_bytes == 0 || start.elapsed() > PATIENCE {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Bytes that tensors should have now, raw: it swings between the least and the most.
    fn wanted_bytes(&self) -> u64 {
        let (least, most) = FILL_PERCENT;
        let phase = self.steps % (2 * SWING_STEPS);
        let up = phase.min(2 * SWING_STEPS - phase);
        self.pool_bytes / 100 * (least + (most - least) * up / SWING_STEPS)
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.random.below(3) == 0 && !self.live.is_empty() {
            return self.update();
        }
        if self.live_bytes < self.wanted_bytes() { self.put() } else { self.remove() }
    }

    fn put(&mut self) -> Result<()> {
        let log2 = ROWS_LOG2.0 + self.random.below(ROWS_LOG2.1 - ROWS_LOG2.0);
        let rows = (1 << log2) + self.random.below(1 << log2);
        let name = format!("tensor {}", self.steps);
        // Most tensors compress; the others are what cannot shrink.
        let codec = if self.random.below(4) == 0 { CodecId::Raw } else { CodecId::Planes222 };
        let options = PutOptions::new().codec(CodecChoice::Only(codec));
        let bytes = &self.source[..usize::try_from(rows * ROW_BYTES)?];
        let shape = [rows, ROW_BYTES / 2];
        match self.client.put_with(&name, Dtype::Bf16, &shape, &mut &bytes[..], &options) {
            Ok(_) => {
                self.document.puts += 1;
                self.live_bytes += rows * ROW_BYTES;
                self.live.push_back((name, rows));
                Ok(())
            }
            Err(tierpack_client::Error::PoolFull { .. }) => {
                self.document.pool_full += 1;
                self.remove()
            }
            Err(error) => Err(error.into()),
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let n = self.live.len() as u64;
        usize::try_from(self.random.below(n.max(1))).ok().filter(|at| *at < self.live.len())
    }

    fn remove(&mut self) -> Result<()> {
        let Some(at) = self.pick() else { return Ok(()) };
        let (name, rows) = self.live.swap_remove_back(at).context("a tensor that is there")?;
        self.client.remove(&name)?;
        self.document.removals += 1;
        self.live_bytes -= rows * ROW_BYTES;
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        let Some(at) = self.pick() else { return Ok(()) };
        let (name, rows) = self.live[at].clone();
        let n = 1 + self.random.below(64.min(rows));
        let ids: Vec<u64> = (0..n).map(|_| self.random.below(rows)).collect();
        let values = &self.source[..usize::try_from(n * ROW_BYTES)?];
        match self.client.update(&name, &ids, values) {
            Ok(_) => self.document.updates += 1,
            Err(tierpack_client::Error::PoolFull { .. }) => self.document.pool_full += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Bytes in use by extents, and bytes of data segments.
fn in_use(stats: &Stats) -> (u64, u64) {
    let sum = |field: fn(&tierpack_shm::stats::NamespaceStats) -> u64| {
        stats.namespaces.iter().map(field).sum::<u64>()
    };
    (sum(|found| found.used_bytes), sum(|found| found.data_segment_bytes))
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

fn write_table(document: &Document, out: &mut Output) -> Result<()> {
    let mut table = Table::new(&[("pool", Align::Left), ("", Align::Right)]);
    let mut row = |what: &str, value: String| table.row(vec![what.to_owned(), value]);
    row("seconds", format!("{:.0}", document.seconds));
    row("puts", document.puts.to_string());
    row("updates", document.updates.to_string());
    row("removals", document.removals.to_string());
    row("refused: pool full", document.pool_full.to_string());
    row("used / allocated, mean", format!("{:.3}", document.used_of_allocated_mean));
    row("used / allocated, 95 % of looks above", format!("{:.3}", document.used_of_allocated_p5));
    row("used / allocated, least", format!("{:.3}", document.used_of_allocated_least));
    row("MiB stored anew by the background thread", (document.rewritten_bytes >> 20).to_string());
    row("bytes left in segments at the end", document.left_bytes.to_string());
    row("seconds until they had returned", format!("{:.1}", document.left_after_s));
    table.write(out)?;
    Ok(())
}
