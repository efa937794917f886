//! `tierpack bench soak`: many processes read, write, refit and are killed, and every word that is read is checked.
//!
//! 1. Start a daemon with a small pool, and put tensors whose every word says what it is (`word.rs`).
//! 2. Start one process that times a get of one row, and after a quiet second the workers (`worker.rs`).
//! 3. Every second kill one of them at random and start it again, and stop another one in the middle for a while.
//! 4. Let all end, remove everything, and see whether the daemon has back what it had.
//!
//! What writers have begun and done is in a file (`ledger.rs`), so that a reader can tell what it may see.

mod check;
mod latency;
mod ledger;
mod reading;
mod report;
mod spec;
mod state;
mod tally;
mod word;
pub(crate) mod worker;
mod workers;
mod writing;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tierpack_client::Client;

use super::weights::Random;
use crate::commands::demo;
use crate::commands::demo::children::{Daemon, Events};
use crate::output::Output;
use ledger::{Entry, Ledger};
use report::{DaemonReport, Report};
use spec::Spec;
use state::Base;
use worker::Role;
use workers::{Plan, Workers};

/// The tensors do not all fit at once, and a put of the largest fits only when others are away.
const POOL_SIZE: [&str; 4] = ["--pool-size", "96MiB", "--segment-size", "4MiB"];
/// Refits get all the time that they can have, and do not wait for every view that is kept.
const SETTINGS: [&str; 6] = ["--lock", "try", "--refit-cpu-percent", "100", "--max-held-percent", "20"];
/// How long the daemon and the workers may take to get ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a get is timed without load, at most.
const QUIET: Duration = Duration::from_secs(2);
/// Between two kills.
const KILL_EVERY: Duration = Duration::from_secs(1);
/// How long a worker is stopped in the middle.
const STOPPED: Duration = Duration::from_millis(200);
/// Between two kills of the daemon.
const DAEMON_KILL_EVERY: Duration = Duration::from_secs(15);
/// The process that times gets; it is not killed.
const LATENCY: usize = 0;

/// Arguments of `bench soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long the load runs
    #[arg(long, value_name = "M", default_value = "1", value_parser = parse_minutes)]
    minutes: f64,
    /// Start of the random numbers
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Processes that read and write
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    processes: u16,
    /// Kill the daemon, too, every 15 seconds
    #[arg(long)]
    kill_daemon: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.05..=100_000.0).contains(&minutes) { Ok(minutes) } else { Err("choose 0.05 to 100000".to_owned()) }
}

