//! The contract between TierPack processes: where shared words are, who may write them, and how they are
//! published, read and reclaimed.
//!
//! The job: sealed segments, the directory, client pages, leases and epochs, messages and sockets.
//! The limits: this crate does not know what a tensor's values mean, and does no work on its own; `daemon` and
//! `client` drive it from their two sides. LAYOUT.md describes every byte.
//!
//! ```
//! use tierpack_shm::types::{BlockWord, Dtype};
//!
//! let word = BlockWord::resident(12, 0, BlockWord::RAW, 1);
//! assert_eq!((word.offset(), word.is_raw()), (12, true));
//! assert_eq!("BF16".parse(), Ok(Dtype::Bf16));
//! ```
#![deny(unsafe_code)]

pub mod epoch;
pub mod publish;
pub mod ring;
pub mod seqcount;
pub mod sync;
pub mod types;

// loom's atomics have another layout than the words in shared memory: under `cfg(loom)` only the protocol exists.
#[cfg(not(loom))]
pub mod address;
#[cfg(not(loom))]
pub mod attachment;
#[cfg(not(loom))]
pub mod chunk;
#[cfg(not(loom))]
pub mod directory;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod extents;
#[cfg(not(loom))]
pub mod faults;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod memfd;
#[cfg(not(loom))]
pub mod message;
#[cfg(not(loom))]
pub mod overlay;
#[cfg(not(loom))]
pub mod page;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod stats;
