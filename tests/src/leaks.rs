//! What a daemon has now, and whether it comes back to that.

use std::time::{Duration, Instant};

use tierpack_client::Stats;

use crate::{DEADLINE, Daemon, eventually};

/// Descriptors that may stay although nothing leaks: segments that are kept ready for the next put.
const SPARE_DESCRIPTORS: usize = 4;

/// What a daemon had before a test did something to it.
#[derive(Debug)]
pub struct Baseline {
    stats: Stats,
    descriptors: usize,
}

impl Baseline {
    /// Takes it, once the daemon is quiet and has `sessions` sessions.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn take(daemon: &Daemon, sessions: usize) -> Self {
        let stats = eventually("a quiet daemon", || {
            let stats = daemon.stats();
            (stats.sessions.len() == sessions && is_quiet(&stats)).then_some(stats)
        });
        Self { stats, descriptors: daemon.descriptors() }
    }

    /// Waits until the daemon has what it had: sessions, bytes, descriptors, and nothing under way.
    ///
    /// # Panics
    /// When that does not happen; the message says what is left.
    pub fn returns(&self, daemon: &mut Daemon) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            assert!(daemon.process().is_running(), "the daemon ended: {}", daemon.log());
            let (stats, descriptors) = (daemon.stats(), daemon.descriptors());
            let is_same = stats.pool.used_bytes == self.stats.pool.used_bytes
                && stats.pool.stored_bytes == self.stats.pool.stored_bytes
                && stats.sessions.len() == self.stats.sessions.len();
            let has_returned =
                is_same && is_quiet(&stats) && descriptors <= self.descriptors + SPARE_DESCRIPTORS;
            if has_returned {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{} transfers, {} sessions, {descriptors} descriptors are left, {:?}; at first {} descriptors, {:?}",
                stats.transfers,
                stats.sessions.len(),
                stats.pool,
                self.descriptors,
                self.stats.pool
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn is_quiet(stats: &Stats) -> bool {
    let leases: u64 = stats.sessions.iter().map(|session| session.leases).sum();
    let pool = &stats.pool;
    leases == 0
        && stats.transfers == 0
        && (pool.reserved_bytes, pool.held_bytes, pool.returning_bytes) == (0, 0, 0)
}
