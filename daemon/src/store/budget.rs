//! The budget: how many bytes of segments there may be, and how many there are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

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
    /// Bytes of segments that clients still map although they are retired.
    returning: u64,
    /// Page-locked bytes.
    locked: u64,
}

/// What `--pool-size` allows and what is taken of it.
#[derive(Debug)]
pub(crate) struct Budget {
    size: u64,
    taken: Mutex<Taken>,
    returned: Condvar,
    /// Bytes promised to puts under way.
    reserved: AtomicU64,
    /// Bytes that only compaction may take, so that it can empty segments of a full pool.
    kept_back: AtomicU64,
    warned_unlocked: AtomicBool,
}

impl Budget {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            taken: Mutex::default(),
            returned: Condvar::new(),
            reserved: AtomicU64::new(0),
            kept_back: AtomicU64::new(0),
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
        let limit = self.limit_for(purpose);
        let fits = taken.segments.checked_add(len).is_some_and(|total| total <= limit);
        if fits {
            taken.segments += len;
        }
        fits
    }

    /// Gives back what was taken for a segment that was not made.
    pub(crate) fn give(&self, len: u64) {
        self.taken.lock().segments -= len;
        self.returned.notify_all();
    }

    pub(crate) fn left(&self, purpose: Purpose) -> u64 {
        self.limit_for(purpose).saturating_sub(self.taken.lock().segments)
    }

    /// Sets what is kept back for compaction; what is taken of it is given back by the segments that it empties.
    pub(crate) fn keep_back(&self, len: u64) {
        self.kept_back.store(len, Ordering::Relaxed);
    }

    pub(crate) fn kept_back(&self) -> u64 {
        self.kept_back.load(Ordering::Relaxed)
    }

    /// Whether nothing of what is kept back is taken.
    pub(crate) fn is_kept_back_whole(&self) -> bool {
        self.taken.lock().segments <= self.usable()
    }

    pub(crate) fn start_return(&self, len: u64) {
        self.taken.lock().returning += len;
    }

    pub(crate) fn end_return(&self, len: u64, was_locked: bool) {
        let mut taken = self.taken.lock();
        taken.returning -= len;
        taken.segments -= len;
        if was_locked {
            taken.locked -= len;
        }
        self.returned.notify_all();
    }

    pub(crate) fn is_returning(&self) -> bool {
        self.taken.lock().returning > 0
    }

    /// Waits until a segment has returned, at most until `deadline`; says whether one has.
    pub(crate) fn wait_returned(&self, deadline: Instant) -> bool {
        let mut taken = self.taken.lock();
        let before = taken.segments;
        while taken.segments >= before {
            if taken.returning == 0 || self.returned.wait_until(&mut taken, deadline).timed_out() {
                return taken.segments < before;
            }
        }
        true
    }

    pub(crate) fn add_locked(&self, len: u64) {
        self.taken.lock().locked += len;
    }

    /// Whether this is the first segment that could not be page-locked: it is logged once.
    pub(crate) fn first_unlocked(&self) -> bool {
        !self.warned_unlocked.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn reserve(&self, len: u64) {
        self.reserved.fetch_add(len, Ordering::Relaxed);
    }

    pub(crate) fn unreserve(&self, len: u64) {
        self.reserved.fetch_sub(len, Ordering::Relaxed);
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// (segments, returning, locked) in bytes.
    pub(crate) fn taken(&self) -> (u64, u64, u64) {
        let taken = self.taken.lock();
        (taken.segments, taken.returning, taken.locked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

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
    fn wakes_who_waits_for_a_return() {
        let budget = Arc::new(Budget::new(10));
        assert!(budget.take(10, Purpose::Growth));
        budget.start_return(10);
        let waiter = thread::spawn({
            let budget = Arc::clone(&budget);
            move || budget.wait_returned(Instant::now() + Duration::from_secs(60))
        });
        budget.end_return(10, false);
        assert!(waiter.join().unwrap() || budget.left(Purpose::Growth) == 10);
        assert!(!budget.wait_returned(Instant::now() + Duration::from_secs(60)), "nothing is on its way");
    }
}
