//! What a worker has done and found, counted by its threads and told to the parent as lines of JSON.
//!
//! A worker may be killed at any moment, so it tells its counts again and again, and a finding at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tierpack_client::Error;

/// Errors that calls may give while others put, remove and fill the pool.
const LEGITIMATE: [&str; 6] = ["pool_full", "not_found", "exists", "busy", "replaced", "encoded"];
/// Errors that calls may give besides while the daemon is killed.
const DAEMON_GONE: [&str; 4] = ["lost", "no_daemon", "disconnected", "socket"];

/// One line from a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Connected.
    Ready,
    /// Everything since the worker started.
    Tally(Tally),
    /// A word that is not what it should be.
    Mismatch(String),
    /// The worker cannot go on.
    Failure(String),
    /// Times of a get of one row so far.
    Latency {
        /// Whether the load runs.
        under_load: bool,
        /// The figures.
        times: Times,
    },
}

/// How long a call takes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) calls: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p999_ns: u64,
}

/// Counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) words_checked: u64,
    /// Calls of `get`, `get_into`, `gather`, `gather_into` and `view`.
    pub(super) reads: u64,
    pub(super) views: u64,
    pub(super) updates: u64,
    pub(super) rows_updated: u64,
    pub(super) refits: u64,
    pub(super) verifies: u64,
    pub(super) puts: u64,
    pub(super) removals: u64,
    pub(super) mismatches: u64,
    /// Legitimate errors, by kind.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds the counts of another worker.
    pub(super) fn add(&mut self, other: &Self) {
        self.words_checked += other.words_checked;
        self.reads += other.reads;
        self.views += other.views;
        self.updates += other.updates;
        self.rows_updated += other.rows_updated;
        self.refits += other.refits;
        self.verifies += other.verifies;
        self.puts += other.puts;
        self.removals += other.removals;
        self.mismatches += other.mismatches;
        for (kind, n) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += n;
        }
    }
}

/// One count, kept by several threads.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of a worker, as [`Tally`] has them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) words_checked: Count,
    pub(super) reads: Count,
    pub(super) views: Count,
    pub(super) updates: Count,
    pub(super) rows_updated: Count,
    pub(super) refits: Count,
    pub(super) verifies: Count,
    pub(super) puts: Count,
    pub(super) removals: Count,
    pub(super) mismatches: Count,
    legitimate: [Count; LEGITIMATE.len()],
    daemon_gone: [Count; DAEMON_GONE.len()],
}

/// Whether the daemon is killed now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonFate {
    Lives,
    IsKilled,
}

impl Counts {
    /// Counts an error that is to be expected.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn excuse(&self, error: Error, fate: DaemonFate) -> Result<(), Error> {
        let kind = kind_of(&error);
        let counts = LEGITIMATE.iter().zip(&self.legitimate);
        let gone = DAEMON_GONE.iter().zip(&self.daemon_gone).filter(|_| fate == DaemonFate::IsKilled);
        match counts.chain(gone).find(|(name, _)| Some(**name) == kind) {
            Some((_, count)) => {
                count.add(1);
                Ok(())
            }
            None => Err(error),
        }
    }

    /// All of them, now.
    pub(super) fn tally(&self) -> Tally {
        let legitimate = LEGITIMATE.iter().zip(&self.legitimate);
        let errors = legitimate.chain(DAEMON_GONE.iter().zip(&self.daemon_gone));
        let errors = errors.filter(|(_, count)| count.now() > 0);
        Tally {
            words_checked: self.words_checked.now(),
            reads: self.reads.now(),
            views: self.views.now(),
            updates: self.updates.now(),
            rows_updated: self.rows_updated.now(),
            refits: self.refits.now(),
            verifies: self.verifies.now(),
            puts: self.puts.now(),
            removals: self.removals.now(),
            mismatches: self.mismatches.now(),
            errors: errors.map(|(name, count)| ((*name).to_owned(), count.now())).collect(),
        }
    }
}

fn kind_of(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::PoolFull { .. } => "pool_full",
        Error::NotFound { .. } => "not_found",
        Error::Exists { .. } => "exists",
        Error::Busy { .. } => "busy",
        Error::Replaced { .. } => "replaced",
        Error::Encoded { .. } => "encoded",
        Error::Lost { .. } => "lost",
        Error::NoDaemon { .. } => "no_daemon",
        Error::Disconnected { .. } => "disconnected",
        Error::Socket { .. } => "socket",
        _ => return None,
    })
}

/// Whether after this error no part of a request is on its way any more.
pub(super) fn is_answer(error: &Error) -> bool {
    !matches!(error, Error::Disconnected { .. } | Error::Deadline { .. } | Error::Socket { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_found() -> Error {
        Error::NotFound { namespace: "default".to_owned(), name: "x".to_owned() }
    }

    fn disconnected() -> Error {
        Error::Disconnected { operation: "open a tensor" }
    }

    #[test]
    fn only_what_is_to_be_expected_is_excused() {
        let counts = Counts::default();
        assert!(counts.excuse(not_found(), DaemonFate::Lives).is_ok());
        assert!(counts.excuse(disconnected(), DaemonFate::Lives).is_err());
        assert!(counts.excuse(disconnected(), DaemonFate::IsKilled).is_ok());
        assert!(counts.excuse(Error::Forked, DaemonFate::IsKilled).is_err());
        let errors = counts.tally().errors;
        assert_eq!(errors, [("not_found".to_owned(), 1), ("disconnected".to_owned(), 1)].into());
        assert!(is_answer(&not_found()) && !is_answer(&disconnected()));
    }

    #[test]
    fn tallies_add_up() {
        let counts = Counts::default();
        counts.words_checked.add(5);
        counts.excuse(not_found(), DaemonFate::Lives).unwrap();
        let mut sum = counts.tally();
        sum.add(&counts.tally());
        assert_eq!((sum.words_checked, sum.errors["not_found"]), (10, 2));
    }
}
