//! The suite of `conformance.rs` through the driver: images, launches, memory and status as a read uses them.
//!
//! The driver is the stand-in, unless `TIERPACK_CUDA_DRIVER` names another: with `system` the compiled kernels decode.
#![deny(unsafe_code)]

#[path = "conformance/cases.rs"]
mod cases;
#[path = "conformance/damage.rs"]
mod damage;
#[path = "conformance_driver/driver.rs"]
mod driver;
#[path = "conformance/files.rs"]
mod files;
#[path = "conformance/make.rs"]
mod make;
#[path = "conformance/overlays.rs"]
mod overlays;
#[path = "conformance/random.rs"]
mod random;
/// What `damage.rs` decodes alone, in place of cusim.
mod simulated {
    pub(crate) use crate::driver::drivers as simulated;
}
#[path = "conformance_driver/suite.rs"]
mod suite;
#[path = "conformance/target.rs"]
mod target;
#[path = "conformance/words.rs"]
mod words;
