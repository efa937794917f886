//! A listening socket under a name of the file system: made in one step, removed only while it is ours.
//!
//! The socket is bound under a temporary name, gets its permissions, listens, and only then takes its final
//! name:
//! nobody can connect too early, and a leftover of a dead daemon is replaced without a gap.
//! A path longer than a socket address goes by way of a descriptor in `/proc/self/fd`.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, connect, listen, shutdown, socket,
};
use tierpack_shm::fork::Unshared;

use super::{FileId, id_of, of_other_user};
use crate::address::MAX_PATH_BYTES;
use crate::error::{Error, Result};

/// Connections that may wait for accept; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 1024;

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// Messages with bounds, for control.
    SeqPacket,
    /// A stream of bytes, for stats.
    Stream,
}

/// A listening socket and the name that leads to it; dropping it removes the name.
#[derive(Debug)]
pub struct Listener {
    fd: Unshared<OwnedFd>,
    path: PathBuf,
    id: FileId,
    pid: u32,
}

impl Listener {
    /// Binds under a temporary name and moves to the final one when everything is set.
    pub(super) fn bind(path: &Path, kind: SocketKind, mode: u32) -> Result<Listener> {
        let failed = |operation| move |source| Error::Bind { path: path.to_owned(), operation, source };
        let invalid = || failed("split the path")(ErrorKind::InvalidInput.into());
        let (directory, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
        refuse_if_taken(path, kind)?;

        // One fixed temporary name per socket: only the holder of the lock uses it, and so
        // removes what a kill left behind.
        let temporary = directory.join(temporary_name(name));
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("remove the temporary name")(error));
            }
            _ => {}
        }
        let fd = new_socket(kind).map_err(|errno| failed("make the socket")(errno.into()))?;
        let fd = Unshared::new(fd).map_err(|source| Error::Shm { source })?;
        bind_name(&fd, &temporary).map_err(failed("bind the temporary name"))?;
        let metadata = fs::symlink_metadata(&temporary).map_err(failed("examine the temporary name"))?;
        // From here on, a failure drops the listener and with it the temporary name.
        let mut listener = Listener { fd, path: temporary, id: id_of(&metadata), pid: std::process::id() };
        fs::set_permissions(&listener.path, Permissions::from_mode(mode))
            .map_err(failed("set permissions"))?;
        start_listening(&listener.fd).map_err(|errno| failed("listen")(errno.into()))?;
        let other_user =
            |source| of_other_user(path, source).unwrap_or_else(failed("rename to the final name"));
        fs::rename(&listener.path, path).map_err(other_user)?;
        path.clone_into(&mut listener.path);
        Ok(listener)
    }

    /// The name under which clients find the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the name still leads to this socket; when not, [`super::Ownership::bind`] makes a new one.
    #[must_use]
    pub fn is_still_there(&self) -> bool {
        // The kernel keeps the inode of a bound socket, so its number cannot come back while this one is
        // open.
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| id_of(&metadata) == self.id)
    }

    /// Removes the name and closes the socket, and tells of a failure as drop cannot.
    ///
    /// # Errors
    /// [`Error::Bind`] when the name is still there and cannot be removed.
    pub fn close(self) -> Result<()> {
        self.remove_name().map_err(|source| Error::Bind {
            path: self.path.clone(),
            operation: "remove the name",
            source,
        })
    }

    fn remove_name(&self) -> std::io::Result<()> {
        if self.pid == std::process::id() && self.is_still_there() {
            fs::remove_file(&self.path)
        } else {
            Ok(())
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // There is nobody to report this to, and a leftover name is replaced by the next daemon.
        drop(self.remove_name());
        if self.pid == std::process::id() {
            // Not only closed: who else has the descriptor must not keep clients waiting.
            let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both).is_ok();
        }
    }
}

/// Refuses a name that leads to anything but the socket of a process that is gone.
fn refuse_if_taken(path: &Path, kind: SocketKind) -> Result<()> {
    let failed =
        |source| Error::Bind { path: path.to_owned(), operation: "examine what has its name", source };
    let taken = |reason| Err(Error::SocketTaken { path: path.to_owned(), reason });
    let file_type = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if file_type.is_symlink() {
        return taken("is a symbolic link");
    }
    if !file_type.is_socket() {
        return taken("is not a socket");
    }
    let probe = new_socket(kind).map_err(|errno| failed(errno.into()))?;
    match connect_name(&probe, path) {
        // Nobody listens, or the file has just gone.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(()),
        Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::EAGAIN | Errno::EINPROGRESS | Errno::EPROTOTYPE => taken("has a live listener"),
            _ => Err(of_other_user(path, error).unwrap_or_else(failed)),
        },
        Ok(()) => taken("has a live listener"),
    }
}

pub(super) fn new_socket(kind: SocketKind) -> nix::Result<OwnedFd> {
    let kind = match kind {
        SocketKind::SeqPacket => SockType::SeqPacket,
        SocketKind::Stream => SockType::Stream,
    };
    socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

fn start_listening(fd: &OwnedFd) -> nix::Result<()> {
    listen(fd, Backlog::new(BACKLOG)?)
}

/// A short name, because a long path leaves only the room after `/proc/self/fd/NUMBER/` for it.
pub(super) fn temporary_name(name: &OsStr) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    format!(".tierpack-{:016x}", hasher.finish())
}

/// Binds to a name, by way of its directory's descriptor when the path is too long for an address.
fn bind_name(fd: &OwnedFd, path: &Path) -> std::io::Result<()> {
    if path.as_os_str().len() <= MAX_PATH_BYTES {
        return Ok(bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?);
    }
    let (directory, name) = path.parent().zip(path.file_name()).ok_or(ErrorKind::InvalidInput)?;
    let directory = open_path(directory, OFlag::O_DIRECTORY)?;
    Ok(bind(fd.as_raw_fd(), &UnixAddr::new(&descriptor_path(&directory).join(name))?)?)
}

/// Connects to a name, by way of its own descriptor when the path is too long for an address.
pub(super) fn connect_name(fd: &OwnedFd, path: &Path) -> std::io::Result<()> {
    if path.as_os_str().len() <= MAX_PATH_BYTES {
        return Ok(connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?);
    }
    let file = open_path(path, OFlag::O_NOFOLLOW)?;
    Ok(connect(fd.as_raw_fd(), &UnixAddr::new(&descriptor_path(&file))?)?)
}

fn open_path(path: &Path, flags: OFlag) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlag::O_PATH | flags).bits()).open(path)
}

fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
