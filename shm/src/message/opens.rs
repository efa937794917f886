//! Many tensors that are opened together.

use serde::{Deserialize, Serialize};

use super::Entry;
use crate::attachment::SlotRef;

/// Tensors of one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Which {
    /// Those of these names; a reply has the first of them, up to a name that has no tensor.
    Named(Vec<String>),
    /// Every one, sorted, after this name.
    After(Option<String>),
}

/// A tensor that was opened with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTensor {
    /// What it is.
    pub entry: Entry,
    /// Elements of a gather row, where the put has said so.
    pub row_elems: Option<u64>,
    /// Where it is.
    pub slot: SlotRef,
    /// The number of its file metadata: tensors of the same number have the same.
    pub file_metadata: Option<u64>,
}
