//! Where the sockets are: the control socket by default or by option, and the stats socket next to it.
//!
//! The daemon takes the first place of a fixed order, and clients try the same order, so that neither needs a
//! setting:
//! `$XDG_RUNTIME_DIR/tierpack`, `/run/tierpack`, `tierpack-UID` in the system's temporary folder.
//! Those directories are the daemon's own: it makes them, and it refuses one that somebody else could change,
//! because a user who can replace the socket can read every tensor that is put.
//! The directory of a path that the user names is the user's business and is taken as it is.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat, geteuid};

use crate::error::{Error, Result};

pub use tierpack_shm::address::{CONTROL_NAME, MAX_PATH_BYTES, metrics_path, stats_path};

/// Makes the path of a control socket absolute and checks it; `origin` names the option that it comes from.
///
/// # Errors
/// [`Error::SocketPathTooLong`] for more than [`MAX_PATH_BYTES`], [`Error::SocketPathInvalid`] for a path
/// that names no file.
pub fn resolve(path: &Path, origin: &str) -> Result<PathBuf> {
    let invalid = || Error::SocketPathInvalid { path: path.to_owned(), origin: origin.to_owned() };
    // A relative path would mean something else after a chdir of the program that embeds the daemon.
    let absolute = std::path::absolute(path).map_err(|_| invalid())?;
    let bytes = absolute.as_os_str().as_bytes();
    if bytes.len() > MAX_PATH_BYTES {
        let (len, limit) = (bytes.len(), MAX_PATH_BYTES);
        return Err(Error::SocketPathTooLong { path: absolute, len, limit, origin: origin.to_owned() });
    }
    if bytes.ends_with(b"/") || bytes.contains(&0) || absolute.file_name().is_none() {
        return Err(invalid());
    }
    Ok(absolute)
}

/// The control socket of a daemon without a configured one.
///
/// # Errors
/// [`Error::SocketPathTooLong`] when `XDG_RUNTIME_DIR` or the temporary folder has a very long name.
pub fn default_control() -> Result<PathBuf> {
    Places::of_system().choose()
}

/// Makes and checks the directory of a control socket, if it is one of the default places.
///
/// # Errors
/// [`Error::SocketDirectory`] when it cannot be made, [`Error::SocketDirectoryUnsafe`] when others can change
/// it.
pub fn prepare_directory(control: &Path) -> Result<()> {
    Places::of_system().prepare(control)
}

/// The directories that hold the default places.
#[derive(Debug)]
struct Places {
    runtime: Option<PathBuf>,
    run: PathBuf,
    temp: PathBuf,
    uid: u32,
}

impl Places {
    fn of_system() -> Places {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Places {
            // The XDG specification tells to ignore a relative path, which an empty one is too.
            runtime: runtime.filter(|path| path.is_absolute()),
            run: PathBuf::from("/run"),
            temp: std::env::temp_dir(),
            uid: geteuid().as_raw(),
        }
    }

    fn runtime_directory(&self) -> Option<PathBuf> {
        self.runtime.as_ref().map(|runtime| runtime.join("tierpack"))
    }

    fn run_directory(&self) -> PathBuf {
        self.run.join("tierpack")
    }

    fn temp_directory(&self) -> PathBuf {
        self.temp.join(format!("tierpack-{}", self.uid))
    }

    fn choose(&self) -> Result<PathBuf> {
        if let Some(directory) = self.runtime_directory() {
            return resolve(&directory.join(CONTROL_NAME), "XDG_RUNTIME_DIR");
        }
        let directory = self.run_directory();
        if self.is_usable(&directory) {
            return resolve(&directory.join(CONTROL_NAME), "the default");
        }
        resolve(&self.temp_directory().join(CONTROL_NAME), "TMPDIR")
    }

    /// Whether a directory exists and is for us, or can be made.
    ///
    /// One that we own or may write counts, whatever its mode: a wrong mode is then reported, not stepped
    /// around, because clients look there first.
    fn is_usable(&self, directory: &Path) -> bool {
        match fs::symlink_metadata(directory) {
            Ok(metadata) => metadata.uid() == self.uid || may_write(directory),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                directory.parent().is_some_and(|parent| parent.is_dir() && may_write(parent))
            }
            Err(_) => false,
        }
    }

    fn prepare(&self, control: &Path) -> Result<()> {
        let Some(directory) = control.parent() else { return Ok(()) };
        // Everybody must reach the socket of the machine's daemon; namespaces decide who may read what.
        let mode = if directory == self.run_directory() {
            0o755
        } else if directory == self.temp_directory() || Some(directory) == self.runtime_directory().as_deref()
        {
            0o700
        } else {
            return Ok(());
        };
        self.make(directory, mode)
    }

    fn make(&self, directory: &Path, mode: u32) -> Result<()> {
        let failed = |source| Error::SocketDirectory { path: directory.to_owned(), source };
        match DirBuilder::new().mode(mode).create(directory) {
            // The umask may have taken away bits that are needed.
            Ok(()) => fs::set_permissions(directory, Permissions::from_mode(mode)).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // On a read-only file system a directory that exists is an error of its own kind.
            Err(error) if !directory.exists() => return Err(failed(error)),
            Err(_) => {}
        }
        // Of the link itself: a link that another user made must not count as a directory of ours.
        let metadata = fs::symlink_metadata(directory).map_err(failed)?;
        match self.flaw(&metadata) {
            Some(reason) => Err(Error::SocketDirectoryUnsafe { path: directory.to_owned(), reason }),
            None => Ok(()),
        }
    }

    /// Why others could change what is in the directory.
    fn flaw(&self, metadata: &Metadata) -> Option<String> {
        let mode = metadata.mode() & 0o7777;
        if !metadata.is_dir() {
            return Some("it is not a directory".to_owned());
        }
        if metadata.uid() != self.uid {
            return Some(format!("it belongs to user {}, not to user {}", metadata.uid(), self.uid));
        }
        if mode & 0o022 != 0 {
            return Some(format!("its mode {mode:04o} lets others write, chmod it to {:04o}", mode & !0o022));
        }
        None
    }
}

