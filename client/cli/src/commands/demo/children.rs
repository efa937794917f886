//! Child processes: one daemon, some readers, and what happens to them.
//!
//! `bench soak` starts its processes by the same guards.
//!
//! A child is killed and reaped when its guard is dropped.
//! Signals are blocked in the demo and arrive as events instead, so that an interrupt takes the same way out
//! as any error.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use nix::sys::signal::{SigSet, Signal};
use tierpack_client::Client;

use super::Args;
use crate::escape;

/// How often a wait looks after the children.
const TICK: Duration = Duration::from_millis(20);
/// How much of a dead child's last words is shown.
const LAST_WORDS_BYTES: usize = 2000;
/// Settings of the user's that are for our processes as well: what this machine can do, and where its driver is.
const PASSED_ON: [&str; 4] =
    ["TIERPACK_CPU", "TIERPACK_CUDA_DRIVER", "TIERPACK_CUDA_IMAGE", "TIERPACK_DEVICE_ACCESS"];

/// What the demo waits for.
#[derive(Debug)]
enum Event {
    /// A reader printed a line.
    Line { reader: usize, line: String },
    /// A reader's output ended.
    End { reader: usize },
    /// The demo received a signal to end.
    Interrupt(Signal),
}

/// Everything that the demo waits for, in one queue.
#[derive(Debug)]
pub(in crate::commands) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
}

impl Events {
    /// Blocks the signals that end a program and queues them; to be called before other threads start.
    ///
    /// # Errors
    /// The signals cannot be blocked.
    pub(in crate::commands) fn start() -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().context("block signals")?;
        let queue = sender.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                // Ends when a signal cannot be awaited or nobody listens any more.
                while let Ok(signal) = signals.wait() {
                    if queue.send(Event::Interrupt(signal)).is_err() {
                        break;
                    }
                }
            })
            .context("start the thread that waits for signals")?;
        Ok(Self { sender, receiver })
    }

    /// Waits for one line of each reader.
    ///
    /// # Errors
    /// A child ends early, the demo is interrupted, or `patience` is over.
    pub(super) fn line_of_each(
        &mut self,
        readers: &mut [Reader],
        daemon: &mut Daemon,
        patience: Duration,
    ) -> Result<Vec<String>> {
        let deadline = Instant::now() + patience;
        let mut lines: Vec<Option<String>> = vec![None; readers.len()];
        let mut missing = readers.len();
        while missing > 0 {
            match self.next()? {
                Some(Event::Line { reader, line }) => {
                    missing -= usize::from(lines[reader].is_none());
                    lines[reader] = Some(line);
                }
                Some(Event::End { reader }) => return Err(readers[reader].guard.obituary()),
                Some(Event::Interrupt(_)) | None => {}
            }
            daemon.guard.check_alive()?;
            if Instant::now() > deadline {
                bail!("{missing} of {} readers did not answer within {patience:?}", readers.len());
            }
        }
        Ok(lines.into_iter().flatten().collect())
    }

    /// Waits a tick.
    ///
    /// # Errors
    /// This program received a signal to end.
    pub(in crate::commands) fn tick(&self) -> Result<()> {
        self.next().map(drop)
    }

    /// The next event, if one comes within a tick.
    fn next(&self) -> Result<Option<Event>> {
        match self.receiver.recv_timeout(TICK) {
            Ok(Event::Interrupt(signal)) => bail!("interrupted by {signal}"),
            Ok(event) => Ok(Some(event)),
            // The queue cannot close: this struct holds a sender.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }
}

/// A child process that does not outlive this value.
#[derive(Debug)]
pub(in crate::commands) struct Guard {
    child: Child,
    what: String,
    log: PathBuf,
}

impl Guard {
    /// Starts this executable with `arguments`; what it writes to standard error goes to a file in `folder`.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(in crate::commands) fn start(
        what: String,
        folder: &Path,
        arguments: &[&str],
        stdin: Stdio,
        stdout: Stdio,
    ) -> Result<Self> {
        let log = folder.join(format!("{}.log", what.replace(' ', "-")));
        let stderr = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let executable = std::env::current_exe().context("find this executable")?;
        let mut command = Command::new(executable);
        // Settings of the user's own daemon are not for this one.
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("TIERPACK_") && !PASSED_ON.contains(&&*name_text) {
                command.env_remove(name);
            }
        }
        let control = folder.join("control.sock");
        command.args(arguments).arg("--socket").arg(control).stdin(stdin).stdout(stdout).stderr(stderr);
        let child = command.spawn().with_context(|| format!("start the {what}"))?;
        Ok(Self { child, what, log })
    }

    /// The process.
    pub(in crate::commands) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input and output, where they were asked for as pipes and not taken yet.
    ///
    /// # Errors
    /// They are not there.
    pub(in crate::commands) fn pipes(&mut self) -> Result<(ChildStdin, ChildStdout)> {
        let pipes = self.child.stdin.take().zip(self.child.stdout.take());
        pipes.with_context(|| format!("the pipes of the {} are missing", self.what))
    }

    /// # Errors
    /// The child has ended.
    pub(in crate::commands) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.last_words(status)),
            Err(error) => Err(Error::from(error).context(format!("wait for the {}", self.what))),
        }
    }

    /// Why the child ended; waits for that.
    pub(in crate::commands) fn obituary(&mut self) -> Error {
        match self.child.wait() {
            Ok(status) => self.last_words(status),
            Err(error) => Error::from(error).context(format!("wait for the {}", self.what)),
        }
    }

    fn last_words(&self, status: ExitStatus) -> Error {
        let text = fs::read(&self.log).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(LAST_WORDS_BYTES)..];
        let tail = escape::one_line(String::from_utf8_lossy(tail).trim());
        let tail = if tail.is_empty() { "it said nothing".to_owned() } else { format!("it said: {tail}") };
        anyhow!("the {} ended early with {status}; {tail}", self.what)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only when the child is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A daemon of our own.
