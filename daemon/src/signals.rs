//! SIGTERM, SIGINT and SIGHUP as a shutdown, without a signal handler.
//!
//! The signals are blocked in the first thread before any other starts, so that every thread inherits the
//! mask and none is interrupted; one thread then reads them from a descriptor.
//! Only binaries do this: a daemon inside another program leaves that program's signals alone.
//!
//! SIGHUP is left out when it was ignored at start, which is how `nohup` asks to outlive its terminal: a
//! blocked signal would be read here even though it is ignored.
//! SIGXFSZ is blocked and not read: a write past the limit on file sizes fails, as one to a full disk does.
//! SIGPIPE needs nothing: Rust ignores it before `main`, and sends on sockets pass `MSG_NOSIGNAL`.

use std::fs;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{Error, Result};
use crate::shutdown::Shutdown;

/// The signals that end the daemon, blocked in this thread and in all that it starts.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks the signals; call it first in `main`, before any thread starts.
    ///
    /// # Errors
    /// [`Error::Signals`] when the mask cannot be set or no descriptor is left.
    pub fn block() -> Result<Signals> {
        let failed = |operation| move |source| Error::Signals { operation, source };
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if !is_ignored(&status, Signal::SIGHUP) {
            set.add(Signal::SIGHUP);
        }
        set.thread_block().map_err(failed("block"))?;
        block_file_size_signal();
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(failed("open a descriptor for"))?;
        Ok(Signals { fd })
    }

    /// Starts the thread that turns the first signal into `shutdown`.
    ///
    /// The thread ends after that signal, or when somebody else triggers the shutdown; join it after the
    /// server.
    ///
    /// # Errors
    /// [`Error::Thread`] when the system starts no thread.
    pub fn watch(self, shutdown: Shutdown) -> Result<JoinHandle<()>> {
        let name = "signals";
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let waited = catch_unwind(AssertUnwindSafe(|| self.wait(&shutdown)));
                // Without this thread nothing but SIGKILL would end the daemon, so it ends now, in order. First the end
                // and then its message: nothing that logging does can be in its way.
                shutdown.trigger();
                if let Ok(Err(error)) = waited {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "signals are lost, shutting down"
                    );
                }
            })
            .map_err(|source| Error::Thread { name, source })
    }

    /// Waits for a signal and triggers the shutdown, or returns when it is triggered by others.
    fn wait(&self, shutdown: &Shutdown) -> Result<()> {
        let failed = |source| Error::Signals { operation: "wait for", source };
        while !shutdown.is_triggered() {
            let mut fds = [
                PollFd::new(self.fd.as_fd(), PollFlags::POLLIN),
                PollFd::new(shutdown.fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(source) => return Err(failed(source)),
            }
            if let Some(signal) = self.fd.read_signal().map_err(failed)? {
                shutdown.trigger();
                tracing::info!(signal = signal.ssi_signo, sender = signal.ssi_pid, "signal, shutting down");
            }
        }
        Ok(())
    }
}

/// Has a write past the limit on file sizes fail, as one to a full disk does; its signal would end the program.
///
/// It is blocked, not ignored, which takes no unsafe code; threads that start later have it blocked as well.
/// Only programs do this.
pub fn block_file_size_signal() {
    // Blocking a signal that exists does not fail.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block().is_ok();
}

/// Whether the `SigIgn` mask of a `/proc/PID/status` text holds the signal.
fn is_ignored(status: &str, signal: Signal) -> bool {
    let Some(mask) = status.lines().find_map(|line| line.strip_prefix("SigIgn:")) else { return false };
    let Ok(mask) = u64::from_str_radix(mask.trim(), 16) else { return false };
    // Signal 1 is bit 0.
    mask & (1 << (signal as i32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn each_signal_triggers_shutdown() {
        // raise() directs a signal at this thread, which is also the one that reads it.
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let signals = Signals::block().unwrap();
            let shutdown = Shutdown::new().unwrap();
            raise(signal).unwrap();
            signals.wait(&shutdown).unwrap();
            assert!(shutdown.is_triggered());
        }
    }

    #[test]
    fn a_write_past_the_limit_on_file_sizes_is_no_end() {
        let _signals = Signals::block().unwrap();
        assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGXFSZ));
    }

    #[test]
    fn watcher_ends_with_a_shutdown_of_others() {
        let shutdown = Shutdown::new().unwrap();
        let watcher = Signals::block().unwrap().watch(shutdown.clone()).unwrap();
        shutdown.trigger();
        watcher.join().unwrap();
    }

    #[test]
    fn knows_ignored_signals() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, Signal::SIGHUP));
        assert!(is_ignored(status, Signal::SIGPIPE));
        assert!(!is_ignored(status, Signal::SIGINT));
        assert!(!is_ignored("SigIgn:\tzz\n", Signal::SIGHUP));
        assert!(!is_ignored("", Signal::SIGHUP));
    }
}