fn may_write(directory: &Path) -> bool {
    // With the effective user, as the later mkdir and bind will be.
    faccessat(AT_FDCWD, directory, AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    /// Places below a temporary directory, none of them made yet.
    fn places(root: &Path) -> Places {
        for name in ["runtime", "run", "temp"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let uid = geteuid().as_raw();
        Places { runtime: Some(root.join("runtime")), run: root.join("run"), temp: root.join("temp"), uid }
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn path_of_107_bytes_is_the_longest() {
        // Bytes count, not characters.
        let path = |len: usize| PathBuf::from(format!("/{}{}", "é".repeat(20), "x".repeat(len - 41)));
        assert_eq!(resolve(&path(107), "--socket").unwrap(), path(107));
        for len in [108, 109, 300] {
            let error = resolve(&path(len), "--socket").unwrap_err().to_string();
            assert!(error.contains(&len.to_string()) && error.contains("107"), "{error}");
            assert!(error.contains("--socket"), "{error}");
        }
    }

    #[test]
    fn relative_paths_become_absolute() {
        let resolved = resolve(Path::new("some/control.sock"), "--socket").unwrap();
        assert_eq!(resolved, std::env::current_dir().unwrap().join("some/control.sock"));
    }

    #[test]
    fn paths_need_no_utf8_but_a_name() {
        let raw = PathBuf::from(OsString::from_vec(b"/tmp/\xff\xfe.sock".to_vec()));
        assert_eq!(resolve(&raw, "--socket").unwrap(), raw);
        for path in ["", "/", "/tmp/", "/tmp/..", "/tmp/a\0b"] {
            assert!(
                matches!(resolve(Path::new(path), "x"), Err(Error::SocketPathInvalid { .. })),
                "{path:?}"
            );
        }
    }

    #[test]
    fn places_are_tried_in_order() {
        let root = tempfile::tempdir().unwrap();
        let mut places = places(root.path());
        let below = |path: &str| root.path().join(path).join(CONTROL_NAME);
        assert_eq!(places.choose().unwrap(), below("runtime/tierpack"));
        places.runtime = None;
        assert_eq!(places.choose().unwrap(), below("run/tierpack"));
        places.run = root.path().join("missing");
        assert_eq!(places.choose().unwrap(), below(&format!("temp/tierpack-{}", places.uid)));
    }

    #[test]
    fn choosing_makes_nothing_and_preparing_makes_private_directories() {
        let root = tempfile::tempdir().unwrap();
        let mut places = places(root.path());
        let control = places.choose().unwrap();
        assert!(!control.parent().unwrap().exists());
        places.prepare(&control).unwrap();
        places.prepare(&control).unwrap();
        assert_eq!(mode_of(control.parent().unwrap()), 0o700);

        places.runtime = None;
        let control = places.choose().unwrap();
        places.prepare(&control).unwrap();
        assert_eq!(mode_of(control.parent().unwrap()), 0o755);
    }

    #[test]
    fn refuses_directories_that_others_can_change() {
        let root = tempfile::tempdir().unwrap();
        let mut places = places(root.path());
        let control = places.choose().unwrap();
        let directory = control.parent().unwrap();
        fs::create_dir(directory).unwrap();
        for mode in [0o777, 0o770, 0o1777] {
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
            let error = places.prepare(&control).unwrap_err().to_string();
            assert!(error.contains("runtime/tierpack") && error.contains(&format!("{mode:04o}")), "{error}");
        }
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        places.prepare(&control).unwrap();

        places.uid += 1;
        let error = places.prepare(&control).unwrap_err().to_string();
        assert!(error.contains("belongs to user"), "{error}");
    }

    #[test]
    fn refuses_links_and_files_as_directories() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let control = places.choose().unwrap();
        let directory = control.parent().unwrap();
        std::os::unix::fs::symlink(root.path().join("temp"), directory).unwrap();
        assert!(matches!(places.prepare(&control), Err(Error::SocketDirectoryUnsafe { .. })));
        fs::remove_file(directory).unwrap();
        fs::write(directory, "").unwrap();
        assert!(matches!(places.prepare(&control), Err(Error::SocketDirectoryUnsafe { .. })));
    }

    #[test]
    fn given_directories_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        places.prepare(&root.path().join("missing/control.sock")).unwrap();
        assert!(!root.path().join("missing").exists());
    }

    #[test]
    fn missing_runtime_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        let mut places = places(root.path());
        places.runtime = Some(root.path().join("gone"));
        let control = places.choose().unwrap();
        let error = places.prepare(&control).unwrap_err().to_string();
        assert!(error.contains("gone/tierpack"), "{error}");
    }
}
