//! Stats: what the daemon knows about itself, gathered for one document.
//!
//! The poll loop and the workers write here in passing; the thread of the stats socket reads, so that it answers
//! even when every worker is busy.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tierpack_kernels::Level;
use tierpack_shm::page::{ClientPage, Counts, DeviceAccess};
use tierpack_shm::socket::Peer;
use tierpack_shm::stats::{PoolStats, SessionStats, Stats, TierStats};

use crate::config::{Config, LockMode};
use crate::error::chain;
use crate::health::Health;
use crate::limits::{self, Handles};
use crate::server::SOFTWARE;
use crate::store::Store;
use crate::store::namespace::Holds;
use crate::store::transfer::Transfers;

/// What a client may say about itself at most.
const MAX_SOFTWARE_CHARS: usize = 80;

#[derive(Debug)]
struct Seen {
    peer: Peer,
    software: String,
    attached: Vec<(u32, String, Arc<ClientPage>)>,
    /// What the pages of namespaces have counted that it has detached from.
    detached: Counts,
    ended: bool,
    hung_up: bool,
}

/// Under one lock, so that no session counts twice or not at all while it goes.
#[derive(Debug, Default)]
struct Sessions {
    open: BTreeMap<u64, Seen>,
    /// What sessions that are gone have counted.
    gone: Counts,
}

/// The board that everyone writes to.
#[derive(Debug)]
pub(crate) struct Board {
    started: Instant,
    lock: LockMode,
    store: Arc<Store>,
    transfers: Arc<Transfers>,
    pub(crate) health: Arc<Health>,
    sessions: Mutex<Sessions>,
    done: AtomicU64,
    refused: AtomicU64,
    sessions_ended: AtomicU64,
}

