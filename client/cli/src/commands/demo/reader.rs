//! One reading process of the demo.
//!
//! It attaches, prints [`READY`], and starts when a line arrives on standard input.
//! It prints its [`Tally`] as one JSON line and stays attached until standard input closes,
//! so that the memory of all processes can be added up; a demo that is gone closes it, too.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use tierpack_client::Handle;

use super::super::{DEFAULT_NAMESPACE, connect};
use super::children::pss_bytes;
use super::on_gpu::{self, DeviceTally};
use super::source::{Source, SourceTensor};
use crate::device::{self, DeviceArg};
use crate::escape;
use crate::output::Output;

/// The line that says: attached, waiting.
pub(super) const READY: &str = "ready";
/// Rows of one gather, at most.
pub(super) const GATHER_ROWS: u64 = 256;
/// What is compared and counted at a time.
const WORD_BYTES: usize = 8;

/// Arguments of `demo-reader`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Start of the random row numbers
    #[arg(long)]
    seed: u64,
    /// Seconds to read for
    #[arg(long, value_parser = super::parse_seconds)]
    seconds: f64,
    /// Where rows are gathered as well, afterwards
    #[arg(long, default_value = "cpu", value_parser = device::parse)]
    device: DeviceArg,
}

/// What one process read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// This process.
    pub(super) pid: u32,
    /// Calls of `get` and `gather`.
    pub(super) reads: u64,
    /// Bytes that they returned.
    pub(super) bytes: u64,
    /// Time spent in them; comparing does not count.
    pub(super) seconds: f64,
    /// Words of 8 bytes that differed from the source.
    pub(super) mismatches: u64,
    /// This process's share of host memory while all were attached.
    pub(super) pss_bytes: u64,
    /// What it gathered on a GPU.
    pub(super) gpu: Option<DeviceTally>,
}

/// Reads for some seconds and reports.
///
/// # Errors
/// The daemon does not answer, holds other tensors than the binary, or a read fails.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let source = Source::open()?;
    let client = connect(socket, DEFAULT_NAMESPACE)?;
    let mut pairs = Vec::with_capacity(source.tensors.len());
    for tensor in &source.tensors {
        let handle = client.open(&tensor.name)?;
        ensure!(
            handle.dtype() == tensor.dtype && handle.shape() == tensor.shape,
            "tensor {} is {} {:?}, not what was stored",
            escape::quoted(&tensor.name),
            handle.dtype(),
            handle.shape()
        );
        pairs.push((tensor, handle));
    }
    writeln!(out, "{READY}")?;
    out.flush()?;
    let mut lines = std::io::stdin().lock().lines();
    if lines.next().transpose().context("wait for the start")?.is_none() {
        return Ok(());
    }
    let time = Duration::from_secs_f64(args.seconds);
    let mut tally = read_all(&pairs, time, args.seed)?;
    tally.pid = std::process::id();
    // Before a GPU's driver takes memory of its own.
    tally.pss_bytes = pss_bytes(tally.pid)?;
    if let Some(gpu) = args.device.open()? {
        tally.gpu = Some(on_gpu::gather_all(&gpu, &pairs, &client.list()?, (time, args.seed))?);
    }
    writeln!(out, "{}", serde_json::to_string(&tally)?)?;
    out.flush()?;
    while lines.next().transpose().context("wait for the end")?.is_some() {}
    Ok(())
}

/// Gets and gathers from every tensor in turn until `time` is over.
fn read_all(pairs: &[(&SourceTensor, Handle)], time: Duration, seed: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut random = XorShift::new(seed);
    let mut spent = Duration::ZERO;
    let start = Instant::now();
    while start.elapsed() < time {
        for (source, handle) in pairs {
            let call = Instant::now();
            let tensor = handle.get()?;
            spent += call.elapsed();
            tally.count(tensor.as_bytes(), source.bytes);
            let rows = random.rows(handle.n_rows());
            let call = Instant::now();
            let gathered = handle.gather(&rows)?;
            spent += call.elapsed();
            tally.count_rows(gathered.as_bytes(), source.bytes, &rows, handle.row_bytes())?;
        }
    }
    tally.seconds = spent.as_secs_f64();
    Ok(tally)
}

