//! The session thread: the only one that receives.
//!
//! It hands replies to their waiters, maps segments that the daemon announces, unmaps the ones that it retires and
//! says so: through the outbox, since it never waits for the daemon to read.
//! While nothing is waiting on the socket it fills the page tables of what it has mapped, one segment at a time, so
//! that the first reads do not fault.
//! It owns the table of attached namespaces, and only it knows the serial numbers of their segments.
//! It does not keep the session alive: it holds what it shares with it, and ends when the socket is shut down.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::signal::{SigSet, Signal};
use tierpack_shm::attachment::Attachment;
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{
    DaemonMessage, MAX_MESSAGE_BYTES, Refusal, Reply, SegmentId, check_descriptors, decode,
};
use tierpack_shm::page::NamespaceId;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::socket;
use tierpack_shm::types::index;

use super::{Answer, End, Inner, Waiter};
use crate::protocol::ProtocolFault;
use crate::wire;

type Key = (u32, SegmentKind, u32);

struct Thread<'a> {
    inner: &'a Inner,
    attachments: HashMap<u32, Arc<Attachment>>,
    /// Serial numbers of the mapped segments.
    mapped: HashMap<Key, u64>,
    to_prefault: VecDeque<Key>,
    buf: Vec<u8>,
}

/// Receives until the connection ends.
pub(super) fn run(inner: &Inner) {
    /// Ends the session even if the thread panics, so that nobody waits for it.
    struct Ending<'a>(&'a Inner);
    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.end(End::HungUp);
        }
    }
    let ending = Ending(inner);
    block_signals();
    let mut thread = Thread {
        inner,
        attachments: HashMap::new(),
        mapped: HashMap::new(),
        to_prefault: VecDeque::new(),
        buf: vec![0; MAX_MESSAGE_BYTES],
    };
    let end = loop {
        if let Err(end) = thread.step() {
            break end;
        }
    };
    tracing::debug!(instance = inner.instance, end = ?end, "session ended");
    inner.end(end);
    drop(ending);
}

/// Signals of the process are for the threads of the program, except those that a thread raises itself.
pub(crate) fn block_signals() {
    let mut set = SigSet::all();
    for signal in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGTRAP] {
        set.remove(signal);
    }
    // Not being able to only means that a handler may run here.
    let _ = set.thread_block();
}

impl From<ShmError> for End {
    fn from(error: ShmError) -> Self {
        match error {
            ShmError::Closed => Self::HungUp,
            error => Self::from(ProtocolFault::Message(error)),
        }
    }
}

impl From<ProtocolFault> for End {
    fn from(fault: ProtocolFault) -> Self {
        Self::Fault(Arc::new(fault))
    }
}

