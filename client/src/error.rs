//! What can go wrong for a caller of this crate.
//!
//! A variant per thing that a caller can act on; the texts name the cause, the numbers, and what to do.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tierpack_kernels::cuda::driver::GpuError;
use tierpack_shm::types::{CodecId, Dtype};

use crate::handle::Handle;
use crate::protocol::ProtocolFault;

/// Result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// A call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon was found.
    #[error(
        "no daemon answers at {}: start one with `tierpack serve`, or name its socket in TIERPACK_SOCKET",
        list(tried)
    )]
    NoDaemon {
        /// Where it was looked for, with the system's answers.
        tried: Vec<Tried>,
    },
    /// The path of a socket is too long for the system.
    #[error("socket path {path:?} has {len} bytes, the system allows {limit}: choose a shorter one")]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        len: usize,
        /// The most bytes allowed.
        limit: usize,
    },
    /// The path of a socket names no file.
    #[error(
        "socket path {path:?} is empty, has a zero byte, or is relative to a directory that is gone: name the daemon's \
         socket file"
    )]
    SocketPathInvalid {
        /// The path.
        path: PathBuf,
    },
    /// A socket in the shared temporary folder belongs to somebody else.
    #[error(
        "socket {path:?} is served by user {found}, not by user {needed}: remove it, or name the daemon's socket \
         in TIERPACK_SOCKET"
    )]
    Stranger {
        /// The path.
        path: PathBuf,
        /// The user of the process behind it.
        found: u32,
        /// The user that we are.
        needed: u32,
    },
    /// Client and daemon are of different releases.
    #[error(
        "this client speaks protocol {} and reads layout {}, the daemon at {path:?} has protocol {} and layout {}: \
         {}",
        .client.0, .client.1, .daemon.0, .daemon.1,
        if .daemon < .client { "restart the daemon from this client's release" } else { "upgrade the client" }
    )]
    Version {
        /// The daemon's socket.
        path: PathBuf,
        /// Protocol and layout of this client.
        client: (u16, u16),
        /// Protocol and layout of the daemon.
        daemon: (u16, u16),
    },
    /// The daemon sent what the protocol does not allow; the connection is closed.
    #[error("the daemon broke the protocol during: {operation}")]
    Protocol {
        /// What was asked.
        operation: &'static str,
        /// What is wrong.
        source: Arc<ProtocolFault>,
    },
    /// The daemon hung up before it answered.
    #[error("the daemon closed the connection during: {operation}")]
    Disconnected {
        /// What was asked.
        operation: &'static str,
    },
    /// Something was not done in its time.
    #[error("{operation}: not done within {seconds} s, the client's deadline")]
    Deadline {
        /// What was asked.
        operation: &'static str,
        /// The deadline.
        seconds: f64,
    },
    /// The calling process is a fork of the one that connected.
    #[error("this process is a fork of the one that connected: connect again in the child")]
    Forked,
    /// No tensor of that name.
    #[error("no tensor {name:?} in namespace {namespace:?}")]
    NotFound {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// The daemon that held the tensor is gone, and the next one does not have it.
    #[error(
        "tensor {name:?} in namespace {namespace:?} is lost: the daemon was restarted and its pool started empty: \
         put the tensor again"
    )]
    Lost {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// The name holds a tensor of another dtype or shape than when it was opened.
    #[error(
        "tensor {name:?} in namespace {namespace:?} was {was} when it was opened and is {now} now: open it again"
    )]
    Replaced {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
        /// Dtype, shape and row length of the handle.
        was: String,
        /// Dtype, shape and row length now.
        now: String,
    },
    /// The tensor was put again, or by another daemon, while it was read in parts.
    #[error(
        "tensor {name:?} in namespace {namespace:?} was put again while it was read part by part: read it from the \
         start"
    )]
    Superseded {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// A tensor of that name exists.
    #[error("tensor {name:?} exists in namespace {namespace:?}: ask to overwrite it, or choose another name")]
    Exists {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// No namespace of that name.
    #[error("no namespace {namespace:?}: see `tierpack ns ls`")]
    NoNamespace {
        /// The name.
        namespace: String,
    },
    /// A namespace of that name exists.
    #[error("namespace {namespace:?} exists: change it, or choose another name")]
    NamespaceExists {
        /// The name.
        namespace: String,
    },
    /// The pool has no room.
    #[error("{operation}: {text}")]
    PoolFull {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says: the numbers, and what holds the room.
        text: String,
    },
    /// The daemon has too much to do: try again.
    #[error("{operation}: {text}")]
    Busy {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says.
        text: String,
    },
    /// The request contradicts itself.
    #[error("{operation}: {text}")]
    Invalid {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says.
        text: String,
    },
    /// The caller may not do that.
    #[error("{operation}: {text}")]
    Denied {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says.
        text: String,
    },
    /// A stored block is not what was put.
    #[error(
        "tensor {name:?} in namespace {namespace:?} is damaged in block {block_idx}: {fault}; put it again"
    )]
    Damaged {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The block.
        block_idx: u64,
        /// What is wrong with it.
        fault: String,
    },
    /// The namespace's quota has no room.
    #[error("{operation}: {text}")]
    Quota {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says, with the numbers.
        text: String,
    },
    /// Too many sessions, transfers, namespaces or tensors.
    #[error("{operation}: {text}")]
    Limit {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says.
        text: String,
    },
    /// The daemon is shutting down.
    #[error("{operation}: the daemon is shutting down: start it again")]
    Stopping {
        /// What was asked.
        operation: &'static str,
    },
    /// The system refused the daemon something.
    #[error("{operation}: the daemon failed: {text}")]
    Internal {
        /// What was asked.
        operation: &'static str,
        /// What the daemon says; its log has more.
        text: String,
    },
    /// Refused for a reason that this client does not know.
    #[error("{operation}: refused with code {code}: {text}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// The code.
        code: u16,
        /// What the daemon says.
        text: String,
    },
    /// A name is too long.
    #[error("the {what} has {len} bytes, at most {limit} are allowed")]
    NameTooLong {
        /// Which name.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A tensor of this shape cannot be stored.
    #[error("shape of tensor {name:?}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// What is wrong with it.
        source: tierpack_kernels::Error,
    },
    /// The metadata of the file is too long.
    #[error("the file's metadata has {len} bytes as JSON, at most {limit} are allowed")]
    FileMetadataTooLong {
        /// Its bytes.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The data of a tensor, or the buffer for it, has another length than the tensor.
    #[error("the buffer has {got} bytes, {needed} are needed")]
    BufferLength {
        /// Bytes of the tensor or of the rows.
        needed: u128,
        /// Bytes of the buffer.
        got: u64,
    },
    /// The bytes of a put ended early or could not be read.
    #[error("read the tensor's bytes: {got} of {needed} came")]
    Source {
        /// Bytes that came.
        got: u64,
        /// Bytes of the tensor.
        needed: u64,
        /// Why there are no more.
        source: io::Error,
    },
    /// A row number that the tensor does not have.
    #[error("row {row} at position {position} is out of range: the tensor has {n_rows} rows")]
    RowOutOfRange {
        /// Position in the list of rows.
        position: usize,
        /// The row number.
        row: i128,
        /// Rows of the tensor.
        n_rows: u64,
    },
    /// What is wrong with one tensor of a call over several, where the cause does not name it.
    #[error("tensor {name:?} in namespace {namespace:?}: {source}")]
    OfTensor {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
        /// What is wrong.
        source: Box<Error>,
    },
    /// A block number that the tensor does not have.
    #[error("block {block_idx} is out of range: the tensor has {n_blocks} blocks")]
    BlockOutOfRange {
        /// The block number.
        block_idx: u64,
        /// Blocks of the tensor.
        n_blocks: u64,
    },
    /// The rows of the tensor are not whole bytes.
    #[error("rows of a {dtype} tensor of shape {shape:?} are not whole bytes: get the whole tensor")]
    NotGatherable {
        /// The dtype.
        dtype: Dtype,
        /// The shape.
        shape: Vec<u64>,
    },
    /// The tensor is not kept raw, so there are no bytes to look at.
    #[error("the tensor is encoded with codec {codec}: a view needs codec raw, use get or gather")]
    Encoded {
        /// Its codec.
        codec: CodecId,
    },
    /// The elements have another type.
    #[error("the tensor has dtype {dtype}, its elements are not {asked}")]
    DtypeMismatch {
        /// The tensor's dtype.
        dtype: Dtype,
        /// The Rust type that was asked for.
        asked: &'static str,
    },
    /// Every lease of this client in this namespace is taken.
    #[error("all {limit} leases of this client are taken: drop views that are not needed")]
    TooManyLeases {
        /// How many there are.
        limit: u64,
    },
    /// The daemon's directory contradicts itself.
    #[error(
        "the directory entry of tensor {name:?} in namespace {namespace:?} is damaged: restart the daemon"
    )]
    Corrupt {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// A block is stored in a way that this client does not know.
    #[error("block {block_idx} of the tensor is {state}, which this client cannot read: upgrade the client")]
    Unsupported {
        /// The block.
        block_idx: u64,
        /// How it is stored.
        state: &'static str,
    },
    /// There is no memory for the result.
    #[error("no memory for {bytes} bytes of tensor: use get_into or gather_into with a buffer of your own")]
    Memory {
        /// Bytes of the result.
        bytes: u128,
    },
    /// A variable of the environment says what it may not.
    #[error("{name} is {found:?}: {needed}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What it says.
        found: String,
        /// What it may say.
        needed: &'static str,
    },
    /// The system refused this process something.
    #[error("{operation}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: tierpack_shm::error::Error,
    },
    /// A socket operation failed.
    #[error("{operation} with {path:?}")]
    Socket {
        /// What was tried.
        operation: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The session's thread cannot be started.
    #[error("start the session's thread")]
    Thread {
        /// The system's answer.
        source: io::Error,
    },
    /// A GPU cannot be used, or a call of its driver failed.
    #[error(transparent)]
    Gpu(GpuError),
    /// A JSON document of the daemon cannot be read.
    #[error("parse {what} of {len} bytes from the daemon")]
    Document {
        /// What it was to be.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// What came from the stats socket is too long or no text.
    #[error("stats from {path:?}: {len} bytes came that are not a text of at most {limit} bytes")]
    StatsText {
        /// The socket.
        path: PathBuf,
        /// Bytes that came.
        len: usize,
        /// The most that are read.
        limit: usize,
    },
}

impl Error {
    /// This error of a call over `n_tensors`, which names `handle` as the one that it is about.
    pub(crate) fn of(self, handle: &Handle, n_tensors: usize) -> Self {
        match self {
            Self::RowOutOfRange { .. }
            | Self::BufferLength { .. }
            | Self::NotGatherable { .. }
            | Self::Unsupported { .. }
            | Self::Memory { .. }
                if n_tensors > 1 =>
            {
                let (namespace, name) =
                    (handle.client().namespace_name().to_owned(), handle.name().to_owned());
                Self::OfTensor { namespace, name, source: Box::new(self) }
            }
            // It names its tensor, or is about no tensor.
            _ => self,
        }
    }
}

/// Where a daemon was looked for.
#[derive(Debug)]
pub struct Tried {
    /// The socket.
    pub path: PathBuf,
    /// The system's answer.
    pub cause: io::Error,
}

fn list(tried: &[Tried]) -> String {
    let each: Vec<String> = tried.iter().map(|tried| format!("{:?} ({})", tried.path, tried.cause)).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_error_says_whom_to_restart() {
        let error = |daemon| Error::Version { path: PathBuf::from("/s"), client: (2, 3), daemon }.to_string();
        assert!(error((1, 9)).contains("restart the daemon"));
        assert!(error((2, 4)).contains("upgrade the client"));
        assert!(error((2, 4)).contains("protocol 2 and reads layout 3"));
    }
}