/// Runs the soak; the exit code is 0 only if every word was right and nothing leaked.
///
/// # Errors
/// The daemon or a worker cannot be started, or the soak is interrupted.
pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode> {
    let events = Events::start()?;
    let mut soak = Soak::start(args, &events)?;
    let bar = progress_bar(args);
    let ended = soak.load(args, &events, &bar);
    bar.finish_and_clear();
    if let Err(error) = ended {
        // An interrupt, or a daemon that is gone, ends everything; what a worker could not do is a finding.
        if soak.workers.told.failures.is_empty() {
            return Err(error);
        }
    }
    let report = soak.finish(args, &events)?;
    if args.json {
        report.write_json(out)?;
    } else {
        report.write_table(out)?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A soak under way.
#[derive(Debug)]
struct Soak {
    // In this order: the workers end before the daemon, and the folder goes last.
    workers: Workers,
    daemon: Daemon,
    base: Base,
    report: DaemonReport,
    kills: u64,
    stops: u64,
    daemon_kills: u64,
    folder: TempDir,
}

impl Soak {
    fn start(args: &Args, events: &Events) -> Result<Self> {
        let folder = demo::folder()?;
        let specs = spec::all()?;
        Ledger::create(folder.path(), &specs)?;
        let mut daemon = Daemon::start(folder.path(), &settings())?;
        drop(daemon.connect(events, PATIENCE)?);
        let base = state::base(&daemon)?;
        let client = daemon.connect(events, PATIENCE)?;
        put_all(&client, &specs, &Ledger::open(folder.path())?)?;
        drop(client);
        let workers = (0..usize::from(args.processes)).map(Role::of);
        let plan = Plan {
            folder: folder.path().to_owned(),
            seed: args.seed,
            roles: std::iter::once(Role::Latency).chain(workers).collect(),
            daemon_dies: args.kill_daemon,
        };
        let mut workers = Workers::new(plan);
        workers.start_next()?;
        let report = DaemonReport {
            private_bytes_start: state::private_bytes(&daemon)?,
            least_segment_bytes: u64::MAX,
            ..DaemonReport::default()
        };
        Ok(Self { workers, daemon, base, report, kills: 0, stops: 0, daemon_kills: 0, folder })
    }

    /// The quiet time, and then the load.
    fn load(&mut self, args: &Args, events: &Events, bar: &ProgressBar) -> Result<()> {
        let time = Duration::from_secs_f64(args.minutes * 60.0);
        let quiet_end = Instant::now() + QUIET.min(time / 4);
        while Instant::now() < quiet_end || !self.workers.are_ready() {
            self.step(events)?;
        }
        self.workers.tell_load(LATENCY)?;
        for _ in 0..args.processes {
            self.workers.start_next()?;
        }
        let (start, mut random) = (Instant::now(), Random::new(args.seed));
        let (mut next_kill, mut next_daemon_kill) = (start + KILL_EVERY, start + DAEMON_KILL_EVERY);
        while start.elapsed() < time {
            self.step(events)?;
            let elapsed = start.elapsed();
            if self.report.private_bytes_quarter == 0 && elapsed >= time / 4 {
                self.report.private_bytes_quarter = state::private_bytes(&self.daemon)?;
            }
            if args.kill_daemon && Instant::now() >= next_daemon_kill {
                next_daemon_kill = Instant::now() + DAEMON_KILL_EVERY;
                self.kill_daemon(events)?;
            }
            if Instant::now() >= next_kill {
                next_kill += KILL_EVERY;
                self.disturb(&mut random)?;
                self.sample()?;
                self.show(bar, elapsed);
            }
        }
        Ok(())
    }

    /// Waits a tick and looks after everybody.
    fn step(&mut self, events: &Events) -> Result<()> {
        self.workers.listen(Duration::from_millis(20));
        events.tick()?;
        self.workers.check()?;
        self.daemon.check_alive()
    }

    /// Stops one worker for a moment, and kills one and starts it again.
    fn disturb(&mut self, random: &mut Random) -> Result<()> {
        let mut any = || 1 + tierpack_shm::types::index(random.below(self.workers.len() as u64 - 1));
        let (stopped, killed) = (any(), any());
        self.workers.signal(stopped, Signal::SIGSTOP)?;
        self.workers.listen(STOPPED);
        self.workers.signal(stopped, Signal::SIGCONT)?;
        self.stops += 1;
        let daemon = &self.daemon;
        self.workers.kill(killed, |pid| state::wait_gone(daemon, pid))?;
        self.kills += 1;
        Ok(())
    }

    /// Kills the daemon; its next one starts empty.
    fn kill_daemon(&mut self, events: &Events) -> Result<()> {
        self.daemon.replace(self.folder.path(), &settings())?;
        drop(self.daemon.connect(events, PATIENCE)?);
        self.daemon_kills += 1;
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        let stats = state::stats(&self.daemon)?;
        let (report, pool) = (&mut self.report, &stats.pool);
        report.pool_bytes = pool.size_bytes;
        report.pool_used_bytes = pool.used_bytes;
        report.pool_segment_bytes = pool.segment_bytes;
        report.most_segment_bytes = report.most_segment_bytes.max(pool.segment_bytes);
        report.least_segment_bytes = report.least_segment_bytes.min(pool.segment_bytes);
        report.most_held_bytes = report.most_held_bytes.max(pool.held_bytes);
        report.folds = stats.background.folds;
        report.refits = stats.background.refits;
        report.rewritten_bytes = stats.background.rewritten_bytes;
        report.background_failures = stats.background.failures;
        report.last_failure = stats.background.last_failure;
        Ok(())
    }

    fn show(&self, bar: &ProgressBar, elapsed: Duration) {
        let tally = self.workers.tally();
        bar.set_position(elapsed.as_secs());
        bar.set_message(format!(
            "{} words, {} mismatches, {} updates, {} kills",
            tally.words_checked, tally.mismatches, tally.updates, self.kills
        ));
    }

    /// Ends the workers and looks at what is left.
    fn finish(mut self, args: &Args, events: &Events) -> Result<Report> {
        self.sample()?;
        self.report.private_bytes_end = state::private_bytes(&self.daemon)?;
        self.workers.finish(events, PATIENCE)?;
        let client = self.daemon.connect(events, PATIENCE)?;
        let left = state::left(&self.daemon, client, &self.base, events)?;
        let tally = self.workers.tally();
        let told = std::mem::take(&mut self.workers.told);
        Ok(Report {
            seed: args.seed,
            minutes: args.minutes,
            processes: args.processes.into(),
            tally,
            kills: self.kills,
            stops: self.stops,
            daemon_kills: self.daemon_kills,
            findings: told.findings,
            failures: told.failures,
            left,
            daemon: self.report,
            get_quiet: told.quiet,
            get_under_load: told.loaded,
        })
    }
}

/// How the daemon is started.
fn settings() -> Vec<&'static str> {
    [&POOL_SIZE[..], &SETTINGS].concat()
}

/// Puts every tensor for the first time.
fn put_all(client: &Client, specs: &[Spec], ledger: &Ledger) -> Result<()> {
    for spec in specs.iter().filter(|spec| spec.life != spec::Life::Comes) {
        let first = Entry { begun: 1, done: 1, is_settled: false };
        let mut bytes = vec![0; spec.raw_bytes()];
        for unit in 0..spec.n_units() {
            spec.fill(unit, &mut bytes[spec.bytes_of(unit)], 1, 0);
        }
        ledger.write_all(spec, &vec![first; spec.n_units()])?;
        let (shape, options) = (spec.shape(), spec.options());
        let entry = client
            .put_with(&spec.name, spec.dtype, &shape, &mut &bytes[..], &options)
            .with_context(|| format!("put the first {}", spec.name))?;
        ensure!(entry.raw_bytes == bytes.len() as u64, "{} bytes were put", entry.raw_bytes);
    }
    Ok(())
}

fn progress_bar(args: &Args) -> ProgressBar {
    const TEMPLATE: &str = "[{bar:32}] {pos} of {len} s, {msg}";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    let seconds = Duration::from_secs_f64(args.minutes * 60.0).as_secs();
    ProgressBar::new(seconds).with_style(style.progress_chars("=> "))
}
