//! The store: namespaces, and the memory that they share.
//!
//! Every namespace has segments of its own; `--pool-size` bounds all of them together.
//! A namespace's segments start small and grow with it, so that many small namespaces fit a pool.
//! When the budget is used up, what no lease holds is freed and segments in which nothing is used return to the
//! system, and only then is a put refused.
//!
//! Lock order: the table of namespaces, then a namespace's `growing`, then its `inner`, then the budget.
//! No lock is held while a segment is made or while waiting for clients.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded};
use nix::unistd::{getegid, geteuid};
use parking_lot::{Mutex, RwLock};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::fork::random;
use tierpack_shm::layout::{MIN_SEGMENT_BYTES, SEGMENT_SPAN_BYTES, slot};
use tierpack_shm::message::{ErrorCode, Refusal, Reply, SegmentId};
use tierpack_shm::segment::{Segment, SegmentKind};

use crate::config::{Config, LockMode};
use crate::error::{Error, Result};
use crate::limits;
use crate::server::events::{Event, Events};
use crate::size::MIB;

pub(crate) mod access;
mod admin;
pub(crate) mod background;
pub(crate) mod budget;
mod bytes;
mod coding;
mod compact;
mod content;
pub(crate) mod decoding;
pub(crate) mod file_metadata;
mod heap;
pub(crate) mod namespace;
mod refit;
mod room;
mod shares;
#[cfg(test)]
mod testing;
pub(crate) mod transaction;
pub(crate) mod transfer;
mod unmapping;
mod update;

use access::{Caller, Right};
use background::Record;
use budget::{Budget, Purpose};
use compact::Demand;
use file_metadata::FileMetadataSet;
use namespace::Holds;
pub(crate) use namespace::Namespace;
use namespace::{Patience, Retiring};
use refit::RefitTask;
use shares::User;
use transaction::Transactions;
use unmapping::Unmapping;

/// Result of a request: the refusal goes to the client as it is.
pub(crate) type Outcome<T> = core::result::Result<T, Refusal>;

/// The shortest data segment of a namespace that holds more than small tensors: a few blocks of the usual 256 KiB.
const USUAL_DATA_BYTES: u64 = MIB;
/// A first extent of at most this length gets a segment of the shortest length that there is.
const SMALL_NEED_BYTES: u64 = MIN_SEGMENT_BYTES / 4;
/// Lengths of grown segments are multiples of this, the largest page size of the machines in use.
const SEGMENT_STEP_BYTES: u64 = 64 << 10;
/// How long what needs a new segment waits for the poll loop to announce it.
const ANNOUNCE_WAIT: Duration = Duration::from_millis(100);
/// Refits that wait for the background thread; one more is answered `Busy`.
const REFIT_QUEUE: usize = 1024;
/// A namespace's data segments grow by one part in so many of what they have, so that little of it lies idle.
const GROWTH_SHARE: u64 = 16;
/// The same for the tables of its directory, where what is left of a segment cannot be moved.
const DIRECTORY_SHARE: u64 = 4;
/// The poll loop reclaims for at most one part in so many of its time, and one.
const RECLAIM_REST: u32 = 9;
/// How long an allocation waits for clients to unmap segments that return to the system.
const RETURN_WAIT: Duration = Duration::from_secs(2);

/// Everything the daemon stores.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) instance: u64,
    pub(crate) budget: Arc<Budget>,
    pub(crate) file_metadata: FileMetadataSet,
    lock: LockMode,
    segment_bytes: u64,
    /// What workers may allocate while the pool grows.
    worker_margin: u64,
    serials: AtomicU64,
    /// The namespaces in which something is retired.
    retiring: Arc<Retiring>,
    /// When the poll loop may reclaim again.
    next_reclaim: Mutex<Instant>,
    /// Whether extents were freed since the last [`Store::tidy`].
    pub(crate) freed: AtomicBool,
    /// Whether puts wait for room that compaction may make.
    demand: Demand,
    namespaces: RwLock<BTreeMap<String, Arc<Namespace>>>,
    /// Removed namespaces that somebody still maps.
    removed: Mutex<Vec<Arc<Namespace>>>,
    /// Puts of several tensors under way.
    pub(crate) transactions: Transactions,
    /// Who has not unmapped what was retired.
    pub(crate) unmapping: Unmapping,
    next_namespace: AtomicU32,
    /// What one user takes of the pool at most, the operator aside.
    user_bytes: u64,
    /// The daemon's own user, who owns the namespace `default`.
    uid: u32,
    gid: u32,
    events: Events,
    /// Refits that were asked for, on their way to the background thread.
    refits: Sender<RefitTask>,
    /// Held by the one worker that fits a sample for somebody who may only read.
    looking: Mutex<()>,
    /// What the background thread has done.
    pub(crate) background: Record,
    /// Retired bytes of a namespace that may be held back before background work there waits.
    pub(crate) max_held_bytes: u64,
}

