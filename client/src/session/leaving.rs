//! Namespaces that a session leaves: closed first, unmapped when the last guard has ended, then detached from.
//!
//! A namespace is left when its name comes to mean another, when this client removes it, when the daemon says that the
//! right to read it is gone, when new memory of it could not be received, and when no handle has used it for a while.
//! Handles that are left behind open their tensors again, which attaches again if that is still possible.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tierpack_shm::attachment::Attachment;

use super::{Inner, State};

/// How long a namespace without a handle stays attached.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// Looks for idle namespaces in that time.
const IDLE_LOOKS: u32 = 4;
/// Between two looks whether the guards of a namespace that is left have ended: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

impl State {
    /// Leaves the namespace of this name, if it is attached.
    pub(super) fn leave_name(&mut self, namespace: &str) {
        if let Some(Some(attachment)) = self.attachments.get(namespace) {
            let attachment = Arc::clone(attachment);
            self.leave(&attachment);
        }
    }

    /// Allows no guard of a namespace any more; the thread unmaps it and detaches from it, once `changed` is signaled.
    pub(super) fn leave(&mut self, attachment: &Arc<Attachment>) {
        attachment.close();
        let is_it = |other: &Arc<Attachment>| Arc::ptr_eq(attachment, other);
        self.attachments.retain(|_, other| !other.as_ref().is_some_and(is_it));
        if !self.leaving.iter().any(is_it) {
            self.leaving.push(Arc::clone(attachment));
            self.has_chores = true;
        }
    }

    pub(super) fn is_leaving(&self, number: u32) -> bool {
        self.leaving.iter().any(|attachment| attachment.id().namespace == number)
    }
}

/// What the session thread keeps of the namespaces that it leaves, or has left.
#[derive(Debug)]
pub(super) struct Departures {
    idle_limit: Duration,
    next_idle_look: Instant,
    /// Looks in a row that have found no handle, by namespace.
    idle: HashMap<u32, u32>,
    pause: Duration,
    /// Namespaces that were left, and the id of requests from which on the daemon had heard of it.
    ///
    /// Until the reply to one of those, messages about the namespace may still come.
    left: HashMap<u32, u64>,
}

impl Departures {
    pub(super) fn new(idle_limit: Duration) -> Self {
        let next_idle_look = Instant::now() + idle_limit / IDLE_LOOKS;
        Self { idle_limit, next_idle_look, idle: HashMap::new(), pause: PAUSES.0, left: HashMap::new() }
    }

    /// How long the thread may wait until the next look, when this many namespaces are attached.
    pub(super) fn limit(&self, inner: &Inner, attached: usize) -> Option<Duration> {
        if !inner.state.lock().leaving.is_empty() {
            return Some(self.pause);
        }
        (attached > 0).then(|| self.next_idle_look.saturating_duration_since(Instant::now()))
    }

    /// Leaves the namespaces that no handle has used for a while.
    pub(super) fn leave_idle(&mut self, inner: &Inner, attachments: &HashMap<u32, Arc<Attachment>>) {
        if Instant::now() < self.next_idle_look {
            return;
        }
        self.next_idle_look = Instant::now() + self.idle_limit / IDLE_LOOKS;
        let mut state = inner.state.lock();
        self.idle.retain(|number, _| attachments.contains_key(number));
        for (&number, attachment) in attachments {
            // The table's and the one by name, which nobody can clone meanwhile.
            let is_idle = Arc::strong_count(attachment) <= 2 && !state.is_leaving(number);
            let looks = self.idle.entry(number).or_insert(0);
            *looks = if is_idle { *looks + 1 } else { 0 };
            if *looks > IDLE_LOOKS {
                state.leave(attachment);
            }
        }
    }

    /// Unmaps what nobody reads any more of the namespaces that are left; returns their numbers.
    pub(super) fn unmap(&mut self, inner: &Inner) -> Vec<u32> {
        let leaving = inner.state.lock().leaving.clone();
        if leaving.is_empty() {
            self.pause = PAUSES.0;
            return Vec::new();
        }
        // Not under the lock: observers take locks of their own.
        let done: Vec<u32> =
            leaving.iter().filter(|one| one.unmap_all()).map(|one| one.id().namespace).collect();
        self.pause = if done.is_empty() { (self.pause * 2).min(PAUSES.1) } else { PAUSES.0 };
        done
    }

    /// The daemon is about to hear that these namespaces are left.
    pub(super) fn detach(&mut self, inner: &Inner, numbers: &[u32]) {
        for &number in numbers {
            inner.outbox.lock().detach(number);
            // Relaxed: a request with a later id is sent after the message above.
            self.left.insert(number, inner.next_id.load(Ordering::Relaxed));
        }
        let mut state = inner.state.lock();
        state.leaving.retain(|attachment| !numbers.contains(&attachment.id().namespace));
        state.apart.retain(|(number, ..), _| !numbers.contains(number));
        drop(state);
        inner.changed.notify_all();
    }

    /// Whether a message about this namespace may have been sent before the daemon heard that it was left.
    pub(super) fn is_left(&self, number: u32) -> bool {
        self.left.contains_key(&number)
    }

    /// The reply to this request has come.
    pub(super) fn replied(&mut self, id: u64) {
        self.left.retain(|_, first| id < *first);
    }
}
