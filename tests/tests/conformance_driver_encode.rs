//! The suites of `conformance_encode.rs` and `conformance_fit.rs` through the driver: images, launches and memory.
//!
//! The driver is the stand-in, unless `TIERPACK_CUDA_DRIVER` names another: with `system` the compiled kernels run.
#![deny(unsafe_code)]

#[path = "conformance_driver/memory.rs"]
mod device;
#[path = "conformance_encode/suite.rs"]
mod encode;
#[path = "conformance_fit/suite.rs"]
mod fit;
#[path = "conformance_encode/model.rs"]
mod model;
