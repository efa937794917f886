//! The messages between client and daemon: types, sizes, encoding.
//!
//! A message is a CRC32C of the rest (4 bytes, little-endian), then one postcard value, at most
//! [`MAX_MESSAGE_BYTES`] together, in one packet.
//! The first exchange is [`Hello`] and [`HelloReply`]; their first fields never change, so that two releases can
//! at least tell each other their versions.
//! Descriptors travel only with messages that name them.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, MessageFault, Result};
use crate::segment::SegmentKind;
use crate::types::{Access, CodecId, Dtype};

mod changes;
mod namespaces;
mod opens;
mod puts;
mod refusal;
mod reply;

pub use changes::{Drift, RefitMode, RefitState, Update};
pub use namespaces::{NamespaceChange, NamespaceEntry};
pub use opens::{OpenTensor, Which};
pub use puts::{Blob, PutBegin};
pub use refusal::{ErrorCode, Refusal};
pub use reply::Reply;

/// Versions of the protocol; LAYOUT.md lists their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Protocol {
    /// The first.
    V1 = 1,
    /// Sessions detach from a namespace, lose the right to one, and say goodbye.
    V2 = 2,
    /// Many tensors are opened in one moment.
    V3 = 3,
}

/// The version that this build speaks.
pub const PROTOCOL_VERSION: u16 = Protocol::V3 as u16;

/// Bytes of a message, checksum included.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Bytes that a [`Blob`] carries within the message.
pub const MAX_INLINE_BYTES: usize = 16 << 10;
/// Raw bytes of one chunk of a put.
pub const MAX_CHUNK_BYTES: u64 = 16 << 20;
/// Bytes of a tensor's name.
pub const MAX_NAME_BYTES: usize = 4096;
/// Bytes of a namespace's name.
pub const MAX_NAMESPACE_BYTES: usize = 255;
/// Dimensions of a tensor.
pub const MAX_RANK: usize = 64;
/// Bytes of a file's metadata, as JSON.
pub const MAX_FILE_METADATA_BYTES: u64 = 16 << 20;
const CHECKSUM_BYTES: usize = 4;

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol version that the client speaks.
    pub protocol: u16,
    /// The layout version that the client reads.
    pub layout: u16,
    /// Optional features that the client understands; none exist yet.
    pub features: u64,
    /// Name and version of the program, for logs.
    pub software: String,
}

/// The daemon's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloReply {
    /// The session is open.
    Welcome {
        /// The protocol version of the daemon.
        protocol: u16,
        /// The layout version of the daemon.
        layout: u16,
        /// The daemon's instance id.
        instance: u64,
        /// Features that both sides have.
        features: u64,
        /// Name and version of the daemon, for logs.
        software: String,
    },
    /// No session.
    Refused {
        /// The protocol version of the daemon.
        protocol: u16,
        /// The layout version of the daemon.
        layout: u16,
        /// Why.
        refusal: Refusal,
    },
}

