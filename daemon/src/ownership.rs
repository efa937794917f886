//! Who owns a socket path: a locked file next to it decides, and nothing else.
//!
//! The kernel drops the lock with the process that holds it, so that no pid, age or content has to be judged:
//! pids repeat in containers, and what is written into the file only informs.
//! The file stays when the daemon ends; removing it would let two daemons lock two files of one name.
//!
//! Drop the listeners before the ownership: their names are only safe to remove while the lock is held.
//!
//! After a `fork` of an embedding program the child's copies of these values do nothing when dropped, and the lock is not
//! the child's: it belongs to the open file, of which the child has no descriptor.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tierpack_shm::fork::Unshared;

use crate::address::prepare_directory;
use crate::error::{Error, Result};

mod identity;
mod listener;

pub use listener::{Listener, SocketKind};

/// How often a lock file may be replaced under our hands before this is an error.
const MAX_ATTEMPTS: usize = 64;

/// The right to bind the sockets of one control path, held until drop or death.
#[derive(Debug)]
pub struct Ownership {
    control: PathBuf,
    lock_path: PathBuf,
    lock: Unshared<File>,
    pid: u32,
}

impl Ownership {
    /// Takes the ownership of a control path, and makes its directory if that is a default one.
    ///
    /// # Errors
    /// [`Error::Owned`] at once while another daemon lives, even a stopped one; [`Error::LockFile`] and
    /// [`Error::LockFileUnusable`] when there can be no lock file; those of [`prepare_directory`].
    pub fn acquire(control: &Path) -> Result<Ownership> {
        prepare_directory(control)?;
        let lock_path = lock_path(control);
        for _ in 0..MAX_ATTEMPTS {
            let lock = open_lock_file(&lock_path)?;
            let is_ours = match lock.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(source)) => {
                    return Err(Error::LockFile { path: lock_path, operation: "lock", source });
                }
            };
            // Somebody may have removed or replaced the file since it was opened; then this lock says
            // nothing.
            if !is_same_file(&lock, &lock_path) {
                continue;
            }
            if !is_ours {
                return Err(Error::Owned { path: control.to_owned(), holder: identity::read(&lock) });
            }
            identity::write(&lock);
            let lock = Unshared::new(lock).map_err(|source| Error::Shm { source })?;
            return Ok(Ownership { control: control.to_owned(), lock_path, lock, pid: std::process::id() });
        }
        Err(Error::LockFileUnusable { path: lock_path, reason: "is replaced all the time" })
    }

    /// The control path that is owned.
    #[must_use]
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Whether the lock file is still the one that is locked here.
    ///
    /// When it is not, somebody removed it, and another daemon could lock a new one.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        is_same_file(&self.lock, &self.lock_path)
    }

    /// Takes the ownership again after the lock file was removed; does nothing while it is intact.
    ///
    /// # Errors
    /// Those of [`Ownership::acquire`]; [`Error::Owned`] says that another daemon was faster.
    pub fn restore(&mut self) -> Result<()> {
        if !self.is_intact() {
            *self = Ownership::acquire(&self.control)?;
        }
        Ok(())
    }

    /// Makes a listening socket with the permissions `mode` under the name `path`.
    ///
    /// Works for the control path and for others next to it, also for one that is too long for a socket
    /// address.
    /// The socket does not block and is closed on exec.
    ///
    /// # Errors
    /// [`Error::SocketTaken`] when the name belongs to something that is no leftover socket, [`Error::Bind`]
    /// for what the system refuses.
    pub fn bind(&self, path: &Path, kind: SocketKind, mode: u32) -> Result<Listener> {
        Listener::bind(path, kind, mode)
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        // A forked child shares the lock, and unlocking its copy would take it from the parent.
        // Unlocking and not only closing: a child of a thread that forked meanwhile may hold a copy still.
        if self.pid == std::process::id() {
            drop(self.lock.unlock());
        }
    }
}

/// Device and inode: what a file is, whatever its name.
type FileId = (u64, u64);

fn id_of(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// The error for a file that another user has and that the system refuses for it; else the system's answer.
fn of_other_user(path: &Path, source: io::Error) -> core::result::Result<Error, io::Error> {
    let user = geteuid().as_raw();
    // Also root: in a folder where everybody may write, the kernel protects files of others from being opened.
    match fs::symlink_metadata(path) {
        Ok(metadata) if source.kind() == io::ErrorKind::PermissionDenied && metadata.uid() != user => {
            Ok(Error::OtherUser { path: path.to_owned(), owner: metadata.uid(), user, source })
        }
        _ => Err(source),
    }
}

fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => id_of(&open) == id_of(&named),
        _ => false,
    }
}

fn lock_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

fn open_lock_file(path: &Path) -> Result<File> {
    let failed = |operation| move |source| Error::LockFile { path: path.to_owned(), operation, source };
    // Not truncated: the content belongs to the holder until the lock says otherwise.
    // NOFOLLOW: a link must not make us write elsewhere. NONBLOCK: a FIFO must not make us wait.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags.bits())
        .open(path)
        .map_err(|source| of_other_user(path, source).unwrap_or_else(failed("open")))?;
    let metadata = file.metadata().map_err(failed("examine"))?;
    let unusable = |reason| Err(Error::LockFileUnusable { path: path.to_owned(), reason });
    if !metadata.is_file() {
        return unusable("is not a regular file");
    }
    if metadata.nlink() > 1 {
        return unusable("has a second name, and writing to it would change that file");
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
