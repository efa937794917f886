//! The budget: how many bytes of segments and of the daemon's heap there may be, and how many there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::shares::User;
use crate::size::MIB;

/// How long all but one wait for returning segments: clients unmap at once, and workers must stay free when one does not.
const SHORT_WAIT: Duration = Duration::from_millis(500);
/// Segments leave one part in so many of the pool to the heap, so that a pool full of bytes still has room for a name.
const HEAP_SHARE: u64 = 128;
/// They leave no more than this.
const MAX_HEAP_FLOOR: u64 = 64 * MIB;

/// What a segment is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// More room for tensors or directories.
    Growth,
    /// Another segment is emptied into it.
    Emptying,
}

#[derive(Debug, Default)]
struct Taken {
    /// Bytes of segments, the returning ones included.
    segments: u64,
    /// How many segments these are.
    n_segments: u64,
    /// Bytes of segments that clients still map although they are retired.
    returning: u64,
    /// Page-locked bytes.
    locked: u64,
    /// Whether nobody waits any more, since the daemon ends.
    is_stopped: bool,
    /// Who waits for a return.
    waiting: usize,
    /// Bytes of the daemon's heap that tensors, names and puts are charged with.
    heap: u64,
    /// Bytes of requests that wait for workers, a part of `heap`.
    requests: u64,
    /// The most that it was since the allocator was last asked to return memory.
    heap_peak: u64,
}

/// Bytes promised to puts under way.
#[derive(Debug, Default)]
struct Reserved {
    all: u64,
    by_user: BTreeMap<u32, u64>,
}

impl Taken {
    fn charge(&mut self, len: u64) {
        self.heap += len;
        self.heap_peak = self.heap_peak.max(self.heap);
    }
}

/// What `--pool-size` allows and what is taken of it.
#[derive(Debug)]
pub(crate) struct Budget {
    size: u64,
    taken: Mutex<Taken>,
    returned: Condvar,
    reserved: Mutex<Reserved>,
    /// Bytes that only compaction may take, so that it can empty segments of a full pool.
    kept_back: AtomicU64,
    /// How often segments have come back.
    returns: AtomicU64,
    warned_unlocked: AtomicBool,
}

impl Budget {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            taken: Mutex::default(),
            returned: Condvar::new(),
            reserved: Mutex::default(),
            kept_back: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            warned_unlocked: AtomicBool::new(false),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// What tensors may take: the size, less what is kept back for compaction.
    pub(crate) fn usable(&self) -> u64 {
        self.size.saturating_sub(self.kept_back())
    }

