//! Runs CUDA kernels on the CPU: the `.cu` files of `kernels/cuda`, compiled as C++ over a runtime of fibers.
//!
//! One fiber is for one GPU thread.
//! Lanes of a warp meet in collectives exactly as their masks say; what would hang or be undefined on a GPU is an
//! [`Error`] that names kernel, thread block, warp, lane, file and line.
//! Three [`Order`]s of lanes show what depends on their order; sanitizer builds (`sanitize.sh`) show races and
//! overruns.
//!
//! Not modeled: caches, weak memory order, thread blocks at the same time, timing, and compiled code.
//! A kernel that passes here has not run on a GPU.
//!
//! ```
//! use cusim::{Kernel, Opts, Order, Shape};
//!
//! let mut out = [0u32; 32];
//! let mut args = [(&raw mut out as u64).to_ne_bytes().to_vec()];
//! let kernel = Kernel::find("legal_syncwarp")?;
//! // The kernel writes 32 words at its only parameter.
//! let stats = unsafe { kernel.launch(&Shape::linear(1, 32), &mut args, Opts::new(Order::Reverse)) }?;
//! assert_eq!(out[0], 1);
//! assert_eq!((stats.threads, stats.collectives), (32, 1));
//! # Ok::<(), cusim::Error>(())
//! ```

#![deny(unsafe_code)]

mod error;
mod ffi;

use std::fmt;

pub use error::{Error, Result};

/// In which order lanes and warps run between the points where they meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// From lane 0 up.
    #[default]
    Forward,
    /// From lane 31 down.
    Reverse,
    /// At random, by [`Opts::seed`].
    Random,
}

impl Order {
    /// All three, for tests that must pass in each.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Reverse, Self::Random];
}

/// How strict a launch is, and in which order it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opts {
    /// Of lanes and warps.
    pub order: Order,
    /// Of [`Order::Random`].
    pub seed: u32,
    /// Whether it is an error to name lanes that have exited, or to wait in a barrier without them.
    pub strict_exit: bool,
    /// Whether lanes of one collective must stand at the same file and line.
    pub strict_site: bool,
    /// More yields than this without progress are a livelock; 0 means 50 million.
    pub max_idle_yields: u64,
}

impl Opts {
    /// Strict, in this order.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        Self { order, seed: 1, strict_exit: true, strict_site: true, max_idle_yields: 0 }
    }

    /// Strict: `order` 0 forward, 1 reverse, else random from `seed`.
    #[must_use]
    pub const fn order(order: u32, seed: u32) -> Self {
        let order = match order {
            0 => Order::Forward,
            1 => Order::Reverse,
            _ => Order::Random,
        };
        Self { seed, ..Self::new(order) }
    }
}

impl Default for Opts {
    fn default() -> Self {
        Self::new(Order::Forward)
    }
}

/// Grid, thread block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Thread blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a thread block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of each thread block.
    pub shared_bytes: u32,
}

impl Shape {
    /// `grid` thread blocks of `block` threads in one dimension, without dynamic shared memory.
    #[must_use]
    pub const fn linear(grid: u32, block: u32) -> Self {
        Self { grid: [grid, 1, 1], block: [block, 1, 1], shared_bytes: 0 }
    }

    /// With that much dynamic shared memory.
    #[must_use]
    pub const fn shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// Passes of one lane through one collective, barrier or yield.
    pub lane_steps: u64,
    /// Changes from one fiber to another.
    pub switches: u64,
    /// Collectives that completed.
    pub collectives: u64,
    /// Barriers that completed.
    pub barriers: u64,
    /// Thread blocks that ended.
    pub blocks: u64,
    /// Threads of these.
    pub threads: u64,
}

/// A registered kernel: one that `EXPORT_KERNEL` names.
#[derive(Clone, Copy)]
pub struct Kernel(ffi::Found);

impl Kernel {
    /// The kernel of this name.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`] where no `.cu` file exports it.
    pub fn find(name: &str) -> Result<Self> {
        ffi::find(name).map(Self).ok_or_else(|| Error::UnknownKernel { name: name.to_owned() })
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        ffi::name(self.0)
    }

    /// The size of each of its parameters in bytes.
    #[must_use]
    pub fn params(self) -> &'static [u32] {
        ffi::params(self.0)
    }

    /// Runs it on the calling thread; `args` holds the bytes of each parameter.
    ///
    /// # Errors
    /// [`Error::Params`] and [`Error::Launch`] before it runs, [`Error::Rule`] and [`Error::Fault`] for what the
    /// kernel does.
    ///
    /// # Safety
    /// - The bytes are values of the kernel's parameter types.
    /// - Pointers in them are valid for what the kernel does with them; a fault is caught, other writes are not.
    #[expect(unsafe_code, reason = "kernels follow the pointers they are given")]
    pub unsafe fn launch(self, shape: &Shape, args: &mut [Vec<u8>], opts: Opts) -> Result<Stats> {
        let fits = |(arg, size): (&Vec<u8>, &u32)| u32::try_from(arg.len()) == Ok(*size);
        if args.len() != self.params().len() || !args.iter().zip(self.params()).all(fits) {
            let given = args.iter().map(Vec::len).collect();
            return Err(Error::Params {
                name: self.name().to_owned(),
                wanted: self.params().to_vec(),
                given,
            });
        }
        // SAFETY: number and sizes of the parameters are right, and the caller answers for what they hold.
        unsafe { ffi::launch(self.0, shape, args, opts) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name()).field("params", &self.params()).finish()
    }
}

/// Finds a kernel and launches it; the error is its text.
///
/// # Errors
/// As [`Kernel::find`] and [`Kernel::launch`].
///
/// # Safety
/// As [`Kernel::launch`].
#[expect(unsafe_code, reason = "kernels follow the pointers they are given")]
pub unsafe fn launch(
    name: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    args: &mut [Vec<u8>],
    opts: Opts,
) -> std::result::Result<(), String> {
    let kernel = Kernel::find(name).map_err(|error| error.to_string())?;
    let shape = Shape { grid, block, shared_bytes };
    // SAFETY: the caller answers for what the parameters hold.
    let run = unsafe { kernel.launch(&shape, args, opts) };
    run.map(drop).map_err(|error| error.to_string())
}