impl Store {
    /// The store, and the refits that requests ask of the background thread.
    pub(crate) fn new(config: &Config, events: Events) -> Result<(Self, Receiver<RefitTask>)> {
        let (refits, tasks) = bounded(REFIT_QUEUE);
        let instance = random().map_err(|source| Error::Shm { source })?;
        let store = Self {
            instance,
            budget: Arc::new(Budget::new(config.pool_bytes())),
            file_metadata: FileMetadataSet::new(config.pool_bytes()),
            lock: config.lock(),
            segment_bytes: config.segment_bytes(),
            worker_margin: limits::worker_margin(config.workers()),
            serials: AtomicU64::new(1),
            retiring: Arc::default(),
            next_reclaim: Mutex::new(Instant::now()),
            freed: AtomicBool::new(false),
            demand: Demand::default(),
            namespaces: RwLock::new(BTreeMap::new()),
            removed: Mutex::default(),
            transactions: Transactions::default(),
            unmapping: Unmapping::default(),
            next_namespace: AtomicU32::new(0),
            user_bytes: config.user_bytes(),
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            events,
            refits,
            looking: Mutex::new(()),
            background: Record::new(config.refit()),
            max_held_bytes: config.max_held_bytes(),
        };
        Ok((store, tasks))
    }

    /// A namespace that exists.
    pub(crate) fn namespace(&self, name: &str) -> Outcome<Arc<Namespace>> {
        let found = self.namespaces.read().get(name).map(Arc::clone);
        found.ok_or_else(|| Refusal::new(ErrorCode::NotFound, format!("namespace {name:?} does not exist")))
    }

    /// A namespace that the caller may read.
    pub(crate) fn readable(&self, name: &str, caller: &Caller) -> Outcome<Arc<Namespace>> {
        let namespace = self.namespace(name)?;
        namespace.check(caller, Right::Read)?;
        Ok(namespace)
    }

    /// Opens a tensor if that needs no waiting for a lock.
    pub(crate) fn try_open(&self, namespace: &str, name: &str, caller: &Caller) -> Option<Outcome<Reply>> {
        let found = self.namespaces.try_read()?.get(namespace).map(Arc::clone)?;
        found.try_open(name, caller)
    }

