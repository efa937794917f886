//! One client: its socket, what waits to be sent to it, and what it holds.
//!
//! Its messages are read whatever waits for it, since what it has unmapped must always arrive; requests beyond what it
//! may leave unread are refused.
//! A session ends in two steps. The daemon may end it (bad bytes, a deadline): its requests are no longer heard, but its
//! leases still count. They end when it has said goodbye and closed, or when the kernel reports its process gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, Shutdown as Side, recv, shutdown};
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::fork::Unshared;
use tierpack_shm::message::{DaemonMessage, MAX_MESSAGE_BYTES, SegmentId, encode};
use tierpack_shm::segment::Segment;
use tierpack_shm::socket::{Peer, send};

use super::shares::Load;
use crate::store::Namespace;
use crate::store::access::Caller;

/// How long a new peer may take to say hello.
pub(crate) const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// How long a peer may leave messages unread once its socket is full.
const READ_DEADLINE: Duration = Duration::from_secs(10);
/// How long a peer may take to unmap what was retired.
const UNMAP_DEADLINE: Duration = Duration::from_secs(30);
/// How long what an ended peer sends is still read, a few messages a second: it has segments to unmap, and must not be
/// stuck in sending for good.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Pause before another attempt where the socket seems writable and takes nothing.
const SEND_PAUSE: Duration = Duration::from_millis(20);
/// Pause before another attempt to find the process of a peer.
const PROCESS_PAUSE: Duration = Duration::from_secs(1);
/// Bytes that wait for a peer from which on its requests are refused.
const CLOGGED_BYTES: usize = 256 << 10;
/// Descriptors of the daemon's own that wait for a peer from which on its requests are refused.
const CLOGGED_DESCRIPTORS: usize = 32;
/// Bytes of a message without a list, and of each segment in the list of one: the longest that an ended session is
/// heard with.
const SHORT_BYTES: usize = 32;
const SEGMENT_ID_BYTES: usize = 16;
/// Messages that may wait for a slow peer, and their bytes; beyond that its session ends.
const MAX_WAITING: usize = 8192;
const MAX_WAITING_BYTES: usize = 16 << 20;

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Connected; must say hello by then.
    Greeting(Instant),
    /// Said hello.
    Open,
    /// Ended by the daemon; what it sends is read until then.
    Ended(Instant),
    /// Its connection is closed, and it has not said goodbye: its process may still read.
    HungUp {
        /// When to look for the process again, if it was not found for want of descriptors.
        look_again: Option<Instant>,
    },
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

impl Outgoing {
    fn owned_descriptors(&self) -> usize {
        self.descriptors.iter().filter(|passed| matches!(passed, Passed::Owned(_))).count()
    }
}

/// A namespace that a session is attached to.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) namespace: Arc<Namespace>,
    /// Segments whose descriptors were sent, or wait to be, and that were not retired.
    pub(crate) held: BTreeSet<SegmentId>,
    /// Of these, the ones that were retired since and that it has not unmapped.
    pub(crate) retired: BTreeMap<SegmentId, Instant>,
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
    /// Whether it is on the list of those to look at in this turn.
    pub(crate) touched: bool,
    /// What the poller was asked to wait for.
    pub(crate) awaited: EpollFlags,
    /// When its deadlines are looked at next.
    pub(crate) check_at: Option<Instant>,
    /// Its requests that wait for workers or that they have.
    pub(crate) load: Load,
    /// Segments that were retired to it, in that order, and bytes of those that it has not unmapped.
    pub(crate) unmapping: VecDeque<(Instant, u32, SegmentId)>,
    pub(crate) unmapping_bytes: u64,
    /// Whether its client has ended its leases and is about to close.
    pub(crate) said_goodbye: bool,
    /// Whether it is not read for now: it has ended, or its user has left the daemon too many descriptors to close.
    pub(crate) is_paused: bool,
    /// Its socket; its process once it has hung up.
    fd: Unshared<OwnedFd>,
    pub(super) waiting: VecDeque<Outgoing>,
    waiting_bytes: usize,
    waiting_descriptors: usize,
    stuck_since: Option<Instant>,
    /// The socket seemed writable and took nothing: when to try again.
    send_again: Option<Instant>,
}

