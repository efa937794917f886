//! The TierPack daemon: the one process that owns the pool and writes it.
//!
//! The job: it takes tensors in over a Unix socket, keeps them encoded in sealed shared memory, hands read-only
//! descriptors to clients, and frees memory when no lease covers it any more.
//! The limits: it is never in the data path; clients read on their own. It knows codecs only through
//! `tierpack-kernels`, and it never reads what a client may write without checking it.
//!
//! ```
//! use tierpack_daemon::{Config, Embedded};
//!
//! let dir = tempfile::tempdir()?;
//! let config = Config::embedded(dir.path().join("control.sock"), 16 << 20)?;
//! let daemon = Embedded::start(&config)?;
//! assert!(daemon.socket().exists());
//! daemon.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod address;
pub mod config;
pub mod error;
pub mod limits;
pub mod ownership;
pub mod server;
pub mod shutdown;
pub mod signals;
pub mod size;

mod command;
mod embedded;
mod health;
mod log;
mod priority;
mod stats;
mod stats_socket;
mod store;

pub use command::run_command;
pub use config::{Admit, Args, Config, LockMode};
pub use embedded::Embedded;
pub use error::{Error, Result};
pub use log::print_last;
pub use server::Server;
