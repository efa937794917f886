//! One connection to a daemon: the greeting, requests with deadlines, and what the session thread shares.
//!
//! Callers send; the session thread alone receives (`session/thread.rs`).
//! A caller enters a waiter under the id of its request before it sends, and the thread hands it the reply.
//! When the connection ends, for whatever reason, the thread sets the flag that every guard checks, and drops all
//! waiters.
//!
//! The socket stays open until the last `Session` is dropped, even after the thread has ended: the daemon counts the
//! leases of this client until it sees the hang-up, and somebody may still read under one.
//!
//! Locks: `Inner::state`, held for map operations, never while sending, receiving or mapping; and `Inner::outbox`, held
//! while one message is sent to a socket that does not block. Neither is taken while the other is held.

mod end;
mod greeting;
mod leaving;
mod outbox;
mod room;
mod thread;

pub(crate) use thread::block_signals;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use nix::sys::socket::{Shutdown, shutdown};
use parking_lot::{Condvar, Mutex};
use tierpack_shm::attachment::{Attachment, Link};
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::fork::{ForkCookie, Unshared};
use tierpack_shm::message::{ClientMessage, Refusal, Reply, Request, encode};
use tierpack_shm::segment::SegmentKind;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject, refused};
use crate::repeat::while_busy;
use crate::wire;

use end::{End, is_of_the_system, socket_closed};
use outbox::Outbox;
use room::{Apart, Key};

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
    outbox: Mutex<Outbox>,
    state: Mutex<State>,
    /// Signaled when a namespace is attached, a segment is mapped, or the session ends.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiters: HashMap<u64, Waiter>,
    /// By name; `None` while the daemon is being asked.
    attachments: HashMap<Arc<str>, Option<Arc<Attachment>>>,
    /// Closed, and not yet detached from.
    leaving: Vec<Arc<Attachment>>,
    /// Announced, and not mapped.
    apart: HashMap<Key, Apart>,
    end: Option<End>,
}

#[derive(Debug)]
struct Waiter {
    sender: Sender<core::result::Result<Answer, Refusal>>,
    /// The namespace that the request attaches.
    attaching: Option<Arc<str>>,
    /// The namespace that the request removes.
    removing: Option<Arc<str>>,
}

/// What came for a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(Reply, Vec<OwnedFd>),
    Attached(Arc<Attachment>),
    /// The reply came, and the system refused this process what it brought.
    Failed(ShmError),
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    inner: Arc<Inner>,
    id: u64,
    receiver: Receiver<core::result::Result<Answer, Refusal>>,
    deadline: Deadline,
    is_attach: bool,
    is_answered: bool,
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
        let (fd, instance) = greeting::greet(path, deadline)?;
        let system = |operation| move |source| Error::System { operation, source };
        let identity = wire::identity(&fd).map_err(system("look at the session's socket"))?;
        let inner = Arc::new(Inner {
            socket: Unshared::new(fd).map_err(system("register the session's socket"))?,
            cookie,
            instance,
            link: Arc::default(),
            identity,
            next_id: AtomicU64::new(1),
            outbox: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let shared = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("tierpack-session".to_owned())
            .spawn(move || thread::run(&shared, idle_limit))
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
        let (sender, receiver) = bounded(1);
        let is_attach = attaching.is_some();
        {
            let mut state = inner.state.lock();
            if let Some(end) = &state.end {
                return Err(end.error(subject.operation));
            }
            state.waiters.insert(id, Waiter { sender, attaching, removing });
        }
        // From here on dropping `pending` takes the waiter away.
        let pending = Pending {
            inner: Arc::clone(inner),
            id,
            receiver,
            deadline: *deadline,
            is_attach,
            is_answered: false,
        };
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
                Some(Some(_)) => state.leave_name(subject.namespace),
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

    /// Waits until the session thread has mapped a segment; returns as well when the session ends, or leaves the
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
        let mut state = self.inner.state.lock();
        while state.end.is_none() && !attachment.is_closed() && !attachment.is_mapped(kind, segment_idx) {
            let tried = state.map_apart(&self.inner, attachment, key);
            if tried.map_err(|source| Error::System { operation: "map new memory of the pool", source })? {
                continue;
            }
            if self.inner.changed.wait_until(&mut state, deadline.at()).timed_out() {
                return Err(deadline.passed("wait for the daemon to send a segment"));
            }
        }
        Ok(())
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
        // The socket may be shut down already.
        let _ = shutdown(self.inner.socket.as_fd().as_raw_fd(), Shutdown::Both);
        let thread = self.thread.take().map(ManuallyDrop::into_inner);
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic of the thread has ended the session already, and was printed.
            drop(thread.join());
        }
    }
}

impl Inner {
    /// Takes a waiter away whose reply nobody waits for; says whether it was still there.
    fn forget(&self, id: u64) -> bool {
        self.state.lock().waiters.remove(&id).is_some()
    }

    /// Takes back a put that the daemon began after its caller had given up: nobody else knows its id.
    fn abort_put(&self, transfer: u64) {
        // Relaxed: an id only has to be unique. Nobody waits for the reply.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut outbox = self.outbox.lock();
        outbox.put_abort(id, transfer);
        // What is left goes with the next message, or is sent by the thread: a socket that is full holds requests, whose
        // replies wake it. The daemon ends a put that idles, and every put of a session that hangs up.
        if let Err(error) = outbox.flush(&self.socket) {
            tracing::debug!(transfer, error = %error, "the abort of a put that nobody waits for has to wait");
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

    /// Ends the session: no guard is given any more, and nobody waits any more.
    fn end(&self, end: End) {
        match end {
            End::SocketClosed => self.link.lose(),
            End::HungUp | End::Fault(_) | End::System(_) => self.link.end(),
        }
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        let waiters = std::mem::take(&mut state.waiters);
        state.attachments.clear();
        state.leaving.clear();
        state.apart.clear();
        drop(state);
        drop(waiters);
        self.changed.notify_all();
    }

    fn lost(&self, operation: &'static str) -> Error {
        let end = self.state.lock().end.clone();
        end.unwrap_or(End::HungUp).error(operation)
    }
}

impl Answer {
    /// The reply to a request that attaches nothing.
    pub(crate) fn reply(self, subject: &Subject<'_>) -> Result<Reply> {
        match self {
            Self::Reply(reply, _) => Ok(reply),
            Self::Attached(_) | Self::Failed(_) => Err(subject.fault(ProtocolFault::Reply)),
        }
    }
}

impl Pending {
    /// Waits for the reply; a refusal becomes its error.
    pub(crate) fn wait(mut self, subject: &Subject<'_>) -> Result<Answer> {
        let received = self.receiver.recv_deadline(self.deadline.at());
        self.is_answered = received.is_ok();
        match received {
            Ok(Ok(Answer::Failed(source))) => Err(Error::System { operation: subject.operation, source }),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(refused(refusal, subject, self.deadline.seconds())),
            Err(RecvTimeoutError::Timeout) => Err(self.deadline.passed(subject.operation)),
            Err(RecvTimeoutError::Disconnected) => Err(self.inner.lost(subject.operation)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // An attach goes on without us: its reply brings a page and segments that somebody will want.
        if self.is_attach || self.is_answered || self.inner.forget(self.id) {
            return;
        }
        // The thread has taken the waiter, and hands over a reply in this moment or drops the waiter.
        if let Ok(Ok(Answer::Reply(Reply::Transfer { transfer }, _))) = self.receiver.recv() {
            self.inner.abort_put(transfer);
        }
    }
}

#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod tests;