/// From a client, after `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// Something that is answered with a [`DaemonMessage::Reply`] of the same id.
    Request {
        /// Chosen by the client, returned in the reply.
        id: u64,
        /// Milliseconds after which the client no longer waits.
        deadline_ms: u32,
        /// What is asked.
        request: Request,
    },
    /// The client has unmapped segments that the daemon retired.
    Unmapped {
        /// Their namespace.
        namespace: u32,
        /// Which.
        segments: Vec<SegmentId>,
    },
    /// The client has ended its leases in a namespace and unmapped all of it; it may attach again.
    Detach {
        /// The namespace.
        namespace: u32,
    },
    /// The client has ended all its leases and closes its socket next.
    Goodbye,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Read access to a namespace: [`Reply::Attached`], then its segments.
    Attach {
        /// Its name.
        namespace: String,
    },
    /// A handle to a tensor: [`Reply::Opened`].
    Open {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The metadata of the file that a tensor came from: [`Reply::FileMetadata`].
    FileMetadata {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Begins a put: [`Reply::Transfer`]. Names one descriptor when `file_metadata` does.
    PutBegin(PutBegin),
    /// Blocks of a put: [`Reply::Done`]. Names one descriptor when `data` does.
    PutChunk {
        /// From [`Reply::Transfer`].
        transfer: u64,
        /// The first block in `data`.
        first_block: u64,
        /// Whole blocks, raw.
        data: Blob,
    },
    /// Makes a put visible: [`Reply::Committed`].
    PutCommit {
        /// From [`Reply::Transfer`].
        transfer: u64,
    },
    /// Ends a put without a trace: [`Reply::Done`].
    PutAbort {
        /// From [`Reply::Transfer`].
        transfer: u64,
    },
    /// Removes a tensor: [`Reply::Done`].
    Remove {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Checks blocks of a tensor against their checksums, and their decoded bytes against the hash taken at the put:
    /// [`Reply::Verified`].
    Verify {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The block to go on from.
        first_block: u64,
    },
    /// A page of the list, sorted: [`Reply::Listed`]; what the caller may not read is left out.
    List {
        /// One namespace, or all.
        namespace: Option<String>,
        /// The (namespace, name) after which the page starts.
        after: Option<(String, String)>,
    },
    /// Makes a namespace for the caller: [`Reply::Done`].
    NamespaceCreate {
        /// Its name.
        namespace: String,
        /// What differs from a namespace that a put would make.
        change: NamespaceChange,
    },
    /// Changes a namespace: [`Reply::Done`].
    NamespaceChange {
        /// Its name.
        namespace: String,
        /// What changes.
        change: NamespaceChange,
    },
    /// Removes a namespace: [`Reply::Done`].
    NamespaceRemove {
        /// Its name.
        namespace: String,
        /// Whether its tensors go with it; else it must be empty.
        with_tensors: bool,
    },
    /// A page of the namespaces, sorted: [`Reply::Namespaces`].
    NamespaceList {
        /// The name after which the page starts.
        after: Option<String>,
    },
    /// New values for rows: [`Reply::Updated`]. Names one descriptor when `data` does.
    Update(Update),
    /// Puts the overlays of a tensor into its blocks now: [`Reply::Done`].
    Fold {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Looks how new metadata would suit a tensor, and may have them made: [`Reply::Drift`].
    Refit {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Which.
        mode: RefitMode,
    },
    /// Parts of a put's tensor, before its chunks: its codec is chosen by them. [`Reply::Done`]. Names one descriptor
    /// when `data` does.
    PutSample {
        /// From [`Reply::Transfer`].
        transfer: u64,
        /// The pieces that `kernels::fit::pieces` names for the whole tensor and the seed of its name, one after the
        /// other.
        data: Blob,
    },
    /// Begins a put of several tensors, which become visible in one step: [`Reply::Transaction`].
    TransactionBegin {
        /// The namespace of all of them.
        namespace: String,
        /// Whether tensors of their names are replaced.
        overwrite: bool,
    },
    /// Claims names for a transaction, all or none: [`Reply::Done`].
    ///
    /// Nobody else puts, updates or removes tensors of these names until it ends.
    TransactionClaim {
        /// From [`Reply::Transaction`].
        transaction: u64,
        /// The names.
        names: Vec<String>,
    },
    /// Makes the tensors of a transaction visible: [`Reply::Done`]. One of each claimed name has to be there.
    TransactionCommit {
        /// From [`Reply::Transaction`].
        transaction: u64,
    },
    /// Ends a transaction without a trace: [`Reply::Done`].
    TransactionAbort {
        /// From [`Reply::Transaction`].
        transaction: u64,
    },
    /// Handles to many tensors: [`Reply::OpenedMany`].
    OpenMany {
        /// Their namespace.
        namespace: String,
        /// Which.
        which: Which,
    },
    /// Refuses commits to a namespace with [`ErrorCode::Busy`] for a moment: [`Reply::Held`].
    Hold {
        /// Its name.
        namespace: String,
    },
    /// Ends what [`Request::Hold`] began: [`Reply::Done`].
    Release {
        /// Its name.
        namespace: String,
    },
}

/// From the daemon, after `HelloReply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonMessage {
    /// The answer to a request.
    Reply {
        /// The id of the request.
        id: u64,
        /// What came of it.
        result: core::result::Result<Reply, Refusal>,
    },
    /// Segments to map; names one descriptor each, in order.
    Segments {
        /// Their namespace.
        namespace: u32,
        /// Which, with their lengths.
        segments: Vec<(SegmentId, u64)>,
    },
    /// Segments to unmap, each answered with [`ClientMessage::Unmapped`].
    Retired {
        /// Their namespace.
        namespace: u32,
        /// Which.
        segments: Vec<SegmentId>,
    },
    /// The right to read a namespace was taken away: no segment of it is announced any more.
    ///
    /// Answered with [`ClientMessage::Detach`] once no guard reads it.
    Detached {
        /// The namespace.
        namespace: u32,
    },
}

impl DaemonMessage {
    /// Descriptors that this message names.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Reply { result: Ok(Reply::Attached { .. }), .. } => 2,
            Self::Reply { result: Ok(Reply::FileMetadata(Some(Blob::Descriptor { .. }))), .. } => 1,
            Self::Segments { segments, .. } => segments.len(),
            Self::Reply { .. } | Self::Retired { .. } | Self::Detached { .. } => 0,
        }
    }
}

