//! How much of the daemon's own heap things take: estimates, rounded up, with what the allocator adds.
//!
//! What is freed goes back to the system when it is much: the allocator would keep it.
//!
//! A tensor without blocks was measured at 0.7 KiB with a short name, next to 99,999 others. Nothing here is exact; the charge has to be
//! at least what is taken, so that the pool and the heap together stay within `--pool-size`.

use std::time::{Duration, Instant};

use super::budget::Budget;
use crate::size::MIB;

/// Freed heap that is worth asking the allocator for.
const MUCH_BYTES: u64 = 4 * MIB;
/// How long after it was asked the allocator is left alone: it takes its locks for it.
const TRIM_AFTER: Duration = Duration::from_secs(3);

/// A tensor or a put: its own fields, its entries in the tables of its namespace, its slot and its tables among the
/// extents of the directory, shape aside.
const TENSOR_BYTES: u64 = 1024;
/// A name in the table of tensors and among those that changed, with its allocation.
const NAME_COPIES: u64 = 2;
/// A block: what is known of it, a full chain of overlays, and its extents among those of the pool.
const BLOCK_BYTES: u64 = 384;
/// What was retired in one step, extents aside.
const RETIRED_BYTES: u64 = 256;
/// An extent in a list of retired ones, and the free run that it becomes.
const RETIRED_EXTENT_BYTES: u64 = 96;
/// What the daemon keeps of a session that is attached to a namespace.
pub(super) const ATTACHMENT_BYTES: u64 = 512;
/// A claimed name, its copies aside.
const CLAIM_BYTES: u64 = 160;
/// A namespace, its first segments and their tables.
const NAMESPACE_BYTES: u64 = 12 << 10;

/// Heap of a tensor, from the beginning of its put until it is gone.
pub(super) fn of_tensor(name: &str, rank: usize, n_blocks: u64) -> u64 {
    let name_bytes = (name.len() as u64).saturating_mul(NAME_COPIES);
    let shape_bytes = (rank as u64).saturating_mul(8);
    n_blocks.saturating_mul(BLOCK_BYTES).saturating_add(TENSOR_BYTES + name_bytes + shape_bytes)
}

/// Heap of a name that a transaction has claimed.
pub(super) fn of_claim(name: &str) -> u64 {
    CLAIM_BYTES + (name.len() as u64).saturating_mul(NAME_COPIES)
}

/// Heap of an empty namespace.
pub(super) fn of_namespace(name: &str) -> u64 {
    NAMESPACE_BYTES + (name.len() as u64).saturating_mul(NAME_COPIES)
}

/// Heap of what one step retires.
pub(super) fn of_retired(extents: usize) -> u64 {
    RETIRED_BYTES + (extents as u64).saturating_mul(RETIRED_EXTENT_BYTES)
}

/// Asks the allocator to return memory, seldom.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    last: Option<Instant>,
    /// Whether it is asked once more: what goes with the last of much may go after it was asked.
    again: bool,
}

impl Trimmer {
    /// Asks for it if much was freed since the last time.
    pub(super) fn look(&mut self, budget: &Budget) {
        if self.last.is_some_and(|last| last.elapsed() < TRIM_AFTER) {
            return;
        }
        let is_much = budget.heap_fallen(|fallen| fallen >= MUCH_BYTES);
        if is_much || self.again {
            tierpack_shm::heap::trim();
            (self.last, self.again) = (Some(Instant::now()), is_much);
        }
    }
}
