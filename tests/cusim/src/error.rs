//! Why a launch failed.

use thiserror::Error as ThisError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// No kernel has this name.
    #[error("no kernel {name}: its file must name it in EXPORT_KERNEL")]
    UnknownKernel {
        /// The name asked for.
        name: String,
    },
    /// The arguments are not of the sizes of the parameters.
    #[error("kernel {name} takes parameters of {wanted:?} bytes, not of {given:?}")]
    Params {
        /// The kernel.
        name: String,
        /// Sizes of its parameters.
        wanted: Vec<u32>,
        /// Sizes of the arguments.
        given: Vec<usize>,
    },
    /// A grid, thread block or shared memory that a GPU refuses.
    #[error("{0}")]
    Launch(String),
    /// The kernel broke a rule of warps, barriers or `cp.async`: on a GPU it would hang, fault, or be undefined.
    #[error("{0}")]
    Rule(String),
    /// The kernel touched an address without memory.
    #[error("{0}")]
    Fault(String),
}