impl ClientMessage {
    /// Descriptors that this message names.
    pub fn descriptors(&self) -> usize {
        let blob = match self {
            Self::Request { request: Request::PutBegin(begin), .. } => begin.file_metadata.as_ref(),
            Self::Request {
                request:
                    Request::PutChunk { data, .. }
                    | Request::PutSample { data, .. }
                    | Request::Update(Update { data, .. }),
                ..
            } => Some(data),
            Self::Request { .. } | Self::Unmapped { .. } | Self::Detach { .. } | Self::Goodbye => None,
        };
        usize::from(matches!(blob, Some(Blob::Descriptor { .. })))
    }
}

/// Checks that as many descriptors came as a message names.
///
/// # Errors
/// [`Error::Malformed`] with both numbers.
pub fn check_descriptors(needed: usize, found: usize) -> Result<()> {
    if needed == found {
        return Ok(());
    }
    Err(Error::Malformed { len: 0, fault: MessageFault::Descriptors { found, needed } })
}

/// A segment of a namespace, and which one of those that had its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentId {
    /// What it holds.
    pub kind: SegmentKind,
    /// Its index.
    pub index: u32,
    /// Never used twice by one daemon.
    pub serial: u64,
}

/// What verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The block.
    pub block_idx: u64,
    /// What is wrong with it.
    pub fault: String,
}

/// One tensor in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape, outermost dimension first.
    pub shape: Vec<u64>,
    /// How its blocks are encoded.
    pub codec: CodecId,
    /// What its blocks are cut for.
    pub access: Access,
    /// Bytes of its elements.
    pub raw_bytes: u64,
    /// Bytes of its extents: blocks, overlays and metadata, rounding included.
    pub stored_bytes: u64,
    /// Updates since it was put.
    pub revision: u64,
    /// The number of its metadata; 0 when no block needs any.
    pub generation: u32,
    /// Stored bytes that the sample of the put promised; after a refit, those that came of it.
    pub predicted_bytes: u64,
    /// The next best codec, and the stored bytes that the sample promised for it.
    pub runner_up: Option<(CodecId, u64)>,
    /// Chunks that did not fit the metadata.
    pub escapes: u64,
    /// Chunks that the metadata shortened.
    pub participating: u64,
}

/// Metadata of a file: what a safetensors header calls `__metadata__`.
pub type FileMetadata = BTreeMap<String, String>;

/// Encodes a message.
///
/// # Errors
/// [`Error::MessageTooLong`] over [`MAX_MESSAGE_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let undecodable = |_| Error::Malformed { len: 0, fault: MessageFault::Undecodable };
    let mut bytes = postcard::to_extend(message, vec![0; CHECKSUM_BYTES]).map_err(undecodable)?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Error::MessageTooLong { len: bytes.len(), limit: MAX_MESSAGE_BYTES });
    }
    let checksum = crc32c::crc32c(&bytes[CHECKSUM_BYTES..]);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

/// Decodes a message: any bytes decode to a value or an error, and nothing is allocated beyond their length.
///
/// # Errors
/// [`Error::MessageTooLong`] or [`Error::Malformed`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let (value, left) = take(bytes)?;
    match left {
        0 => Ok(value),
        left => Err(Error::Malformed { len: bytes.len(), fault: MessageFault::LeftOver(left) }),
    }
}

/// Decodes a [`Hello`] or [`HelloReply`]: fields that a later version appended are passed over.
///
/// # Errors
/// As [`decode`].
pub fn decode_hello<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    take(bytes).map(|(value, _)| value)
}

fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize)> {
    let malformed = |fault| Error::Malformed { len: bytes.len(), fault };
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Error::MessageTooLong { len: bytes.len(), limit: MAX_MESSAGE_BYTES });
    }
    let (checksum, rest) =
        bytes.split_first_chunk::<CHECKSUM_BYTES>().ok_or(malformed(MessageFault::Short))?;
    if u32::from_le_bytes(*checksum) != crc32c::crc32c(rest) {
        return Err(malformed(MessageFault::Checksum));
    }
    let (value, left) = postcard::take_from_bytes(rest).map_err(|_| malformed(MessageFault::Undecodable))?;
    Ok((value, left.len()))
}

#[cfg(test)]
mod tests;
