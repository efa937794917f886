//! One process of the soak: a role, some threads, and lines of JSON for the parent.
//!
//! It ends when its standard input ends; a line on it says that the load has started.

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::super::super::{DEFAULT_NAMESPACE, connect};
use super::super::weights::Random;
use super::check::Process;
use super::latency;
use super::ledger::Ledger;
use super::reading::Reader;
use super::spec;
use super::tally::{DaemonFate, Line};
use super::writing::Writer;
use crate::output::{self, Output};

/// How often the counts are told: as much of them is lost with a killed worker.
const TICK: Duration = Duration::from_millis(100);

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Role {
    /// Gets, gathers, views
    Reader,
    /// Updates, puts, removes
    Writer,
    /// Keeps views for a while
    Holder,
    /// Refits, verifies, lists
    Refitter,
    /// Times a get of one row
    Latency,
}

impl Role {
    /// Roles of the processes, in order, and again from the start.
    const CYCLE: [Self; 8] = [
        Self::Reader,
        Self::Writer,
        Self::Refitter,
        Self::Holder,
        Self::Writer,
        Self::Reader,
        Self::Writer,
        Self::Reader,
    ];

    /// The role of a process by its number.
    pub(super) fn of(number: usize) -> Self {
        Self::CYCLE[number % Self::CYCLE.len()]
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Holder => "holder",
            Self::Refitter => "refitter",
            Self::Latency => "latency",
        }
    }

    /// Threads of such a process.
    pub(super) const fn threads(self) -> usize {
        match self {
            Self::Reader => 3,
            Self::Writer | Self::Holder => 2,
            Self::Refitter | Self::Latency => 1,
        }
    }
}

/// Arguments of `soak-worker`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What it does
    #[arg(long, value_enum)]
    role: Role,
    /// Start of its random numbers
    #[arg(long)]
    seed: u64,
    /// The number of its first writing thread
    #[arg(long, default_value_t = 0)]
    first_writer: u64,
    /// Writing threads of all processes
    #[arg(long, default_value_t = 1)]
    writers: u64,
    /// Where the ledger is
    #[arg(long)]
    folder: PathBuf,
    /// Whether the daemon is killed now and then
    #[arg(long)]
    daemon_dies: bool,
}

/// Works until standard input ends.
///
/// # Errors
/// The daemon does not answer, or standard output is closed.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let (lines, receiver) = mpsc::channel();
    let fate = if args.daemon_dies { DaemonFate::IsKilled } else { DaemonFate::Lives };
    let client = connect(socket, DEFAULT_NAMESPACE)?;
    let process = Process::new(client, spec::all()?, Ledger::open(&args.folder)?, fate, lines);
    let process = Arc::new(process);
    say(out, &Line::Ready)?;
    let heard = Arc::clone(&process);
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            for line in std::io::stdin().lock().lines() {
                heard.under_load.store(line.is_ok(), Ordering::Relaxed);
            }
            heard.stop.store(true, Ordering::Relaxed);
        })
        .context("start the thread that listens to the parent")?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.role.threads() as u64)
            .map(|thread| {
                let process = &*process;
                scope.spawn(move || {
                    if let Err(error) = work(args, process, thread) {
                        drop(process.lines.send(Line::Failure(output::chain(&error))));
                        process.stop.store(true, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let told = tell(&process, &receiver, out, || threads.iter().all(|thread| thread.is_finished()));
        // Nobody listens any more: the threads must not go on for ever.
        process.stop.store(true, Ordering::Relaxed);
        told
    })
}

fn work(args: &Args, process: &Process, thread: u64) -> Result<()> {
    let random = Random::new(args.seed.wrapping_mul(1024).wrapping_add(thread + 1));
    match args.role {
        Role::Reader => Reader::new(process, random).read(),
        Role::Holder => Reader::new(process, random).hold(),
        Role::Refitter => Reader::new(process, random).refit(),
        Role::Writer => Writer::new(process, random, args.first_writer + thread, args.writers).write(),
        Role::Latency => latency::measure(process, random),
    }
}

/// Passes on what the threads say, and the counts, until they have ended.
fn tell(
    process: &Process,
    receiver: &Receiver<Line>,
    out: &mut Output,
    has_ended: impl Fn() -> bool,
) -> Result<()> {
    let mut next_tally = Instant::now() + TICK;
    loop {
        // Looked at first: what was said before the end is then in the queue.
        let is_last = has_ended();
        match receiver.recv_timeout(if is_last { Duration::ZERO } else { TICK / 4 }) {
            Ok(line) => say(out, &line)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if is_last => break,
            Err(_) => {}
        }
        if Instant::now() >= next_tally {
            next_tally = Instant::now() + TICK;
            say(out, &Line::Tally(process.counts.tally()))?;
        }
    }
    say(out, &Line::Tally(process.counts.tally()))
}

fn say(out: &mut Output, line: &Line) -> Result<()> {
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    Ok(out.flush()?)
}
