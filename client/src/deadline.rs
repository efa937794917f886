//! The moment until which a call may wait.

use std::time::{Duration, Instant};

use crate::error::Error;

/// The longest deadline: what fits the milliseconds of a message, 49 days.
const LONGEST: Duration = Duration::from_millis(u32::MAX as u64);

/// A moment and how far away it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now, at most 49 days.
    pub(crate) fn after(limit: Duration) -> Self {
        let limit = limit.min(LONGEST);
        Self { at: Instant::now() + limit, limit }
    }

    /// The moment.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// What is left, zero when it has passed.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// What is left in whole milliseconds, for the daemon.
    pub(crate) fn left_ms(&self) -> u32 {
        u32::try_from(self.left().as_millis()).unwrap_or(u32::MAX)
    }

    /// The whole length in seconds, for errors.
    pub(crate) fn seconds(&self) -> f64 {
        self.limit.as_secs_f64()
    }

    /// The error for what was not done in time.
    pub(crate) fn passed(&self, operation: &'static str) -> Error {
        Error::Deadline { operation, seconds: self.seconds() }
    }
}
