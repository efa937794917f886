//! A tensor that is on its way to a GPU before it is needed.

use super::tensor::DeviceTensor;
use crate::error::Result;

/// A prefetch: what [`super::Gpu::prefetch`] returns.
#[derive(Debug)]
#[must_use = "dropping it drops the tensor once it is there"]
pub struct Prefetch {
    pub(super) tensor: DeviceTensor,
}

impl Prefetch {
    pub(super) fn new(tensor: DeviceTensor) -> Self {
        Self { tensor }
    }

    /// Whether the tensor is there; see [`DeviceTensor::is_ready`].
    pub fn is_ready(&self) -> bool {
        self.tensor.is_ready()
    }

    /// Waits for it.
    ///
    /// # Errors
    /// As [`DeviceTensor::wait`].
    pub fn wait(&self) -> Result<()> {
        self.tensor.wait()
    }

    /// The tensor, whether it is there or not: see [`DeviceTensor::wait`].
    pub fn into_tensor(self) -> DeviceTensor {
        self.tensor
    }
}
