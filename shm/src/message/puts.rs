//! Puts as messages carry them, and the bytes that come with a message.

use serde::{Deserialize, Serialize};

use crate::types::{Access, CodecChoice, Dtype};

/// Begins a put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutBegin {
    /// The namespace; it is made when it does not exist.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The dtype.
    pub dtype: Dtype,
    /// The shape, outermost dimension first.
    pub shape: Vec<u64>,
    /// What the blocks are cut for.
    pub access: Access,
    /// Elements of a row, for tensors of rank 1.
    pub row_elems: Option<u64>,
    /// Which codec.
    pub codec: CodecChoice,
    /// Whether a tensor of that name is replaced.
    pub overwrite: bool,
    /// The metadata of the file it comes from: JSON, an object of strings.
    pub file_metadata: Option<Blob>,
    /// The transaction that it is a part of: the commit prepares the tensor, which that of the transaction reveals.
    pub transaction: Option<u64>,
}

/// Bytes in a message, or in a sealed memory file that comes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blob {
    /// In the message: at most [`super::MAX_INLINE_BYTES`].
    Inline(Vec<u8>),
    /// In the descriptor that comes with the message.
    Descriptor {
        /// Its length in bytes.
        len: u64,
    },
}
