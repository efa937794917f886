//! What a session has mapped, and what each message of the daemon does to it.
//!
//! It hands replies to their waiters, maps segments that the daemon announces, unmaps the ones that it retires and
//! says so: through the outbox, since who receives never waits for the daemon to read.
//! It is the table of attached namespaces, and only it knows the serial numbers of their segments.
//! Its lock is held for one message, or for one step of what the session thread does besides.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

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
use super::{Answer, End, Inner, is_of_the_system};
use crate::protocol::ProtocolFault;

/// What is prefaulted in one step, which a caller that receives may have to wait for.
const PREFAULT_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Table {
    attachments: HashMap<u32, Arc<Attachment>>,
    /// Serial numbers of the mapped segments.
    mapped: HashMap<Key, u64>,
    /// From which byte on.
    to_prefault: VecDeque<(Key, u64)>,
    departures: Departures,
    buf: Vec<u8>,
}

impl Table {
    pub(super) fn new(idle_limit: Duration) -> Self {
        Self {
            attachments: HashMap::new(),
            mapped: HashMap::new(),
            to_prefault: VecDeque::new(),
            departures: Departures::new(idle_limit),
            buf: vec![0; MAX_MESSAGE_BYTES],
        }
    }

    /// Handles a message if there is one.
    pub(super) fn receive(&mut self, inner: &Inner) -> Result<(), End> {
        if !inner.is_socket_open() {
            return Err(End::SocketClosed);
        }
        let received = match socket::recv_some(&inner.socket, &mut self.buf) {
            Err(ShmError::WouldBlock) => return Ok(()),
            received => received?,
        };
        let message: DaemonMessage = decode(&self.buf[..received.len])?;
        if !received.is_cut {
            check_descriptors(message.descriptors(), received.descriptors.len())?;
        }
        match message {
            DaemonMessage::Reply { id, result } => {
                self.reply(inner, (id, result), received.descriptors, received.is_cut)
            }
            DaemonMessage::Segments { namespace, .. } | DaemonMessage::Retired { namespace, .. }
                if self.departures.is_left(namespace) =>
            {
                Ok(())
            }
            DaemonMessage::Segments { namespace, segments } => {
                self.map(inner, namespace, segments, received.descriptors)
            }
            DaemonMessage::Retired { namespace, segments } => self.unmap(inner, namespace, segments),
            DaemonMessage::Detached { namespace } => self.lose(inner, namespace),
        }
    }

    /// One step of what nobody waits for; returns how long the next one has time.
    pub(super) fn step(&mut self, inner: &Inner) -> Option<Duration> {
        self.depart(inner);
        self.prefault();
        if self.to_prefault.is_empty() {
            self.departures.limit(inner, self.attachments.len())
        } else {
            Some(Duration::ZERO)
        }
    }

