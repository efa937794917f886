//! The CUDA driver: everything that TierPack asks of it, behind types that return what they took.
//!
//! ```text
//! api       the driver's functions, found by name       device    a device and its primary context
//! memory    device memory, page-locked memory           register  segments that the device reads in place
//! stream    streams and events                          module    kernels and their launches
//! run       the jobs and the status of one read         stage     buffers for what cannot be read in place
//! ```
//!
//! Streams: each read has one, ours or the caller's, on which its jobs, its launches and its status follow each
//! other; staging has a second one for copies, and events order the two.
//! Nothing here waits for the device but what says so.
//! A thread's current context is as it was after every call.

mod api;
mod device;
mod error;
mod gather;
mod memory;
mod module;
mod register;
mod run;
mod stage;
mod stream;

pub use api::DRIVER_VARIABLE;
pub use device::{Device, Entered, Facts};
pub use error::{GpuError, NEEDED_CAPABILITY, NEEDED_DRIVER};
pub use gather::{GatherWork, MISSED_ROOM, Step};
pub use memory::{DeviceBuffer, PageLocked, read_memory, write_memory};
pub use module::{IMAGE_VARIABLE, Kernels, Parameter};
pub use register::Registration;
pub use run::{Run, Work};
pub use stage::Stage;
pub use stream::{Event, Stream, Unqueued};
