//! `tierpack bench refit`: how long a get of one small row takes while the daemon refits the tensor.
//!
//! A reader has one core for itself and a daemon the other.
//! Three states take turns: nothing else happens; memory is copied on the daemon's core, as many bytes a second as a
//! refit re-encodes; the daemon refits the very tensor that is read, again and again.
//! The copy shows what any other work on that core costs a reader; a refit should cost no more.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use tierpack_client::{Client, CodecChoice, CodecId, Handle, PutOptions, RefitMode};
use tierpack_daemon::{Config, Embedded};

use super::weights::{FloatArg, Random, weights};
use crate::commands::demo;
use crate::output::Output;
use crate::table::{Align, Table};

/// Elements of a row.
const WIDTH: usize = 128;
const NAME: &str = "weights";
/// Bytes that are copied at a time, as many as a block has.
const COPY_BYTES: usize = 256 << 10;
/// Bytes that copies come from, more than caches hold.
const COPY_FROM: usize = 64 << 20;
/// Times longer than this count as this.
const LONGEST_NS: u64 = 1_000_000_000;

/// Arguments of `bench refit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// MiB of the tensor
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    mib: u32,
    /// Codec of the tensor
    #[arg(long, value_name = "NAME", default_value = "planes:2-2-2", value_parser = parse_codec)]
    codec: CodecId,
    /// Turns of the three states
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Seconds of each state in each turn
    #[arg(long, value_name = "S", default_value = "2", value_parser = demo::parse_seconds)]
    seconds: f64,
    /// Print one object
    #[arg(long)]
    json: bool,
}

fn parse_codec(text: &str) -> Result<CodecId, String> {
    CodecId::from_name(text).ok_or_else(|| format!("unknown codec {text:?}"))
}

/// Times of a get in one state, in nanoseconds: each the median of all turns.
#[derive(Debug, Serialize)]
struct State {
    state: &'static str,
    gets: u64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    /// What the other core moved meanwhile.
    mib_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Document {
    codec: &'static str,
    cores: usize,
    pinned: bool,
    runs: u32,
    states: Vec<State>,
    refits: u64,
    mismatches: u64,
    p99_refit_to_copy: f64,
    p99_refit_to_quiet: f64,
}

/// One turn of one state.
#[derive(Debug)]
struct Turn {
    times: Histogram<u64>,
    bytes_per_s: f64,
}

/// Measures and prints.
///
/// # Errors
/// No daemon can be started, the tensor does not fit, or the daemon refuses a refit.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let cores = Cores::find();
    // What the daemon starts from here on runs on its core.
    cores.stay_on(cores.daemon);
    let len = (args.mib as usize) << 20;
    let folder = demo::folder()?;
    let config = Config::embedded(folder.path().join("control.sock"), (2 * len + (64 << 20)) as u64)?;
    let daemon = Embedded::start(&config)?;
    let client = Client::builder().socket(daemon.socket()).connect()?;
    let source = weights(FloatArg::Bf16, len);
    let shape = [(len / (2 * WIDTH)) as u64, WIDTH as u64];
    let options = PutOptions::new().codec(CodecChoice::Only(args.codec));
    client.put_with(NAME, FloatArg::Bf16.dtype(), &shape, &mut &source[..], &options)?;
    let mut bench =
        Bench { client: &client, handle: client.open(NAME)?, source: &source, cores, mismatches: 0 };
    let document = bench.measure(args)?;
    drop(bench);
    drop(client);
    daemon.stop()?;
    if args.json {
        return out.json(&document);
    }
    write_table(&document, out)
}

/// The reader's core and the daemon's; the same where the process may use only one.
#[derive(Clone, Copy, Debug)]
struct Cores {
    reader: usize,
    daemon: usize,
}

impl Cores {
    fn find() -> Self {
        let allowed = sched_getaffinity(Pid::from_raw(0)).ok();
        let usable = |core: &usize| allowed.as_ref().is_some_and(|set| set.is_set(*core).unwrap_or(false));
        let mut cores = (0..CpuSet::count()).filter(usable);
        let reader = cores.next().unwrap_or(0);
        Self { reader, daemon: cores.next().unwrap_or(reader) }
    }

    /// Keeps the calling thread on one core, and those that it starts; left alone where the system refuses.
    fn stay_on(self, core: usize) {
        let mut set = CpuSet::new();
        if self.are_two() && set.set(core).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &set).is_ok();
        }
    }

    const fn are_two(self) -> bool {
        self.reader != self.daemon
    }
}

struct Bench<'a> {
    client: &'a Client,
    handle: Handle,
    source: &'a [u8],
    cores: Cores,
    mismatches: u64,
}

