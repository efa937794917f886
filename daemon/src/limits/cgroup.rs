//! Memory limits of control groups, versions 1 and 2 and both at once.
//!
//! `/proc/self/cgroup` names the group of this process, `/proc/self/mountinfo` where the groups are mounted
//! and which of them is at the top of the mount.
//! The two agree in a group namespace or on the bare machine.
//! In a container without a namespace of its own, the name is the host's and does not exist below the mount;
//! then the top of the mount is the group of the container.
//! From there the walk goes up to the top of the mount, since each ancestor limits too.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use super::Available;
use crate::error::{Error, Result};

/// Limits from here on mean "none": version 1 says "none" with the largest number of whole pages.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// No file of a control group or of `/proc` that is read here is longer, but for a machine with very many
/// mounts.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The files of one version.
struct Version {
    fs_type: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The page cache lines of `memory.stat`, of the group and its children.
    inactive_file: &'static str,
    active_file: &'static str,
}

const V1: Version = Version {
    fs_type: "cgroup",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file",
    active_file: "total_active_file",
};

const V2: Version = Version {
    fs_type: "cgroup2",
    limit: "memory.max",
    usage: "memory.current",
    inactive_file: "inactive_file",
    active_file: "active_file",
};

/// Where one hierarchy is mounted, and which group is at the top of that mount.
struct Mount {
    top_group: PathBuf,
    point: PathBuf,
}

/// The limits of the own group and of all visible ancestors.
pub(super) fn limits(root: &Path) -> Result<Vec<Available>> {
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = read(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut limits = Vec::new();
    for version in [V1, V2] {
        let Some(group) = group_of(&groups, &version) else { continue };
        for mount in mounts_of(&mounts, &version) {
            for directory in directories(root, &group, &mount) {
                limits.extend(limits_of(root, &directory, &version)?);
            }
        }
    }
    Ok(limits)
}

/// The group of this process in the hierarchy that counts memory.
fn group_of(groups: &[u8], version: &Version) -> Option<PathBuf> {
    groups.split(|byte| *byte == b'\n').find_map(|line| {
        // number:controllers:path, with an empty list of controllers in version 2.
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_wanted = match version.fs_type {
            "cgroup2" => number == b"0" && controllers.is_empty(),
            _ => controllers.split(|byte| *byte == b',').any(|name| name == b"memory"),
        };
        is_wanted.then(|| PathBuf::from(OsString::from_vec(path.to_vec())))
    })
}

fn mounts_of(mounts: &[u8], version: &Version) -> Vec<Mount> {
    mounts.split(|byte| *byte == b'\n').filter_map(|line| mount_of(line, version)).collect()
}

/// Reads a line of mountinfo: id, parent, device, top, point, options, tags, "-", type, source, super
/// options.
fn mount_of(line: &[u8], version: &Version) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let (fs_type, options) = (fields.get(dash + 1)?, fields.get(dash + 3)?);
    let counts_memory =
        version.fs_type == "cgroup2" || options.split(|byte| *byte == b',').any(|name| name == b"memory");
    (*fs_type == version.fs_type.as_bytes() && counts_memory)
        .then(|| Some(Mount { top_group: unescape(fields.get(3)?), point: unescape(fields.get(4)?) }))
        .flatten()
}

/// Undoes the octal escapes of mountinfo, such as `\040` for a space.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The directories of the own group and of its ancestors up to the top of the mount.
fn directories(root: &Path, group: &Path, mount: &Mount) -> Vec<PathBuf> {
    let top = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    // A group outside of the namespace is named as a path with "..", which leads nowhere below the mount.
    let below = group.strip_prefix(&mount.top_group).ok();
    let below = below.filter(|path| path.components().all(|part| matches!(part, Component::Normal(_))));
    let own = below.map(|path| top.join(path)).filter(|path| path.is_dir()).unwrap_or_else(|| top.clone());
    own.ancestors().take_while(|path| path.starts_with(&top)).map(Path::to_owned).collect()
}

/// The limits that one group sets.
fn limits_of(root: &Path, directory: &Path, version: &Version) -> Result<Vec<Available>> {
    let shown = |name: &str| {
        let path = directory.join(name);
        path.strip_prefix(root).map_or(path.clone(), |below| Path::new("/").join(below))
    };
    let mut limits = Vec::new();
    let stat = read(&directory.join("memory.stat")).unwrap_or_default();
    let usage = read_number(&directory.join(version.usage))?.unwrap_or(0);
    // The kernel reclaims inactive page cache first; half of the active is taken to be programs at work.
    let cache = stat_line(&stat, version.inactive_file) + stat_line(&stat, version.active_file) / 2;
    let used = usage.saturating_sub(cache);
    if let Some(limit) = read_number(&directory.join(version.limit))? {
        limits.push(Available { limit, used, origin: shown(version.limit) });
    }
    // Version 1 tells here the least limit of all ancestors, also of those above the mount.
    // What is in use under them cannot be seen; it is no less than what this group uses.
    if let Some(limit) = stat_text(&stat, "hierarchical_memory_limit") {
        limits.push(Available { limit, used, origin: shown("memory.stat") });
    }
    limits.retain(|available| available.limit < UNLIMITED_BYTES);
    Ok(limits)
}

fn stat_text(stat: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(stat).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A number of bytes in `memory.stat`; cut so that two of them never overflow.
fn stat_line(stat: &[u8], name: &str) -> u64 {
    stat_text(stat, name).unwrap_or(0).min(UNLIMITED_BYTES)
}

/// The number in a file of a control group: `None` without the file or for "max".
fn read_number(path: &Path) -> Result<Option<u64>> {
    let Some(bytes) = read(path) else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    match text.trim() {
        "max" => Ok(None),
        number => number.parse().map(Some).map_err(|_| Error::LimitFile {
            path: path.to_owned(),
            reason: format!(
                "{:?} is neither a number nor \"max\"",
                number.chars().take(64).collect::<String>()
            ),
        }),
    }
}

/// The content of a file, `None` when it is not there or may not be read: then it cannot tell a limit.
///
/// The open works and the read fails for a group that is just going away.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
