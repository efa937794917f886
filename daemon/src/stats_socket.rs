//! The stats socket and the metrics socket: the JSON document, or Prometheus metrics over HTTP, from a thread of its own.
//!
//! `GET /metrics` and `GET /stats` are answered as HTTP/1.0, on both.
//! On the stats socket a peer that sends nothing gets the document: at once when it has shut down its sending side,
//! else after a short wait. The metrics socket answers nobody before it has a request, however slow the peer is.
//! Slow and hostile peers cost a bounded buffer and a deadline, never a lock: an answer is made whole before it is
//! sent.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::fork::Unshared;

use crate::error::{Error, Result};
use crate::health::{Fault, Health};
use crate::ownership::Listener;
use crate::server::accept::accept;
use crate::shutdown::Shutdown;
use crate::stats::Board;

mod answer;
mod metrics;
mod request;

use answer::Answers;
use request::{Request, Wish};

/// Readers at a time; one more is closed at once.
const MAX_READERS: usize = 64;
/// How long a reader may take, from its connection to the last byte of its answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often the socket is looked up again: its file may have been made again.
const TICK: Duration = Duration::from_millis(500);
/// Bytes beyond its request that are taken from a peer before its connection is closed.
const MAX_DISCARDED_BYTES: usize = 64 << 10;

/// The thread and how to end it.
#[derive(Debug)]
pub(crate) struct StatsThread {
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

struct Reader {
    stream: Unshared<UnixStream>,
    state: State,
    deadline: Instant,
}

enum State {
    Asking(Request),
    Asked(Wish),
    Answered { answer: Arc<[u8]>, sent: usize },
}

impl StatsThread {
    /// Serves the stats socket and the metrics socket.
    pub(crate) fn start(listeners: [Arc<Mutex<Listener>>; 2], board: Arc<Board>) -> Result<Self> {
        let (name, shutdown) = ("stats", Shutdown::new()?);
        let ended = shutdown.clone();
        let run = move || {
            restarted(&ended, &board.health, || serve(&listeners, &board, &ended));
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(run);
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

/// Runs `serve` until the shutdown, again whenever it ends or panics: a panic costs the readers of that moment.
fn restarted(shutdown: &Shutdown, health: &Health, serve: impl Fn()) {
    let mut panics = 0_u64;
    while !shutdown.is_triggered() {
        if catch_unwind(AssertUnwindSafe(&serve)).is_err() {
            panics += 1;
            let text =
                format!("the thread of the stats socket has panicked {panics} times and was started again");
            tracing::error!("{text}");
            health.note(Fault::StatsThread, text);
            thread::sleep(TICK);
        }
    }
}

fn serve(listeners: &[Arc<Mutex<Listener>>; 2], board: &Board, shutdown: &Shutdown) {
    let mut readers: Vec<Reader> = Vec::new();
    while !shutdown.is_triggered() {
        reach(Point::StatsTurn);
        let [Some(stats), Some(metrics)] = listeners.each_ref().map(|listener| copy(listener)) else {
            // No descriptor is left: wait until some are.
            thread::sleep(TICK);
            continue;
        };
        let mut fds = vec![
            PollFd::new(shutdown.fd(), PollFlags::POLLIN),
            PollFd::new(stats.as_fd(), PollFlags::POLLIN),
            PollFd::new(metrics.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(readers.iter().map(|reader| PollFd::new(reader.stream.as_fd(), reader.awaited())));
        match poll(&mut fds, timeout(&readers)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::error!(error = %errno, "stats cannot wait for readers, trying again");
                thread::sleep(TICK);
            }
        }
        readers.retain_mut(Reader::send);
        for (socket, is_http) in [(&stats, false), (&metrics, true)] {
            for _ in 0..MAX_READERS {
                let Ok(fd) = accept(socket) else { break };
                if readers.len() < MAX_READERS {
                    readers.push(Reader::new(fd, is_http));
                }
            }
        }
        readers.retain_mut(Reader::listen);
        // Made after the last request of this turn was read: nobody gets what is older than its request.
        let mut answers = Answers::new(board);
        readers.retain_mut(|reader| reader.answer(&mut answers) && reader.send());
    }
}

/// A socket of our own, since its file may be made again meanwhile.
fn copy(listener: &Mutex<Listener>) -> Option<Unshared<OwnedFd>> {
    let socket = listener.lock().as_fd().try_clone_to_owned().ok()?;
    Unshared::new(socket).ok()
}

/// Until the next tick, or until a peer has been quiet for long enough.
fn timeout(readers: &[Reader]) -> PollTimeout {
    let looks_again = readers.iter().filter_map(|reader| match &reader.state {
        State::Asking(request) => request.looks_again(),
        State::Asked(_) | State::Answered { .. } => None,
    });
    let now = Instant::now();
    // The system counts whole milliseconds: one more, so that the moment is past when it wakes.
    let next = looks_again.min().map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
    PollTimeout::try_from(next.unwrap_or(TICK).min(TICK)).expect("a tick is short")
}

impl Reader {
    fn new(stream: Unshared<UnixStream>, is_http: bool) -> Self {
        let now = Instant::now();
        let request = if is_http { Request::http() } else { Request::new(now) };
        Self { stream, state: State::Asking(request), deadline: now + DEADLINE }
    }

    fn awaited(&self) -> PollFlags {
        match self.state {
            State::Asking(_) => PollFlags::POLLIN,
            State::Asked(_) | State::Answered { .. } => PollFlags::POLLOUT,
        }
    }

    /// Takes what the peer sends; says whether there is more to do.
    fn listen(&mut self) -> bool {
        let State::Asking(request) = &mut self.state else { return true };
        match request.go_on(&mut &*self.stream, Instant::now()) {
            Ok(Some(wish)) => self.state = State::Asked(wish),
            Ok(None) => return Instant::now() < self.deadline,
            Err(_) => return false,
        }
        true
    }

    /// Sends the peer what it asked for; returns whether there is more to do.
    fn answer(&mut self, answers: &mut Answers<'_>) -> bool {
        let State::Asked(wish) = self.state else { return true };
        let Some(answer) = answers.get(wish) else { return false };
        self.state = State::Answered { answer, sent: 0 };
        true
    }

    /// Sends what the peer takes; says whether there is more to do.
    fn send(&mut self) -> bool {
        let State::Answered { answer, sent } = &mut self.state else { return true };
        while *sent < answer.len() {
            match (&*self.stream).write(&answer[*sent..]) {
                Ok(0) => return false,
                Ok(n) => *sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Instant::now() < self.deadline,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.discard();
        false
    }

    /// Takes what the peer has sent beyond its request: a close over unread bytes is an error for the peer.
    fn discard(&mut self) {
        let mut buf = [0; 1 << 10];
        let mut left = MAX_DISCARDED_BYTES;
        while let Ok(1..) = (&*self.stream).read(&mut buf)
            && left > 0
        {
            left = left.saturating_sub(buf.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_panic_starts_the_thread_again_and_shows() {
        let (shutdown, health, runs) = (Shutdown::new().unwrap(), Health::default(), Cell::new(0));
        restarted(&shutdown, &health, || {
            runs.set(runs.get() + 1);
            if runs.get() == 3 {
                shutdown.trigger();
            }
            assert_ne!(runs.get(), 2);
        });
        assert_eq!(runs.get(), 3);
        let stats = health.stats([]);
        assert!(stats.state == "degraded" && stats.reasons[0].contains("panicked 1 times"), "{stats:?}");
    }
}
