//! Namespaces as messages carry them.

use serde::{Deserialize, Serialize};

/// Changes to a namespace; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceChange {
    /// Owner: only root and the daemon's user may change it.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Mode: bits of `0o666`.
    pub mode: Option<u16>,
    /// Stored bytes that its tensors may take together; `Some(None)` lifts the quota.
    pub quota_bytes: Option<Option<u64>>,
}

/// One namespace in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceEntry {
    /// Its name.
    pub name: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Mode: read and write for owner, group and others.
    pub mode: u16,
    /// Stored bytes that its tensors may take together.
    pub quota_bytes: Option<u64>,
    /// Tensors.
    pub tensors: u64,
    /// Their stored bytes.
    pub stored_bytes: u64,
}
