//! What can go wrong with a GPU.

/// The oldest driver whose functions and PTX are used: CUDA 13.0, as `cuDriverGetVersion` counts.
pub const NEEDED_DRIVER: i32 = 13000;
/// The least compute capability that the kernels are compiled for.
pub const NEEDED_CAPABILITY: (i32, i32) = (8, 0);

/// Codes after which a context answers every call with the same code.
const STICKY: [u32; 15] = [4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721];

/// A GPU cannot be used, or a call of its driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no driver.
    #[error("no CUDA driver: {cause}; install it, or read to host memory")]
    NoDriver {
        /// What was looked for, with the system's answer.
        cause: String,
    },
    /// The driver is too old.
    #[error(
        "the CUDA driver is for CUDA {}, CUDA {} is needed: upgrade the driver, or read to host memory",
        version(*found), version(*needed)
    )]
    OldDriver {
        /// Its version, 1000 * major + 10 * minor.
        found: i32,
        /// The least that is needed.
        needed: i32,
    },
    /// The driver lacks a function.
    #[error("the CUDA driver has no function {name}: upgrade the driver, or read to host memory")]
    NoFunction {
        /// Its name.
        name: &'static str,
    },
    /// The driver sees no GPU.
    #[error("the CUDA driver sees no GPU: look at CUDA_VISIBLE_DEVICES, or read to host memory")]
    NoDevice,
    /// There is no GPU of that number.
    #[error("there is no GPU {ordinal}: the driver sees {count}, numbered from 0")]
    NoSuchDevice {
        /// The number that was asked for.
        ordinal: usize,
        /// GPUs that the driver sees.
        count: usize,
    },
    /// The GPU is too old.
    #[error(
        "{name} has compute capability {}.{}, {}.{} is needed: use another GPU, or read to host memory",
        found.0, found.1, NEEDED_CAPABILITY.0, NEEDED_CAPABILITY.1
    )]
    TooOldDevice {
        /// Its name.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
    },
    /// The GPU cannot reach the pool in the way that was asked for.
    #[error("access {asked}: {reason}; choose `auto`")]
    NoAccess {
        /// The way that was asked for.
        asked: &'static str,
        /// Why it cannot be had.
        reason: String,
    },
    /// A setting that is none.
    #[error("{name} is {found:?}: {needed}")]
    Setting {
        /// Where it was passed.
        name: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        needed: &'static str,
    },
    /// Memory cannot be page-locked.
    #[error(
        "register {len} bytes at {address:#x} with the GPU's driver: {name} ({code}): \
         choose access `staged`, which registers nothing"
    )]
    Registration {
        /// The driver's code.
        code: u32,
        /// Its name.
        name: String,
        /// Where the memory starts.
        address: usize,
        /// Its bytes.
        len: usize,
    },
    /// There is no memory left.
    #[error("no {what} for {asked} bytes: {free} of {total} bytes of the GPU are free; {}", room(what))]
    OutOfMemory {
        /// Which memory.
        what: &'static str,
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes of the device that are free.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// A stream is being captured into a graph.
    #[error(
        "{call}: a stream is being captured, and this cannot be part of a graph: read before or after the capture"
    )]
    Capturing {
        /// What was to be done.
        call: &'static str,
    },
    /// The kernels could not be loaded.
    #[error(
        "load the kernels {module:?} for compute capability {}.{}: {name} ({code}){log}; \
         set TIERPACK_CUDA_IMAGE=ptx, or upgrade the driver",
        device.0, device.1
    )]
    Module {
        /// The module.
        module: &'static str,
        /// The device's compute capability.
        device: (i32, i32),
        /// The driver's code.
        code: u32,
        /// Its name.
        name: String,
        /// What the driver's compiler said, after `: `.
        log: String,
    },
    /// A kernel could not be launched.
    #[error("launch {kernel}: {name} ({code}){}", advice(*code))]
    Launch {
        /// The kernel.
        kernel: &'static str,
        /// The driver's code.
        code: u32,
        /// Its name.
        name: String,
    },
    /// The context is lost: every call fails from now on.
    #[error("{call}: the GPU context of this process is lost: {name} ({code}); start the process again")]
    Lost {
        /// The call that noticed.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// Its name.
        name: String,
    },
    /// A call of the driver failed.
    #[error("{call}: {name} ({code}){}", advice(*code))]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// Its name.
        name: String,
    },
    /// This process is a fork of the one that opened the GPU.
    #[error(
        "this process is a fork of one that used the GPU, which the CUDA driver does not survive: \
         fork before a GPU is opened, or start a program anew (spawn, exec)"
    )]
    Forked,
    /// A tensor of one GPU was used with another.
    #[error("the tensor lies on GPU {found}, not on GPU {needed}: read it to that GPU")]
    OtherDevice {
        /// Where it lies.
        found: usize,
        /// Where it was needed.
        needed: usize,
    },
    /// The last read into a tensor could not be queued.
    #[error("the last read into this tensor failed, so that it holds anything: read into it again")]
    NotRead,
    /// More row numbers than a kernel can count.
    #[error("{len} row numbers are too many for one gather: it takes at most {most}")]
    TooManyIds {
        /// How many there are.
        len: u64,
        /// How many there may be.
        most: u32,
    },
    /// Row numbers that no kernel can read.
    #[error(
        "row numbers of {bytes} bytes at address {address:#x}: 4 or 8 bytes, and a multiple of that, are needed"
    )]
    Ids {
        /// Their address.
        address: u64,
        /// Bytes of each.
        bytes: u32,
    },
    /// What a captured gather was captured for is no more.
    #[error("the captured gather cannot be renewed: {reason}: capture it again")]
    StaleGraph {
        /// Why.
        reason: &'static str,
    },
}

