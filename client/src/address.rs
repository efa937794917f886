//! Where a client looks for a daemon.
//!
//! `TIERPACK_SOCKET` names the one socket to use.
//! Without it the places that daemons take are tried in their order:
//! `$XDG_RUNTIME_DIR/tierpack`, `/run/tierpack`, `tierpack-UID` in the system's temporary folder.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

pub(crate) use tierpack_shm::address::absolute;
pub use tierpack_shm::address::{CONTROL_NAME, MAX_PATH_BYTES};

use crate::error::{Error, Result};

/// The control sockets to try, in order.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    let given = std::env::var_os("TIERPACK_SOCKET").filter(|path| !path.is_empty());
    if let Some(path) = given {
        return vec![absolute(PathBuf::from(path))];
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // The XDG specification tells to ignore a relative path, which an empty one is too.
    let runtime = runtime.filter(|path| path.is_absolute()).map(|path| path.join("tierpack"));
    let places = [runtime, Some(PathBuf::from("/run/tierpack")), Some(temp_directory())];
    places.into_iter().flatten().map(|place| place.join(CONTROL_NAME)).collect()
}

fn temp_directory() -> PathBuf {
    std::env::temp_dir().join(format!("tierpack-{}", geteuid().as_raw()))
}

/// Whether a socket is the usual one in the temporary folder, where anybody could have made it.
pub(crate) fn is_temporary(path: &Path) -> bool {
    path.parent() == Some(temp_directory().as_path())
}

/// Refuses a path that cannot be the address of a socket.
pub(crate) fn check(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > MAX_PATH_BYTES {
        let (len, limit) = (bytes.len(), MAX_PATH_BYTES);
        return Err(Error::SocketPathTooLong { path: path.to_owned(), len, limit });
    }
    if !path.is_absolute() || bytes.contains(&0) {
        return Err(Error::SocketPathInvalid { path: path.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_107_bytes_is_the_longest() {
        let path = |len: usize| PathBuf::from(format!("/{}", "x".repeat(len - 1)));
        assert!(check(&path(107)).is_ok());
        let error = check(&path(108)).unwrap_err().to_string();
        assert!(error.contains("108") && error.contains("107"), "{error}");
        for path in ["", "/tmp/a\0b"] {
            assert!(matches!(check(Path::new(path)), Err(Error::SocketPathInvalid { .. })), "{path:?}");
        }
    }

    #[test]
    fn the_temporary_place_is_the_last_and_is_told_apart() {
        // Other tests of this process do not set TIERPACK_SOCKET; where the caller did, it is the only place.
        let candidates = candidates();
        if std::env::var_os("TIERPACK_SOCKET").is_none_or(|path| path.is_empty()) {
            assert!(is_temporary(candidates.last().unwrap()));
            assert!(candidates.iter().filter(|path| is_temporary(path)).count() == 1);
        } else {
            assert_eq!(candidates.len(), 1);
        }
    }
}
