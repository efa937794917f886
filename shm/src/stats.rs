//! What `stats.sock` says: one JSON document, the same type on both sides.

use serde::{Deserialize, Serialize};

use crate::page::Counts;

/// The daemon's state at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Name and version of the daemon.
    pub software: String,
    /// The daemon's instance id, as hexadecimal text.
    pub instance: String,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Memory.
    pub pool: PoolStats,
    /// Where blocks are, and how often they were found there.
    pub tiers: Vec<TierStats>,
    /// Every namespace, by name.
    pub namespaces: Vec<NamespaceStats>,
    /// Removed namespaces that sessions still map.
    #[serde(default)]
    pub removed: Vec<RemovedStats>,
    /// Every session.
    pub sessions: Vec<SessionStats>,
    /// Puts that have begun and not ended.
    pub transfers: u64,
    /// Requests by outcome since the start.
    pub requests: RequestStats,
    /// The thread that folds and refits.
    pub background: BackgroundStats,
    /// What clients have counted since the start, those that are gone included.
    ///
    /// Only good for looking at: a client writes its own counters as it likes, so the sums wrap.
    pub reads: Counts,
    /// The daemon's log.
    pub log: LogStats,
    /// Whether something is wrong that an operator should know.
    pub health: HealthStats,
    /// The instructions that the daemon's codecs use: `scalar`, `bmi2` or `avx2`.
    pub cpu_level: String,
}

/// Memory of the pool, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// What `--pool-size` allows for all segments together.
    pub size_bytes: u64,
    /// All segments, the ones on their way out included.
    pub segment_bytes: u64,
    /// Segments that are retired and that some client has not unmapped yet.
    pub returning_bytes: u64,
    /// Extents in use in data segments: visible tensors, puts under way, and what is retired but leased.
    pub used_bytes: u64,
    /// Raw bytes of visible tensors.
    pub raw_bytes: u64,
    /// Stored bytes of visible tensors.
    pub stored_bytes: u64,
    /// Promised to puts under way, for blocks that have not come yet.
    pub reserved_bytes: u64,
    /// Retired extents that a lease still holds, or that were not looked at yet.
    pub held_bytes: u64,
    /// The daemon's heap for names, tensors and puts, by estimate: `size_bytes` bounds it and the segments together.
    pub heap_bytes: u64,
    /// What `max_held_percent` allows of it before background work waits.
    pub max_held_bytes: u64,
    /// Page-locked bytes of segments.
    pub locked_bytes: u64,
    /// What `--lock` says.
    pub lock: String,
}

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NamespaceStats {
    /// Its name.
    pub name: String,
    /// Visible tensors.
    pub tensors: u64,
    /// Their raw bytes.
    pub raw_bytes: u64,
    /// Their stored bytes.
    pub stored_bytes: u64,
    /// Extents in use in its data segments.
    pub used_bytes: u64,
    /// Extents in use in its directory: slots and tables.
    pub directory_bytes: u64,
    /// Retired extents that a lease still holds, or that were not looked at yet.
    pub held_bytes: u64,
    /// The daemon's heap for its names, tensors and puts, by estimate.
    pub heap_bytes: u64,
    /// Bytes of segments that take nothing new, since they were sent to users who lost the right to read; compaction
    /// empties the data segments among them.
    #[serde(default)]
    pub closed_bytes: u64,
    /// Bytes of its segments.
    pub segment_bytes: u64,
    /// Bytes of its data segments: what `used_bytes` is a part of.
    pub data_segment_bytes: u64,
    /// The epoch.
    pub epoch: u64,
    /// Bytes of overlays that are not folded yet.
    pub overlay_bytes: u64,
    /// Generations of metadata that are alive, over all tensors.
    pub generations: u64,
    /// Refits of visible tensors that were finished.
    pub refits: u64,
    /// Raw bytes that refits of visible tensors have re-encoded.
    pub reencoded_bytes: u64,
    /// Tensors whose refit waits or is under way.
    pub refitting: u64,
    /// Stored bytes that its tensors would take after a refit, by the last look at each; as they are where none was, or
    /// where the refit has been.
    pub predicted_bytes: u64,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionStats {
    /// Number of the session.
    pub session: u64,
    /// The peer's process id; `None` when it is in another pid namespace.
    pub pid: Option<i32>,
    /// The peer's user id.
    pub uid: u32,
    /// What the peer calls itself.
    pub software: String,
    /// Namespaces it is attached to.
    pub namespaces: Vec<String>,
    /// Leases that are taken now.
    pub leases: u64,
    /// What its client pages count.
    pub counts: Counts,
    /// How its GPUs read the pool: `ats`, `registered`, `staged`; empty without a GPU.
    pub device_access: Vec<String>,
    /// Retired bytes that its leases hold back.
    pub held_bytes: u64,
    /// Milliseconds since the oldest of them was retired.
    pub held_ms: u64,
    /// Bytes of retired segments that it has not unmapped.
    #[serde(default)]
    pub unmapping_bytes: u64,
    /// Milliseconds since the oldest of them was retired.
    #[serde(default)]
    pub unmapping_ms: u64,
    /// Whether the daemon has ended it and waits for the peer to close.
    pub ended: bool,
    /// Whether its connection is closed without a goodbye: its leases count until its process ends.
    #[serde(default)]
    pub hung_up: bool,
}

/// A namespace that was removed and that sessions still map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RemovedStats {
    /// The name that it had.
    pub name: String,
    /// Bytes of its segments, which return when nobody maps it any more.
    pub segment_bytes: u64,
    /// Retired extents that a lease still holds.
    pub held_bytes: u64,
    /// The sessions that map it.
    pub sessions: Vec<u64>,
}

