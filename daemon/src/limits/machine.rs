//! What the machine as a whole has left.

use std::path::{Path, PathBuf};

use super::{Available, cgroup};
use crate::error::{Error, Result};

/// The memory of the machine, by `MemTotal` and `MemAvailable`; `None` without `/proc/meminfo`.
pub(super) fn limit(root: &Path) -> Result<Option<Available>> {
    let origin = PathBuf::from("/proc/meminfo");
    let Some(bytes) = cgroup::read(&root.join("proc/meminfo")) else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let kib_of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
    };
    match (kib_of("MemTotal"), kib_of("MemAvailable")) {
        (Some(total), Some(available)) => Ok(Some(Available {
            limit: total.saturating_mul(1024),
            used: total.saturating_sub(available).saturating_mul(1024),
            origin,
        })),
        _ => Err(Error::LimitFile {
            path: origin,
            reason: "MemTotal and MemAvailable are not both there".to_owned(),
        }),
    }
}