impl Thread<'_> {
    /// One message, or one segment prefaulted while there is none.
    fn step(&mut self) -> Result<(), End> {
        let limit = (!self.to_prefault.is_empty()).then_some(Duration::ZERO);
        let ready = wire::wait(self.inner.socket.as_fd(), self.flush(), limit)
            .map_err(|errno| ShmError::Io { operation: "wait for a socket", source: errno.into() })?;
        if ready == PollFlags::POLLOUT {
            return Ok(());
        }
        if ready.is_empty() {
            if let Some((namespace, kind, index)) = self.to_prefault.pop_front()
                && let Some(attachment) = self.attachments.get(&namespace)
            {
                attachment.prefault(kind, index as usize);
            }
            return Ok(());
        }
        let received = match socket::recv(&self.inner.socket, &mut self.buf) {
            Err(ShmError::WouldBlock) => return Ok(()),
            received => received?,
        };
        let message: DaemonMessage = decode(&self.buf[..received.len])?;
        check_descriptors(message.descriptors(), received.descriptors.len())?;
        match message {
            DaemonMessage::Reply { id, result } => self.reply(id, result, received.descriptors),
            DaemonMessage::Segments { namespace, segments } => {
                self.map(namespace, segments, received.descriptors)
            }
            DaemonMessage::Retired { namespace, segments } => self.unmap(namespace, segments),
            DaemonMessage::Detached { .. } => Ok(()),
        }
    }

    /// Sends what waits in the outbox as far as there is room; gives what to wait for.
    fn flush(&self) -> PollFlags {
        let mut outbox = self.inner.outbox.lock();
        match outbox.flush(&self.inner.socket) {
            Err(ShmError::WouldBlock) if outbox.is_full() => PollFlags::POLLOUT,
            Err(ShmError::WouldBlock) => PollFlags::POLLIN | PollFlags::POLLOUT,
            // The end of a connection is seen where it is read, after the last replies.
            Ok(()) | Err(_) => PollFlags::POLLIN,
        }
    }

    fn reply(
        &mut self,
        id: u64,
        result: Result<Reply, Refusal>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), End> {
        // The waiter of a request that was given up is gone, and its descriptors are closed here.
        let Some(Waiter { sender, attaching }) = self.inner.state.lock().waiters.remove(&id) else {
            return match result {
                Ok(Reply::Attached { .. }) => Err(ProtocolFault::Reply.into()),
                Ok(Reply::Transfer { transfer }) => {
                    self.inner.abort_put(transfer);
                    Ok(())
                }
                _ => Ok(()),
            };
        };
        match self.answer(result, attaching, descriptors) {
            // Nobody waits any more for a request whose deadline has just passed.
            Ok(answer) => drop(sender.try_send(answer)),
            Err(end) => {
                // Before the waiter sees that nobody will answer, so that it learns why.
                self.inner.end(end.clone());
                return Err(end);
            }
        }
        self.inner.changed.notify_all();
        Ok(())
    }

    /// What a reply is to its request.
    fn answer(
        &mut self,
        result: Result<Reply, Refusal>,
        attaching: Option<Arc<str>>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Result<Answer, Refusal>, End> {
        match (result, attaching) {
            (Ok(Reply::Attached { id, header_len, header }), Some(name)) => {
                let attachment = self.attach(id, header, header_len, descriptors)?;
                self.inner.state.lock().attachments.insert(name, Some(Arc::clone(&attachment)));
                Ok(Ok(Answer::Attached(attachment)))
            }
            (Ok(Reply::Attached { .. }), None) | (Ok(_), Some(_)) => Err(ProtocolFault::Reply.into()),
            (Ok(reply), None) => Ok(Ok(Answer::Reply(reply, descriptors))),
            (Err(refusal), attaching) => {
                attaching.inspect(|name| self.inner.unclaim(name));
                Ok(Err(refusal))
            }
        }
    }

    fn attach(
        &mut self,
        id: NamespaceId,
        header: SegmentId,
        header_len: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Arc<Attachment>, End> {
        if (header.kind, header.index) != (SegmentKind::Directory, 0) {
            return Err(segment_fault(header));
        }
        if id.instance != self.inner.instance || self.attachments.contains_key(&id.namespace) {
            return Err(ProtocolFault::Namespace(id.namespace).into());
        }
        let found = descriptors.len();
        let [page, segment] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| {
            check_descriptors(2, found).map_or_else(End::from, |()| ProtocolFault::Reply.into())
        })?;
        let (cookie, hung_up) = (self.inner.cookie, Arc::clone(&self.inner.hung_up));
        let attachment = Attachment::new(id, page.as_fd(), (segment, header_len), cookie, hung_up)?;
        let attachment = Arc::new(attachment);
        self.attachments.insert(id.namespace, Arc::clone(&attachment));
        self.mapped.insert((id.namespace, header.kind, header.index), header.serial);
        Ok(attachment)
    }

    /// Each descriptor is closed once its segment is mapped: a client's descriptors do not grow with the pool.
    fn map(
        &mut self,
        namespace: u32,
        segments: Vec<(SegmentId, u64)>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), End> {
        let attachment = self.attachments.get(&namespace).ok_or(ProtocolFault::Namespace(namespace))?;
        for ((id, len), fd) in segments.into_iter().zip(descriptors) {
            let key = (namespace, id.kind, id.index);
            match self.mapped.get(&key) {
                Some(&serial) if serial == id.serial => continue,
                // Its memory would be read as that of the segment that is mapped there.
                Some(_) => return Err(segment_fault(id)),
                None => {}
            }
            reach(Point::SegmentReceived);
            attachment.map(id.kind, index(u64::from(id.index)), fd, len)?;
            if !attachment.is_mapped(id.kind, index(u64::from(id.index))) {
                // The index is past the end of the table.
                return Err(segment_fault(id));
            }
            self.mapped.insert(key, id.serial);
            if id.kind == SegmentKind::Data {
                self.to_prefault.push_back(key);
            }
        }
        // Under the lock, so that whoever has just looked and is about to wait is woken as well.
        drop(self.inner.state.lock());
        self.inner.changed.notify_all();
        Ok(())
    }

    fn unmap(&mut self, namespace: u32, segments: Vec<SegmentId>) -> Result<(), End> {
        let attachment = self.attachments.get(&namespace).ok_or(ProtocolFault::Namespace(namespace))?;
        for &id in &segments {
            let key = (namespace, id.kind, id.index);
            // The first segment of a directory holds the epoch and is never retired.
            if (id.kind, id.index) == (SegmentKind::Directory, 0)
                || self.mapped.remove(&key) != Some(id.serial)
            {
                return Err(segment_fault(id));
            }
            self.to_prefault.retain(|other| *other != key);
            reach(Point::SegmentUnmapping);
            attachment.unmap(id.kind, index(u64::from(id.index)));
        }
        self.inner.outbox.lock().unmapped(namespace, segments);
        Ok(())
    }
}

fn segment_fault(id: SegmentId) -> End {
    ProtocolFault::Segment { kind: id.kind, index: id.index, serial: id.serial }.into()
}
