//! Blocks that the kernels encode on the simulated device are those of the CPU, byte for byte.
//!
//! Scalar, the machine's best level and the device, in three orders of the lanes, all see the same tensors.

#![deny(unsafe_code)]

#[path = "conformance_encode/device.rs"]
mod device;
#[path = "conformance_encode/model.rs"]
mod model;
#[path = "conformance_encode/suite.rs"]
mod suite;
