//! The reference codecs, one file each: the specification in code.
//!
//! Slow is fine here; every other backend must write and read the same bytes.
#![forbid(unsafe_code)]

pub(crate) mod ibp;
pub(crate) mod planes;
pub(crate) mod raw;
pub(crate) mod sparse;
