//! The stats socket: one JSON document per connection, from a thread of its own.
//!
//! Slow readers cost a buffer and a deadline, never a lock: the document is made whole before it is sent.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use crate::error::{Error, Result, chain};
use crate::ownership::Listener;
use crate::server::accept::accept;
use crate::shutdown::Shutdown;
use crate::stats::Board;

/// Readers at a time; one more is closed at once.
const MAX_READERS: usize = 64;
/// How long a reader may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often the socket is looked up anew: its file may have been made again.
const TICK: Duration = Duration::from_millis(500);

/// The thread and how to end it.
#[derive(Debug)]
pub(crate) struct StatsThread {
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

struct Reader {
    stream: UnixStream,
    document: Arc<[u8]>,
    sent: usize,
    deadline: Instant,
}

impl StatsThread {
    pub(crate) fn start(listener: Arc<Mutex<Listener>>, board: Arc<Board>) -> Result<Self> {
        let (name, shutdown) = ("stats", Shutdown::new()?);
        let ended = shutdown.clone();
        let started =
            thread::Builder::new().name(name.to_owned()).spawn(move || serve(&listener, &board, &ended));
        Ok(Self { shutdown, thread: Some(started.map_err(|source| Error::Thread { name, source })?) })
    }

    /// Ends the thread; the listener is no longer held when this returns.
    pub(crate) fn stop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join().is_ok();
        }
    }
}

impl Drop for StatsThread {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(listener: &Mutex<Listener>, board: &Board, shutdown: &Shutdown) {
    let mut readers: Vec<Reader> = Vec::new();
    while !shutdown.is_triggered() {
        let Ok(socket) = listener.lock().as_fd().try_clone_to_owned() else {
            // No descriptor is left: wait until some are.
            thread::sleep(TICK);
            continue;
        };
        let mut fds = vec![
            PollFd::new(shutdown.fd(), PollFlags::POLLIN),
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(readers.iter().map(|reader| PollFd::new(reader.stream.as_fd(), PollFlags::POLLOUT)));
        match poll(&mut fds, PollTimeout::try_from(TICK).expect("a tick is short")) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return tracing::error!(error = %errno, "stats are no longer served"),
        }
        readers.retain_mut(Reader::go_on);
        while let Ok(fd) = accept(&socket) {
            if readers.len() < MAX_READERS {
                readers.extend(document(board).map(|document| Reader::new(fd.into(), document)));
            }
        }
        readers.retain_mut(Reader::go_on);
    }
}

fn document(board: &Board) -> Option<Arc<[u8]>> {
    match serde_json::to_vec(&board.snapshot()) {
        Ok(mut text) => {
            text.push(b'\n');
            Some(text.into())
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "no stats");
            None
        }
    }
}

impl Reader {
    fn new(stream: UnixStream, document: Arc<[u8]>) -> Self {
        Self { stream, document, sent: 0, deadline: Instant::now() + DEADLINE }
    }

    /// Sends what the peer takes; says whether there is more to do.
    fn go_on(&mut self) -> bool {
        while self.sent < self.document.len() {
            match self.stream.write(&self.document[self.sent..]) {
                Ok(0) => return false,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Instant::now() < self.deadline,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }
}
