//! The daemon from outside: its memory, its descriptors, its stats, and whether all of it came back.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tierpack_client::{Client, Stats, stats_socket};

use crate::commands::demo::children::{Daemon, Events};

/// How long the daemon may take to answer, and to notice what has ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// Descriptors that may stay although nothing leaks: segments that are kept ready for the next put.
const SPARE_DESCRIPTORS: usize = 4;

/// What a daemon has before anything is done.
#[derive(Clone, Debug)]
pub(super) struct Base {
    used_bytes: u64,
    descriptors: usize,
}

/// What is left of everything once all workers are gone and all tensors removed.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Left {
    /// Used, held, reserved and returning bytes.
    pub(super) leaked_bytes: u64,
    pub(super) leases: u64,
    pub(super) sessions: usize,
    pub(super) transfers: u64,
    /// Descriptors of the daemon beyond those at the start, but for those of spare segments.
    pub(super) descriptors: usize,
    /// Bytes of segments, spare ones: they are no leak.
    pub(super) segment_bytes: u64,
}

impl Left {
    /// Whether nothing is left that should not be.
    pub(super) fn is_nothing(&self) -> bool {
        (self.leaked_bytes, self.leases, self.transfers) == (0, 0, 0)
            && (self.sessions, self.descriptors) == (0, 0)
    }
}

/// The daemon's stats.
///
/// # Errors
/// It gives none.
pub(super) fn stats(daemon: &Daemon) -> Result<Stats> {
    let text = stats_socket::read(&stats_socket::path_beside(daemon.socket()), PATIENCE)?;
    serde_json::from_str(&text).context("parse the daemon's stats")
}

/// What it has now, which must be nothing yet.
///
/// # Errors
/// As [`stats`].
pub(super) fn base(daemon: &Daemon) -> Result<Base> {
    Ok(Base { used_bytes: stats(daemon)?.pool.used_bytes, descriptors: descriptors(daemon)? })
}

fn descriptors(daemon: &Daemon) -> Result<usize> {
    let path = format!("/proc/{}/fd", daemon.pid());
    Ok(fs::read_dir(&path).with_context(|| format!("list {path}"))?.count())
}

/// Private memory of the daemon: all that is resident but the pool.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn private_bytes(daemon: &Daemon) -> Result<u64> {
    let path = format!("/proc/{}/status", daemon.pid());
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = |key| parse_line(&text, key).with_context(|| format!("find the line {key} in {path}"));
    Ok(line("RssAnon:")? + line("RssFile:")?)
}

fn parse_line(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Waits until the daemon has noticed the end of a process.
///
/// # Errors
/// It does not.
pub(super) fn wait_gone(daemon: &Daemon, pid: u32) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let sessions = stats(daemon)?.sessions;
        if !sessions.iter().any(|session| session.pid.is_some_and(|found| u32::try_from(found) == Ok(pid))) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("the daemon still has the session of process {pid}, {PATIENCE:?} after its end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removes every tensor, waits until everything is back, and says what is not.
///
/// # Errors
/// The daemon does not answer, or we are interrupted.
pub(super) fn left(daemon: &Daemon, client: Client, base: &Base, events: &Events) -> Result<Left> {
    for entry in client.list().context("list what is left")? {
        client.remove(&entry.name).context("remove what is left")?;
    }
    drop(client);
    let end = Instant::now() + PATIENCE;
    loop {
        let left = left_now(daemon, base)?;
        if left.is_nothing() {
            return Ok(left);
        }
        if Instant::now() > end {
            let document = serde_json::to_string(&stats(daemon)?)?;
            crate::output::warning(&format!("{PATIENCE:?} after the end, the stats are {document}"));
            return Ok(left);
        }
        events.tick()?;
    }
}

fn left_now(daemon: &Daemon, base: &Base) -> Result<Left> {
    let stats = stats(daemon)?;
    let pool = &stats.pool;
    let used = pool.used_bytes.saturating_sub(base.used_bytes);
    Ok(Left {
        leaked_bytes: used + pool.held_bytes + pool.reserved_bytes + pool.returning_bytes,
        leases: stats.sessions.iter().map(|session| session.leases).sum(),
        sessions: stats.sessions.len(),
        transfers: stats.transfers,
        descriptors: descriptors(daemon)?.saturating_sub(base.descriptors + SPARE_DESCRIPTORS),
        segment_bytes: pool.segment_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "VmRSS:\t  9 kB\nRssAnon:\t    1234 kB\nRssFile:\t       0 kB\n";
        assert_eq!(parse_line(text, "RssAnon:"), Some(1234 << 10));
        assert_eq!(parse_line(text, "RssFile:"), Some(0));
        assert_eq!(parse_line(text, "RssShmem:"), None);
    }

    #[test]
    fn anything_left_is_a_leak_but_spare_segments() {
        assert!(Left { segment_bytes: 1, ..Left::default() }.is_nothing());
        let some = [
            Left { leaked_bytes: 1, ..Left::default() },
            Left { leases: 1, ..Left::default() },
            Left { sessions: 1, ..Left::default() },
            Left { transfers: 1, ..Left::default() },
            Left { descriptors: 1, ..Left::default() },
        ];
        assert!(some.iter().all(|left| !left.is_nothing()));
    }
}
