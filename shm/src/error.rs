//! What can go wrong with segments, sockets and messages.

use std::io;

use nix::errno::Errno;

/// Result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// An operation of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel made no memory file.
    #[error("create a memory file of {len} bytes for {purpose}")]
    Create {
        /// Bytes asked for.
        len: u64,
        /// What it was for.
        purpose: &'static str,
        /// The kernel's answer.
        source: Errno,
    },
    /// The kernel did not seal a memory file.
    #[error("seal a memory file of {len} bytes")]
    Seal {
        /// Its length.
        len: u64,
        /// The kernel's answer.
        source: Errno,
    },
    /// The kernel did not map a memory file.
    #[error("map {len} bytes of shared memory")]
    Map {
        /// Bytes asked for.
        len: u64,
        /// The kernel's answer.
        source: Errno,
    },
    /// The kernel did not page-lock a segment.
    #[error("page-lock a segment of {len} bytes")]
    Lock {
        /// Its length.
        len: u64,
        /// The kernel's answer.
        source: Errno,
    },
    /// A descriptor that came from a peer is not what the peer said.
    #[error("descriptor for {purpose}: {fault}")]
    Descriptor {
        /// What it was for.
        purpose: &'static str,
        /// What is wrong with it.
        fault: DescriptorFault,
    },
    /// A directory or page that this build cannot read.
    #[error(
        "shared {what} has {field} {found:#x}, this build needs {needed:#x}: use the client and the daemon of one release"
    )]
    Layout {
        /// Which structure.
        what: &'static str,
        /// Which field of it.
        field: &'static str,
        /// What was there.
        found: u64,
        /// What had to be there.
        needed: u64,
    },
    /// An address outside its segment.
    #[error("{what} at unit {address} with {len} bytes does not lie in a segment")]
    OutOfSegment {
        /// Which structure.
        what: &'static str,
        /// Its address in units.
        address: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A read or write on a memory file or socket failed.
    #[error("{operation}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The peer closed its end.
    #[error("the peer closed the connection")]
    Closed,
    /// The socket would block.
    #[error("the socket is not ready")]
    WouldBlock,
    /// A message longer than the protocol allows.
    #[error("message of {len} bytes is over the limit of {limit}")]
    MessageTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A message that cannot be decoded.
    #[error("malformed message of {len} bytes: {fault}")]
    Malformed {
        /// Its length.
        len: usize,
        /// What is wrong with it.
        fault: MessageFault,
    },
    /// Passed descriptors were lost.
    #[error("descriptors of a message were cut off: raise the limit on open files (ulimit -n)")]
    DescriptorsCut,
}

/// What is wrong with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorFault {
    /// It is not a memory file in ordinary pages.
    #[error("not a memory file (memfd) in ordinary pages")]
    NotAMemoryFile,
    /// It is shorter or longer than the message said.
    #[error("{found} bytes long, {needed} were announced")]
    Length {
        /// Its length.
        found: u64,
        /// The length that the peer announced.
        needed: u64,
    },
    /// A seal is missing.
    #[error("seals {found:#x} do not include {needed:#x}")]
    Seals {
        /// The seals that it has.
        found: i32,
        /// The seals that it needs.
        needed: i32,
    },
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageFault {
    /// Shorter than its own checksum.
    #[error("too short")]
    Short,
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// It is no message of this protocol version.
    #[error("not a message of this protocol version")]
    Undecodable,
    /// Bytes are left over.
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    /// It names another number of descriptors than came.
    #[error("{found} descriptors came, {needed} were named")]
    Descriptors {
        /// How many came.
        found: usize,
        /// How many the message names.
        needed: usize,
    },
    /// It names more unmapped segments than were retired to its session.
    #[error("{found} segments were named as unmapped, {needed} were retired")]
    Unmapped {
        /// How many it names.
        found: usize,
        /// How many were retired and not unmapped.
        needed: usize,
    },
}
