//! One connection to a daemon: the greeting, requests with deadlines, and what callers and the session thread share.
//!
//! A caller that waits for a reply receives itself, and handles whatever comes; only while nobody waits does the
//! session thread (`session/role.rs`).
//! A caller enters a waiter under the id of its request before it sends, where who receives leaves the reply.
//! When the connection ends, for whatever reason, who receives sets the flag that every guard checks, and wakes all who
//! wait.
//!
//! The socket stays open until the last `Session` is dropped, even after the thread has ended: the daemon counts the
//! leases of this client until it sees the hang-up, and somebody may still read under one.
//!
//! Locks, in this order: `Inner::table`, held while one message is handled or some pages are prefaulted; then one of
//! `Inner::state`, held for map operations, never while sending, receiving or mapping, and `Inner::outbox`, held while
//! one message is sent to a socket that does not block. Neither of these is taken while the other is held.

mod end;
mod greeting;
mod leaving;
mod outbox;
mod pending;
mod role;
mod room;
mod table;
mod thread;

pub(crate) use pending::{Answer, Pending};
pub(crate) use thread::block_signals;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::socket::{Shutdown, shutdown};
use parking_lot::{Condvar, Mutex};
use tierpack_shm::attachment::{Attachment, Link};
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::fork::{ForkCookie, Unshared};
use tierpack_shm::message::{ClientMessage, Reply, Request, encode};
use tierpack_shm::segment::SegmentKind;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject};
use crate::repeat::while_busy;
use crate::wire;

use end::{End, is_of_the_system, socket_closed};
use outbox::Outbox;
use pending::Waiter;
use role::Role;
use room::{Apart, Key};
use table::Table;

/// The deadline of a request that nobody waits for.
const UNASKED_LIMIT: Duration = Duration::from_secs(30);

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Session {
    inner: Arc<Inner>,
    thread: Option<ManuallyDrop<JoinHandle<()>>>,
}

/// What callers and the session thread share.
#[derive(Debug)]
struct Inner {
    socket: Unshared<OwnedFd>,
    cookie: ForkCookie,
    instance: u64,
    link: Arc<Link>,
    /// Device and number of the socket's file: its descriptor's number may come to mean another.
    identity: (u64, u64),
    next_id: AtomicU64,
    table: Mutex<Table>,
    outbox: Mutex<Outbox>,
    state: Mutex<State>,
    /// Signaled when a namespace is attached or left, a segment is mapped, the thread has something to do, the role
    /// that is awaited is free, or the session ends.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    role: Role,
    /// The session thread has something to do that it may not have seen.
    has_chores: bool,
    waiters: HashMap<u64, Waiter>,
    /// By name; `None` while the daemon is being asked.
    attachments: HashMap<Arc<str>, Option<Arc<Attachment>>>,
    /// Closed, and not yet detached from.
    leaving: Vec<Arc<Attachment>>,
    /// Announced, and not mapped.
    apart: HashMap<Key, Apart>,
    end: Option<End>,
}

impl Session {
    /// Connects to the daemon at `path` and greets it.
    pub(crate) fn connect(path: &Path, cookie: ForkCookie, deadline: &Deadline) -> Result<Self> {
        Self::connect_with(path, cookie, deadline, leaving::IDLE_LIMIT)
    }

    fn connect_with(
        path: &Path,
        cookie: ForkCookie,
        deadline: &Deadline,
        idle_limit: Duration,
    ) -> Result<Self> {
        let inner = Arc::new(Inner::connect(path, cookie, deadline, idle_limit)?);
        let shared = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("tierpack-session".to_owned())
            .spawn(move || thread::run(&shared))
            .map_err(|source| Error::Thread { source })?;
        Ok(Self { inner, thread: Some(ManuallyDrop::new(thread)) })
    }

    /// The daemon's instance id, new at every start.
    pub(crate) fn instance(&self) -> u64 {
        self.inner.instance
    }

    /// Whether requests can be sent; asks the system, since the session thread may not have noticed yet.
    pub(crate) fn is_alive(&self) -> bool {
        let inner = &self.inner;
        inner.link.is_open() && inner.is_socket_open() && !wire::is_hung_up(inner.socket.as_fd())
    }

    /// Sends a request and waits for its reply, again and again while the daemon is busy.
    pub(crate) fn request(
        &self,
        subject: &Subject<'_>,
        request: Request,
        deadline: &Deadline,
    ) -> Result<Reply> {
        self.ask(subject, request, None, deadline)?.reply(subject)
    }

    /// As [`Session::request`], for a request or a reply that may name a descriptor.
    pub(crate) fn ask(
        &self,
        subject: &Subject<'_>,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
        deadline: &Deadline,
    ) -> Result<Answer> {
        while_busy(deadline, || self.send(subject, request.clone(), descriptor, deadline)?.wait(subject))
    }