impl Board {
    pub(crate) fn new(
        config: &Config,
        store: Arc<Store>,
        transfers: Arc<Transfers>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            started: Instant::now(),
            lock: config.lock(),
            store,
            transfers,
            health,
            sessions: Mutex::default(),
            done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            sessions_ended: AtomicU64::new(0),
        }
    }

    pub(crate) fn request(&self, done: bool) {
        let counter = if done { &self.done } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_opened(&self, session: u64, peer: Peer, software: String) {
        let software = software.chars().take(MAX_SOFTWARE_CHARS).collect();
        let seen = Seen {
            peer,
            software,
            attached: Vec::new(),
            detached: Counts::default(),
            ended: false,
            hung_up: false,
        };
        self.sessions.lock().open.insert(session, seen);
    }

    pub(crate) fn session_attached(
        &self,
        session: u64,
        number: u32,
        namespace: &str,
        page: &Arc<ClientPage>,
    ) {
        if let Some(seen) = self.sessions.lock().open.get_mut(&session) {
            seen.attached.push((number, namespace.to_owned(), Arc::clone(page)));
        }
    }

    pub(crate) fn session_detached(&self, session: u64, number: u32) {
        if let Some(seen) = self.sessions.lock().open.get_mut(&session) {
            for (_, _, page) in seen.attached.extract_if(.., |(attached, ..)| *attached == number) {
                seen.detached = seen.detached.plus(page.counts());
            }
        }
    }

    pub(crate) fn session_hung_up(&self, session: u64) {
        if let Some(seen) = self.sessions.lock().open.get_mut(&session) {
            seen.hung_up = true;
        }
    }

    pub(crate) fn session_ended(&self, session: u64) {
        self.sessions_ended.fetch_add(1, Ordering::Relaxed);
        if let Some(seen) = self.sessions.lock().open.get_mut(&session) {
            seen.ended = true;
        }
    }

    pub(crate) fn session_gone(&self, session: u64) {
        let mut sessions = self.sessions.lock();
        if let Some(seen) = sessions.open.remove(&session) {
            sessions.gone = sessions.gone.plus(seen.counts());
        }
    }

    /// Everything, now.
    pub(crate) fn snapshot(&self) -> Stats {
        let mut stats = Stats::new(SOFTWARE.to_owned(), self.store.instance);
        stats.uptime_s = self.started.elapsed().as_secs_f64();
        stats.namespaces = self.store.namespaces().iter().map(|namespace| namespace.stats()).collect();
        stats.removed = self.store.removed_namespaces().iter().map(|namespace| namespace.ghost()).collect();
        (stats.sessions, stats.reads) = self.sessions();
        stats.background = self.store.background.stats();
        stats.pool = self.pool(&stats);
        stats.tiers = vec![TierStats::pool(stats.pool.used_bytes, &stats.reads)];
        stats.transfers = self.transfers.len() as u64;
        stats.requests.done = self.done.load(Ordering::Relaxed);
        stats.requests.refused = self.refused.load(Ordering::Relaxed);
        stats.requests.sessions_ended = self.sessions_ended.load(Ordering::Relaxed);
        stats.log.dropped = crate::log::dropped();
        stats.health = self.health.stats(self.present_faults(&stats));
        stats.cpu_level = Level::detect().to_string();
        stats
    }

    /// What shows only when somebody looks.
    fn present_faults(&self, stats: &Stats) -> Vec<String> {
        let mut faults = Vec::new();
        if crate::log::is_dropping() {
            let dropped = crate::log::dropped();
            faults.push(format!(
                "{dropped} lines of the log were dropped, some of them in the last minute: standard error is not read or \
                 cannot be written"
            ));
        }
        let (segments, sessions) = (self.store.budget.n_segments(), stats.sessions.len() as u64);
        let pages: usize = stats.sessions.iter().map(|session| session.namespaces.len()).sum();
        let has = Handles { mappings: segments + pages as u64, descriptors: segments + sessions };
        faults.extend(has.near_limits(Path::new("/")));
        let left = stats.pool.size_bytes.saturating_sub(stats.pool.segment_bytes);
        if let Err(error) = limits::check_rest(left, Path::new("/")) {
            faults.push(chain(&error));
        }
        faults
    }

    /// The sessions, and what all of them and those before them have counted.
    fn sessions(&self) -> (Vec<SessionStats>, Counts) {
        let holders = self.store.holders();
        let sessions = self.sessions.lock();
        let held = |number: &u64| holders.get(number).copied().unwrap_or_default();
        let open = sessions.open.iter().map(|(number, seen)| seen.stats(*number, held(number)));
        let mut open: Vec<_> = open.collect();
        let unmapping = self.store.unmapping.holders();
        for session in &mut open {
            let holds = unmapping.get(&session.session).copied().unwrap_or_default();
            session.unmapping_bytes = holds.bytes;
            session.unmapping_ms = u64::try_from(holds.age.as_millis()).unwrap_or(u64::MAX);
        }
        let reads = open.iter().fold(sessions.gone, |sum, session| sum.plus(session.counts));
        (open, reads)
    }

    fn pool(&self, stats: &Stats) -> PoolStats {
        let sum =
            |field: fn(&tierpack_shm::stats::NamespaceStats) -> u64| stats.namespaces.iter().map(field).sum();
        let (segments, returning, locked) = self.store.budget.taken();
        let mut pool = PoolStats::default();
        pool.size_bytes = self.store.budget.size();
        pool.segment_bytes = segments;
        pool.returning_bytes = returning;
        pool.used_bytes = sum(|namespace| namespace.used_bytes);
        pool.raw_bytes = sum(|namespace| namespace.raw_bytes);
        pool.stored_bytes = sum(|namespace| namespace.stored_bytes);
        pool.reserved_bytes = self.store.budget.reserved();
        pool.held_bytes = sum(|namespace| namespace.held_bytes);
        pool.heap_bytes = self.store.budget.heap();
        pool.max_held_bytes = self.store.max_held_bytes;
        pool.locked_bytes = locked;
        pool.lock = match self.lock {
            LockMode::Require => "require",
            LockMode::Try => "try",
            LockMode::Off => "off",
        }
        .to_owned();
        pool
    }
}

impl Seen {
    fn stats(&self, number: u64, holds: Holds) -> SessionStats {
        let mut stats = SessionStats::default();
        stats.session = number;
        stats.pid = (self.peer.pid != 0).then_some(self.peer.pid);
        stats.uid = self.peer.uid;
        stats.software.clone_from(&self.software);
        stats.namespaces = self.attached.iter().map(|(_, name, _)| name.clone()).collect();
        stats.leases = self.attached.iter().map(|(.., page)| page.leases_taken() as u64).sum();
        stats.counts = self.counts();
        stats.device_access = self.device_access();
        stats.held_bytes = holds.bytes;
        stats.held_ms = u64::try_from(holds.age.as_millis()).unwrap_or(u64::MAX);
        stats.ended = self.ended;
        stats.hung_up = self.hung_up;
        stats
    }

    /// In the order of [`DeviceAccess::ALL`], each once.
    fn device_access(&self) -> Vec<String> {
        let used: Vec<_> = self.attached.iter().flat_map(|(.., page)| page.device_access()).collect();
        let names = DeviceAccess::ALL.iter().filter(|access| used.contains(access));
        names.map(|access| access.name().to_owned()).collect()
    }

    /// What a client wrote: the sums wrap instead of ending the daemon.
    fn counts(&self) -> Counts {
        self.attached.iter().fold(self.detached, |sum, (.., page)| sum.plus(page.counts()))
    }
}
