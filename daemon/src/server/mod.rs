//! The poll loop: one thread owns the sockets, the sessions, and what each session holds.
//!
//! It answers nothing that takes long: requests go to workers over a bounded queue, and come back as events.
//! Bad bytes end one session; a broken invariant of our own ends the daemon with a message.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use slab::Slab;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, ErrorCode, Hello, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Refusal,
    Reply, Request, SegmentId, check_descriptors, decode, decode_hello, encode,
};
use tierpack_shm::page::ClientPage;
use tierpack_shm::segment::{Segment, SegmentKind};
use tierpack_shm::socket::{Received, recv};

use crate::config::Config;
use crate::error::{Error, Result, chain};
use crate::shutdown::Shutdown;
use crate::stats::Board;
use crate::store::Store;
use crate::store::background::BackgroundThread;
use crate::store::transfer::Transfers;

pub(crate) mod accept;
pub(crate) mod events;
mod requests;
mod rights;
pub(crate) mod session;

use accept::Front;
use events::{Event, Inbox};
use requests::{Job, Workers};
use session::{Attached, Passed, Session, State};

/// The name and version that peers and logs see.
pub(crate) const SOFTWARE: &str = concat!("tierpackd ", env!("CARGO_PKG_VERSION"));
/// How often the loop looks at deadlines when nothing happens.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// How often it looks whether leases have ended while something is retired.
const HELD_TICK: Duration = Duration::from_millis(5);
/// How often it looks for idle puts, unused namespaces, and its socket files.
const CHECK_TICK: Duration = Duration::from_secs(1);
/// Messages taken from one session before the others have their turn.
const MESSAGES_PER_TURN: usize = 16;
/// How long a put may idle, in request deadlines.
const IDLE_PUT_DEADLINES: u32 = 10;
/// How long shutdown waits for replies to be read.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

/// A segment that was retired and that some sessions still map.
#[derive(Debug)]
struct Returning {
    namespace: u32,
    id: SegmentId,
    segment: Arc<Segment>,
    holders: BTreeSet<u64>,
}

/// The daemon, bound to its sockets and ready to run.
#[derive(Debug)]
pub struct Server {
    front: Front,
    store: Arc<Store>,
    transfers: Arc<Transfers>,
    board: Arc<Board>,
    inbox: Inbox,
    workers: Option<Workers>,
    background: BackgroundThread,
    stats: crate::stats_socket::StatsThread,
    sessions: Slab<Session>,
    /// Slab key of each session number.
    keys: BTreeMap<u64, usize>,
    returning: Vec<Returning>,
    held: bool,
    next_session: u64,
    put_idle_limit: Duration,
    next_check: Instant,
    message: Vec<u8>,
}

impl Server {
    /// Takes ownership of the sockets and starts the workers; nothing is answered before [`Server::run`].
    ///
    /// # Errors
    /// [`Error`] naming what stands in the way: another daemon, a directory, a limit.
    pub fn bind(config: &Config) -> Result<Self> {
        let (events, inbox) = events::channel()?;
        let front = Front::open(config)?;
        let (store, tasks) = Store::new(config, events.clone())?;
        let store = Arc::new(store);
        let transfers = Arc::new(Transfers::default());
        let board = Arc::new(Board::new(config, Arc::clone(&store), Arc::clone(&transfers)));
        let stats = crate::stats_socket::StatsThread::start(front.stats(), Arc::clone(&board))?;
        let background = BackgroundThread::start(config, Arc::clone(&store), tasks, events.clone())?;
        let workers = Workers::start(config.workers(), &store, &transfers, &events)?;
        Ok(Self {
            front,
            store,
            transfers,
            board,
            inbox,
            workers: Some(workers),
            background,
            stats,
            sessions: Slab::new(),
            keys: BTreeMap::new(),
            returning: Vec::new(),
            held: false,
            next_session: 1,
            put_idle_limit: config.deadline() * IDLE_PUT_DEADLINES,
            next_check: Instant::now() + CHECK_TICK,
            message: vec![0; MAX_MESSAGE_BYTES],
        })
    }

    /// Serves until `shutdown` is triggered; then finishes what was asked, and removes the sockets.
    ///
    /// # Errors
    /// [`Error::Panicked`] when a worker found a broken invariant; [`Error::Poll`] when the kernel refuses to poll.
    pub fn run(mut self, shutdown: &Shutdown) -> Result<()> {
        tracing::info!(socket = ?self.front.control(), pool_bytes = self.store.budget.size(), "serving");
        let outcome = self.serve(shutdown);
        tracing::info!("shutting down");
        self.finish();
        outcome
    }

