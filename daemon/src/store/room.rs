//! Room: whether the pool has some, what is charged to it, and what a refusal says about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tierpack_shm::message::{ErrorCode, Refusal};

use super::budget::Charge;
use super::namespace::quota::Place;
use super::namespace::sums::Taken;
use super::namespace::{Holds, Namespace};
use super::shares::User;
use super::{Outcome, RETURN_WAIT, Store};
use crate::size::ByteSize;

/// Sessions and users that a refusal names.
const NAMED: usize = 3;

/// What the pool is taken by: the parts add up to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupancy {
    size: u64,
    stored: u64,
    under_way: u64,
    held: u64,
    directories: u64,
    /// Room in data segments that nothing uses, and segments that are being made.
    idle: u64,
    returning: u64,
    heap: u64,
    free: u64,
}

impl Occupancy {
    fn new(size: u64, (segments, returning, heap): (u64, u64, u64), taken: Taken) -> Self {
        let Taken { stored, held, directory: directories, .. } = taken;
        let under_way = taken.under_way();
        let used = stored + held + under_way + directories + returning;
        Self {
            size,
            stored,
            under_way,
            held,
            directories,
            idle: segments.saturating_sub(used),
            returning,
            heap,
            free: size.saturating_sub(segments + heap),
        }
    }
}

impl Store {
    /// Hands every namespace to `take`, and the removed ones that still take memory, without any namespace's lock.
    pub(super) fn each_namespace(&self, mut take: impl FnMut(&Namespace)) {
        self.namespaces.read().values().for_each(|namespace| take(namespace));
        self.removed.lock().iter().for_each(|namespace| take(namespace));
    }

    /// What all namespaces take, or those of one user.
    fn taken(&self, of: Option<User>) -> Taken {
        let mut sum = Taken::default();
        self.each_namespace(|namespace| {
            if of.is_none_or(|user| user.uid == namespace.owner.load(Ordering::Relaxed)) {
                sum = sum.plus(namespace.inner.taken());
            }
        });
        sum
    }

    /// What the namespaces of a user may still take: segments and heap, of the share of one user.
    ///
    /// Who grows at the same moment is not seen: a share may be passed by a segment per worker.
    pub(super) fn share_left(&self, uid: u32) -> u64 {
        if uid == 0 || uid == self.uid {
            u64::MAX
        } else {
            self.user_bytes.saturating_sub(self.user_takes(uid))
        }
    }

    fn user_takes(&self, uid: u32) -> u64 {
        let mut sum = 0;
        self.each_namespace(|namespace| {
            if uid == namespace.owner.load(Ordering::Relaxed) {
                sum += namespace.inner.taken().segments + namespace.heap.load(Ordering::Relaxed);
            }
        });
        sum
    }

    /// Bytes that nothing takes and that are promised to nobody.
    fn unpromised_bytes(&self) -> u64 {
        let taken = self.taken(None);
        let heap = self.budget.heap().max(self.budget.heap_floor());
        let committed = taken.used + taken.directory + self.budget.reserved() + heap;
        self.budget.usable().saturating_sub(committed)
    }

    /// Refuses a put that cannot fit, before its bytes come.
    pub(super) fn check_room(&self, user: User, needed: u64) -> Outcome<()> {
        if self.unpromised_bytes() >= needed {
            return Ok(());
        }
        self.reclaim_all();
        if self.unpromised_bytes() >= needed { Ok(()) } else { Err(self.full(user, needed)) }
    }

    /// Promises a put what it needs at most: no more than its quota leaves, and than its user's share.
    pub(super) fn reserve(&self, namespace: &Namespace, name: &str, user: User, needed: u64) -> u64 {
        let wanted = needed.min(namespace.quota_left(Place::Tensor(name)));
        let granted = self.budget.reserve(user, wanted, self.unpromised_bytes());
        namespace.reserved.fetch_add(granted, Ordering::Relaxed);
        granted
    }

    /// Takes back a promise, or the part of it that was kept.
    pub(super) fn unreserve(&self, namespace: &Namespace, user: User, len: u64) {
        namespace.reserved.fetch_sub(len, Ordering::Relaxed);
        self.budget.unreserve(user, len);
    }

    /// Charges heap to a sum and to the pool, which first gets back what it can.
    pub(super) fn charge(&self, of: &Arc<AtomicU64>, user: User, len: u64) -> Outcome<Charge> {
        let deadline = Instant::now() + RETURN_WAIT;
        loop {
            let fits = user.is_operator || self.share_left(user.uid) >= len;
            if let Some(charge) = fits.then(|| self.budget.charge(of, len)).flatten() {
                return Ok(charge);
            }
            if !self.await_return(deadline) {
                let charge = fits.then(|| self.budget.charge(of, len)).flatten();
                return charge.ok_or_else(|| self.full(user, len));
            }
        }
    }

    /// Frees and returns what it can, and waits for a segment that is on its way; says whether one came.
    pub(super) fn await_return(&self, deadline: Instant) -> bool {
        // Before anything is on its way: it may be back before the wait begins.
        let (before, ..) = self.budget.taken();
        self.reclaim_all();
        self.trim(0);
        self.budget.wait_returned(before, deadline)
    }

