//! Memory of processes, as the kernel counts it.

/// A field of `/proc/PID/smaps_rollup`, in bytes.
///
/// # Panics
/// When the process is gone or the kernel has no such field.
pub fn rollup(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process is alive");
    let line = text.lines().find(|line| line.starts_with(field) && line[field.len()..].starts_with(':'));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    assert!(kib.is_some(), "smaps_rollup has no field {field}");
    kib.unwrap_or_default() * 1024
}

/// Memory that only this process has: `Private_Clean` and `Private_Dirty`.
///
/// # Panics
/// As [`rollup`].
pub fn private(pid: u32) -> u64 {
    rollup(pid, "Private_Clean") + rollup(pid, "Private_Dirty")
}
