//! What is wrong with the daemon at this moment, for the stats: each fault with its cause and numbers.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tierpack_shm::stats::HealthStats;

/// What can be wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The socket files are gone and cannot be made again: nobody new finds the daemon.
    SocketFiles,
    /// The thread of the stats socket has panicked; it was started again.
    StatsThread,
}

/// The faults that other parts have noted.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<BTreeMap<Fault, String>>);

impl Health {
    /// Notes a fault, over what was noted of it before; says whether it is a new one.
    pub(crate) fn note(&self, fault: Fault, reason: String) -> bool {
        self.0.lock().insert(fault, reason).is_none()
    }

    /// Notes that a fault is over.
    pub(crate) fn clear(&self, fault: Fault) {
        self.0.lock().remove(&fault);
    }

    /// For the stats, with the faults that only show when somebody looks.
    pub(crate) fn stats(&self, more: impl IntoIterator<Item = String>) -> HealthStats {
        let mut health = HealthStats::default();
        health.reasons = self.0.lock().values().cloned().chain(more).collect();
        let state = if health.reasons.is_empty() { "ok" } else { "degraded" };
        state.clone_into(&mut health.state);
        health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_until_it_is_over() {
        let health = Health::default();
        assert_eq!((health.stats([]).state.as_str(), health.stats([]).reasons.len()), ("ok", 0));
        assert!(health.note(Fault::SocketFiles, "one".to_owned()));
        assert!(!health.note(Fault::SocketFiles, "two".to_owned()));
        let stats = health.stats(["three".to_owned()]);
        assert_eq!(
            (stats.state.as_str(), stats.reasons),
            ("degraded", vec!["two".to_owned(), "three".to_owned()])
        );
        health.clear(Fault::SocketFiles);
        assert_eq!(health.stats([]).state, "ok");
    }
}
