//! Gathers random rows of a self-describing tensor and checks every word.
//!
//! In its steady state the reader thread makes no system call and allocates nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tierpack_client::{Client, Error, Handle};
use tierpack_tests::data::{Random, Words};
use tierpack_tests::reports::ReadReport;

use crate::{connect, median, say, told, until_closed};

/// Gathers that are timed before the steady state.
const TIMED: usize = 500;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tensor to gather from.
    #[arg(long)]
    tensor: String,
    /// The id in its words.
    #[arg(long)]
    tensor_id: u16,
    /// The version in its words.
    #[arg(long)]
    version: u16,
    /// Its words are those that a codec shortens.
    #[arg(long)]
    compressible: bool,
    /// Rows of one gather.
    #[arg(long)]
    batch: usize,
    /// Reads these rows once in order before anything else: `K/N` is the K-th of N parts of the tensor.
    #[arg(long)]
    part: Option<String>,
    /// A tensor to get whole between gathers; its id is one more.
    #[arg(long)]
    mixed: Option<String>,
    /// Rests after so many gathers; else it goes on until it is told to stop.
    #[arg(long)]
    steps: Option<u64>,
}

struct Whole {
    handle: Handle,
    out: Vec<u8>,
}

struct Reader {
    handle: Handle,
    whole: Option<Whole>,
    words: Words,
    tensor_id: u16,
    version: u16,
    rows: Vec<u64>,
    out: Vec<u8>,
    random: Random,
    report: ReadReport,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let client = connect(socket)?;
    say(&format!("connected {}", std::process::id()))?;
    if !told()? {
        return Ok(());
    }
    let mut reader = Reader::open(&client, args)?;
    let part = args.part.as_deref().map(|part| part_of(part, reader.handle.n_rows())).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    let told_to_stop = Arc::clone(&stop);
    let mut left = args.steps.unwrap_or(u64::MAX);
    let thread = std::thread::spawn(move || -> Result<ReadReport> {
        if let Some((first, end)) = part {
            reader.read_in_order(first, end)?;
        }
        reader.time()?;
        say(&format!("reader {}", nix::unistd::gettid()))?;
        while left > 0 && reader.report.errors == 0 && !told_to_stop.load(Ordering::Relaxed) {
            reader.step();
            left -= 1;
        }
        Ok(reader.report)
    });
    until_closed()?;
    stop.store(true, Ordering::Relaxed);
    let Ok(report) = thread.join() else { bail!("the reader panicked") };
    say(&serde_json::to_string(&report?)?)
}

/// First and end row of part `K/N`.
fn part_of(part: &str, n_rows: u64) -> Result<(u64, u64)> {
    let (k, n) = part.split_once('/').context("a part is K/N")?;
    let (k, n): (u64, u64) = (k.parse()?, n.parse()?);
    Ok((n_rows * k / n, n_rows * (k + 1) / n))
}

impl Reader {
    fn open(client: &Client, args: &Args) -> Result<Self> {
        let handle = client.open(&args.tensor)?;
        let whole = match &args.mixed {
            Some(name) => {
                let handle = client.open(name)?;
                let out = vec![0; usize::try_from(handle.raw_bytes())?];
                Some(Whole { handle, out })
            }
            None => None,
        };
        let row_bytes = usize::try_from(handle.row_bytes())?;
        Ok(Self {
            whole,
            words: Words::new(args.compressible),
            tensor_id: args.tensor_id,
            version: args.version,
            rows: vec![0; args.batch],
            out: vec![0; args.batch * row_bytes],
            random: Random::new(u64::from(std::process::id())),
            report: ReadReport::default(),
            handle,
        })
    }

    fn read_in_order(&mut self, first: u64, end: u64) -> Result<()> {
        let mut next = first;
        while next < end {
            for row in &mut self.rows {
                *row = next.min(end - 1);
                next += 1;
            }
            self.handle.gather_into(&self.rows, &mut self.out)?;
            self.check();
        }
        Ok(())
    }

    /// Times gathers of random rows, one batch each.
    fn time(&mut self) -> Result<()> {
        let mut samples = Vec::with_capacity(TIMED);
        for _ in 0..TIMED {
            self.choose();
            let start = Instant::now();
            self.handle.gather_into(&self.rows, &mut self.out)?;
            samples.push(u64::try_from(start.elapsed().as_nanos())? / self.rows.len() as u64);
            self.check();
        }
        self.report.median_ns = median(samples);
        Ok(())
    }

    /// One gather and, when asked for, one get.
    fn step(&mut self) {
        self.choose();
        match self.handle.gather_into(&self.rows, &mut self.out) {
            Ok(()) => self.check(),
            Err(error) => self.failed(&error),
        }
        let Some(Whole { handle, out }) = &mut self.whole else { return };
        match handle.get_into(out) {
            Ok(()) => {
                self.report.reads += 1;
                self.report.mismatches += self.words.mismatches(out, self.tensor_id + 1, self.version, 0);
            }
            Err(error) => self.failed(&error),
        }
    }

    fn choose(&mut self) {
        let n_rows = self.handle.n_rows();
        for row in &mut self.rows {
            *row = self.random.below(n_rows);
        }
    }

    fn check(&mut self) {
        let row_bytes = self.out.len() / self.rows.len();
        for (row, bytes) in self.rows.iter().zip(self.out.chunks_exact(row_bytes)) {
            let first_word = row * (row_bytes as u64 / 8);
            self.report.mismatches += self.words.mismatches(bytes, self.tensor_id, self.version, first_word);
        }
        // What is right must not be right by being left over from the last call.
        self.out.fill(0);
        self.report.reads += 1;
        self.report.rows += self.rows.len() as u64;
    }

    #[cold]
    fn failed(&mut self, error: &Error) {
        self.report.errors += 1;
        self.report.error = Some(error.to_string());
    }
}
