//! The budget: how many bytes of segments there may be, and how many there are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long all but one wait for returning segments: clients unmap at once, and workers must stay free when one does not.
const SHORT_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Taken {
    /// Bytes of segments, the returning ones included.
    segments: u64,
    /// Bytes of segments that clients still map although they are retired.
    returning: u64,
    /// Page-locked bytes.
    locked: u64,
    /// Whether nobody waits any more, since the daemon ends.
    is_stopped: bool,
    /// Who waits for a return.
    waiting: usize,
}

/// What `--pool-size` allows and what is taken of it.
#[derive(Debug)]
pub(crate) struct Budget {
    size: u64,
    taken: Mutex<Taken>,
    returned: Condvar,
    /// Bytes promised to puts under way.
    reserved: AtomicU64,
    warned_unlocked: AtomicBool,
}

impl Budget {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            taken: Mutex::default(),
            returned: Condvar::new(),
            reserved: AtomicU64::new(0),
            warned_unlocked: AtomicBool::new(false),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Takes `len` bytes if they are left.
    pub(crate) fn take(&self, len: u64) -> bool {
        let mut taken = self.taken.lock();
        let fits = taken.segments.checked_add(len).is_some_and(|total| total <= self.size);
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

    pub(crate) fn left(&self) -> u64 {
        self.size - self.taken.lock().segments
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
        let (before, soon) = (taken.segments, Instant::now() + SHORT_WAIT);
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

    use super::*;

    #[test]
    fn never_gives_more_than_its_size() {
        let budget = Budget::new(10);
        assert!(budget.take(6) && !budget.take(5) && budget.take(4));
        assert!(!budget.take(u64::MAX));
        assert_eq!(budget.left(), 0);
    }

    #[test]
    fn wakes_who_waits_for_a_return() {
        let budget = Arc::new(Budget::new(10));
        assert!(budget.take(10));
        budget.start_return(10);
        let waiter = thread::spawn({
            let budget = Arc::clone(&budget);
            move || budget.wait_returned(Instant::now() + Duration::from_secs(60))
        });
        budget.end_return(10, false);
        assert!(waiter.join().unwrap() || budget.left() == 10);
        assert!(!budget.wait_returned(Instant::now() + Duration::from_secs(60)), "nothing is on its way");
    }
}