    /// Sends a request once, with the descriptor that it names, if any.
    pub(crate) fn send(
        &self,
        subject: &Subject<'_>,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
        deadline: &Deadline,
    ) -> Result<Pending> {
        let attaching = match &request {
            Request::Attach { namespace } => Some(Arc::from(namespace.as_str())),
            _ => None,
        };
        let removing = match &request {
            Request::NamespaceRemove { namespace, .. } => Some(Arc::from(namespace.as_str())),
            _ => None,
        };
        let inner = &self.inner;
        // Relaxed: an id only has to be unique.
        let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
        let message = ClientMessage::Request { id, deadline_ms: deadline.left_ms(), request };
        let is_attach = attaching.is_some();
        {
            let mut state = inner.state.lock();
            if let Some(end) = &state.end {
                return Err(end.error(subject.operation));
            }
            state.waiters.insert(id, Waiter::new(attaching, removing));
        }
        // From here on dropping `pending` takes the waiter away.
        let pending = Pending::new(inner, id, deadline, is_attach);
        let system = |source| Error::System { operation: subject.operation, source };
        let sent = encode(&message).and_then(|bytes| inner.send(&bytes, descriptor.as_slice(), deadline));
        sent.map_err(|source| {
            inner.forget(id);
            match source {
                // Fails for everybody from now on.
                ShmError::Io { .. } if !inner.is_socket_open() => {
                    inner.end(End::SocketClosed);
                    End::SocketClosed.error(subject.operation)
                }
                ShmError::Closed => End::HungUp.error(subject.operation),
                ShmError::WouldBlock => deadline.passed(subject.operation),
                source => system(source),
            }
        })?;
        Ok(pending)
    }

    /// Read access to the namespace of this number: asks the daemon once per session.
    ///
    /// A name can come to mean another number: its namespace was removed and made again.
    pub(crate) fn attach(
        &self,
        subject: &Subject<'_>,
        number: u32,
        deadline: &Deadline,
    ) -> Result<Arc<Attachment>> {
        while_busy(deadline, || self.attach_once(subject, number, deadline))
    }

    fn attach_once(
        &self,
        subject: &Subject<'_>,
        number: u32,
        deadline: &Deadline,
    ) -> Result<Arc<Attachment>> {
        let mut state = self.inner.state.lock();
        loop {
            match state.attachments.get(subject.namespace) {
                Some(Some(attachment)) if attachment.id().namespace == number => {
                    return Ok(Arc::clone(attachment));
                }
                Some(Some(_)) => {
                    state.leave_name(subject.namespace);
                    self.inner.changed.notify_all();
                }
                // Being asked for, or still detached from: until no guard of it lives.
                Some(None) => {}
                None if state.end.is_none() && state.is_leaving(number) => {}
                None => break,
            }
            if self.inner.changed.wait_until(&mut state, deadline.at()).timed_out() {
                return Err(deadline.passed(subject.operation));
            }
        }
        if let Some(end) = &state.end {
            return Err(end.error(subject.operation));
        }
        state.attachments.insert(Arc::from(subject.namespace), None);
        drop(state);
        let request = Request::Attach { namespace: subject.namespace.to_owned() };
        let sent = self.send(subject, request, None, deadline);
        let pending = sent.inspect_err(|_| self.inner.unclaim(subject.namespace))?;
        match pending.wait(subject)? {
            Answer::Attached(attachment) => Ok(attachment),
            Answer::Reply(..) | Answer::Failed(_) => Err(subject.fault(ProtocolFault::Reply)),
        }
    }

    /// Waits until a segment is mapped, and receives meanwhile; returns as well when the session ends, or leaves the
    /// namespace.
    ///
    /// The caller holds no guard: the daemon may be waiting for it.
    pub(crate) fn wait_mapped(
        &self,
        attachment: &Arc<Attachment>,
        (kind, segment_idx): (SegmentKind, usize),
        deadline: &Deadline,
    ) -> Result<()> {
        let number = attachment.id().namespace;
        let key = (number, kind, u32::try_from(segment_idx).unwrap_or(u32::MAX));
        let look = |state: &mut State| {
            loop {
                if state.end.is_some() || attachment.is_closed() || attachment.is_mapped(kind, segment_idx) {
                    return Some(Ok(()));
                }
                match state.map_apart(&self.inner, attachment, key) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(source) => return Some(Err(source)),
                }
            }
        };
        let found = self.inner.wait_for(None, deadline, look);
        let found = found.ok_or_else(|| deadline.passed("wait for the daemon to send a segment"))?;
        found.map_err(|source| Error::System { operation: "map new memory of the pool", source })
    }

    /// The error for a session that has ended.
    pub(crate) fn lost(&self, operation: &'static str) -> Error {
        self.inner.lost(operation)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.inner.cookie.is_here() {
            // The thread does not exist in a fork, and a lock or map may have been caught in the middle of a change:
            // leave everything where it is. The socket has been replaced when the process forked.
            let _ = ManuallyDrop::new(Arc::clone(&self.inner));
            return;
        }
        if !self.inner.is_socket_open() {
            // The descriptor is not ours any more: it must not be closed by us, and the thread cannot be woken.
            self.inner.end(End::SocketClosed);
            let _ = ManuallyDrop::new(Arc::clone(&self.inner));
            return;
        }
        // Every lease was a guard of somebody who kept this session.
        self.inner.outbox.lock().close(&self.inner.socket);
        // The socket may be shut down already. The thread watches it, or waits for something to change.
        let _ = shutdown(self.inner.socket.as_fd().as_raw_fd(), Shutdown::Both);
        self.inner.end(End::HungUp);
        let thread = self.thread.take().map(ManuallyDrop::into_inner);
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic of the thread has ended the session already, and was printed.
            drop(thread.join());
        }
    }
}