#[derive(Debug)]
pub(in crate::commands) struct Daemon {
    guard: Guard,
    control: PathBuf,
}

impl Daemon {
    /// Starts a daemon in `folder`, with the pool that `settings` describe.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(in crate::commands) fn start(folder: &Path, settings: &[&str]) -> Result<Self> {
        let pid = std::process::id().to_string();
        let arguments = [&["serve", "--exit-with-parent", &pid], settings].concat();
        let guard = Guard::start("daemon".to_owned(), folder, &arguments, Stdio::null(), Stdio::null())?;
        Ok(Self { guard, control: folder.join("control.sock") })
    }

    /// Kills the daemon and starts another one in its place.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(in crate::commands) fn replace(&mut self, folder: &Path, settings: &[&str]) -> Result<()> {
        // Both fail only when the daemon is gone already.
        drop(self.guard.child.kill());
        drop(self.guard.child.wait());
        *self = Self::start(folder, settings)?;
        Ok(())
    }

    /// Connects as soon as the daemon answers.
    ///
    /// # Errors
    /// It ends, or does not answer within `patience`.
    pub(in crate::commands) fn connect(&mut self, events: &Events, patience: Duration) -> Result<Client> {
        let deadline = Instant::now() + patience;
        loop {
            match Client::builder().socket(&self.control).connect() {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() > deadline => {
                    return Err(Error::from(error).context(format!("no answer within {patience:?}")));
                }
                Err(_) => {}
            }
            self.guard.check_alive()?;
            // Notices an interrupt; no reader runs yet.
            events.tick()?;
        }
    }

    /// The daemon's process.
    pub(in crate::commands) fn pid(&self) -> u32 {
        self.guard.pid()
    }

    /// Its control socket.
    pub(in crate::commands) fn socket(&self) -> &Path {
        &self.control
    }

    /// # Errors
    /// The daemon has ended.
    pub(in crate::commands) fn check_alive(&mut self) -> Result<()> {
        self.guard.check_alive()
    }

    /// Ends the daemon.
    pub(in crate::commands) fn stop(self) {
        drop(self);
    }
}

/// One reading process.
#[derive(Debug)]
pub(super) struct Reader {
    guard: Guard,
    idx: usize,
    stdin: ChildStdin,
}

impl Reader {
    /// Starts reader number `idx`; its lines become events.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(super) fn start(idx: usize, folder: &Path, args: &Args, events: &Events) -> Result<Self> {
        let what = format!("reader {idx}");
        let (seed, seconds, device) = (idx.to_string(), args.seconds.to_string(), args.device.to_string());
        let arguments = ["demo-reader", "--seed", &seed, "--seconds", &seconds, "--device", &device];
        let mut guard = Guard::start(what, folder, &arguments, Stdio::piped(), Stdio::piped())?;
        let (stdin, stdout) = guard.pipes()?;
        let queue = events.sender.clone();
        std::thread::Builder::new()
            .name(format!("reader-{idx}"))
            .spawn(move || {
                // A line that is not UTF-8 counts as the end; a queue without listener ends the demo anyway.
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    drop(queue.send(Event::Line { reader: idx, line }));
                }
                drop(queue.send(Event::End { reader: idx }));
            })
            .with_context(|| format!("start the thread that listens to reader {idx}"))?;
        Ok(Self { guard, idx, stdin })
    }

    /// Which reader this is.
    pub(super) fn idx(&self) -> usize {
        self.idx
    }

    /// Lets it read.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn go(&mut self) -> Result<()> {
        self.stdin.write_all(b"go\n").with_context(|| format!("start reader {}", self.idx))
    }
}

/// The proportional share of host memory of process `pid`.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn pss_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse_pss(&text).with_context(|| format!("find the line Pss in {path}"))
}

fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pss_is_read_in_bytes() {
        let text = "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nPss:     1234 kB\nPss_Dirty: 1 kB\n";
        assert_eq!(parse_pss(text), Some(1234 * 1024));
        assert_eq!(parse_pss("Pss: x kB"), None);
        assert_eq!(parse_pss(""), None);
        assert!(pss_bytes(std::process::id()).unwrap() > 4096);
    }
}