impl Session {
    pub(crate) fn new(number: u64, peer: Peer, caller: Caller, fd: Unshared<OwnedFd>) -> Self {
        Self {
            number,
            peer,
            caller: Arc::new(caller),
            state: State::Greeting(Instant::now() + HELLO_DEADLINE),
            attached: BTreeMap::new(),
            settled: false,
            touched: false,
            awaited: EpollFlags::empty(),
            check_at: None,
            load: Load::default(),
            unmapping: VecDeque::new(),
            unmapping_bytes: 0,
            said_goodbye: false,
            is_paused: false,
            fd,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_descriptors: 0,
            stuck_since: None,
            send_again: None,
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
        if !self.is_open() {
            return;
        }
        let outgoing = Outgoing { bytes, descriptors };
        self.waiting_bytes += outgoing.bytes.len();
        self.waiting_descriptors += outgoing.owned_descriptors();
        self.waiting.push_back(outgoing);
        // While the socket is full, the poller says when it no longer is.
        if self.waiting.len() == 1 || self.stuck_since.is_none() && self.send_again.is_none() {
            self.flush();
        }
        if self.waiting.len() > MAX_WAITING || self.waiting_bytes > MAX_WAITING_BYTES {
            let (messages, bytes) = (self.waiting.len(), self.waiting_bytes);
            tracing::warn!(session = self.number, messages, bytes, "peer does not read its messages");
            self.end();
        }
    }

    /// Sends what waits, until the socket is full.
    pub(crate) fn flush(&mut self) {
        self.send_again = None;
        while let Some(next) = self.waiting.front() {
            let descriptors: Vec<_> = next.descriptors.iter().map(AsFd::as_fd).collect();
            match send(&self.fd, &next.bytes, &descriptors) {
                Ok(()) => {
                    self.stuck_since = None;
                    self.waiting_bytes -= next.bytes.len();
                    self.waiting_descriptors -= next.owned_descriptors();
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

    /// As [`Session::flush`], when the poller says that the socket is writable.
    pub(crate) fn flush_writable(&mut self) {
        let before = self.waiting.len();
        self.flush();
        if before > 0 && self.waiting.len() == before {
            // A limit of the system on passed descriptors blocks as well, and the poller does not see it.
            self.send_again = Some(Instant::now() + SEND_PAUSE);
        }
    }

    /// Ends the session from this side: the peer reads the end of the connection.
    pub(crate) fn end(&mut self) {
        if self.is_open() {
            self.state = State::Ended(Instant::now() + LAST_WORDS);
            self.forget_waiting();
            // Only the sending side: with both shut the kernel could no longer tell us that the peer has closed.
            let _ = shutdown(self.fd.as_raw_fd(), Side::Write).is_ok();
        }
    }

    /// Whether messages go to it.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Greeting(_) | State::Open)
    }

    /// Bytes of the longest message that it may send: the daemon reads no more of one.
    pub(crate) fn message_limit(&self) -> usize {
        if self.is_open() {
            return MAX_MESSAGE_BYTES;
        }
        let retired: usize = self.attached.values().map(|attached| attached.retired.len()).sum();
        (SHORT_BYTES + retired * SEGMENT_ID_BYTES).min(MAX_MESSAGE_BYTES)
    }

    /// Its connection is closed: `process` takes the place of its socket, which is returned.
    pub(crate) fn hang_up(&mut self, process: Option<OwnedFd>) -> Option<OwnedFd> {
        self.forget_waiting();
        let look_again = process.is_none().then(|| Instant::now() + PROCESS_PAUSE);
        self.state = State::HungUp { look_again };
        let process = process.and_then(|process| Unshared::new(process).ok());
        process.map(|process| std::mem::replace(&mut self.fd, process).into_inner())
    }

    /// Its descriptor, for who closes it.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd.into_inner()
    }

    /// Shuts the connection, so that the peer sees its end whatever else holds the socket.
    pub(crate) fn shut(&self) {
        if !matches!(self.state, State::HungUp { .. }) {
            let _ = shutdown(self.fd.as_raw_fd(), Side::Both).is_ok();
        }
    }

    /// When the next of its deadlines passes, if one is ahead.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        let unmaps = self.unmaps_since().filter(|_| self.is_open()).map(|since| since + UNMAP_DEADLINE);
        let own = match self.state {
            State::Greeting(deadline) => Some(deadline),
            State::Open => self.stuck_since.map(|since| since + READ_DEADLINE),
            State::Ended(until) => Some(until).filter(|until| *until > Instant::now()),
            State::HungUp { look_again } => return look_again,
        };
        [own, unmaps, self.send_again].into_iter().flatten().min()
    }

    /// Whether it still maps what was retired too long ago.
    pub(crate) fn has_unmapped_too_late(&mut self, now: Instant) -> bool {
        self.is_open() && self.unmaps_since().is_some_and(|since| now >= since + UNMAP_DEADLINE)
    }

    /// Whether it goes on sending long after it was ended.
    pub(crate) fn is_deaf(&self, now: Instant) -> bool {
        let is_late = matches!(self.state, State::Ended(until) if now >= until);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        is_late && recv(self.fd.as_raw_fd(), &mut [0], flags).is_ok_and(|len| len > 0)
    }

    /// Whether the peer has kept the daemon waiting too long.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        match self.state {
            State::Greeting(deadline) => now >= deadline,
            State::Open => self.stuck_since.is_some_and(|since| now >= since + READ_DEADLINE),
            State::Ended(_) | State::HungUp { .. } => false,
        }
    }