/// One tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TierStats {
    /// Its name: `pool`, the only one yet.
    pub tier: String,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Whole tensors and rows that were found there.
    pub hits: u64,
    /// Blocks that were looked for there in vain.
    pub misses: u64,
}

impl TierStats {
    /// The pool, by what its clients count.
    pub fn pool(bytes: u64, reads: &Counts) -> Self {
        let gets = reads.gets.wrapping_add(reads.device_gets);
        let rows = reads.rows.wrapping_add(reads.device_misses);
        let (hits, misses) = (gets.wrapping_add(rows), reads.misses);
        Self { tier: "pool".to_owned(), bytes, hits, misses }
    }
}

/// What the background thread has done since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BackgroundStats {
    /// `idle`, `working`, or `held` while readers hold back too much.
    pub state: String,
    /// Who starts refits: `auto` or `manual`.
    pub refit: String,
    /// Blocks whose overlays were put into them, updates that did so themselves aside.
    pub folds: u64,
    /// Refits that were finished.
    pub refits: u64,
    /// Raw bytes that were stored again.
    pub rewritten_bytes: u64,
    /// Steps that failed.
    pub failures: u64,
    /// The last failure.
    pub last_failure: Option<String>,
    /// Milliseconds since the last step that succeeded.
    pub last_success_ms: Option<u64>,
}

/// Requests since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RequestStats {
    /// Answered as asked.
    pub done: u64,
    /// Refused.
    pub refused: u64,
    /// Sessions that were ended for what they sent or did not read.
    pub sessions_ended: u64,
}

/// The daemon's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LogStats {
    /// Lines that were dropped since the start, because standard error could not be written in time.
    pub dropped: u64,
}

/// Whether something is wrong that an operator should know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HealthStats {
    /// `ok`, or `degraded` when there are reasons.
    pub state: String,
    /// What is wrong, each with its cause and numbers.
    pub reasons: Vec<String>,
}

impl Stats {
    /// A document with nothing in it yet; fill the fields.
    pub fn new(software: String, instance: u64) -> Self {
        Self {
            software,
            instance: format!("{instance:016x}"),
            uptime_s: 0.0,
            pool: PoolStats::default(),
            tiers: Vec::new(),
            namespaces: Vec::new(),
            removed: Vec::new(),
            sessions: Vec::new(),
            transfers: 0,
            requests: RequestStats::default(),
            background: BackgroundStats::default(),
            reads: Counts::default(),
            log: LogStats::default(),
            health: HealthStats::default(),
            cpu_level: String::new(),
        }
    }
}
