//! What the daemon answers.

use serde::{Deserialize, Serialize};

use super::{Blob, Damage, Drift, Entry, NamespaceEntry, OpenTensor, SegmentId};
use crate::attachment::SlotRef;
use crate::page::NamespaceId;

/// What a request returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, nothing to tell.
    Done,
    /// Names two descriptors: the client page, segment 0 of the directory.
    Attached {
        /// Which namespace.
        id: NamespaceId,
        /// Bytes of segment 0 of the directory.
        header_len: u64,
        /// Which segment that is.
        header: SegmentId,
    },
    /// A tensor.
    Opened {
        /// Its namespace: another one than the session is attached to when that was removed and made again.
        namespace: u32,
        /// What `list` says about it.
        entry: Entry,
        /// Elements of a row, for tensors of rank 1.
        row_elems: Option<u64>,
        /// Where it is.
        slot: SlotRef,
    },
    /// The metadata of the file that a tensor came from: JSON, an object of strings.
    FileMetadata(
        /// Names one descriptor when it is one.
        Option<Blob>,
    ),
    /// A put has begun.
    Transfer {
        /// Names it in the requests that follow.
        transfer: u64,
    },
    /// A put is visible.
    Committed(
        /// What `list` says about it.
        Entry,
    ),
    /// A page of the list.
    Listed {
        /// In order.
        entries: Vec<Entry>,
        /// Whether there are more after the last.
        more: bool,
    },
    /// Blocks were checked.
    Verified {
        /// Blocks of the tensor.
        n_blocks: u64,
        /// The block to go on from; `n_blocks` at the end.
        next_block: u64,
        /// Raw bytes that were decoded and compared.
        raw_bytes: u64,
        /// What is wrong with the first bad block, if one is.
        damage: Option<Damage>,
    },
    /// A page of the namespaces.
    Namespaces {
        /// In order.
        entries: Vec<NamespaceEntry>,
        /// Whether there are more after the last.
        more: bool,
    },
    /// An update is visible.
    Updated {
        /// Updates of this publication so far, this one included.
        revision: u64,
    },
    /// How well a tensor's metadata suit it.
    Drift(Drift),
    /// A put of several tensors has begun.
    Transaction {
        /// Names it in the requests that follow.
        transaction: u64,
    },
    /// To [`Request::OpenMany`](super::Request::OpenMany).
    OpenedMany {
        /// The namespace's number.
        namespace: u32,
        /// The sequence count of its names when these were looked up.
        names: u64,
        /// The tensors.
        tensors: Vec<OpenTensor>,
        /// Whether there are more than the message holds.
        more: bool,
    },
    /// To [`Request::Hold`](super::Request::Hold).
    Held {
        /// Milliseconds after which commits go on in any case.
        limit_ms: u32,
    },
}
