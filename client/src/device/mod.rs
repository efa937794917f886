//! Reading to a GPU: the compressed bytes cross the bus, and kernels decode them into device memory.
//!
//! ```text
//! guard      as for a read to host memory: a lease on the tensor
//! plan       words, chains of overlays, headers -> one job per block, one per overlay        (plan.rs)
//! bytes      where the GPU finds them: in place, or in a buffer that the copy engine fills    (access, segments, staging)
//! run        jobs to the device, a launch per codec, one per level of overlays, status back   (enqueue.rs)
//! flight     the guard, and all else that the launch uses, until its event has fired          (flight.rs)
//! reaper     a thread that looks at events while there are flights                            (reaper.rs)
//! ```
//!
//! Rows are gathered by another kernel, which finds them by itself, and keeps the hot ones in a cache: see `tier.rs`.
//!
//! The host reads the words and headers and makes the jobs, because it can check them, and say what is wrong with
//! which tensor; a kernel never follows an address that it has read.
//! A lease lasts until the event behind the launches has fired: only then are the bytes no longer read.
//! Who waits for a tensor ends its lease then; for who does not, the reaper looks about every millisecond.
//! A callback of the driver was rejected for that: it may not call the driver, and it is not called once the context
//! is lost, so that the lease would never end.

mod access;
mod config;
mod enqueue;
mod flight;
mod forms;
mod gpu;
mod plan;
mod prefetch;
mod raw;
mod reaper;
mod segments;
mod staging;
mod tensor;
mod tier;

pub use access::GpuAccess;
pub use config::{ACCESS_VARIABLE, AccessChoice, DEFAULT_STAGING_BYTES, GpuConfig};
pub use flight::DeviceGet;
pub use gpu::Gpu;
pub use prefetch::Prefetch;
pub use tensor::DeviceTensor;
pub use tier::{
    CacheConfig, CacheFacts, DeviceGather, DeviceHandle, DeviceIds, GatherCounts, GraphGather, RawGather,
};

pub(crate) use forms::DeviceForms;