    /// Every namespace, in the order of their names.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.namespaces.read().values().map(Arc::clone).collect()
    }

    /// As [`Store::namespaces`], and the removed ones that still take memory.
    fn all_namespaces(&self) -> Vec<Arc<Namespace>> {
        let mut all = self.namespaces();
        all.extend(self.removed.lock().iter().map(Arc::clone));
        all
    }

    fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes room for at least `needed` more bytes in one extent of a namespace.
    ///
    /// The caller has tried to allocate and holds no lock; it tries again after this.
    pub(crate) fn grow(
        &self,
        namespace: &Namespace,
        kind: SegmentKind,
        needed: u64,
        user: User,
    ) -> Outcome<()> {
        let deadline = Instant::now() + RETURN_WAIT;
        while !self.try_grow(namespace, kind, needed)? {
            if !self.await_return(deadline) {
                return Err(self.no_room(user, needed));
            }
        }
        Ok(())
    }

    /// As [`Store::grow`], and waits for no segment that is on its way back; says whether there is room.
    pub(super) fn try_grow(&self, namespace: &Namespace, kind: SegmentKind, needed: u64) -> Outcome<bool> {
        let growing = namespace.growing.lock();
        if namespace.has_room(kind, needed) {
            return Ok(true);
        }
        let is_for_slots = kind == SegmentKind::Directory && namespace.lacks_slots();
        if let Some(segment) = self.grown_segment(namespace, (kind, is_for_slots), needed) {
            let segment = segment?;
            reach(Point::SegmentMade);
            self.add_segment(namespace, (kind, is_for_slots), segment)?;
            return Ok(true);
        }
        drop(growing);
        self.reclaim_all();
        // What is being emptied is better used than refused, unless it is being emptied for this.
        if !self.demand.is_open() {
            namespace.open_segments();
        }
        Ok(namespace.has_room(kind, needed))
    }

    /// Refuses for want of room, after all waiting.
    pub(super) fn no_room(&self, user: User, needed: u64) -> Refusal {
        self.reclaim_all();
        self.full(user, needed)
    }

    /// Makes a segment that only the moves out of another one may use, from what the budget keeps back for
    /// that; says whether there was any.
    fn grow_reserved(&self, namespace: &Namespace, needed: u64) -> Outcome<bool> {
        let left = self.budget.left(Purpose::Emptying) / SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES;
        let len = needed.next_multiple_of(SEGMENT_STEP_BYTES).clamp(MIN_SEGMENT_BYTES, SEGMENT_SPAN_BYTES);
        if len > left {
            return Ok(false);
        }
        match self.budgeted_segment(len, Purpose::Emptying) {
            Some(segment) => self.add_segment(namespace, (SegmentKind::Data, true), segment?).map(|()| true),
            None => Ok(false),
        }
    }

    /// Adds a segment to a namespace, and announces it.
    fn add_segment(
        &self,
        namespace: &Namespace,
        (kind, is_reserved): (SegmentKind, bool),
        segment: Segment,
    ) -> Outcome<()> {
        let (len, is_locked) = (segment.len(), segment.is_locked());
        let (sent, is_sent) = bounded(0);
        let announce = |id, segment| {
            self.events.send(Event::Announce { namespace: namespace.id.namespace, id, segment, sent });
        };
        let added = namespace.add_segment((kind, is_reserved), segment, self.next_serial(), announce);
        let id = added.inspect_err(|_| {
            self.budget.start_return(len);
            self.budget.end_return(len, is_locked);
        })?;
        tracing::info!(
            namespace = namespace.name,
            kind = kind.name(),
            segment_idx = id.index,
            bytes = len,
            "segment added"
        );
        // No word leads there before readers were sent it: if this process stops now, they go on.
        let _ = is_sent.recv_timeout(ANNOUNCE_WAIT).is_ok();
        Ok(())
    }

    /// Looks again at how much compaction needs to empty what takes nothing new.
    pub(crate) fn keep_back(&self) {
        let needed = self.all_namespaces().iter().map(|namespace| namespace.kept_back_bytes()).max();
        self.budget.keep_back(needed.unwrap_or(0));
    }

    /// A segment that is a small part of what the namespace has already, within what the budget leaves.
    fn grown_segment(
        &self,
        namespace: &Namespace,
        (kind, is_for_slots): (SegmentKind, bool),
        needed: u64,
    ) -> Option<Outcome<Segment>> {
        let needed = if is_for_slots { slot::PER_SLAB * slot::BYTES } else { needed };
        let least = needed.next_multiple_of(SEGMENT_STEP_BYTES).max(MIN_SEGMENT_BYTES);
        let has = namespace.segment_bytes(kind);
        let usual = match kind {
            // Many namespaces hold a few small tensors and nothing else.
            SegmentKind::Data if has == 0 && needed <= SMALL_NEED_BYTES => MIN_SEGMENT_BYTES,
            SegmentKind::Data => {
                (has / GROWTH_SHARE).next_multiple_of(MIN_SEGMENT_BYTES).max(USUAL_DATA_BYTES)
            }
            SegmentKind::Directory if is_for_slots => has / GROWTH_SHARE,
            SegmentKind::Directory => has / DIRECTORY_SHARE,
        };
        // A whole number of extents of this size: what does not hold one more is lost in every segment.
        let whole = usual.clamp(MIN_SEGMENT_BYTES, self.segment_bytes) / needed.max(1) * needed;
        let wished = whole.next_multiple_of(SEGMENT_STEP_BYTES).max(least);
        // Near the end of the budget, a shorter segment is better than none.
        let share_left = self.share_left(namespace.owner.load(Ordering::Relaxed));
        let left =
            self.budget.left(Purpose::Growth).min(share_left) / SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES;
        if left < least {
            return None;
        }
        self.budgeted_segment(wished.min(left), Purpose::Growth)
    }

    /// `None` when the budget does not allow it.
    fn budgeted_segment(&self, len: u64, purpose: Purpose) -> Option<Outcome<Segment>> {
        if !self.budget.take(len, purpose) {
            return None;
        }
        let made = limits::check_growth(len + self.worker_margin, Path::new("/"))
            .and_then(|_room| self.new_segment(len));
        Some(made.map_err(|error| {
            self.budget.give(len);
            let text = crate::error::chain(&error);
            tracing::error!(bytes = len, error = text, "no segment");
            Refusal::new(ErrorCode::PoolFull, text)
        }))
    }

    fn new_segment(&self, len: u64) -> Result<Segment> {
        let mut segment = Segment::create(len).map_err(|source| Error::Shm { source })?;
        if self.lock == LockMode::Off {
            return Ok(segment);
        }
        match lock(&mut segment) {
            Ok(()) => self.budget.add_locked(len),
            Err(reason) if self.lock == LockMode::Require => return Err(reason),
            Err(reason) => {
                if self.budget.first_unlocked() {
                    tracing::warn!(reason = crate::error::chain(&reason), "segments are not page-locked");
                }
            }
        }
        Ok(segment)
    }

    /// For the poll loop: frees some of what no lease holds any more, and waits for no lock; says whether something is
    /// left, to be looked at again.
    ///
    /// However much is retired, and however many leases there are, it takes no more than its share of the time.
    pub(crate) fn reclaim(&self) -> bool {
        let Some(mut next) = self.next_reclaim.try_lock() else { return true };
        let start = Instant::now();
        if start >= *next {
            for namespace in self.retiring.namespaces() {
                self.reclaim_in(&namespace, Patience::OneTurn);
            }
            let end = Instant::now();
            *next = end + (end - start) * RECLAIM_REST;
        }
        !self.retiring.is_empty()
    }

    /// Frees all that no lease holds any more, in every namespace.
    pub(crate) fn reclaim_all(&self) {
        for namespace in self.retiring.namespaces() {
            self.reclaim_in(&namespace, Patience::All);
        }
    }

    /// As [`Store::reclaim_all`], in one namespace.
    pub(crate) fn reclaim_one(&self, namespace: &Namespace) {
        self.reclaim_in(namespace, Patience::All);
    }

    fn reclaim_in(&self, namespace: &Namespace, patience: Patience) {
        if namespace.reclaim(patience) {
            self.note_freed();
        }
    }

    /// What each session holds back, over all namespaces.
    pub(crate) fn holders(&self) -> BTreeMap<u64, Holds> {
        let mut all: BTreeMap<u64, Holds> = BTreeMap::new();
        let retiring = self.retiring.namespaces();
        for (session, holds) in retiring.iter().flat_map(|namespace| namespace.holders()) {
            let sum = all.entry(session).or_default();
            sum.bytes += holds.bytes;
            sum.age = sum.age.max(holds.age);
        }
        all
    }

    /// Notes that extents were freed.
    pub(crate) fn note_freed(&self) {
        self.freed.store(true, Ordering::Relaxed);
        self.demand.note_freed();
    }

    /// Whether room for so many bytes may come while a put waits: segments are on their way back, or enough lies
    /// scattered over segments that compaction may empty.
    pub(super) fn may_make_room(&self, needed: u64) -> bool {
        self.budget.is_returning() || (self.idle_bytes() >= needed && self.demand.ask())
    }

    /// Returns spare segments if something was freed since the last look.
    pub(crate) fn tidy(&self) {
        if self.freed.swap(false, Ordering::Relaxed) {
            self.trim(1);
        }
    }

    /// Starts to return segments in which nothing is used, `keep` of them per namespace aside.
    ///
    /// Says whether some are on their way.
    pub(crate) fn trim(&self, keep: usize) -> bool {
        self.all_namespaces().iter().fold(false, |any, namespace| self.trim_one(namespace, keep) | any)
    }

    /// As [`Store::trim`], in one namespace.
    fn trim_one(&self, namespace: &Namespace, keep: usize) -> bool {
        let mut any = false;
        namespace.take_free_segments(keep, |id, segment| {
            any = true;
            self.return_segment(namespace, id, segment);
        });
        any
    }

    /// Begins the return of a segment that its namespace no longer has.
    fn return_segment(&self, namespace: &Namespace, id: SegmentId, segment: Arc<Segment>) {
        self.budget.start_return(segment.len());
        self.events.send(Event::Retire { namespace: namespace.id.namespace, id, segment });
    }

    /// Returns the spare segments of namespaces in which nothing was stored since the last call.
    fn trim_resting(&self) {
        for namespace in self.all_namespaces().iter().filter(|namespace| namespace.is_resting()) {
            self.trim_one(namespace, 0);
        }
    }

    /// Ends the return of a segment: its memory is free.
    pub(crate) fn returned(&self, (namespace, id): (u32, SegmentId), len: u64, was_locked: bool) {
        let all = self.all_namespaces();
        if let Some(namespace) = all.iter().find(|found| found.id.namespace == namespace) {
            namespace.vacate(id);
            tracing::info!(
                namespace = namespace.name,
                segment_idx = id.index,
                bytes = len,
                "segment returned"
            );
        }
        self.budget.end_return(len, was_locked);
    }
}

/// Page-locks a page, for `--lock require`: what forbids it, the limit aside, shows only in the attempt.
pub(crate) fn check_locking() -> Result<()> {
    let mut page = Segment::create(4096).map_err(|source| Error::Shm { source })?;
    lock(&mut page)
}

fn lock(segment: &mut Segment) -> Result<()> {
    segment.lock().map_err(|error| match error {
        tierpack_shm::error::Error::Lock { len, source } => limits::explain_lock_failure(len, source),
        source => Error::Shm { source },
    })
}
