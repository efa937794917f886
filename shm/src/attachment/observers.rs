//! Observers, which are called before a segment is unmapped.
//!
//! A driver that knows a segment's address must forget it while the address is still this segment's.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::segment::SegmentKind;

/// What has made a mapped segment known elsewhere, such as to a driver, and must undo that before it is unmapped.
pub trait SegmentObserver: Send + Sync + std::fmt::Debug {
    /// Is called once before segment `segment_idx` of the attachment is unmapped, by a thread of the session, or where the
    /// attachment ends.
    ///
    /// No guard reads the segment any more, and none will.
    fn before_unmap(&self, attachment: AttachmentId, kind: SegmentKind, segment_idx: usize);
}

/// Tells the attachments of a process apart; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub(super) u64);

/// The observers of an attachment, those that are gone aside.
#[derive(Debug, Default)]
pub(super) struct Observers(Mutex<Vec<Weak<dyn SegmentObserver>>>);

impl Observers {
    pub(super) fn is_empty(&mut self) -> bool {
        self.0.get_mut().is_empty()
    }

    pub(super) fn add(&self, observer: &Arc<dyn SegmentObserver>) {
        let mut observers = self.0.lock();
        observers.retain(|known| known.strong_count() > 0);
        let observer = Arc::downgrade(observer);
        if !observers.iter().any(|known| known.ptr_eq(&observer)) {
            observers.push(observer);
        }
    }

    pub(super) fn tell(&self, id: AttachmentId, kind: SegmentKind, segment_idx: usize) {
        // Not under the lock: an observer may take locks of its own.
        let observers = self.0.lock().clone();
        for observer in observers.iter().filter_map(Weak::upgrade) {
            observer.before_unmap(id, kind, segment_idx);
        }
    }
}
