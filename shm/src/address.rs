//! Names of the sockets, for both sides: what a control socket is called, and the stats and metrics sockets next to it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The longest path that fits into a Unix socket address: 108 bytes with the terminating zero.
pub const MAX_PATH_BYTES: usize = 107;

/// The file name of the control socket in each of the usual places.
pub const CONTROL_NAME: &str = "control.sock";

/// The path of the stats socket that belongs to a control socket.
///
/// It lies in the same directory: `stats.sock` next to `control.sock`, and next to any other name that name
/// with `.stats` appended, so that several daemons can share a directory.
/// It may be up to 6 bytes longer than the control path, and so too long for a socket address of its own; both
/// sides reach it all the same, by way of `/proc/self/fd`.
#[must_use]
pub fn stats_path(control: &Path) -> PathBuf {
    beside(control, "stats.sock", ".stats")
}

/// The path of the metrics socket that belongs to a control socket: as [`stats_path`], with `metrics` for `stats`.
#[must_use]
pub fn metrics_path(control: &Path) -> PathBuf {
    beside(control, "metrics.sock", ".metrics")
}

fn beside(control: &Path, usual: &str, suffix: &str) -> PathBuf {
    match control.file_name() {
        Some(name) if name == CONTROL_NAME => control.with_file_name(usual),
        name => {
            let mut name = name.unwrap_or(OsStr::new("")).to_owned();
            name.push(suffix);
            control.with_file_name(name)
        }
    }
}

/// An address, made absolute once: a relative path is resolved in the working directory of that moment.
///
/// What cannot be made absolute (an empty path, a directory that is gone) stays as it is.
#[must_use]
pub fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_stats_socket_is_beside_the_control_socket() {
        let stats = |control: &[u8]| stats_path(Path::new(OsStr::from_bytes(control))).into_os_string();
        assert_eq!(stats(b"/run/tierpack/control.sock"), "/run/tierpack/stats.sock");
        assert_eq!(stats(b"/tmp/a.sock"), "/tmp/a.sock.stats");
        assert_eq!(metrics_path(Path::new("/tmp/control.sock")), Path::new("/tmp/metrics.sock"));
        assert_eq!(metrics_path(Path::new("/tmp/a.sock")), Path::new("/tmp/a.sock.metrics"));
        assert_eq!(stats(b"/tmp/stats.sock"), "/tmp/stats.sock.stats");
        assert_eq!(stats(b"/tmp/\xff\xfe.sock").as_bytes(), b"/tmp/\xff\xfe.sock.stats");
    }
}
