//! The codecs on a GPU: what the kernels in `kernels/cuda` are given, and what runs them.
//!
//! `abi` holds the structs of `kernels/cuda/shared.h`, `images` the compiled kernels.

pub mod abi;
#[cfg(feature = "cuda")]
pub mod images;
