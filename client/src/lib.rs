//! The TierPack client: what a program links to keep its tensors in a machine's one pool and to read them from there.
//!
//! The job: connect to a daemon, put and update tensors, and get, gather or view them.
//! `open` asks the daemon once; after that a read touches shared memory only: no system call, no lock, no message.
//!
//! Limits: only the daemon writes the pool, so every change goes through it.
//! One client has 1024 leases per namespace: as many reads and [`View`]s at a time.
//! A [`Client`] and all that comes from it belong to the process that connected; in a fork every call returns
//! [`Error::Forked`] at once, and dropping them is harmless.
//! A [`Gpu`] is opened by programs that want one; nothing else here looks for a driver.
//!
//! ```
//! use tierpack_client::{Client, Dtype};
//!
//! // A daemon of this process; `Client::connect()` finds the machine's own.
//! let folder = tempfile::tempdir()?;
//! let config = tierpack_daemon::Config::embedded(folder.path().join("control.sock"), 64 << 20)?;
//! let daemon = tierpack_daemon::Embedded::start(&config)?;
//! let client = Client::builder().socket(daemon.socket()).connect()?;
//!
//! // Three rows of two 16-bit words.
//! let bytes: Vec<u8> = (0..12).collect();
//! client.put("layer.0.weight", Dtype::Bf16, &[3, 2], &bytes)?;
//!
//! let tensor = client.get("layer.0.weight")?;
//! assert_eq!(tensor.as_bytes(), bytes);
//!
//! let handle = client.open("layer.0.weight")?;
//! let rows = handle.gather(&[2, 0])?;
//! assert_eq!(rows.shape(), [2, 2]);
//! assert_eq!(rows.as_bytes(), [8, 9, 10, 11, 0, 1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod address;
mod blocks;
mod buffers;
mod builder;
mod chunk;
mod client;
mod deadline;
mod decode;
mod device;
mod error;
#[cfg(test)]
mod fake_daemon;
#[cfg(test)]
mod fake_tensor;
mod gather;
mod handle;
mod namespaces;
mod overlays;
mod parts;
mod protocol;
mod put;
mod put_many;
mod read;
mod refit;
mod repeat;
mod row_id;
mod session;
mod shared;
mod snapshot;
pub mod stats_socket;
mod tensor;
mod together;
mod transfer;
mod update;
mod view;
mod wire;

pub use builder::{ClientBuilder, DEFAULT_DEADLINE, DEFAULT_NAMESPACE};
pub use client::Client;
pub use device::{
    ACCESS_VARIABLE, AccessChoice, CacheConfig, CacheFacts, DEFAULT_STAGING_BYTES, DeviceGather, DeviceGet,
    DeviceHandle, DeviceIds, DeviceTensor, GatherCounts, Gpu, GpuAccess, GpuConfig, GraphGather, Prefetch,
    RawGather,
};
pub use error::{Error, Result, Tried};
pub use handle::Handle;
pub use namespaces::Tensors;
pub use parts::Parts;
pub use protocol::ProtocolFault;
pub use put::PutOptions;
pub use put_many::PutMany;
pub use row_id::RowId;
pub use snapshot::{Snapshot, SnapshotParts, SnapshotTensor};
pub use tensor::{Element, Tensor};
pub use view::View;

pub use tierpack_kernels::cuda::driver::GpuError;
pub use tierpack_shm::message::{Drift, Entry, NamespaceChange, NamespaceEntry, RefitMode, RefitState};
pub use tierpack_shm::page::DeviceAccess;
pub use tierpack_shm::stats::Stats;
pub use tierpack_shm::types::{Access, CodecChoice, CodecId, Dtype, Prefer};

/// The examples of the documents compile.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide.md")]
    struct Guide;
}

/// Everything may be used from any thread.
const fn is_send_and_sync<T: Send + Sync>() {}
const _: () = {
    is_send_and_sync::<Client>();
    is_send_and_sync::<Handle>();
    is_send_and_sync::<Tensor>();
    is_send_and_sync::<View>();
    is_send_and_sync::<Parts>();
    is_send_and_sync::<Snapshot>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<Gpu>();
    is_send_and_sync::<DeviceTensor>();
    is_send_and_sync::<Prefetch>();
    is_send_and_sync::<DeviceHandle>();
    is_send_and_sync::<DeviceIds>();
    is_send_and_sync::<DeviceGather>();
};
