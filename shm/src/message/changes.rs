//! Updates and refits as messages carry them.

use serde::{Deserialize, Serialize};

use super::Blob;
use crate::attachment::SlotRef;
use crate::types::CodecId;

/// New values for rows of a tensor.
///
/// A row that is longer than a block is stored in pieces, one per block, and each piece is changed for itself.
/// A piece's number is the row's number times the pieces per row, plus the number of the piece within the row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The publication that the caller knows: refused with `Replaced` when the name holds another one.
    pub slot: SlotRef,
    /// Pieces.
    pub n_pieces: u64,
    /// Their numbers, as little-endian `u64`s, and then the bytes of each, raw, in the same order.
    pub data: Blob,
}

/// What a request for a refit asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefitMode {
    /// How it is: nothing is computed.
    Look,
    /// What a refit would save: a sample is fitted, nothing is changed.
    DryRun,
    /// Refit if the sample promises any gain at all.
    IfBetter,
    /// Refit in any case.
    Force,
}

/// What the refit thread does with a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefitState {
    /// Nothing.
    #[default]
    Idle,
    /// It waits for its turn.
    Queued,
    /// Blocks are re-encoded.
    Running,
    /// It waits until readers end leases that hold back more memory than `--max-held` allows.
    Held,
}

/// How well a tensor's metadata still suit it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Drift {
    /// Bytes that it takes now.
    pub stored_bytes: u64,
    /// Bytes that the last look at it promised for new metadata, or that came of the refit after it; 0 before the first.
    pub predicted_bytes: u64,
    /// The codec of the current generation.
    pub codec: Option<CodecId>,
    /// The codec of the predicted one.
    pub predicted_codec: Option<CodecId>,
    /// The number of the current generation; 0 when it has none.
    pub generation: u32,
    /// Generations that some block, some lease or the next encode needs.
    pub generations_alive: u32,
    /// Bytes of overlays that are not folded yet.
    pub overlay_bytes: u64,
    /// What the refit thread does with it.
    pub state: RefitState,
    /// Blocks.
    pub n_blocks: u64,
    /// Blocks that the refit under way has still to look at.
    pub blocks_left: u64,
    /// Refits that were finished.
    pub refits: u64,
    /// Raw bytes that refits have re-encoded.
    pub reencoded_bytes: u64,
    /// Milliseconds since the last refit ended.
    pub last_refit_ms: Option<u64>,
    /// Why the last one did not succeed.
    pub last_failure: Option<String>,
}