impl Inner {
    fn connect(path: &Path, cookie: ForkCookie, deadline: &Deadline, idle_limit: Duration) -> Result<Self> {
        let (fd, instance) = greeting::greet(path, deadline)?;
        let system = |operation| move |source| Error::System { operation, source };
        let identity = wire::identity(&fd).map_err(system("look at the session's socket"))?;
        Ok(Self {
            socket: Unshared::new(fd).map_err(system("register the session's socket"))?,
            cookie,
            instance,
            link: Arc::default(),
            identity,
            next_id: AtomicU64::new(1),
            table: Mutex::new(Table::new(idle_limit)),
            outbox: Mutex::default(),
            state: Mutex::new(State::new()),
            changed: Condvar::new(),
        })
    }

    /// Takes a waiter away whose request was not sent.
    fn forget(&self, id: u64) {
        self.state.lock().waiters.remove(&id);
    }

    /// Takes back a put that the daemon began after its caller had stopped waiting: nobody else knows its id.
    fn abort_put(&self, transfer: u64) {
        // Relaxed: an id only has to be unique. Nobody waits for the reply.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.outbox.lock().put_abort(id, transfer);
        self.flush_soon();
    }

    /// Sends what waits in the outbox as far as there is room; the thread sends the rest, unless a caller does.
    fn flush_soon(&self) {
        if self.flush().contains(PollFlags::POLLOUT) {
            self.state.lock().has_chores = true;
            self.changed.notify_all();
        }
    }

    /// Sends what waits in the outbox as far as there is room; returns what to wait for.
    fn flush(&self) -> PollFlags {
        let mut outbox = self.outbox.lock();
        match outbox.flush(&self.socket) {
            Err(ShmError::WouldBlock) if outbox.is_full() => PollFlags::POLLOUT,
            Err(ShmError::WouldBlock) => PollFlags::POLLIN | PollFlags::POLLOUT,
            // The end of a connection is seen where it is read, after the last replies.
            Ok(()) | Err(_) => PollFlags::POLLIN,
        }
    }

    /// Sends a message after all that waits in the outbox; waits for room until the deadline.
    fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: &Deadline,
    ) -> core::result::Result<(), ShmError> {
        let try_send = || {
            if !self.is_socket_open() {
                return Err(socket_closed());
            }
            self.outbox.lock().send(&self.socket, bytes, descriptors)
        };
        wire::until_sent(&self.socket, deadline, try_send)
    }

    /// Whether the descriptor is still that of the session's socket: the program may close what is not its own.
    fn is_socket_open(&self) -> bool {
        wire::identity(&self.socket).is_ok_and(|identity| identity == self.identity)
    }

    /// Lets others ask for a namespace again.
    fn unclaim(&self, namespace: &str) {
        let mut state = self.state.lock();
        if let Some(None) = state.attachments.get(namespace) {
            state.attachments.remove(namespace);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the session, and unmaps what no guard reads. The caller does not hold the table.
    fn finish(&self, end: End) {
        self.end(end);
        self.table.lock().clear();
    }

    /// Ends the session: no guard is created any more, and nobody waits any more.
    fn end(&self, end: End) {
        match end {
            End::SocketClosed => self.link.lose(),
            End::HungUp | End::Fault(_) | End::System(_) => self.link.end(),
        }
        let mut state = self.state.lock();
        if state.end.is_none() {
            tracing::debug!(instance = self.instance, end = ?end, "session ended");
            state.end = Some(end);
        }
        // Replies that have come may still be taken.
        let lost: Vec<_> = state.waiters.extract_if(|_, waiter| waiter.answer.is_none()).collect();
        state.attachments.clear();
        state.leaving.clear();
        state.apart.clear();
        drop(state);
        for signal in lost.iter().filter_map(|(_, waiter)| waiter.blocked.as_ref()) {
            signal.notify_one();
        }
        self.changed.notify_all();
    }

    fn lost(&self, operation: &'static str) -> Error {
        let end = self.state.lock().end.clone();
        end.unwrap_or(End::HungUp).error(operation)
    }
}

impl State {
    fn new() -> Self {
        Self {
            role: Role::new(),
            has_chores: false,
            waiters: HashMap::new(),
            attachments: HashMap::new(),
            leaving: Vec::new(),
            apart: HashMap::new(),
            end: None,
        }
    }
}

#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod role_tests;
#[cfg(test)]
mod tests;
