//! What the kernels count on the simulated device is what the CPU's fit counts.

#![deny(unsafe_code)]

#[path = "conformance_encode/device.rs"]
mod device;
#[path = "conformance_encode/model.rs"]
mod model;
#[path = "conformance_fit/suite.rs"]
mod suite;
