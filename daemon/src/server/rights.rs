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

impl Server {
    /// Announces a segment to the sessions that are attached to its namespace.
    pub(super) fn announce(&mut self, namespace: u32, id: SegmentId, segment: &Arc<Segment>) {
        self.for_attached(namespace, |session| session.announce(namespace, vec![(id, Arc::clone(segment))]));
    }

    /// Detaches the sessions that may not read a namespace any more.
    pub(super) fn revoke(&mut self, namespace: u32) {
        self.for_attached(namespace, |session| session.check_attached(namespace));
    }

    fn for_attached(&mut self, namespace: u32, mut act: impl FnMut(&mut Session) -> Vec<SegmentId>) {
        let mut given_up = Vec::new();
        for (_, session) in &mut self.sessions {
            if session.attached.contains_key(&namespace) {
                given_up.push((session.number, act(session)));
            }
        }
        for (session, unsent) in given_up {
            self.give_up(session, namespace, &unsent);
        }
    }

    /// Takes a session out of the holders of segments whose descriptors it was not sent after all.
    pub(super) fn give_up(&mut self, session: u64, namespace: u32, unsent: &[SegmentId]) {
        if !unsent.is_empty() {
            self.release(session, |found, id| found == namespace && unsent.contains(&id));
        }
    }
}

impl Session {
    /// Announces segments, as many per message as descriptors fit.
    ///
    /// A session that may not read the namespace now loses it instead; gives what it was not sent then, of what waited.
    pub(super) fn announce(
        &mut self,
        namespace: u32,
        segments: Vec<(SegmentId, Arc<Segment>)>,
    ) -> Vec<SegmentId> {
        let Some(attached) = self.attached.get_mut(&namespace).filter(|attached| !attached.is_lost) else {
            return Vec::new();
        };
        let is_fresh = |(id, _): &(SegmentId, Arc<Segment>)| !attached.held.contains(id);
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
        Vec::new()
    }

    /// Loses a namespace that it may not read now; gives what it was not sent then, of what waited.
    fn check_attached(&mut self, namespace: u32) -> Vec<SegmentId> {
        match self.attached.get(&namespace) {
            Some(attached) if !attached.namespace.is_readable(&self.caller) => self.lose(namespace),
            _ => Vec::new(),
        }
    }

    fn lose(&mut self, namespace: u32) -> Vec<SegmentId> {
        let Some(attached) = self.attached.get_mut(&namespace) else { return Vec::new() };
        if std::mem::replace(&mut attached.is_lost, true) {
            return Vec::new();
        }
        tracing::info!(
            session = self.number,
            uid = self.peer.uid,
            namespace,
            "session lost the right to read"
        );
        let (unsent, has_page) = self.take_back(namespace);
        if !has_page && let Some(attached) = self.attached.remove(&namespace) {
            // It was never attached, so that no lease and no segment is its.
            attached.namespace.detach(self.number);
            return attached.held.into_iter().chain(unsent).collect();
        }
        if let Some(attached) = self.attached.get_mut(&namespace) {
            attached.held.retain(|id| !unsent.contains(id));
        }
        self.send(&DaemonMessage::Detached { namespace }, Vec::new());
        unsent
    }

    /// Takes the descriptors of a namespace out of what waits for the socket; gives the segments, and whether the
    /// client page has gone out.
    fn take_back(&mut self, namespace: u32) -> (Vec<SegmentId>, bool) {
        let (mut unsent, mut has_page) = (Vec::new(), true);
        self.waiting.retain_mut(|waiting| match decode(&waiting.bytes) {
            Ok(DaemonMessage::Segments { namespace: of, segments }) if of == namespace => {
                unsent.extend(segments.into_iter().map(|(id, _)| id));
                false
            }
            Ok(DaemonMessage::Reply { id, result: Ok(Reply::Attached { id: of, header, .. }) })
                if of.namespace == namespace =>
            {
                unsent.push(header);
                has_page = false;
                let text = "the right to read this namespace was taken away while the reply waited";
                let result = Err(Refusal::new(ErrorCode::Denied, text));
                waiting.descriptors.clear();
                // A refusal of this length is always encoded.
                waiting.bytes = encode(&DaemonMessage::Reply { id, result }).unwrap_or_default();
                true
            }
            _ => true,
        });
        self.waiting_bytes = self.waiting.iter().map(|waiting| waiting.bytes.len()).sum();
        (unsent, has_page)
    }
}
