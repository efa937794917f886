//! How much memory, locked memory and how many descriptors this process may use.
//!
//! Inside a limited container, allocating first and looking at the error does not work: the kernel answers a
//! page too many with SIGKILL, not with ENOSPC.
//! So the daemon reads the limits of its own control group and of every ancestor that it can see, in versions
//! 1 and 2, next to what the machine has left, and refuses in time.
//!
//! A limit counts with what is in use under it already; page cache, which the kernel frees under
//! pressure, does not count as used.
//! Another process may still take the last bytes between check and use; a margin makes that unlikely, nothing
//! can make it impossible.
//!
//! Everything is read below a root directory, `/` outside of tests.

use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::size::{ByteSize, GIB, MIB, TIB};

mod cgroup;
mod machine;
mod process;

pub(crate) use process::Handles;
pub use process::{LockLimit, check_lock, explain_lock_failure, lock_limit, raise_descriptor_limit};

/// The largest pool: a block word has 35 bits for an offset in units of 64 bytes.
pub const MAX_POOL_BYTES: u64 = 2 * TIB;

/// The default pool where no limit can be read.
const POOL_BYTES_WHEN_UNKNOWN: u64 = GIB;

/// Room for what the daemon takes next to its pool at the start, and for its first growth.
///
/// Measured: `grep RssAnon /proc/PID/status` of an idle `tierpack serve --workers 4` says 1,504 KiB.
const FIXED_HEADROOM_BYTES: u64 = GROWTH_MARGIN_BYTES + 2 * MIB;

/// Room that a growing pool leaves for what the workers and others allocate at the same moment.
///
/// Measured: `RssAnon` of the same daemon while four clients each put 114 MiB of random floats is 51,032 KiB at most and
/// 30,580 KiB afterwards: a worker that is busy takes 5 MiB more than what is in use under the limit already.
const GROWTH_MARGIN_BYTES: u64 = 8 * MIB;

/// The workers that this margin was measured with; each one more may take [`WORKER_BYTES`] at the same moment.
const MEASURED_WORKERS: usize = 4;
const WORKER_BYTES: u64 = 5 * MIB;

/// Page tables (8 bytes for 4 KiB) and the page index of a memfd (576 bytes for 256 KiB) take 1/240 of a
/// pool.
const HEADROOM_DIVISOR: u64 = 128;

/// The memory that this process may still use, and which limit says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    limit: u64,
    used: u64,
    origin: PathBuf,
}

impl Available {
    /// The bytes that can still be had.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// The limit that is met first.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit
    }

    /// What is in use under that limit and cannot be reclaimed.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// The file that names the limit.
    #[must_use]
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The size of a pool that nobody chose: half of what is available, in whole MiB.
    #[must_use]
    pub fn default_pool_bytes(&self) -> u64 {
        (self.bytes() / 2 / MIB * MIB).clamp(MIB, MAX_POOL_BYTES)
    }
}

/// The memory that this process may still use, by the limit that leaves least.
///
/// `None` when neither a control group nor the machine tells, as without `/proc`.
///
/// # Errors
/// [`Error::LimitFile`] for a limit that cannot be understood, because ignoring it could end in SIGKILL.
pub fn available(root: &Path) -> Result<Option<Available>> {
    let mut limits = cgroup::limits(root)?;
    limits.extend(machine::limit(root)?);
    Ok(limits.into_iter().min_by_key(Available::bytes))
}

/// The size of a pool that nobody chose.
///
/// # Errors
/// Those of [`available`].
pub fn default_pool_bytes(root: &Path) -> Result<u64> {
    Ok(available(root)?.map_or(POOL_BYTES_WHEN_UNKNOWN, |available| available.default_pool_bytes()))
}

/// Refuses a pool that cannot fit; for the start, before anything is allocated.
///
/// # Errors
/// [`Error::PoolTooLarge`] with the numbers; those of [`available`].
pub fn check_pool_size(pool_bytes: u64, root: &Path) -> Result<Option<Available>> {
    let needed =
        pool_bytes.saturating_add(FIXED_HEADROOM_BYTES).saturating_add(pool_bytes / HEADROOM_DIVISOR);
    let available = available(root)?;
    match &available {
        Some(least) if least.bytes() < needed => Err(Error::PoolTooLarge {
            pool: ByteSize(pool_bytes),
            needed: ByteSize(needed),
            available: ByteSize(least.bytes()),
            limit: ByteSize(least.limit),
            used: ByteSize(least.used),
            origin: least.origin.clone(),
        }),
        _ => Ok(available),
    }
}

/// Room that more workers than usual need, to be left next to each growth.
pub(crate) fn worker_margin(workers: usize) -> u64 {
    workers.saturating_sub(MEASURED_WORKERS) as u64 * WORKER_BYTES
}

/// The right to allocate what was checked: while it lives, no other thread of this process finds the same room.
#[derive(Debug)]
pub struct Room(#[expect(dead_code, reason = "held, never looked at")] MutexGuard<'static, ()>);

/// Refuses growth that cannot fit any more; for each new segment, before it is allocated.
///
/// Every limit is read again: it may have been lowered, and others may have taken what there was.
///
/// # Errors
/// [`Error::MemoryShort`] with the numbers; those of [`available`].
pub fn check_growth(segment_bytes: u64, root: &Path) -> Result<Room> {
    static GROWING: Mutex<()> = Mutex::new(());
    let room = Room(GROWING.lock());
    check_rest(segment_bytes, root).map(|()| room)
}

/// Refuses so many bytes more if they cannot fit now, for a caller that only wants to know.
///
/// # Errors
/// As [`check_growth`].
pub fn check_rest(bytes: u64, root: &Path) -> Result<()> {
    // What the daemon has taken so far is in use under the limits, and counts there.
    let needed = bytes.saturating_add(bytes / HEADROOM_DIVISOR).saturating_add(GROWTH_MARGIN_BYTES);
    match available(root)? {
        Some(least) if bytes > 0 && least.bytes() < needed => Err(Error::MemoryShort {
            needed: ByteSize(needed),
            available: ByteSize(least.bytes()),
            limit: ByteSize(least.limit),
            used: ByteSize(least.used),
            origin: least.origin,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
