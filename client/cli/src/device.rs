//! `--device cpu|cuda[:N]`: where a command reads to, and whether that is a GPU at all.

use std::fmt;

use anyhow::Result;
use tierpack_client::{Gpu, GpuConfig};

/// What is said of figures that were measured on a stand-in for the driver.
pub(crate) const STAND_IN_NOTE: &str =
    "these are no GPU figures: the driver is a stand-in that runs the kernels on the CPU";
/// How the name of the stand-in's device starts.
const STAND_IN: &str = "fakecuda";

/// Where a command reads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceArg {
    /// Host memory.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl DeviceArg {
    /// Opens the GPU, where one is meant.
    ///
    /// # Errors
    /// There is no driver, no GPU of that number, or it cannot be used.
    pub(crate) fn open(self) -> Result<Option<Gpu>> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(ordinal) => Ok(Some(Gpu::open(&GpuConfig::new().ordinal(ordinal))?)),
        }
    }
}

impl fmt::Display for DeviceArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Reads `cpu`, `cuda` or `cuda:N`.
///
/// # Errors
/// It is something else.
pub(crate) fn parse(text: &str) -> Result<DeviceArg, String> {
    let ordinal = match text {
        "cpu" => return Ok(DeviceArg::Cpu),
        "cuda" => "0",
        _ => text.strip_prefix("cuda:").unwrap_or_default(),
    };
    ordinal.parse().map(DeviceArg::Cuda).map_err(|_| "choose cpu, cuda or cuda:N".to_owned())
}

/// What must be said of figures from this GPU; `None` for a real one.
pub(crate) fn note(gpu: &Gpu) -> Option<&'static str> {
    gpu.name().starts_with(STAND_IN).then_some(STAND_IN_NOTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_word_and_perhaps_a_number() {
        assert_eq!(parse("cpu"), Ok(DeviceArg::Cpu));
        assert_eq!(parse("cuda"), Ok(DeviceArg::Cuda(0)));
        assert_eq!(parse("cuda:12"), Ok(DeviceArg::Cuda(12)));
        assert_eq!(parse(&DeviceArg::Cuda(12).to_string()), Ok(DeviceArg::Cuda(12)));
        assert_eq!(parse(&DeviceArg::Cpu.to_string()), Ok(DeviceArg::Cpu));
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda0", "0", "cpu:0"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