    /// Whether another attempt to send is due.
    pub(crate) fn sends_again(&self, now: Instant) -> bool {
        self.send_again.is_some_and(|at| now >= at)
    }

    /// Counts again what waits, after some of it was taken out.
    pub(super) fn recount_waiting(&mut self) {
        self.waiting_bytes = self.waiting.iter().map(|waiting| waiting.bytes.len()).sum();
        self.waiting_descriptors = self.waiting.iter().map(Outgoing::owned_descriptors).sum();
    }

    fn forget_waiting(&mut self) {
        self.waiting.clear();
        (self.waiting_bytes, self.waiting_descriptors) = (0, 0);
        (self.stuck_since, self.send_again) = (None, None);
    }

    /// Whether it leaves so much unread that its requests are refused.
    pub(crate) fn is_clogged(&self) -> bool {
        self.waiting_bytes >= CLOGGED_BYTES || self.waiting_descriptors >= CLOGGED_DESCRIPTORS
    }

    /// Whether messages wait for the socket.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What the poller is to wait for.
    pub(crate) fn wanted(&self) -> EpollFlags {
        let is_heard = match self.state {
            State::Greeting(_) | State::Open => !self.is_paused,
            // One that goes on sending is stopped by its full socket.
            State::Ended(until) => !self.is_paused && Instant::now() < until,
            State::HungUp { .. } => return EpollFlags::EPOLLIN,
        };
        let mut wanted = EpollFlags::empty();
        wanted.set(EpollFlags::EPOLLIN, is_heard);
        // A hang-up is reported once, and again when it is heard again.
        wanted.set(EpollFlags::EPOLLONESHOT, self.is_paused);
        wanted.set(EpollFlags::EPOLLOUT, self.is_waiting() && self.send_again.is_none());
        wanted
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn a_socket_that_seems_writable_and_takes_nothing_is_tried_again_later() {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, _theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let peer = Peer { pid: 1, uid: 1, gid: 1 };
        let mut session =
            Session::new(1, peer, Caller::new(peer, Vec::new(), 1), Unshared::new(ours).unwrap());
        session.state = State::Open;
        while !session.is_waiting() {
            session.send_bytes(vec![0; 1 << 14], Vec::new());
        }
        assert!(session.wanted().contains(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT));
        session.flush_writable();
        assert!(!session.wanted().contains(EpollFlags::EPOLLOUT), "the loop would spin");
        let at = session.next_deadline().expect("another attempt");
        assert!(session.sends_again(at) && !session.is_overdue(at));
        assert!(session.is_overdue(Instant::now() + READ_DEADLINE));
    }
}
