//! One suite for everything that decodes: the reference code, each level of the processor, the kernels on cusim.
//!
//! What has no device here is listed as skipped.
#![deny(unsafe_code)]

#[path = "conformance/cases.rs"]
mod cases;
#[path = "conformance/damage.rs"]
mod damage;
#[path = "conformance/files.rs"]
mod files;
#[path = "conformance/make.rs"]
mod make;
#[path = "conformance/overlays.rs"]
mod overlays;
#[path = "conformance/random.rs"]
mod random;
#[path = "conformance/simulated.rs"]
mod simulated;
#[path = "conformance/suite.rs"]
mod suite;
#[path = "conformance/target.rs"]
mod target;
#[path = "conformance/words.rs"]
mod words;