impl Bench<'_> {
    fn measure(&mut self, args: &Args) -> Result<Document> {
        let time = Duration::from_secs_f64(args.seconds);
        let before = self.client.drift(NAME)?.refits;
        // Warms up, and tells how fast a copy has to be.
        let mut rate = self.turn(time, &mut Self::refit)?.bytes_per_s;
        let (mut quiet, mut copy, mut refit) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.runs {
            quiet.push(self.turn(time, &mut |_, end| {
                wait(end);
                Ok(0)
            })?);
            copy.push(self.turn(time, &mut |_, end| Ok(copy_at(rate, end)))?);
            refit.push(self.turn(time, &mut Self::refit)?);
            rate = refit.last().map_or(rate, |turn| turn.bytes_per_s);
        }
        let states = vec![State::of("quiet", quiet), State::of("copy", copy), State::of("refit", refit)];
        let p99 = |n: usize| states[n].p99_ns.max(1);
        Ok(Document {
            codec: args.codec.name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            pinned: self.cores.are_two(),
            runs: args.runs,
            refits: self.client.drift(NAME)?.refits - before,
            mismatches: self.mismatches,
            p99_refit_to_copy: ratio(p99(2), p99(1)),
            p99_refit_to_quiet: ratio(p99(2), p99(0)),
            states,
        })
    }

    /// Times gets while `other` does something on the daemon's core; it gives the bytes that it moved.
    fn turn(
        &mut self,
        time: Duration,
        other: &mut (dyn FnMut(&Client, Instant) -> Result<u64> + Send),
    ) -> Result<Turn> {
        let (end, is_over) = (Instant::now() + time, AtomicBool::new(false));
        let (cores, client) = (self.cores, self.client);
        let (times, bytes, took) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                cores.stay_on(cores.reader);
                self.read(&is_over)
            });
            let started = Instant::now();
            let bytes = other(client, end);
            let took = started.elapsed();
            is_over.store(true, Ordering::Relaxed);
            (reader.join().expect("the reader does not panic"), bytes, took)
        });
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes_per_s = bytes? as f64 / took.as_secs_f64();
        Ok(Turn { times: times?, bytes_per_s })
    }

    /// Gets one random row after the other, and compares each with what was put.
    fn read(&mut self, is_over: &AtomicBool) -> Result<Histogram<u64>> {
        let row_bytes = 2 * WIDTH;
        let n_rows = (self.source.len() / row_bytes) as u64;
        let mut random = Random::new(7);
        let mut out = vec![0; row_bytes];
        let mut times = Histogram::new_with_bounds(1, LONGEST_NS, 3).context("a histogram")?;
        while !is_over.load(Ordering::Relaxed) {
            let row = random.below(n_rows);
            let start = Instant::now();
            self.handle.gather_into(&[row], &mut out)?;
            let took = start.elapsed().as_nanos();
            times.saturating_record(u64::try_from(took).unwrap_or(LONGEST_NS));
            let at = usize::try_from(row)? * row_bytes;
            self.mismatches += u64::from(self.source[at..at + row_bytes] != out[..]);
        }
        Ok(times)
    }

    /// Refits until the end; returns the raw bytes that were re-encoded.
    fn refit(client: &Client, end: Instant) -> Result<u64> {
        let before = client.drift(NAME)?.reencoded_bytes;
        while Instant::now() < end {
            let drift = client.refit(NAME, RefitMode::Force, |_, _| ())?;
            ensure!(
                drift.last_failure.is_none(),
                "a refit failed: {}",
                drift.last_failure.unwrap_or_default()
            );
        }
        Ok(client.drift(NAME)?.reencoded_bytes - before)
    }
}

fn wait(end: Instant) {
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
}

/// Copies blocks at `rate` bytes a second until the end; returns the bytes.
fn copy_at(rate: f64, end: Instant) -> u64 {
    let (from, mut to) = (vec![1_u8; COPY_FROM], vec![0_u8; COPY_BYTES]);
    let start = Instant::now();
    let mut copied = 0_usize;
    while Instant::now() < end {
        let block = &from[copied % COPY_FROM..][..COPY_BYTES];
        to.copy_from_slice(std::hint::black_box(block));
        std::hint::black_box(&to);
        copied += COPY_BYTES;
        #[expect(clippy::cast_precision_loss, reason = "a time to sleep until")]
        let due = Duration::from_secs_f64(copied as f64 / rate.max(1.0));
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    copied as u64
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

impl State {
    fn of(state: &'static str, turns: Vec<Turn>) -> Self {
        let at = |quantile| {
            let mut values: Vec<u64> =
                turns.iter().map(|turn| turn.times.value_at_quantile(quantile)).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        let mut rates: Vec<f64> = turns.iter().map(|turn| turn.bytes_per_s).collect();
        rates.sort_by(f64::total_cmp);
        Self {
            state,
            gets: turns.iter().map(|turn| turn.times.len()).sum(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            mib_per_s: rates[rates.len() / 2] / f64::from(1 << 20),
        }
    }
}

fn write_table(document: &Document, out: &mut Output) -> Result<()> {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("other core", Align::Left),
        ("gets", right),
        ("p50 ns", right),
        ("p99 ns", right),
        ("p99.9 ns", right),
        ("MiB/s there", right),
    ]);
    for state in &document.states {
        table.row(vec![
            state.state.to_owned(),
            state.gets.to_string(),
            state.p50_ns.to_string(),
            state.p99_ns.to_string(),
            state.p999_ns.to_string(),
            format!("{:.0}", state.mib_per_s),
        ]);
    }
    table.write(out)?;
    let Document { codec, refits, mismatches, p99_refit_to_copy, p99_refit_to_quiet, pinned, .. } = document;
    let alone = if *pinned { "" } else { "; reader and daemon share one core" };
    writeln!(
        out,
        "\n{codec}, medians of {} turns; {refits} refits, {mismatches} mismatches{alone}.\n\
         p99 during a refit: {p99_refit_to_copy:.2} of that beside a copy, {p99_refit_to_quiet:.2} of that in quiet.",
        document.runs
    )?;
    Ok(())
}
