//! The worker processes as their parent sees them: started, killed, started again, ended; and what they have reported.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::tally::{Line, Tally, Times};
use super::worker::Role;
use crate::commands::demo::children::{Events, Guard};

/// Findings that are kept whole.
const MAX_FINDINGS: usize = 10;

/// Something from a worker.
#[derive(Debug)]
enum News {
    Line(Line),
    /// Its output has ended.
    End,
}

/// What all workers have told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The counts of those that have ended.
    pub(super) ended: Tally,
    pub(super) findings: Vec<String>,
    pub(super) failures: Vec<String>,
    /// A get of one row before the load, and under it.
    pub(super) quiet: Times,
    pub(super) loaded: Times,
}

/// One process.
#[derive(Debug)]
struct Worker {
    guard: Guard,
    stdin: Option<ChildStdin>,
    tally: Tally,
    is_ready: bool,
    has_ended: bool,
}

/// How the processes are started.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) folder: PathBuf,
    pub(super) seed: u64,
    pub(super) roles: Vec<Role>,
    pub(super) daemon_dies: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Workers {
    plan: Plan,
    workers: Vec<Worker>,
    starts: Vec<u64>,
    pub(super) told: Told,
    sender: Sender<(usize, News)>,
    receiver: Receiver<(usize, News)>,
}

impl Plan {
    fn writers_before(&self, number: usize) -> usize {
        let writing = self.roles[..number].iter().filter(|role| **role == Role::Writer);
        writing.map(|role| role.threads()).sum()
    }

    fn start(&self, number: usize, start: u64, sender: &Sender<(usize, News)>) -> Result<Worker> {
        let role = self.roles[number];
        // Other numbers after each start, and the same ones for the same seed.
        let seed = self.seed.wrapping_mul(1 << 20).wrapping_add(start << 10).wrapping_add(number as u64);
        let [seed, first, writers] =
            [seed, self.writers_before(number) as u64, self.writers_before(self.roles.len()) as u64]
                .map(|n| n.to_string());
        let folder = self.folder.to_str().context("the temporary folder's name is not UTF-8")?;
        let mut arguments =
            vec!["soak-worker", "--role", role.name(), "--seed", &seed, "--first-writer", &first];
        arguments.extend(["--writers", &writers, "--folder", folder]);
        arguments.extend(self.daemon_dies.then_some("--daemon-dies"));
        let what = format!("{} {number}", role.name());
        let mut guard = Guard::start(what, &self.folder, &arguments, Stdio::piped(), Stdio::piped())?;
        let (stdin, stdout) = guard.pipes()?;
        let queue = sender.clone();
        let listen = move || {
            // A line may be cut short by a kill; nobody listens only at the end.
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for line in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                drop(queue.send((number, News::Line(line))));
            }
            drop(queue.send((number, News::End)));
        };
        let thread = std::thread::Builder::new().name(format!("worker-{number}"));
        thread.spawn(listen).context("start a thread that listens to a worker")?;
        Ok(Worker { guard, stdin: Some(stdin), tally: Tally::default(), is_ready: false, has_ended: false })
    }
}

impl Workers {
    pub(super) fn new(plan: Plan) -> Self {
        let (sender, receiver) = mpsc::channel();
        let starts = vec![0; plan.roles.len()];
        Self { plan, workers: Vec::new(), starts, told: Told::default(), sender, receiver }
    }

    /// Starts the next process.
    ///
    /// # Errors
    /// The system starts none.
    pub(super) fn start_next(&mut self) -> Result<()> {
        let worker = self.plan.start(self.workers.len(), 0, &self.sender)?;
        self.workers.push(worker);
        Ok(())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Tells one that the load starts.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn tell_load(&mut self, number: usize) -> Result<()> {
        let stdin = self.workers[number].stdin.as_mut().context("a worker's input is closed")?;
        stdin.write_all(b"load\n").context("tell a worker of the load")
    }

    pub(super) fn pid(&self, number: usize) -> u32 {
        self.workers[number].guard.pid()
    }

    /// Whether all have connected.
    pub(super) fn are_ready(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_ready)
    }

    /// Kills one and starts it again.
    ///
    /// `gone` is asked in between, with its process, to wait until the daemon has noticed.
    ///
    /// # Errors
    /// It cannot be started, or `gone` fails.
    pub(super) fn kill(&mut self, number: usize, gone: impl FnOnce(u32) -> Result<()>) -> Result<()> {
        let pid = self.pid(number);
        self.signal(number, Signal::SIGKILL)?;
        while !self.workers[number].has_ended {
            self.listen(Duration::from_secs(1));
        }
        let tally = std::mem::take(&mut self.workers[number].tally);
        self.told.ended.add(&tally);
        // Reaped before the daemon is asked.
        drop(self.workers[number].guard.obituary());
        gone(pid)?;
        self.starts[number] += 1;
        self.workers[number] = self.plan.start(number, self.starts[number], &self.sender)?;
        Ok(())
    }

    /// Sends a signal to one.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn signal(&self, number: usize, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid(number))?);
        kill(pid, signal).with_context(|| format!("send {signal} to a worker"))
    }

    /// Takes what comes from the workers for some time.
    pub(super) fn listen(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            match self.receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((number, news)) => {
                    self.take(number, news);
                    if self.workers[number].has_ended {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, number: usize, news: News) {
        let (worker, told) = (&mut self.workers[number], &mut self.told);
        match news {
            News::End => worker.has_ended = true,
            News::Line(Line::Ready) => worker.is_ready = true,
            News::Line(Line::Tally(tally)) => worker.tally = tally,
            News::Line(Line::Mismatch(text)) if told.findings.len() < MAX_FINDINGS => {
                told.findings.push(text);
            }
            News::Line(Line::Mismatch(_)) => {}
            News::Line(Line::Failure(text)) => {
                told.failures.push(format!("{} {number}: {text}", self.plan.roles[number].name()));
            }
            News::Line(Line::Latency { under_load: false, times }) => told.quiet = times,
            News::Line(Line::Latency { under_load: true, times }) => told.loaded = times,
        }
    }

    /// Looks whether one has ended by itself.
    ///
    /// # Errors
    /// It has, and said why, or not.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(text) = self.told.failures.first() {
            bail!("{text}");
        }
        match self.workers.iter_mut().find(|worker| worker.has_ended) {
            Some(worker) => Err(worker.guard.obituary()),
            None => Ok(()),
        }
    }

    /// The counts of all, those that have ended included.
    pub(super) fn tally(&self) -> Tally {
        let mut sum = self.told.ended.clone();
        self.workers.iter().for_each(|worker| sum.add(&worker.tally));
        sum
    }

    /// Lets all end.
    ///
    /// # Errors
    /// One does not within `patience`, or we are interrupted.
    pub(super) fn finish(&mut self, events: &Events, patience: Duration) -> Result<()> {
        self.workers.iter_mut().for_each(|worker| worker.stdin = None);
        let end = Instant::now() + patience;
        while let Some(number) = self.workers.iter().position(|worker| !worker.has_ended) {
            self.listen(Duration::from_millis(20));
            events.tick()?;
            if Instant::now() > end {
                bail!("the {} {number} did not end within {patience:?}", self.plan.roles[number].name());
            }
        }
        // Reaps them: what is not their doing would be reported as theirs otherwise.
        self.workers.iter_mut().for_each(|worker| drop(worker.guard.obituary()));
        Ok(())
    }
}
