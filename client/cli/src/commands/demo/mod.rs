//! `tierpack demo`: the whole system on one machine, in a few seconds.
//!
//! 1. Start a daemon of its own in a temporary folder.
//! 2. Store a slice of a real checkpoint, which this binary carries.
//! 3. Start reading *processes*; when all have attached, let them `get` and `gather` at full speed.
//!    Each compares every word that it reads with the data in its own copy of the binary.
//! 4. While all are attached, add up the host memory (PSS) of daemon and readers.
//! 5. Print what was stored, how fast each process read, and whether anything differed.
//!
//! With `--device cuda` each process then gathers hot rows on the GPU, and compares these as well.
//!
//! Every child process is ended and every file removed on every way out; only SIGKILL of the demo leaves a folder.

pub(super) mod children;
mod on_gpu;
pub(crate) mod reader;
mod report;
mod source;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use indicatif::ProgressBar;
use tempfile::TempDir;
use tierpack_client::{Client, Entry, PutOptions};

use crate::device::{self, DeviceArg};
use crate::escape;
use crate::output::Output;
use children::{Daemon, Events, Reader};
use reader::Tally;
use report::Report;
use source::Source;

/// How long the daemon and the readers may take to get ready, and to end after their time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Small segments, so that the memory in use shows and not the memory in reserve.
const POOL: [&str; 6] = ["--pool-size", "64MiB", "--segment-size", "4MiB", "--lock", "try"];
/// Longest folder that leaves room for the names of sockets: a socket path has 107 bytes at most.
const MAX_FOLDER_BYTES: usize = 64;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Reading processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: u16,
    /// Seconds to read for
    #[arg(long, value_name = "S", default_value = "3", value_parser = parse_seconds)]
    seconds: f64,
    /// Gather hot rows on a GPU as well, for as long again
    #[arg(long, value_name = "cpu|cuda[:N]", default_value = "cpu", value_parser = device::parse)]
    device: DeviceArg,
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.01..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("choose 0.01 to 86400".to_owned()) }
}

/// Runs the demo; the exit code is 0 only if every word matched.
///
/// # Errors
/// There is no GPU where one is asked for, the daemon or a reader cannot be started, ends early, or reads nothing.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<ExitCode> {
    let mut events = Events::start()?;
    // Closed at once: the readers open it themselves.
    drop(args.device.open()?);
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(100));
    let folder = folder()?;
    spinner.set_message("starting a daemon");
    let mut daemon = Daemon::start(folder.path(), &POOL)?;
    let client = daemon.connect(&events, PATIENCE)?;
    spinner.set_message("storing a slice of a real checkpoint");
    let entries = store(&client)?;
    // The client goes before memory is measured: only daemon and readers count.
    drop(client);
    spinner.set_message(format!("{} processes read and compare for {} s", args.processes, args.seconds));
    let (tallies, host_bytes) = read(args, folder.path(), &mut daemon, &mut events)?;
    spinner.finish_and_clear();
    daemon.stop();
    let report = Report { entries: &entries, tallies: &tallies, host_bytes };
    if args.json {
        report.write_json(out)?;
    } else {
        report.write_tables(out)?;
    }
    Ok(if report.all_matched() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A private folder with a path short enough for sockets.
///
/// # Errors
/// It cannot be created.
pub(super) fn folder() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("tierpack-");
    let usual = std::env::temp_dir();
    let parent =
        if usual.as_os_str().len() <= MAX_FOLDER_BYTES { usual.as_path() } else { Path::new("/tmp") };
    builder.tempdir_in(parent).with_context(|| format!("create a folder in {}", parent.display()))
}

/// Stores the demo's tensors and returns what the pool lists.
fn store(client: &Client) -> Result<Vec<Entry>> {
    let source = Source::open()?;
    for tensor in &source.tensors {
        let options = PutOptions::new().file_metadata(source.metadata.clone());
        client
            .put_with(&tensor.name, tensor.dtype, &tensor.shape, &mut &tensor.bytes[..], &options)
            .with_context(|| format!("put tensor {}", escape::quoted(&tensor.name)))?;
    }
    let entries = client.list()?;
    ensure!(
        entries.len() == source.tensors.len(),
        "stored {} tensors, but the pool lists {}",
        source.tensors.len(),
        entries.len()
    );
    Ok(entries)
}

/// Lets the readers read together; returns their tallies and the host memory of all processes.
fn read(args: &Args, folder: &Path, daemon: &mut Daemon, events: &mut Events) -> Result<(Vec<Tally>, u64)> {
    let mut readers = Vec::with_capacity(args.processes.into());
    for idx in 0..usize::from(args.processes) {
        readers.push(Reader::start(idx, folder, args, events)?);
    }
    let ready = events.line_of_each(&mut readers, daemon, PATIENCE)?;
    for (reader, line) in readers.iter_mut().zip(ready) {
        ensure!(line == reader::READY, "reader {} says {}", reader.idx(), escape::quoted(&line));
    }
    readers.iter_mut().try_for_each(Reader::go)?;
    let on_gpu = if args.device == DeviceArg::Cpu { 0.0 } else { args.seconds };
    let time = Duration::from_secs_f64(args.seconds + on_gpu) + PATIENCE;
    let lines = events.line_of_each(&mut readers, daemon, time)?;
    let mut tallies: Vec<Tally> = Vec::with_capacity(lines.len());
    for line in &lines {
        tallies.push(serde_json::from_str(line).context("parse the tally of a reader")?);
    }
    // Readers stay attached until their standard input closes, so every share is counted in one state.
    let shares: u64 = tallies.iter().map(|tally| tally.pss_bytes).sum();
    let host_bytes = shares + children::pss_bytes(daemon.pid())?;
    for tally in &tallies {
        ensure!(tally.reads > 0, "process {} read nothing in {} s: raise --seconds", tally.pid, args.seconds);
    }
    Ok((tallies, host_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_limited() {
        assert!(parse_seconds("0.5").is_ok() && parse_seconds("86400").is_ok());
        for text in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
