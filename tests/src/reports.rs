//! What client processes of a test write as their last line, as JSON.

use serde::{Deserialize, Serialize};

/// What a reader has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Rows or whole tensors that were read and checked.
    pub reads: u64,
    /// Rows among them.
    pub rows: u64,
    /// Words that were not what they had to be.
    pub mismatches: u64,
    /// Calls that failed.
    pub errors: u64,
    /// The text of the last error.
    pub error: Option<String>,
    /// Median time of one row in nanoseconds, of gathers of one batch.
    pub median_ns: u64,
}

/// Median times of single gathers of one row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// A few rows again and again.
    pub hot_ns: u64,
    /// Rows from the whole tensor.
    pub random_ns: u64,
}

/// What a process that reads, puts and removes has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChurnReport {
    /// Tensors and rows read.
    pub reads: u64,
    /// Tensors put.
    pub puts: u64,
    /// Puts for which the pool had no room.
    pub full: u64,
    /// Tensors removed.
    pub removes: u64,
    /// Reads of a tensor that did not exist.
    pub missing: u64,
    /// What was wrong, one line each; the first few.
    pub faults: Vec<String>,
}

/// What came of one operation of a client with a fault point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The one version that every word was of; none when it failed, or when words were mixed.
    pub version: Option<u16>,
    /// The error with its causes, when it failed.
    pub error: Option<String>,
}

/// What a peer got that asked for everything of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandReport {
    /// Requests that were answered as asked.
    pub granted: Vec<String>,
    /// What the daemon said to the others.
    pub refusals: Vec<String>,
    /// Descriptors that came.
    pub descriptors: usize,
    /// Open descriptors and mappings of its process that are memory of a daemon.
    pub segments: usize,
}

/// What a peer took of what all users share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TakeReport {
    /// How many it was given.
    pub taken: u64,
    /// Why it was given no more; `None` when it had enough.
    pub refusal: Option<String>,
}