    /// Carries out what a quota may refuse; when it does, what is not held any more is freed, and it is tried again.
    pub(super) fn within_quota<T>(
        &self,
        namespace: &Namespace,
        attempt: impl Fn(&Namespace) -> Outcome<T>,
    ) -> Outcome<T> {
        match attempt(namespace) {
            Err(refusal) if refusal.code() == Some(ErrorCode::Quota) => {
                self.reclaim_all();
                attempt(namespace)
            }
            other => other,
        }
    }

    /// Room in data segments that nothing uses.
    pub(super) fn idle_bytes(&self) -> u64 {
        let Taken { segments, directory, used, .. } = self.taken(None);
        segments.saturating_sub(directory + used)
    }

    fn occupancy(&self) -> Occupancy {
        let taken = self.taken(None);
        let (segments, returning, _) = self.budget.taken();
        Occupancy::new(self.budget.size(), (segments, returning, self.budget.heap()), taken)
    }

    /// Refuses for want of room: the parts that are named add up to the pool.
    ///
    /// The operator also reads who holds and who was promised what; others, what is in their own namespaces.
    pub(super) fn full(&self, user: User, needed: u64) -> Refusal {
        if self.budget.is_stopped() {
            return Refusal::new(ErrorCode::Stopping, "the daemon is shutting down");
        }
        let now = self.occupancy();
        let (holders, promised, own) = if user.is_operator {
            (self.name_holders(), self.name_promised(), self.unmapping.named())
        } else {
            (String::new(), String::new(), self.name_own(user))
        };
        let closed = self.name_closed(user);
        let what = if self.share_left(user.uid) < needed {
            format!("the share that user {} may take of the pool", user.uid)
        } else {
            "pool".to_owned()
        };
        let text = format!(
            "{what} is full: {} more are needed, and of {} tensors take {}, puts and updates under way {}, removed or \
             replaced bytes that clients still read {}{holders}, directories {}, idle room in segments {}, segments \
             that clients have yet to unmap {}, and the daemon's tables {}; {} are free, of which {} are kept for \
             tables, and {} of these and of the idle room are promised to puts under way{promised}{own}{closed}; remove \
             tensors or start the daemon with a \
             larger --pool-size",
            ByteSize(needed),
            ByteSize(now.size),
            ByteSize(now.stored),
            ByteSize(now.under_way),
            ByteSize(now.held),
            ByteSize(now.directories),
            ByteSize(now.idle),
            ByteSize(now.returning),
            ByteSize(now.heap),
            ByteSize(now.free),
            ByteSize(self.budget.heap_floor().saturating_sub(now.heap).min(now.free)),
            ByteSize(self.budget.reserved()),
        );
        Refusal::new(ErrorCode::PoolFull, text)
    }

    /// Segments that take nothing new, and what is kept back to empty them: of all, or of a user's own namespaces.
    fn name_closed(&self, user: User) -> String {
        let mut closed = 0;
        self.each_namespace(|namespace| {
            if user.is_operator || user.uid == namespace.owner.load(Ordering::Relaxed) {
                closed += namespace.closed_bytes();
            }
        });
        if closed == 0 {
            return String::new();
        }
        format!(
            "; {} of these are in segments that users who lost the right to read were sent: they take nothing new, and \
             compaction, for which {} are kept back, empties them",
            ByteSize(closed),
            ByteSize(self.budget.kept_back())
        )
    }

    /// What is in a user's own namespaces.
    fn name_own(&self, user: User) -> String {
        let own = self.taken(Some(user));
        let (takes, share) = (ByteSize(self.user_takes(user.uid)), ByteSize(self.user_bytes));
        format!(
            "; user {} takes {takes} of the {share} that one user may take (--user-percent); in the namespaces of user {} tensors take {}, puts and updates under way {}, bytes that clients still \
             read {}, and directories {}",
            user.uid,
            user.uid,
            ByteSize(own.stored),
            ByteSize(own.under_way()),
            ByteSize(own.held),
            ByteSize(own.directory)
        )
    }

    /// Who holds back most.
    fn name_holders(&self) -> String {
        let mut holders: Vec<_> = self.holders().into_iter().collect();
        holders.sort_by_key(|(_, holds)| std::cmp::Reverse(holds.bytes));
        let named = holders.iter().take(NAMED).map(|(session, Holds { bytes, age })| {
            format!("session {session} {} since {:.1} s", ByteSize(*bytes), age.as_secs_f64())
        });
        in_brackets(named.collect())
    }

    /// Who was promised most.
    fn name_promised(&self) -> String {
        let named = self.budget.promised(NAMED).into_iter();
        in_brackets(named.map(|(uid, bytes)| format!("user {uid} {}", ByteSize(bytes))).collect())
    }
}

fn in_brackets(named: Vec<String>) -> String {
    if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_pool_add_up_to_it() {
        let taken = Taken { stored: 100, held: 20, used: 150, directory: 40, segments: 400 };
        let now = Occupancy::new(1000, (400, 60, 90), taken);
        assert_eq!((now.under_way, now.idle, now.free), (30, 150, 510));
        let parts = [now.stored, now.under_way, now.held, now.directories, now.idle, now.returning, now.heap];
        assert_eq!(parts.iter().sum::<u64>() + now.free, now.size);
    }
}
