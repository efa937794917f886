//! Announcements, and rights that are taken away: who may not read a namespace is sent nothing more of it.
//!
//! Such a session is detached from that namespace alone. Its leases there, and the segments that it maps, count until
//! its client says that they are gone, or hangs up.

use std::sync::Arc;

use tierpack_shm::message::{DaemonMessage, ErrorCode, Refusal, Reply, SegmentId, decode, encode};
use tierpack_shm::segment::Segment;
use tierpack_shm::socket::MAX_DESCRIPTORS;

use super::Server;
use super::session::{Passed, Session};

/// What a session that loses a namespace was not sent after all.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    segments: Vec<SegmentId>,
    /// Not even its page: it was never attached, so that no lease and no segment is its.
    is_all: bool,
}

impl Server {
    /// Announces a segment to the sessions that are attached to its namespace.
    pub(super) fn announce(&mut self, namespace: u32, id: SegmentId, segment: &Arc<Segment>) {
        for number in self.members(namespace) {
            self.announce_to(number, namespace, vec![(id, Arc::clone(segment))]);
        }
    }

    /// Announces segments to one session.
    pub(super) fn announce_to(
        &mut self,
        number: u64,
        namespace: u32,
        segments: Vec<(SegmentId, Arc<Segment>)>,
    ) {
        let unsent = self.touch(number).map(|session| session.announce(namespace, segments));
        self.take_out(number, namespace, unsent.unwrap_or_default());
    }

    /// Detaches the sessions that may not read a namespace any more.
    pub(super) fn revoke(&mut self, namespace: u32) {
        for number in self.members(namespace) {
            let unsent = self.touch(number).map(|session| session.check_attached(namespace));
            self.take_out(number, namespace, unsent.unwrap_or_default());
        }
    }

    /// Takes a session out of the holders of what it was not sent.
    fn take_out(&mut self, number: u64, namespace: u32, unsent: Unsent) {
        if unsent.is_all {
            return self.detach(number, namespace);
        }
        for id in unsent.segments {
            let session = self.sessions.get_mut(&number);
            let Some(attached) = session.and_then(|session| session.attached.get_mut(&namespace)) else {
                return;
            };
            attached.held.remove(&id);
            if attached.retired.remove(&id).is_some() {
                self.release(number, namespace, id);
            }
        }
    }
}

impl Session {
    /// Announces segments, as many per message as descriptors fit.
    ///
    /// A session that may not read the namespace now loses it instead; returns what it was not sent then, of what waited.
    pub(super) fn announce(&mut self, namespace: u32, segments: Vec<(SegmentId, Arc<Segment>)>) -> Unsent {
        let Some(attached) = self.attached.get_mut(&namespace).filter(|attached| !attached.is_lost) else {
            return Unsent::default();
        };
        let is_fresh = |(id, _): &(SegmentId, Arc<Segment>)| {
            !attached.held.contains(id) && !attached.retired.contains_key(id)
        };
        let fresh: Vec<_> = segments.into_iter().filter(is_fresh).collect();
        let ids: Vec<_> = fresh.iter().map(|(id, _)| *id).collect();
        if !attached.namespace.admit(&self.caller, &ids) {
            return self.lose(namespace);
        }
        attached.held.extend(ids);
        for run in fresh.chunks(MAX_DESCRIPTORS) {
            let named = run.iter().map(|(id, segment)| (*id, segment.len())).collect();
            let descriptors = run.iter().map(|(_, segment)| Passed::Segment(Arc::clone(segment))).collect();
            self.send(&DaemonMessage::Segments { namespace, segments: named }, descriptors);
        }
        Unsent::default()
    }

    /// Loses a namespace that it may not read now; returns what it was not sent then, of what waited.
    fn check_attached(&mut self, namespace: u32) -> Unsent {
        match self.attached.get(&namespace) {
            Some(attached) if !attached.namespace.is_readable(&self.caller) => self.lose(namespace),
            _ => Unsent::default(),
        }
    }

    fn lose(&mut self, namespace: u32) -> Unsent {
        let Some(attached) = self.attached.get_mut(&namespace) else { return Unsent::default() };
        if std::mem::replace(&mut attached.is_lost, true) {
            return Unsent::default();
        }
        tracing::info!(
            session = self.number,
            uid = self.peer.uid,
            namespace,
            "session lost the right to read"
        );
        let unsent = self.take_back(namespace);
        if !unsent.is_all {
            self.send(&DaemonMessage::Detached { namespace }, Vec::new());
        }
        unsent
    }

    /// Takes the descriptors of a namespace out of what waits for the socket.
    fn take_back(&mut self, namespace: u32) -> Unsent {
        let mut unsent = Unsent::default();
        self.waiting.retain_mut(|waiting| match decode(&waiting.bytes) {
            Ok(DaemonMessage::Segments { namespace: of, segments }) if of == namespace => {
                unsent.segments.extend(segments.into_iter().map(|(id, _)| id));
                false
            }
            // Who was never sent a segment is not asked to unmap it.
            Ok(DaemonMessage::Retired { namespace: of, mut segments }) if of == namespace => {
                segments.retain(|id| !unsent.segments.contains(id));
                let is_left = !segments.is_empty();
                if let Ok(bytes) = encode(&DaemonMessage::Retired { namespace, segments }) {
                    waiting.bytes = bytes;
                }
                is_left
            }
            Ok(DaemonMessage::Reply { id, result: Ok(Reply::Attached { id: of, header, .. }) })
                if of.namespace == namespace =>
            {
                unsent.segments.push(header);
                unsent.is_all = true;
                let text = "the right to read this namespace was taken away while the reply waited";
                let result = Err(Refusal::new(ErrorCode::Denied, text));
                waiting.descriptors.clear();
                // A refusal of this length is always encoded.
                waiting.bytes = encode(&DaemonMessage::Reply { id, result }).unwrap_or_default();
                true
            }
            _ => true,
        });
        self.recount_waiting();
        unsent
    }
}
