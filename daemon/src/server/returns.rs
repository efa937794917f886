//! Segments on their way back to the system: each waits until nobody maps it any more, then a thread frees its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender, unbounded};
use tierpack_shm::error::{Error, MessageFault};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{DaemonMessage, SegmentId};
use tierpack_shm::segment::Segment;

use super::Server;
use super::events::{Event, Events};
use super::session::Session;
use crate::error::Result as DaemonResult;
use crate::priority;

/// A segment that was retired and that some sessions still map.
#[derive(Debug)]
pub(super) struct Returning {
    segment: Arc<Segment>,
    holders: BTreeSet<u64>,
}

/// A segment that nobody maps any more, and its namespace.
type Unused = (u32, SegmentId, Arc<Segment>);

/// Frees the memory of segments in a thread of its own: the kernel takes a millisecond for 6 MiB.
///
/// What waits for it is bounded: it counts against the pool until [`Event::Freed`].
#[derive(Debug)]
pub(super) struct Freer {
    /// Present until it is dropped.
    sender: Option<Sender<Unused>>,
    thread: Option<JoinHandle<()>>,
}

impl Freer {
    /// # Errors
    /// [`crate::error::Error::Thread`] when the system starts none.
    pub(super) fn start(events: Events) -> DaemonResult<Self> {
        let (sender, receiver) = unbounded();
        let thread = events.clone().spawn(("freer", "the thread that frees segments"), move || {
            priority::lower();
            free(&receiver, &events);
        })?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    fn free(&self, unused: Unused) {
        if let Some(sender) = &self.sender {
            // Fails only when the thread has panicked, and then the daemon ends.
            let _ = sender.send(unused).is_ok();
        }
    }
}

impl Drop for Freer {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join().is_ok();
        }
    }
}

fn free(receiver: &Receiver<Unused>, events: &Events) {
    for (namespace, id, segment) in receiver {
        let (len, was_locked) = (segment.len(), segment.is_locked());
        reach(Point::FreerTurn);
        drop(segment);
        events.send(Event::Freed { segment: (namespace, id), len, was_locked });
    }
}

impl Server {
    /// Has every session that maps a segment unmap it; then its memory returns.
    pub(super) fn retire_segment(&mut self, namespace: u32, id: SegmentId, segment: Arc<Segment>) {
        let (mut holders, now) = (BTreeSet::new(), Instant::now());
        for number in self.members(namespace) {
            let Some(session) = self.touch(number) else { continue };
            let Some(attached) = session.attached.get_mut(&namespace) else { continue };
            if attached.held.remove(&id) {
                attached.retired.insert(id, now);
                session.unmapping.push_back((now, namespace, id));
                session.unmapping_bytes += segment.len();
                session.send(&DaemonMessage::Retired { namespace, segments: vec![id] }, Vec::new());
                holders.insert(number);
                self.note_unmapping(number);
            }
        }
        reach(Point::SegmentRetired);
        if holders.is_empty() {
            return self.freer.free((namespace, id, segment));
        }
        self.returning.insert((namespace, id), Returning { segment, holders });
    }

    /// A session has unmapped segments: each is looked up among the ones that were retired to it.
    pub(super) fn unmapped(
        &mut self,
        number: u64,
        namespace: u32,
        segments: &[SegmentId],
    ) -> Result<(), Error> {
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        // It may have detached before it read that they are retired.
        let Some(attached) = session.attached.get_mut(&namespace) else { return Ok(()) };
        let (found, needed) = (segments.len(), attached.retired.len());
        if found > needed {
            return Err(Error::Malformed { len: found, fault: MessageFault::Unmapped { found, needed } });
        }
        let unmapped: Vec<_> =
            segments.iter().copied().filter(|id| attached.retired.remove(id).is_some()).collect();
        for id in unmapped {
            self.release(number, namespace, id);
        }
        self.note_unmapping(number);
        Ok(())
    }

    /// A session no longer maps a namespace at all.
    pub(super) fn release_all(&mut self, number: u64, namespace: u32, retired: BTreeMap<SegmentId, Instant>) {
        for id in retired.into_keys() {
            self.release(number, namespace, id);
        }
        self.note_unmapping(number);
    }

    pub(super) fn release(&mut self, number: u64, namespace: u32, id: SegmentId) {
        let Some(returning) = self.returning.get_mut(&(namespace, id)) else { return };
        returning.holders.remove(&number);
        let (len, is_last) = (returning.segment.len(), returning.holders.is_empty());
        if let Some(session) = self.sessions.get_mut(&number) {
            session.unmapping_bytes = session.unmapping_bytes.saturating_sub(len);
        }
        if is_last && let Some(done) = self.returning.remove(&(namespace, id)) {
            self.freer.free((namespace, id, done.segment));
        }
    }

    /// Notes what a session has yet to unmap, for refusals and stats.
    fn note_unmapping(&mut self, number: u64) {
        let session = self.sessions.get_mut(&number);
        let found = session.map(|session| (session.unmapping_bytes, session.unmaps_since()));
        let (bytes, since) = found.unwrap_or_default();
        self.store.unmapping.note(number, bytes, since);
    }
}

impl Session {
    /// Since when the oldest segment was retired that it has not unmapped.
    pub(super) fn unmaps_since(&mut self) -> Option<Instant> {
        while let Some((since, namespace, id)) = self.unmapping.front() {
            let attached = self.attached.get(namespace);
            if attached.and_then(|attached| attached.retired.get(id)) == Some(since) {
                return Some(*since);
            }
            self.unmapping.pop_front();
        }
        None
    }
}
