//! The codecs on a GPU: what the kernels in `kernels/cuda` receive, and what runs them.
//!
//! `abi` holds the structs of `kernels/cuda/shared.h`, `form` the metadata as the kernels read them, and `launch`
//! makes jobs of checked blocks and plans the launches.
//! `gather` is the same for rows by their numbers, through a cache in device memory.
//! None of them needs a driver.
//! `images` holds the compiled kernels, and `driver` runs them.

pub mod abi;
#[cfg(feature = "cuda")]
pub mod driver;
pub mod form;
pub mod gather;
#[cfg(feature = "cuda")]
pub mod images;
pub mod launch;
