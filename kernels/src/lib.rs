//! TierPack codecs: bytes in, bytes out.
//!
//! This crate knows how a tensor is cut into blocks ([`geometry`]), what a block looks like ([`mod@block`])
//! and how its values are encoded and decoded ([`codec`]).
//! `FORMAT.md` next to this crate is the text that the code follows.
//!
//! Limits: it does no I/O, keeps no state, starts no thread and never allocates on an unchecked length;
//! with the feature `cuda`, [`cuda`] also loads and calls the CUDA driver.
//! Any bytes from outside lead to an error or some output of the right length, never a panic.
//! The values are words: nothing here looks at them as numbers, so every bit pattern survives.
//!
//! ```
//! use tierpack_kernels::{block::Block, codec::{self, Encoding}, geometry::Geometry};
//! use tierpack_shm::types::{Access, Dtype};
//!
//! // Three rows of two bf16 values: one block.
//! let raw: Vec<u8> = (0..12).collect();
//! let geometry = Geometry::new(Dtype::Bf16, &[3, 2], Access::Rows, None)?;
//! assert_eq!((geometry.n_blocks(), geometry.n_rows(), geometry.row_bytes()), (1, 3, 4));
//!
//! let mut encoded = Vec::new();
//! codec::encode_block(Encoding::Raw, &geometry, 0, &raw, &mut encoded)?;
//!
//! // A reader that trusts nothing parses and checks the block before it decodes.
//! let block = Block::parse(&encoded)?;
//! block.verify_crc()?;
//! let mut decoded = vec![0; raw.len()];
//! codec::decode_block(&block, None, &mut decoded)?;
//! assert_eq!(decoded, raw);
//!
//! // A gather finds a row by arithmetic alone.
//! let (block_idx, row_in_block) = geometry.locate(2);
//! assert_eq!(block_idx, 0);
//! assert_eq!(codec::raw_row(&encoded, geometry.row_bytes(), row_in_block), Some(&raw[8..12]));
//! # Ok::<(), tierpack_kernels::Error>(())
//! ```
#![deny(unsafe_code)]

mod bits;
pub mod block;
pub mod codec;
mod coder;
mod cpu;
pub mod cuda;
mod cut;
mod error;
mod escapes;
pub mod fit;
pub mod geometry;
pub mod metadata;
mod planes;
mod prefetch;
mod records;
mod scalar;
mod sparse;
mod window;

pub use coder::Coder;
pub use cpu::{CPU_VARIABLE, CPU_VARIABLE_NEEDED, Level};
pub use cut::RECORD_ELEMS;
pub use error::{Error, Result};
pub use prefetch::prefetch;
