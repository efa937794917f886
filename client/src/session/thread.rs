//! The session thread: the only one that receives.
//!
//! It hands replies to their waiters, maps segments that the daemon announces, unmaps the ones that it retires and
//! says so: through the outbox, since it never waits for the daemon to read.
//! While nothing is waiting on the socket it fills the page tables of what it has mapped, some pages at a time, so that
//! the first reads do not fault and no message waits for that.
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
use tierpack_shm::layout::MAX_SEGMENTS;
use tierpack_shm::message::{
    DaemonMessage, MAX_MESSAGE_BYTES, Refusal, Reply, SegmentId, check_descriptors, decode,
};
use tierpack_shm::page::NamespaceId;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::socket;
use tierpack_shm::types::index;

use super::leaving::Departures;
use super::room::{Apart, Key};
use super::{Answer, End, Inner, Waiter, is_of_the_system};
use crate::protocol::ProtocolFault;
use crate::wire;

/// What is prefaulted between two looks at the socket.
const PREFAULT_BYTES: u64 = 2 << 20;

struct Thread<'a> {
    inner: &'a Inner,
    attachments: HashMap<u32, Arc<Attachment>>,
    /// Serial numbers of the mapped segments.
    mapped: HashMap<Key, u64>,
    /// From which byte on.
    to_prefault: VecDeque<(Key, u64)>,
    departures: Departures,
    buf: Vec<u8>,
}