    /// Forgets all, once the session has ended: guards that live keep what they read.
    pub(super) fn clear(&mut self) {
        self.to_prefault.clear();
        self.mapped.clear();
        self.attachments.clear();
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
    fn depart(&mut self, inner: &Inner) {
        self.departures.leave_idle(inner, &self.attachments);
        let done = self.departures.unmap(inner);
        self.forget(inner, &done);
    }

    fn forget(&mut self, inner: &Inner, numbers: &[u32]) {
        if numbers.is_empty() {
            return;
        }
        for number in numbers {
            self.attachments.remove(number);
        }
        self.mapped.retain(|(number, ..), _| !numbers.contains(number));
        self.to_prefault.retain(|((number, ..), _)| !numbers.contains(number));
        self.departures.detach(inner, numbers);
        inner.flush_soon();
    }

    /// The right to read a namespace was taken away.
    fn lose(&self, inner: &Inner, namespace: u32) -> Result<(), End> {
        match self.attachments.get(&namespace) {
            Some(attachment) => inner.state.lock().leave(attachment),
            None if self.departures.is_left(namespace) => return Ok(()),
            None => return Err(ProtocolFault::Namespace(namespace).into()),
        }
        // Who waits for a segment of it, and the thread.
        inner.changed.notify_all();
        Ok(())
    }

    fn reply(
        &mut self,
        inner: &Inner,
        (id, result): (u64, Result<Reply, Refusal>),
        descriptors: Vec<OwnedFd>,
        is_cut: bool,
    ) -> Result<(), End> {
        self.departures.replied(id);
        let mut state = inner.state.lock();
        // What an abandoned request asked for is turned down, and its descriptors are closed.
        let waiter = state.waiters.get_mut(&id).filter(|waiter| waiter.answer.is_none());
        let (attaching, removing) =
            waiter.map(|waiter| (waiter.attaching.take(), waiter.removing.take())).unwrap_or_default();
        if let (Ok(_), Some(name)) = (&result, removing) {
            state.leave_name(&name);
            inner.changed.notify_all();
        }
        drop(state);
        // Where this fails, the session ends before the waiter sees that nobody will answer, so that it learns why.
        let answer = self.answer(inner, result, attaching, (descriptors, is_cut))?;
        inner.hand_over(id, answer);
        Ok(())
    }

    /// What a reply is to its request.
    fn answer(
        &mut self,
        inner: &Inner,
        result: Result<Reply, Refusal>,
        attaching: Option<Arc<str>>,
        (descriptors, is_cut): (Vec<OwnedFd>, bool),
    ) -> Result<Result<Answer, Refusal>, End> {
        match (result, attaching) {
            (Ok(Reply::Attached { id, header_len, header }), Some(name)) => {
                let attachment = match self.attach(inner, id, (header, header_len), (descriptors, is_cut))? {
                    Ok(attachment) => attachment,
                    Err(error) => {
                        self.forget(inner, &[id.namespace]);
                        inner.unclaim(&name);
                        return Ok(Ok(Answer::Failed(error)));
                    }
                };
                inner.state.lock().attachments.insert(name, Some(Arc::clone(&attachment)));
                inner.changed.notify_all();
                Ok(Ok(Answer::Attached(attachment)))
            }
            (Ok(Reply::Attached { .. }), None) | (Ok(_), Some(_)) => Err(ProtocolFault::Reply.into()),
            (Ok(_), None) if is_cut => Ok(Ok(Answer::Failed(ShmError::DescriptorsCut))),
            (Ok(reply), None) => Ok(Ok(Answer::Reply(reply, descriptors))),
            (Err(refusal), attaching) => {
                attaching.inspect(|name| inner.unclaim(name));
                Ok(Err(refusal))
            }
        }
    }

    /// Maps what the reply to an attach has brought, unless there is no room for it.
    fn attach(
        &mut self,
        inner: &Inner,
        id: NamespaceId,
        (header, header_len): (SegmentId, u64),
        (descriptors, is_cut): (Vec<OwnedFd>, bool),
    ) -> Result<Result<Arc<Attachment>, ShmError>, End> {
        if (header.kind, header.index) != (SegmentKind::Directory, 0) {
            return Err(segment_fault(header));
        }
        if id.instance != inner.instance || self.attachments.contains_key(&id.namespace) {
            return Err(ProtocolFault::Namespace(id.namespace).into());
        }
        if is_cut {
            return Ok(Err(ShmError::DescriptorsCut));
        }
        let found = descriptors.len();
        let [page, segment] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| {
            check_descriptors(2, found).map_or_else(End::from, |()| ProtocolFault::Reply.into())
        })?;
        let (cookie, link) = (inner.cookie, Arc::clone(&inner.link));
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
        inner: &Inner,
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
            inner.state.lock().apart.insert(key, apart);
        }
        // Under the lock, so that a caller that has just looked and is about to wait is woken as well.
        inner.state.lock().has_chores = true;
        inner.changed.notify_all();
        Ok(())
    }

    fn unmap(&mut self, inner: &Inner, namespace: u32, segments: Vec<SegmentId>) -> Result<(), End> {
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
            inner.state.lock().apart.remove(&key);
            reach(Point::SegmentUnmapping);
            attachment.unmap(id.kind, index(u64::from(id.index)));
        }
        inner.outbox.lock().unmapped(namespace, segments);
        inner.flush_soon();
        Ok(())
    }
}

fn segment_fault(id: SegmentId) -> End {
    ProtocolFault::Segment { kind: id.kind, index: id.index, serial: id.serial }.into()
}
