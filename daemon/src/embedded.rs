//! A daemon in the caller's process: the same code and the same socket, for tests and for programs of one piece.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::server::Server;
use crate::shutdown::Shutdown;

/// A daemon on a thread of this process; dropping it stops it.
#[derive(Debug)]
pub struct Embedded {
    socket: PathBuf,
    shutdown: Shutdown,
    thread: Option<JoinHandle<Result<()>>>,
    pid: u32,
}

impl Embedded {
    /// Starts a daemon; clients can connect when this returns.
    ///
    /// # Errors
    /// [`Error`] naming what is in the way: another daemon on the socket, a directory, a limit.
    pub fn start(config: &Config) -> Result<Self> {
        let shutdown = Shutdown::new()?;
        let thread = Some(without_signals(|| Self::start_thread(config, shutdown.clone()))?);
        Ok(Self { socket: config.socket().to_owned(), shutdown, thread, pid: std::process::id() })
    }

    fn start_thread(config: &Config, shutdown: Shutdown) -> Result<JoinHandle<Result<()>>> {
        let (server, name) = (Server::bind(config)?, "tierpackd");
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || server.run(&shutdown));
        started.map_err(|source| Error::Thread { name, source })
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops the daemon and waits for its end.
    ///
    /// # Errors
    /// What [`Server::run`] returned.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let thread = self.thread.take();
        if self.pid != std::process::id() {
            // The threads are the parent's: a forked child has none to stop, and must not touch what they wait for.
            let _ = ManuallyDrop::new(thread);
            return Ok(());
        }
        self.shutdown.trigger();
        match thread.map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(Error::Panicked { text: "the daemon's thread panicked".to_owned() }),
            None => Ok(()),
        }
    }
}

/// Runs `start` with signals blocked, as the threads that it starts then have them: they are for the program, except those
/// that a thread raises itself.
fn without_signals<T>(start: impl FnOnce() -> Result<T>) -> Result<T> {
    let failed = |operation| move |source| Error::Signals { operation, source };
    let mut set = SigSet::all();
    for signal in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGTRAP] {
        set.remove(signal);
    }
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(failed("block"))?;
    let started = start();
    before.thread_set_mask().map_err(failed("unblock"))?;
    started
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(error = crate::error::chain(&error), "embedded daemon");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn its_threads_leave_signals_to_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::embedded(directory.path().join("control.sock"), 16 << 20).unwrap();
        let mask = || SigSet::thread_get_mask().unwrap();
        let before = mask();
        let daemon = Embedded::start(&config).unwrap();
        assert_eq!(mask(), before);
        let (mut left, started) = (vec!["tierpackd", "stats", "worker", "background"], Instant::now());
        // A thread gets its name when it runs for the first time.
        while !left.is_empty() {
            assert!(started.elapsed() < Duration::from_secs(60), "{left:?} were not found");
            for task in std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()) {
                let Ok(status) = std::fs::read_to_string(task.join("status")) else { continue };
                let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
                let Some(at) = left.iter().position(|name| *name == field("Name:")) else { continue };
                let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap();
                // A thread of another test's server blocks nothing.
                if blocked & 1 << (Signal::SIGALRM as i32 - 1) != 0 {
                    left.remove(at);
                }
            }
        }
        daemon.stop().unwrap();
    }
}