/// Receives until the connection ends.
pub(super) fn run(inner: &Inner, idle_limit: Duration) {
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
        departures: Departures::new(idle_limit),
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

impl Thread<'_> {
    /// One message, or some pages prefaulted while there is none.
    fn step(&mut self) -> Result<(), End> {
        self.depart();
        let limit = if self.to_prefault.is_empty() {
            self.departures.limit(self.inner, self.attachments.len())
        } else {
            Some(Duration::ZERO)
        };
        let ready = wire::wait(self.inner.socket.as_fd(), self.flush(), limit)
            .map_err(|errno| ShmError::Io { operation: "wait for a socket", source: errno.into() })?;
        if ready == PollFlags::POLLOUT {
            return Ok(());
        }
        if ready.is_empty() {
            self.prefault();
            return Ok(());
        }
        if !self.inner.is_socket_open() {
            return Err(End::SocketClosed);
        }
        let received = match socket::recv_some(&self.inner.socket, &mut self.buf) {
            Err(ShmError::WouldBlock) => return Ok(()),
            received => received?,
        };
        let message: DaemonMessage = decode(&self.buf[..received.len])?;
        if !received.is_cut {
            check_descriptors(message.descriptors(), received.descriptors.len())?;
        }
        match message {
            DaemonMessage::Reply { id, result } => {
                self.reply(id, result, received.descriptors, received.is_cut)
            }
            DaemonMessage::Segments { namespace, .. } | DaemonMessage::Retired { namespace, .. }
                if self.departures.is_left(namespace) =>
            {
                Ok(())
            }
            DaemonMessage::Segments { namespace, segments } => {
                self.map(namespace, segments, received.descriptors)
            }
            DaemonMessage::Retired { namespace, segments } => self.unmap(namespace, segments),
            DaemonMessage::Detached { namespace } => self.lose(namespace),
        }
    }

    fn prefault(&mut self) {
        let Some((key @ (namespace, kind, index), at)) = self.to_prefault.pop_front() else { return };
        if let Some(attachment) = self.attachments.get(&namespace)
            && attachment.prefault(kind, index as usize, at, PREFAULT_BYTES)
        {
            self.to_prefault.push_front((key, at + PREFAULT_BYTES));
        }
    }

    /// Detaches from what is left and read no more.
    fn depart(&mut self) {
        self.departures.leave_idle(self.inner, &self.attachments);
        let done = self.departures.unmap(self.inner);
        self.forget(&done);
    }

    fn forget(&mut self, numbers: &[u32]) {
        if numbers.is_empty() {
            return;
        }
        for number in numbers {
            self.attachments.remove(number);
        }
        self.mapped.retain(|(number, ..), _| !numbers.contains(number));
        self.to_prefault.retain(|((number, ..), _)| !numbers.contains(number));
        self.departures.detach(self.inner, numbers);
    }

    /// The right to read a namespace was taken away.
    fn lose(&mut self, namespace: u32) -> Result<(), End> {
        match self.attachments.get(&namespace) {
            Some(attachment) => self.inner.state.lock().leave(attachment),
            None if self.departures.is_left(namespace) => return Ok(()),
            None => return Err(ProtocolFault::Namespace(namespace).into()),
        }
        // Who waits for a segment of it.
        self.inner.changed.notify_all();
        Ok(())
    }

    /// Sends what waits in the outbox as far as there is room; returns what to wait for.
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
        is_cut: bool,
    ) -> Result<(), End> {
        self.departures.replied(id);
        // The waiter of a request that was given up is gone, and its descriptors are closed here.
        let Some(Waiter { sender, attaching, removing }) = self.inner.state.lock().waiters.remove(&id) else {
            return match result {
                Ok(Reply::Attached { .. }) => Err(ProtocolFault::Reply.into()),
                Ok(Reply::Transfer { transfer }) => {
                    self.inner.abort_put(transfer);
                    Ok(())
                }
                _ => Ok(()),
            };
        };
        if let (Ok(_), Some(name)) = (&result, removing) {
            self.inner.state.lock().leave_name(&name);
        }
        match self.answer(result, attaching, descriptors, is_cut) {
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
        is_cut: bool,
    ) -> Result<Result<Answer, Refusal>, End> {
        match (result, attaching) {
            (Ok(Reply::Attached { id, header_len, header }), Some(name)) => {
                let attachment = match self.attach(id, header, header_len, descriptors, is_cut)? {
                    Ok(attachment) => attachment,
                    Err(error) => {
                        self.forget(&[id.namespace]);
                        self.inner.unclaim(&name);
                        return Ok(Ok(Answer::Failed(error)));
                    }
                };
                self.inner.state.lock().attachments.insert(name, Some(Arc::clone(&attachment)));
                Ok(Ok(Answer::Attached(attachment)))
            }
            (Ok(Reply::Attached { .. }), None) | (Ok(_), Some(_)) => Err(ProtocolFault::Reply.into()),
            (Ok(_), None) if is_cut => Ok(Ok(Answer::Failed(ShmError::DescriptorsCut))),
            (Ok(reply), None) => Ok(Ok(Answer::Reply(reply, descriptors))),
            (Err(refusal), attaching) => {
                attaching.inspect(|name| self.inner.unclaim(name));
                Ok(Err(refusal))
            }
        }
    }

    /// Maps what the reply to an attach has brought, unless there is no room for it.
    fn attach(
        &mut self,
        id: NamespaceId,
        header: SegmentId,
        header_len: u64,
        descriptors: Vec<OwnedFd>,
        is_cut: bool,
    ) -> Result<Result<Arc<Attachment>, ShmError>, End> {
        if (header.kind, header.index) != (SegmentKind::Directory, 0) {
            return Err(segment_fault(header));
        }
        if id.instance != self.inner.instance || self.attachments.contains_key(&id.namespace) {
            return Err(ProtocolFault::Namespace(id.namespace).into());
        }
        if is_cut {
            return Ok(Err(ShmError::DescriptorsCut));
        }
        let found = descriptors.len();
        let [page, segment] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| {
            check_descriptors(2, found).map_or_else(End::from, |()| ProtocolFault::Reply.into())
        })?;
        let (cookie, link) = (self.inner.cookie, Arc::clone(&self.inner.link));
        let attachment = match Attachment::new(id, page.as_fd(), (segment, header_len), cookie, link) {
            Err(error) if is_of_the_system(&error) => return Ok(Err(error)),
            attachment => Arc::new(attachment?),
        };
        self.attachments.insert(id.namespace, Arc::clone(&attachment));
        self.mapped.insert((id.namespace, header.kind, header.index), header.serial);
        Ok(Ok(attachment))
    }

    /// Each descriptor is closed once its segment is mapped: a client's descriptors do not grow with the pool.
    ///
    /// Of a message that was cut, the first descriptors have arrived.
    fn map(
        &mut self,
        namespace: u32,
        segments: Vec<(SegmentId, u64)>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), End> {
        let attachment = self.attachments.get(&namespace).ok_or(ProtocolFault::Namespace(namespace))?;
        let mut descriptors = descriptors.into_iter();
        for (id, len) in segments {
            let fd = descriptors.next();
            let key = (namespace, id.kind, id.index);
            match self.mapped.get(&key) {
                Some(&serial) if serial == id.serial => continue,
                // Its memory would be read as that of the segment that is mapped there.
                Some(_) => return Err(segment_fault(id)),
                None => {}
            }
            let segment_idx = index(u64::from(id.index));
            if segment_idx >= MAX_SEGMENTS {
                return Err(segment_fault(id));
            }
            reach(Point::SegmentReceived);
            self.mapped.insert(key, id.serial);
            let apart = match fd {
                None => Apart::Cut,
                Some(fd) => match attachment.map(id.kind, segment_idx, &fd, len) {
                    Ok(()) => {
                        self.to_prefault.push_back((key, 0));
                        continue;
                    }
                    Err(ShmError::Map { .. }) => Apart::Unmapped { fd, len },
                    Err(error) => return Err(error.into()),
                },
            };
            self.inner.state.lock().apart.insert(key, apart);
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
            self.to_prefault.retain(|(other, _)| *other != key);
            self.inner.state.lock().apart.remove(&key);
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