impl Tally {
    /// Counts one read that should have returned `expected`.
    fn count(&mut self, got: &[u8], expected: &[u8]) {
        self.reads += 1;
        self.bytes += got.len() as u64;
        self.mismatches += differing_words(got, expected);
    }

    /// Counts one gather of `rows` of `source`.
    fn count_rows(&mut self, got: &[u8], source: &[u8], rows: &[u64], row_bytes: u64) -> Result<()> {
        self.reads += 1;
        self.bytes += got.len() as u64;
        self.mismatches += differing_rows(got, source, rows, row_bytes)?;
        Ok(())
    }
}

/// Words of a gather that differ from `rows` of `source`; 1 where the length is another.
pub(super) fn differing_rows(got: &[u8], source: &[u8], rows: &[u64], row_bytes: u64) -> Result<u64> {
    let row_bytes = usize::try_from(row_bytes)?;
    if got.len() != rows.len() * row_bytes {
        return Ok(1);
    }
    let mut mismatches = 0;
    for (idx, &row) in rows.iter().enumerate() {
        let start = usize::try_from(row)? * row_bytes;
        let expected = &source[start..start + row_bytes];
        mismatches += differing_words(&got[idx * row_bytes..][..row_bytes], expected);
    }
    Ok(mismatches)
}

/// Words that differ; those that only one side has count as well.
fn differing_words(got: &[u8], expected: &[u8]) -> u64 {
    if got == expected {
        return 0;
    }
    let common = got.len().min(expected.len());
    let longer = got.len().max(expected.len());
    let pairs = got[..common].chunks(WORD_BYTES).zip(expected[..common].chunks(WORD_BYTES));
    let differing = pairs.filter(|(got, expected)| got != expected).count();
    (differing + (longer - common).div_ceil(WORD_BYTES)) as u64
}

/// Marsaglia's xorshift64: the same rows for the same seed, everywhere.
pub(super) struct XorShift(u64);

impl XorShift {
    pub(super) fn new(seed: u64) -> Self {
        // The odd constant spreads small seeds, and zero is the one state that must not be.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).max(1))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Up to [`GATHER_ROWS`] random rows of `n_rows`, repetitions allowed; none of an empty tensor.
    fn rows(&mut self, n_rows: u64) -> Vec<u64> {
        (0..GATHER_ROWS.min(n_rows)).map(|_| self.next() % n_rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_words_are_counted() {
        let source: Vec<u8> = (0..30).collect();
        assert_eq!(differing_words(&source, &source), 0);
        let mut other = source.clone();
        other[0] ^= 1;
        other[7] ^= 1;
        other[29] ^= 1;
        assert_eq!(differing_words(&other, &source), 2);
        assert_eq!(differing_words(&source[..16], &source), 2);
        assert_eq!(differing_words(&[], &source), 4);
    }

    #[test]
    fn a_wrong_row_is_a_mismatch() {
        let source: Vec<u8> = (0..32).collect();
        let mut tally = Tally::default();
        tally.count_rows(&source[8..16], &source, &[1], 8).unwrap();
        assert_eq!((tally.reads, tally.bytes, tally.mismatches), (1, 8, 0));
        tally.count_rows(&source[8..16], &source, &[2], 8).unwrap();
        tally.count_rows(&source[8..16], &source, &[1, 2], 8).unwrap();
        assert_eq!((tally.reads, tally.mismatches), (3, 2));
    }

    #[test]
    fn random_rows_are_in_range_and_repeatable() {
        let rows = XorShift::new(3).rows(384);
        assert_eq!(rows.len(), 256);
        assert!(rows.iter().all(|&row| row < 384));
        assert_eq!(rows, XorShift::new(3).rows(384));
        assert_ne!(rows, XorShift::new(4).rows(384));
        assert_eq!(XorShift::new(0).rows(1), [0]);
        assert!(XorShift::new(0).rows(0).is_empty());
    }
}