impl GpuError {
    /// What a code of the driver means.
    pub(super) fn of(call: &'static str, code: u32, name: String) -> Self {
        match code {
            900..=908 => Self::Capturing { call },
            code if STICKY.contains(&code) => Self::Lost { call, code, name },
            code => Self::Driver { call, code, name },
        }
    }

    /// Whether nothing runs on the GPU any more, and nothing will.
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The driver's code and its name, where it is an answer of the driver without another meaning.
    pub(super) fn plain(self) -> Result<(u32, String), Self> {
        match self {
            Self::Driver { code, name, .. } => Ok((code, name)),
            other => Err(other),
        }
    }
}

/// What makes room.
fn room(what: &str) -> &'static str {
    if what.contains("host") {
        "ask for fewer or shorter staging buffers, or free memory of the machine"
    } else {
        "drop tensors there"
    }
}

/// What to do about an answer of the driver, where that is known.
const fn advice(code: u32) -> &'static str {
    match code {
        2 => ": drop tensors of the GPU",
        46 => ": the GPU is busy, and in a mode for one process",
        802 => ": the system is not ready for the GPU; its fabric manager may not run",
        803 => ": the driver in the kernel and its library differ; restart the machine",
        999 => ": the kernel's log may say more",
        _ => "",
    }
}

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_apart() {
        let of = |code| GpuError::of("cuCall", code, "NAME".to_owned());
        assert!(of(700).is_lost() && of(719).is_lost() && !of(1).is_lost());
        assert_eq!(of(901), GpuError::Capturing { call: "cuCall" });
        assert_eq!(of(4_000_000_000).to_string(), "cuCall: NAME (4000000000)");
        assert!(of(803).to_string().ends_with("restart the machine") && !of(708).is_lost());
        assert_eq!(of(2).plain(), Ok((2, "NAME".to_owned())));
        assert!(of(719).plain().is_err());
    }

    #[test]
    fn an_old_driver_is_told_what_is_needed() {
        let text = GpuError::OldDriver { found: 12020, needed: NEEDED_DRIVER }.to_string();
        assert!(text.contains("CUDA 12.2") && text.contains("CUDA 13.0"), "{text}");
    }
}
