//! The one error of this crate.
//!
//! A variant names the operation that failed and carries the numbers; where a user can do something about it,
//! the text says what.
//! The text never repeats the source: callers print the whole chain.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::size::ByteSize;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in the daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size in bytes that cannot be read.
    #[error("size {given:?} cannot be read: {reason}")]
    Size {
        /// The text, cut after 64 characters.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The configuration file cannot be read.
    #[error("read configuration file {path:?}")]
    ConfigRead {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// The configuration file is not what it should be: no TOML, an unknown key, a value of the wrong kind.
    #[error("configuration file {path:?}, line {line}: {message}")]
    ConfigParse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },

    /// A setting has a value that it may not have.
    #[error("{origin}: {message}")]
    ConfigValue {
        /// Where the value comes from: a flag, a variable, a file.
        origin: String,
        /// What is wrong, with the value and the limits.
        message: String,
    },

    /// The configuration cannot be shown as TOML.
    #[error("show the configuration: {reason}")]
    ConfigShow {
        /// Why not.
        reason: String,
    },

    /// A socket path does not fit into a socket address.
    #[error(
        "socket path {path:?} from {origin} has {len} bytes, but the system allows {limit}: choose a shorter one with \
         --socket"
    )]
    SocketPathTooLong {
        /// The path, made absolute.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The longest that works.
        limit: usize,
        /// The option that it comes from.
        origin: String,
    },

    /// A socket path that names no file.
    #[error("socket path {path:?} from {origin} names no file: give DIRECTORY/NAME with --socket")]
    SocketPathInvalid {
        /// The path.
        path: PathBuf,
        /// The option that it comes from.
        origin: String,
    },

    /// The directory of the socket cannot be made or examined.
    #[error("prepare socket directory {path:?} (--socket chooses another)")]
    SocketDirectory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// Others could replace the socket in its directory.
    #[error(
        "socket directory {path:?} is not safe: {reason}; correct it, remove it, or choose another path with --socket"
    )]
    SocketDirectoryUnsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong, with the numbers.
        reason: String,
    },

    /// The lock file next to the socket cannot be opened or locked.
    #[error(
        "lock file {path:?}: {operation} (its directory must exist and be writable; --socket chooses another)"
    )]
    LockFile {
        /// The lock file.
        path: PathBuf,
        /// The step that failed.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// Something else than a lock file has its name, or the file changes all the time.
    #[error("lock file {path:?} {reason}: remove it or choose another path with --socket")]
    LockFileUnusable {
        /// The lock file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The lock file or the socket belongs to another user, whom the system protects.
    #[error(
        "{path:?} belongs to user {owner}, and this process is of user {user}: use the daemon of user {owner}, have that \
         user or root remove it, or choose another path with --socket"
    )]
    OtherUser {
        /// The lock file or the socket.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who runs this process.
        user: u32,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// Another daemon owns the socket.
    #[error(
        "socket {path:?} is owned by another daemon ({holder}): stop it or choose another path with --socket"
    )]
    Owned {
        /// The control socket.
        path: PathBuf,
        /// What the lock file says about the other daemon; it informs and decides nothing.
        holder: String,
    },

    /// The name of the socket is taken by something that is no leftover socket.
    #[error("{path:?} {reason}: it is left alone; remove it or choose another path with --socket")]
    SocketTaken {
        /// The path of the socket.
        path: PathBuf,
        /// What is there.
        reason: &'static str,
    },

    /// A socket cannot be made under its name.
    #[error("bind socket {path:?}: {operation}")]
    Bind {
        /// The path of the socket.
        path: PathBuf,
        /// The step that failed.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// A file in which the system tells a memory limit is not understood.
    #[error("memory limit in {path:?}: {reason}")]
    LimitFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with its text.
        reason: String,
    },

    /// The pool is larger than the memory that this process may use.
    #[error(
        "pool of {pool} needs {needed} with the daemon's own memory, but only {available} are available: the limit in \
         {origin:?} is {limit}, of which {used} are in use; give a smaller --pool-size or raise the limit"
    )]
    PoolTooLarge {
        /// The size asked for.
        pool: ByteSize,
        /// The size with what the daemon needs next to it.
        needed: ByteSize,
        /// What can be had.
        available: ByteSize,
        /// The limit that is met first.
        limit: ByteSize,
        /// What is in use under that limit and cannot be reclaimed.
        used: ByteSize,
        /// The file that names the limit.
        origin: PathBuf,
    },

    /// The pool would grow past the memory that this process may use.
    #[error(
        "pool growth by {needed}, but only {available} are available: the limit in {origin:?} is {limit}, of which \
         {used} are in use; free memory, raise the limit, or start with a smaller --pool-size"
    )]
    MemoryShort {
        /// What is needed.
        needed: ByteSize,
        /// What can be had.
        available: ByteSize,
        /// The limit that is met first.
        limit: ByteSize,
        /// What is in use under that limit and cannot be reclaimed.
        used: ByteSize,
        /// The file that names the limit.
        origin: PathBuf,
    },

    /// Page-locking met the limit of locked memory.
    #[error(
        "page-lock {needed}: the limit of locked memory is {limit}, of which {locked} are in use; raise it (ulimit -l, \
         LimitMEMLOCK= in a systemd unit, --ulimit memlock= of a container), grant CAP_IPC_LOCK, or use --lock try"
    )]
    LockLimit {
        /// What is to be locked.
        needed: ByteSize,
        /// `RLIMIT_MEMLOCK`.
        limit: ByteSize,
        /// What this process has locked already.
        locked: ByteSize,
    },

    /// Page-locking failed for another reason than the limit.
    #[error("page-lock {needed}: the limit of locked memory is not the reason; --lock try goes on without")]
    PageLock {
        /// What is to be locked.
        needed: ByteSize,
        /// What the system said.
        #[source]
        source: Errno,
    },

    /// A limit of this process cannot be read or set.
    #[error("{operation} resource limit {name}")]
    ResourceLimit {
        /// Read or raise.
        operation: &'static str,
        /// The name of the limit.
        name: &'static str,
        /// What the system said.
        #[source]
        source: Errno,
    },

    /// Signals cannot be blocked or awaited.
    #[error("{operation} signals")]
    Signals {
        /// The step that failed.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: Errno,
    },

    /// The descriptor that tells of shutdown cannot be made.
    #[error("make the descriptor that tells of shutdown")]
    ShutdownDescriptor {
        /// What the system said.
        #[source]
        source: Errno,
    },

    /// A thread cannot be started.
    #[error("start thread {name}")]
    Thread {
        /// The name of the thread.
        name: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// Shared memory or its sockets failed.
    #[error("shared memory")]
    Shm {
        /// What failed.
        #[source]
        source: tierpack_shm::error::Error,
    },

    /// The kernel refused to poll.
    #[error("wait for sockets")]
    Poll {
        /// The kernel's answer.
        #[source]
        source: Errno,
    },

    /// A worker found a broken invariant of our own.
    #[error("a worker panicked, and the daemon ends rather than go on with what it may have broken: {text}")]
    Panicked {
        /// What the panic said.
        text: String,
    },
}

/// An error with its sources on one line, as logs and refusals show it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
