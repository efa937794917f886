//! One client: its socket, what waits to be sent to it, and what it holds.
//!
//! A session ends in two steps. The daemon may end it (bad bytes, a deadline): no message passes any more, but its
//! leases still count. Only when the kernel reports the peer closed are its leases and segments its no longer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown as Side, shutdown};
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::message::{DaemonMessage, SegmentId, encode};
use tierpack_shm::segment::Segment;
use tierpack_shm::socket::{Peer, send};

use crate::store::Namespace;
use crate::store::access::Caller;

/// How long a new peer may take to say hello.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// How long a peer may leave messages unread once its socket is full.
const READ_DEADLINE: Duration = Duration::from_secs(10);
/// Messages that may wait for a slow peer.
const MAX_WAITING: usize = 4096;
/// Bytes that wait for a peer from which on none of its messages is read.
const CLOGGED_BYTES: usize = 256 << 10;
/// Requests of one session that workers have; more stay in its socket, so that others find room in the queue.
const MAX_IN_FLIGHT: usize = 32;

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Connected; must say hello by then.
    Greeting(Instant),
    /// Said hello.
    Open,
    /// Ended by the daemon; waits for the peer to close.
    Ended,
}

/// A descriptor that goes with a message.
#[derive(Debug)]
pub(crate) enum Passed {
    Segment(Arc<Segment>),
    Owned(OwnedFd),
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Segment(segment) => segment.as_fd(),
            Self::Owned(fd) => fd.as_fd(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<Passed>,
}

/// A namespace that a session is attached to.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) namespace: Arc<Namespace>,
    /// Segments whose descriptors were sent, or wait to be, and that it has not given up.
    pub(crate) held: BTreeSet<SegmentId>,
    /// Whether its peer has lost the right to read it: it is sent no descriptor of it any more.
    pub(crate) is_lost: bool,
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) peer: Peer,
    pub(crate) caller: Arc<Caller>,
    pub(crate) state: State,
    pub(crate) attached: BTreeMap<u32, Attached>,
    /// Whether the rest of the daemon knows that this session has ended.
    pub(crate) settled: bool,
    /// Requests that workers have.
    pub(crate) in_flight: usize,
    /// Whether its client has ended its leases and is about to close.
    pub(crate) said_goodbye: bool,
    fd: OwnedFd,
    pub(super) waiting: VecDeque<Outgoing>,
    pub(super) waiting_bytes: usize,
    stuck_since: Option<Instant>,
}

impl Session {
    pub(crate) fn new(number: u64, peer: Peer, caller: Caller, fd: OwnedFd) -> Self {
        Self {
            number,
            peer,
            caller: Arc::new(caller),
            state: State::Greeting(Instant::now() + HELLO_DEADLINE),
            attached: BTreeMap::new(),
            settled: false,
            in_flight: 0,
            said_goodbye: false,
            fd,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            stuck_since: None,
        }
    }

    /// Queues a message and sends what the socket takes.
    pub(crate) fn send(&mut self, message: &DaemonMessage, descriptors: Vec<Passed>) {
        debug_assert_eq!(message.descriptors(), descriptors.len(), "{message:?}");
        match encode(message) {
            Ok(bytes) => self.send_bytes(bytes, descriptors),
            Err(error) => {
                tracing::error!(session = self.number, error = %error, "reply cannot be encoded");
                self.end();
            }
        }
    }

    /// As [`Session::send`], for a message that is encoded already.
    pub(crate) fn send_bytes(&mut self, bytes: Vec<u8>, descriptors: Vec<Passed>) {
        if self.state == State::Ended {
            return;
        }
        self.waiting_bytes += bytes.len();
        self.waiting.push_back(Outgoing { bytes, descriptors });
        self.flush();
        if self.waiting.len() > MAX_WAITING {
            tracing::warn!(
                session = self.number,
                messages = self.waiting.len(),
                "peer does not read its messages"
            );
            self.end();
        }
    }

    /// Sends what waits, until the socket is full.
    pub(crate) fn flush(&mut self) {
        while let Some(next) = self.waiting.front() {
            let descriptors: Vec<_> = next.descriptors.iter().map(AsFd::as_fd).collect();
            match send(&self.fd, &next.bytes, &descriptors) {
                Ok(()) => {
                    self.stuck_since = None;
                    self.waiting_bytes -= next.bytes.len();
                    self.waiting.pop_front();
                }
                Err(ShmError::WouldBlock) => {
                    self.stuck_since.get_or_insert_with(Instant::now);
                    return;
                }
                // The poll loop will hear of it from the kernel.
                Err(ShmError::Closed) => return self.forget_waiting(),
                Err(error) => {
                    tracing::warn!(
                        session = self.number,
                        error = crate::error::chain(&error),
                        "message not sent"
                    );
                    return self.end();
                }
            }
        }
    }

    /// Ends the session from this side: the peer reads the end of the connection.
    pub(crate) fn end(&mut self) {
        if self.state != State::Ended {
            self.state = State::Ended;
            self.forget_waiting();
            // Only the sending side: with both shut the kernel could no longer tell us that the peer has closed.
            let _ = shutdown(std::os::fd::AsRawFd::as_raw_fd(&self.fd), Side::Write).is_ok();
        }
    }

    /// Whether the peer has kept us waiting too long.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        match self.state {
            State::Greeting(deadline) => now > deadline,
            State::Open => self.stuck_since.is_some_and(|since| now.duration_since(since) > READ_DEADLINE),
            State::Ended => false,
        }
    }

    fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Whether its messages are read now: not while it has plenty under way, or does not read what it asked for.
    pub(crate) fn is_heard(&self) -> bool {
        self.state != State::Ended && self.in_flight < MAX_IN_FLIGHT && self.waiting_bytes < CLOGGED_BYTES
    }

    /// Whether messages wait for the socket.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
