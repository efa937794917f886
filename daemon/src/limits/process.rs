//! Limits of the process itself: locked memory and descriptors.
//!
//! The kernel enforces the limit of locked memory unless the process has `CAP_IPC_LOCK` in the first user
//! namespace; root in a container with a user namespace of its own has the capability and is bound all the
//! same.
//! A failed `mlock` is blamed on the limit only when the error number and the numbers both say so.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use super::cgroup;
use crate::error::{Error, Result};
use crate::size::ByteSize;

/// The bit of `CAP_IPC_LOCK` in a capability mask.
const CAP_IPC_LOCK: u32 = 14;

/// How much memory this process may page-lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimit {
    /// The limit in bytes, `None` when none is enforced.
    pub limit_bytes: Option<u64>,
    /// What is page-locked already, in bytes.
    pub locked_bytes: u64,
}

impl LockLimit {
    /// Whether so many bytes more may be locked.
    #[must_use]
    pub fn allows(&self, needed_bytes: u64) -> bool {
        self.limit_bytes.is_none_or(|limit| self.locked_bytes.saturating_add(needed_bytes) <= limit)
    }
}

/// Reads how much memory this process may page-lock.
///
/// # Errors
/// [`Error::ResourceLimit`] when the system does not tell.
pub fn lock_limit() -> Result<LockLimit> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).map_err(|source| Error::ResourceLimit {
        operation: "read",
        name: "RLIMIT_MEMLOCK",
        source,
    })?;
    let read = |name: &str| {
        let bytes = cgroup::read(&Path::new("/proc/self").join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(lock_limit_from(soft, &read("status"), &read("uid_map")))
}

/// Refuses what the limit of locked memory does not allow; for `--lock require`, before anything is
/// allocated.
///
/// # Errors
/// [`Error::LockLimit`] with limit, need and the ways to raise it; those of [`lock_limit`].
pub fn check_lock(needed_bytes: u64) -> Result<()> {
    let limit = lock_limit()?;
    match limit.limit_bytes {
        Some(bytes) if !limit.allows(needed_bytes) => Err(over_limit(needed_bytes, bytes, limit)),
        _ => Ok(()),
    }
}

/// The error for a failed `mlock` of so many bytes.
#[must_use]
pub fn explain_lock_failure(needed_bytes: u64, errno: Errno) -> Error {
    match lock_limit() {
        Ok(limit) => explain(needed_bytes, errno, limit),
        Err(_) => Error::PageLock { needed: ByteSize(needed_bytes), source: errno },
    }
}

fn explain(needed_bytes: u64, errno: Errno, limit: LockLimit) -> Error {
    // ENOMEM: over the limit, or no memory. EPERM: the limit is 0. EAGAIN: over the limit for some kinds of
    // mapping.
    let is_about_limit = matches!(errno, Errno::ENOMEM | Errno::EPERM | Errno::EAGAIN);
    match limit.limit_bytes {
        Some(bytes) if is_about_limit && !limit.allows(needed_bytes) => {
            over_limit(needed_bytes, bytes, limit)
        }
        _ => Error::PageLock { needed: ByteSize(needed_bytes), source: errno },
    }
}

fn over_limit(needed_bytes: u64, limit_bytes: u64, limit: LockLimit) -> Error {
    Error::LockLimit {
        needed: ByteSize(needed_bytes),
        limit: ByteSize(limit_bytes),
        locked: ByteSize(limit.locked_bytes),
    }
}

fn lock_limit_from(soft_bytes: u64, status: &str, uid_map: &str) -> LockLimit {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim()
    };
    let capabilities = u64::from_str_radix(field("CapEff"), 16).unwrap_or(0);
    // The first user namespace maps every number to itself; without the file there are no namespaces.
    let is_first_namespace =
        uid_map.is_empty() || uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    let is_exempt = capabilities & (1 << CAP_IPC_LOCK) != 0 && is_first_namespace;
    let locked_kib: u64 = field("VmLck").trim_end_matches("kB").trim_end().parse().unwrap_or(0);
    LockLimit {
        limit_bytes: (!is_exempt && soft_bytes != RLIM_INFINITY).then_some(soft_bytes),
        locked_bytes: locked_kib.saturating_mul(1024),
    }
}

/// Descriptors and mappings of memory that this process has, or may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handles {
    pub(crate) mappings: u64,
    pub(crate) descriptors: u64,
}

