//! A daemon in the caller's process: the same code and the same socket, for tests and for programs of one piece.

use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

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
}

impl Embedded {
    /// Starts a daemon; clients can connect when this returns.
    ///
    /// # Errors
    /// [`Error`] naming what stands in the way: another daemon on the socket, a directory, a limit.
    pub fn start(config: &Config) -> Result<Self> {
        let (server, shutdown) = (Server::bind(config)?, Shutdown::new()?);
        let (name, end) = ("tierpackd", shutdown.clone());
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || server.run(&end));
        let thread = Some(started.map_err(|source| Error::Thread { name, source })?);
        Ok(Self { socket: config.socket().to_owned(), shutdown, thread })
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops the daemon and waits for its end.
    ///
    /// # Errors
    /// What [`Server::run`] gave.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.shutdown.trigger();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(Error::Panicked { text: "the daemon's thread panicked".to_owned() }),
            None => Ok(()),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(error = crate::error::chain(&error), "embedded daemon");
        }
    }
}