    fn limit_for(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Growth => self.usable(),
            Purpose::Emptying => self.size,
        }
    }

    /// Takes `len` bytes if they are left.
    pub(crate) fn take(&self, len: u64, purpose: Purpose) -> bool {
        let mut taken = self.taken.lock();
        let others = taken.segments + taken.heap.max(self.heap_floor());
        let fits = others.checked_add(len).is_some_and(|total| total <= self.limit_for(purpose));
        if fits {
            taken.segments += len;
            taken.n_segments += 1;
        }
        fits
    }

    /// Returns what was taken for a segment that was not made.
    pub(crate) fn give(&self, len: u64) {
        let mut taken = self.taken.lock();
        taken.segments -= len;
        taken.n_segments -= 1;
        self.returned.notify_all();
    }

    /// What is left for segments.
    pub(crate) fn left(&self, purpose: Purpose) -> u64 {
        let taken = self.taken.lock();
        self.limit_for(purpose).saturating_sub(taken.segments + taken.heap.max(self.heap_floor()))
    }

    /// What segments leave to the heap even while it needs less.
    pub(crate) fn heap_floor(&self) -> u64 {
        (self.size / HEAP_SHARE).min(MAX_HEAP_FLOOR)
    }

    /// Charges `len` bytes of heap to a namespace, whose sum is `of`; `None` when the budget does not have them.
    pub(crate) fn charge(self: &Arc<Self>, of: &Arc<AtomicU64>, len: u64) -> Option<Charge> {
        let mut taken = self.taken.lock();
        let total = (taken.segments + taken.heap).checked_add(len)?;
        (total <= self.size).then(|| {
            taken.charge(len);
            self.charged(of, len)
        })
    }

    /// As [`Budget::charge`], beyond the budget if it must be: for what cannot be refused any more.
    pub(crate) fn charge_anyway(self: &Arc<Self>, of: &Arc<AtomicU64>, len: u64) -> Charge {
        self.taken.lock().charge(len);
        self.charged(of, len)
    }

    /// Charges the messages that wait for workers, which have limits of their own.
    pub(crate) fn charge_requests(&self, len: u64) {
        let mut taken = self.taken.lock();
        taken.heap -= std::mem::take(&mut taken.requests);
        taken.requests = len;
        taken.charge(len);
    }

    fn charged(self: &Arc<Self>, of: &Arc<AtomicU64>, len: u64) -> Charge {
        // Relaxed: a sum for comparisons and for people.
        of.fetch_add(len, Ordering::Relaxed);
        Charge { len, budget: Arc::clone(self), of: Arc::clone(of) }
    }

    /// Whether it is `enough` how far the heap has fallen from its peak; then the peak is what it is now.
    pub(super) fn heap_fallen(&self, enough: impl FnOnce(u64) -> bool) -> bool {
        let mut taken = self.taken.lock();
        let is_enough = enough(taken.heap_peak - taken.heap);
        if is_enough {
            taken.heap_peak = taken.heap;
        }
        is_enough
    }

    /// Bytes of heap that are charged.
    pub(crate) fn heap(&self) -> u64 {
        self.taken.lock().heap
    }

    /// Sets what is kept back for compaction; what is taken of it comes back by the segments that it empties.
    pub(crate) fn keep_back(&self, len: u64) {
        self.kept_back.store(len, Ordering::Relaxed);
    }

    pub(crate) fn kept_back(&self) -> u64 {
        self.kept_back.load(Ordering::Relaxed)
    }

    /// Whether nothing of what is kept back is taken.
    pub(crate) fn is_kept_back_whole(&self) -> bool {
        let taken = self.taken.lock();
        taken.segments + taken.heap.max(self.heap_floor()) <= self.usable()
    }

    pub(crate) fn start_return(&self, len: u64) {
        self.taken.lock().returning += len;
    }

    pub(crate) fn end_return(&self, len: u64, was_locked: bool) {
        let mut taken = self.taken.lock();
        taken.returning -= len;
        taken.segments -= len;
        taken.n_segments -= 1;
        if was_locked {
            taken.locked -= len;
        }
        self.returns.fetch_add(1, Ordering::Release);
        self.returned.notify_all();
    }

    /// A number that changes when a segment has come back: what had no room before may have it then.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Acquire)
    }

    /// Whether segments are on their way back.
    pub(crate) fn is_returning(&self) -> bool {
        let taken = self.taken.lock();
        taken.returning > 0 && !taken.is_stopped
    }

    /// Waits until there are less than `before` bytes of segments, at most until `deadline`; says whether there are.
    pub(crate) fn wait_returned(&self, before: u64, deadline: Instant) -> bool {
        let mut taken = self.taken.lock();
        let soon = Instant::now() + SHORT_WAIT;
        while taken.segments >= before {
            if taken.returning == 0 || taken.is_stopped {
                return false;
            }
            taken.waiting += 1;
            let until = if taken.waiting > 1 { deadline.min(soon) } else { deadline };
            let is_over = self.returned.wait_until(&mut taken, until).timed_out();
            taken.waiting -= 1;
            if is_over {
                return taken.segments < before;
            }
        }
        true
    }

    /// Ends all waiting, for good.
    pub(crate) fn stop(&self) {
        self.taken.lock().is_stopped = true;
        self.returned.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.taken.lock().is_stopped
    }

    pub(crate) fn add_locked(&self, len: u64) {
        self.taken.lock().locked += len;
    }

    /// Whether this is the first segment that could not be page-locked: it is logged once.
    pub(crate) fn first_unlocked(&self) -> bool {
        !self.warned_unlocked.swap(true, Ordering::Relaxed)
    }

    /// Promises up to `len` bytes to a put, of `free` bytes that nothing takes or is promised; returns how many.
    ///
    /// The puts of one user, the operator aside, hold promises of half of what nobody else has at most.
    pub(crate) fn reserve(&self, user: User, len: u64, free: u64) -> u64 {
        let mut reserved = self.reserved.lock();
        let own = reserved.by_user.get(&user.uid).copied().unwrap_or_default();
        let share = if user.is_operator { u64::MAX } else { ((free + own) / 2).saturating_sub(own) };
        let granted = len.min(share);
        if granted > 0 {
            reserved.all += granted;
            *reserved.by_user.entry(user.uid).or_default() += granted;
        }
        granted
    }

    pub(crate) fn unreserve(&self, user: User, len: u64) {
        let mut reserved = self.reserved.lock();
        reserved.all -= len;
        if let Some(own) = reserved.by_user.get_mut(&user.uid) {
            *own -= len;
            if *own == 0 {
                reserved.by_user.remove(&user.uid);
            }
        }
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.lock().all
    }

    /// The users who were promised most, with their bytes.
    pub(crate) fn promised(&self, most: usize) -> Vec<(u32, u64)> {
        let reserved = self.reserved.lock();
        let mut all: Vec<_> = reserved.by_user.iter().map(|(uid, bytes)| (*uid, *bytes)).collect();
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        all.truncate(most);
        all
    }

    /// How many segments there are, the returning ones included.
    pub(crate) fn n_segments(&self) -> u64 {
        self.taken.lock().n_segments
    }

    /// (segments, returning, locked) in bytes.
    pub(crate) fn taken(&self) -> (u64, u64, u64) {
        let taken = self.taken.lock();
        (taken.segments, taken.returning, taken.locked)
    }
}