impl Handles {
    /// One text for each limit of the system that leaves less than an eighth over these.
    pub(crate) fn near_limits(self, root: &Path) -> Vec<String> {
        let maps = cgroup::read(&root.join("proc/sys/vm/max_map_count")).unwrap_or_default();
        let max_mappings = String::from_utf8_lossy(&maps).trim().parse().unwrap_or(u64::MAX);
        let max_descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let both = [
            (self.mappings, max_mappings, "mappings of memory", "vm.max_map_count"),
            (self.descriptors, max_descriptors, "descriptors", "ulimit -n"),
        ];
        let near = both.into_iter().filter(|(count, limit, ..)| *count > limit - limit / 8);
        near.map(|(count, limit, what, name)| format!("{count} of {limit} {what}: raise the limit ({name})"))
            .collect()
    }
}

/// Raises the number of descriptors that this process may have to the most that it may choose; returns it.
///
/// # Errors
/// [`Error::ResourceLimit`] when the system refuses.
pub fn raise_descriptor_limit() -> Result<u64> {
    let failed = |operation| move |source| Error::ResourceLimit { operation, name: "RLIMIT_NOFILE", source };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed("read"))?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed("raise"))?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::{KIB, MIB};

    const FIRST: &str = "         0          0 4294967295\n";
    const ROOT: &str = "Name:\tx\nVmLck:\t       0 kB\nCapEff:\t000001ffffffffff\n";
    const USER: &str = "VmLck:\t      64 kB\nCapEff:\t0000000000000000\n";

    #[test]
    fn limit_binds_all_but_root_of_the_machine() {
        let limit = |status, map| lock_limit_from(8 * MIB, status, map).limit_bytes;
        assert_eq!(limit(ROOT, FIRST), None);
        assert_eq!(limit(ROOT, ""), None);
        assert_eq!(limit(ROOT, "0 1000 1\n"), Some(8 * MIB));
        assert_eq!(limit(USER, FIRST), Some(8 * MIB));
        assert_eq!(limit("", ""), Some(8 * MIB));
        // Every capability but this one.
        assert_eq!(limit("CapEff:\t000001ffffffbfff\n", FIRST), Some(8 * MIB));
        assert_eq!(lock_limit_from(RLIM_INFINITY, USER, FIRST).limit_bytes, None);
    }

    #[test]
    fn the_last_eighth_of_the_mappings_is_near_the_limit() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/sys/vm")).unwrap();
        std::fs::write(root.path().join("proc/sys/vm/max_map_count"), "65530\n").unwrap();
        let near = |mappings| Handles { mappings, descriptors: 0 }.near_limits(root.path());
        assert_eq!(near(57_339), Vec::<String>::new());
        assert_eq!(near(57_340), ["57340 of 65530 mappings of memory: raise the limit (vm.max_map_count)"]);
    }

    #[test]
    fn counts_what_is_locked_already() {
        let limit = lock_limit_from(MIB, USER, FIRST);
        assert_eq!(limit.locked_bytes, 64 * KIB);
        assert!(limit.allows(MIB - 64 * KIB) && !limit.allows(MIB - 64 * KIB + 1) && !limit.allows(u64::MAX));
    }

    #[test]
    fn blames_the_limit_only_when_number_and_numbers_agree() {
        let small = LockLimit { limit_bytes: Some(64 * KIB), locked_bytes: 0 };
        let large = LockLimit { limit_bytes: Some(128 * MIB), locked_bytes: 0 };
        let none = LockLimit { limit_bytes: None, locked_bytes: 0 };
        for errno in [Errno::ENOMEM, Errno::EPERM, Errno::EAGAIN] {
            let error = explain(64 * MIB, errno, small);
            assert!(matches!(error, Error::LockLimit { .. }));
            let text = error.to_string();
            for part in ["64 MiB", "64 KiB", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK", "--lock try"] {
                assert!(text.contains(part), "{text}");
            }
            assert!(matches!(explain(64 * MIB, errno, large), Error::PageLock { .. }));
            assert!(matches!(explain(64 * MIB, errno, none), Error::PageLock { .. }));
        }
        assert!(matches!(explain(64 * MIB, Errno::EINVAL, small), Error::PageLock { .. }));
    }

    #[test]
    fn reads_the_limits_of_this_process() {
        let limit = lock_limit().unwrap();
        assert!(limit.allows(0));
        if limit.limit_bytes.is_none() {
            check_lock(u64::MAX).unwrap();
        } else {
            assert!(matches!(check_lock(u64::MAX), Err(Error::LockLimit { .. })));
        }
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (raised, raised));
    }
}