    fn serve(&mut self, shutdown: &Shutdown) -> Result<()> {
        while !shutdown.is_triggered() {
            let (ready, accept) = self.wait(shutdown)?;
            for (number, flags) in ready {
                self.attend(number, flags);
            }
            if accept {
                self.accept();
            }
            self.take_events()?;
            self.keep_time();
        }
        Ok(())
    }

    /// Waits for something to do; gives the ready sessions, and whether somebody connects.
    fn wait(&self, shutdown: &Shutdown) -> Result<(Vec<(u64, PollFlags)>, bool)> {
        let mut fds = vec![
            PollFd::new(shutdown.fd(), PollFlags::POLLIN),
            PollFd::new(self.inbox.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.front.as_fd(), PollFlags::POLLIN),
        ];
        let first_session = fds.len();
        let mut numbers = Vec::with_capacity(self.sessions.len());
        for (_, session) in &self.sessions {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::POLLIN, session.is_heard());
            wanted.set(PollFlags::POLLOUT, session.is_waiting());
            fds.push(PollFd::new(session.as_fd(), wanted));
            numbers.push(session.number);
        }
        let tick = if self.held { HELD_TICK } else { IDLE_TICK };
        let timeout = PollTimeout::try_from(tick).expect("a tick is short");
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(source) => return Err(Error::Poll { source }),
        }
        let flags = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
        let sessions = numbers.iter().zip(&fds[first_session..]).map(|(number, fd)| (*number, flags(fd)));
        Ok((sessions.filter(|(_, flags)| !flags.is_empty()).collect(), !flags(&fds[2]).is_empty()))
    }

    fn accept(&mut self) {
        for (fd, peer, caller) in self.front.accept(self.sessions.len()) {
            let number = self.next_session;
            self.next_session += 1;
            tracing::debug!(session = number, pid = peer.pid, uid = peer.uid, "connected");
            let key = self.sessions.insert(Session::new(number, peer, caller, fd));
            self.keys.insert(number, key);
        }
    }

    /// Reads from, writes to, or ends one session.
    fn attend(&mut self, number: u64, flags: PollFlags) {
        let Some(&key) = self.keys.get(&number) else { return };
        if flags.contains(PollFlags::POLLOUT) {
            self.sessions[key].flush();
        }
        if flags.contains(PollFlags::POLLIN) && self.sessions[key].is_heard() {
            for _ in 0..MESSAGES_PER_TURN {
                let received = recv(&self.sessions[key], &mut self.message);
                match received {
                    Ok(received) => {
                        if let Err(error) = self.take_message(key, received) {
                            self.end_session(key, &chain(&error));
                        }
                    }
                    Err(tierpack_shm::error::Error::WouldBlock) => return,
                    Err(tierpack_shm::error::Error::Closed) => return self.drop_session(number),
                    Err(error) => return self.end_session(key, &chain(&error)),
                }
                if !self.sessions[key].is_heard() {
                    return;
                }
            }
        } else if flags.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
            self.drop_session(number);
        }
    }

    /// Ends a session for what its peer did.
    fn end_session(&mut self, key: usize, reason: &str) {
        let session = &mut self.sessions[key];
        tracing::warn!(session = session.number, pid = session.peer.pid, reason, "session ended");
        session.end();
    }

    /// Tells the rest of the daemon of sessions that have ended in this turn.
    ///
    /// Their leases count until the kernel reports the peer gone; one that holds nothing is closed at once.
    fn settle_ended(&mut self) {
        let mut empty = Vec::new();
        for (_, session) in &mut self.sessions {
            if session.state == State::Ended && !std::mem::replace(&mut session.settled, true) {
                self.board.session_ended(session.number);
                self.transfers.abort_session(&self.store, session.number);
                if session.attached.is_empty() {
                    empty.push(session.number);
                }
            }
        }
        for number in empty {
            self.drop_session(number);
        }
    }

    /// The kernel has reported the peer gone: nothing is its any more.
    fn drop_session(&mut self, number: u64) {
        let Some(key) = self.keys.remove(&number) else { return };
        let session = self.sessions.remove(key);
        for attached in session.attached.values() {
            attached.namespace.detach(number);
        }
        self.transfers.abort_session(&self.store, number);
        self.board.session_gone(number);
        self.release(number, |_, _| true);
        self.held |= self.store.reclaim();
        tracing::debug!(session = number, "disconnected");
    }

    fn take_message(
        &mut self,
        key: usize,
        received: Received,
    ) -> core::result::Result<(), tierpack_shm::error::Error> {
        let bytes = &self.message[..received.len];
        if let State::Greeting(_) = self.sessions[key].state {
            check_descriptors(0, received.descriptors.len())?;
            let hello: Hello = decode_hello(bytes)?;
            self.greet(key, hello);
            return Ok(());
        }
        let message: ClientMessage = decode(bytes)?;
        check_descriptors(message.descriptors(), received.descriptors.len())?;
        match message {
            ClientMessage::Request { id, deadline_ms, request } => {
                self.take_request(key, id, deadline_ms, request, received.descriptors);
            }
            ClientMessage::Unmapped { namespace, segments } => {
                let session = &mut self.sessions[key];
                if let Some(attached) = session.attached.get_mut(&namespace) {
                    attached.held.retain(|id| !segments.contains(id));
                }
                let number = session.number;
                self.release(number, |found, id| found == namespace && segments.contains(&id));
            }
            ClientMessage::Detach { namespace } => {
                let session = &mut self.sessions[key];
                let number = session.number;
                if let Some(attached) = session.attached.remove(&namespace) {
                    attached.namespace.detach(number);
                    self.release(number, |found, _| found == namespace);
                }
            }
            ClientMessage::Goodbye => self.sessions[key].said_goodbye = true,
        }
        Ok(())
    }

    fn greet(&mut self, key: usize, hello: Hello) {
        let session = &mut self.sessions[key];
        let (protocol, layout) = (PROTOCOL_VERSION, LAYOUT_VERSION);
        if (hello.protocol, hello.layout) == (protocol, layout) {
            session.state = State::Open;
            self.board.session_opened(session.number, session.peer, hello.software);
            let software = SOFTWARE.to_owned();
            let reply = HelloReply::Welcome {
                protocol,
                layout,
                instance: self.store.instance,
                features: 0,
                software,
            };
            return session.send_bytes(encode(&reply).expect("a welcome is short"), Vec::new());
        }
        let text = format!(
            "{SOFTWARE} speaks protocol {protocol} and layout {layout}, the client ({:.80}) protocol {} and layout {}: \
             upgrade the older one, and restart the daemon if it is that",
            hello.software, hello.protocol, hello.layout
        );
        let refusal = Refusal::new(ErrorCode::Version, text);
        let reply = HelloReply::Refused { protocol, layout, refusal };
        session.send_bytes(encode(&reply).expect("a refusal is short"), Vec::new());
        self.end_session(key, "another version");
    }

    fn take_request(
        &mut self,
        key: usize,
        id: u64,
        deadline_ms: u32,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) {
        let session = self.sessions[key].number;
        if let Request::Attach { namespace } = request {
            let (result, passed, more) = match self.attach(key, &namespace) {
                Ok((reply, passed, more)) => (Ok(reply), passed, more),
                Err(refusal) => (Err(refusal), Vec::new(), None),
            };
            self.board.request(result.is_ok());
            self.sessions[key].send(&DaemonMessage::Reply { id, result }, passed);
            if let Some((namespace, segments)) = more {
                let unsent = self.sessions[key].announce(namespace, segments);
                self.give_up(session, namespace, &unsent);
            }
            return;
        }
        let deadline = Instant::now() + Duration::from_millis(u64::from(deadline_ms));
        let caller = Arc::clone(&self.sessions[key].caller);
        let job = Job { session, caller, id, deadline, request, descriptors };
        if self.workers.as_ref().is_some_and(|workers| workers.submit(job)) {
            self.sessions[key].in_flight += 1;
        } else {
            self.board.request(false);
            let result =
                Err(Refusal::new(ErrorCode::Busy, "the daemon's queue of requests is full: try again"));
            self.sessions[key].send(&DaemonMessage::Reply { id, result }, Vec::new());
        }
    }

    /// Attaches a session to a namespace: its page and the directory's header first, then the other segments.
    #[expect(clippy::type_complexity, reason = "used once, by the caller above")]
    fn attach(
        &mut self,
        key: usize,
        name: &str,
    ) -> core::result::Result<(Reply, Vec<Passed>, Option<(u32, Vec<(SegmentId, Arc<Segment>)>)>), Refusal>
    {
        let namespace = self.store.readable(name, &self.sessions[key].caller)?;
        let (session, id) = (&mut self.sessions[key], namespace.id);
        if session.attached.contains_key(&id.namespace) {
            let text = format!("this session is attached to namespace {name:?} already");
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        let (page, fd) =
            ClientPage::create(id).map_err(|error| Refusal::new(ErrorCode::Internal, chain(&error)))?;
        reach(Point::AttachPage);
        let page = Arc::new(page);
        let mut segments = namespace.attach(session.number, &session.caller, Arc::clone(&page))?;
        let header_at =
            segments.iter().position(|(id, _)| (id.kind, id.index) == (SegmentKind::Directory, 0));
        let (header, segment) = segments.swap_remove(header_at.expect("segment 0 of the directory stays"));
        self.board.session_attached(session.number, name, &page);
        let held = BTreeSet::from([header]);
        session.attached.insert(id.namespace, Attached { namespace, held, is_lost: false });
        let reply = Reply::Attached { id, header_len: segment.len(), header };
        Ok((reply, vec![Passed::Owned(fd), Passed::Segment(segment)], Some((id.namespace, segments))))
    }

    fn take_events(&mut self) -> Result<()> {
        self.inbox.clear_wake();
        while let Some(event) = self.inbox.next() {
            match event {
                Event::Done { session, id, result, descriptors } => {
                    self.board.request(result.is_ok());
                    self.held = true;
                    let key = self.keys.get(&session).copied();
                    if let Some(key) = key {
                        self.sessions[key].in_flight -= 1;
                    }
                    if let Some(key) = key.filter(|&key| self.sessions[key].state != State::Ended) {
                        let passed = descriptors.into_iter().map(Passed::Owned).collect();
                        self.sessions[key].send(&DaemonMessage::Reply { id, result }, passed);
                    } else {
                        // The put that a worker has just begun is nobody's: its session ended before that.
                        self.transfers.abort_session(&self.store, session);
                    }
                }
                Event::Announce { namespace, id, segment } => self.announce(namespace, id, &segment),
                Event::RightsChanged { namespace } => self.revoke(namespace),
                Event::Retire { namespace, id, segment } => self.retire_segment(namespace, id, segment),
                Event::Panicked(text) => return Err(Error::Panicked { text }),
            }
        }
        Ok(())
    }

    fn retire_segment(&mut self, namespace: u32, id: SegmentId, segment: Arc<Segment>) {
        let mut holders = BTreeSet::new();
        for (_, session) in &mut self.sessions {
            if session.attached.get(&namespace).is_some_and(|attached| attached.held.contains(&id)) {
                holders.insert(session.number);
                session.send(&DaemonMessage::Retired { namespace, segments: vec![id] }, Vec::new());
            }
        }
        reach(Point::SegmentRetired);
        self.returning.push(Returning { namespace, id, segment, holders });
        self.finish_returns();
    }

    /// Takes a session out of the holders of the retired segments that `which` names.
    fn release(&mut self, session: u64, which: impl Fn(u32, SegmentId) -> bool) {
        for returning in &mut self.returning {
            if which(returning.namespace, returning.id) {
                returning.holders.remove(&session);
            }
        }
        self.finish_returns();
    }

    fn finish_returns(&mut self) {
        for done in self.returning.extract_if(.., |returning| returning.holders.is_empty()) {
            self.store.returned(done.namespace, done.id, done.segment);
        }
    }

    /// Deadlines, reclamation, the socket files.
    fn keep_time(&mut self) {
        let now = Instant::now();
        let overdue = self.sessions.iter().filter(|(_, session)| session.is_overdue(now)).map(|(key, _)| key);
        for key in overdue.collect::<Vec<_>>() {
            self.end_session(key, "the peer kept the daemon waiting past a deadline");
        }
        self.settle_ended();
        if self.held {
            self.held = self.store.reclaim();
        }
        self.store.tidy();
        if now >= self.next_check {
            self.next_check = now + CHECK_TICK;
            self.transfers.abort_idle(&self.store, self.put_idle_limit);
            self.store.drop_unused_namespaces();
            self.front.keep_files();
        }
    }

    /// Finishes queued requests, lets replies be read, and removes the sockets.
    fn finish(mut self) {
        self.front.stop_listening();
        if let Some(workers) = self.workers.take() {
            workers.finish();
        }
        self.background.stop();
        let _ = self.take_events().is_ok();
        let deadline = Instant::now() + FLUSH_DEADLINE;
        while self.sessions.iter().any(|(_, session)| session.is_waiting()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            self.sessions.iter_mut().for_each(|(_, session)| session.flush());
        }
        self.stats.stop();
    }
}