/// Heap that is charged to the budget and to a namespace, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    len: u64,
    budget: Arc<Budget>,
    of: Arc<AtomicU64>,
}

impl Charge {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The sum that it is a part of.
    pub(crate) fn sum(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.of)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.taken.lock().heap -= self.len;
        self.of.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn never_gives_more_than_its_size() {
        let budget = Budget::new(10);
        let take = |len| budget.take(len, Purpose::Growth);
        assert!(take(6) && !take(5) && take(4));
        assert!(!take(u64::MAX));
        assert_eq!(budget.left(Purpose::Growth), 0);
    }

    #[test]
    fn only_compaction_takes_what_is_kept_back() {
        let budget = Budget::new(10);
        budget.keep_back(3);
        assert!(budget.take(6, Purpose::Growth) && !budget.take(2, Purpose::Growth));
        assert_eq!((budget.left(Purpose::Growth), budget.left(Purpose::Emptying)), (1, 4));
        assert!(budget.take(2, Purpose::Emptying) && !budget.is_kept_back_whole());
        budget.start_return(2);
        budget.end_return(2, false);
        assert!(budget.is_kept_back_whole() && budget.take(1, Purpose::Growth));
        budget.keep_back(30);
        assert_eq!((budget.usable(), budget.left(Purpose::Growth)), (0, 0));
    }

    #[test]
    fn heap_and_segments_share_one_budget() {
        let (budget, of) = (Arc::new(Budget::new(1280)), Arc::default());
        assert_eq!((budget.heap_floor(), budget.left(Purpose::Growth)), (10, 1270));
        let charge = budget.charge(&of, 100).unwrap();
        assert!(!budget.take(1181, Purpose::Growth) && budget.take(1180, Purpose::Growth));
        assert!(budget.charge(&of, 1).is_none());
        let beyond = budget.charge_anyway(&of, 7);
        assert_eq!((budget.heap(), budget.left(Purpose::Growth), of.load(Ordering::Relaxed)), (107, 0, 107));
        drop((charge, beyond));
        assert_eq!((budget.heap(), budget.left(Purpose::Growth), of.load(Ordering::Relaxed)), (0, 90, 0));
    }

    #[test]
    fn one_user_is_promised_half_of_what_nobody_else_has() {
        let budget = Budget::new(1000);
        let (a, b) = (User { uid: 1, is_operator: false }, User { uid: 2, is_operator: false });
        assert_eq!(budget.reserve(a, 900, 1000), 500);
        assert_eq!(budget.reserve(a, 1, 500), 0);
        assert_eq!(budget.reserve(b, 900, 500), 250);
        assert_eq!(budget.reserve(User { uid: 0, is_operator: true }, 250, 250), 250);
        budget.unreserve(a, 500);
        assert_eq!((budget.reserved(), budget.reserve(a, 10, 500)), (500, 10));
    }

    #[test]
    fn wakes_who_waits_for_a_return() {
        let budget = Arc::new(Budget::new(10));
        assert!(budget.take(10, Purpose::Growth));
        budget.start_return(10);
        let waiter = thread::spawn({
            let budget = Arc::clone(&budget);
            move || budget.wait_returned(10, Instant::now() + Duration::from_secs(60))
        });
        budget.end_return(10, false);
        assert!(waiter.join().unwrap());
        assert!(!budget.wait_returned(0, Instant::now() + Duration::from_secs(60)), "nothing is on its way");
    }
}
