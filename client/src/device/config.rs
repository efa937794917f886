//! How a GPU is opened.

use tierpack_kernels::cuda::driver::GpuError;

/// The variable that overrides [`GpuConfig::access`].
pub const ACCESS_VARIABLE: &str = "TIERPACK_DEVICE_ACCESS";
/// Bytes of a staging buffer by default.
pub const DEFAULT_STAGING_BYTES: u64 = 16 << 20;

/// How a GPU is to read the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AccessChoice {
    /// The first of the others that works; what was taken, and why, is in [`super::Gpu::access`].
    #[default]
    Auto,
    /// In place, as pageable memory: needs a GPU and a system that can.
    Ats,
    /// In place, over segments that are registered with the driver.
    Registered,
    /// Through page-locked buffers that the copy engine reads.
    Staged,
}

impl AccessChoice {
    /// The name that settings use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ats => "ats",
            Self::Registered => "registered",
            Self::Staged => "staged",
        }
    }

    fn parse(name: &'static str, text: &str) -> Result<Self, GpuError> {
        let all = [Self::Auto, Self::Ats, Self::Registered, Self::Staged];
        all.into_iter().find(|choice| choice.name() == text).ok_or_else(|| GpuError::Setting {
            name,
            found: text.to_owned(),
            needed: "one of auto, ats, registered, staged is needed",
        })
    }
}

/// Settings of a [`super::Gpu`].
#[derive(Clone, Debug)]
pub struct GpuConfig {
    pub(super) ordinal: usize,
    pub(super) access: AccessChoice,
    pub(super) staging_bytes: u64,
    pub(super) staging_buffers: usize,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl GpuConfig {
    /// GPU 0, access as it can be had, two staging buffers of 16 MiB.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ordinal: 0,
            access: AccessChoice::Auto,
            staging_bytes: DEFAULT_STAGING_BYTES,
            staging_buffers: 2,
        }
    }

    /// The number of the GPU, among those that the driver shows this process.
    #[must_use]
    pub const fn ordinal(mut self, ordinal: usize) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// How it is to read the pool; `TIERPACK_DEVICE_ACCESS` overrides this.
    #[must_use]
    pub const fn access(mut self, access: AccessChoice) -> Self {
        self.access = access;
        self
    }

    /// Bytes of a staging buffer; one is longer where a block with its overlays needs more.
    #[must_use]
    pub const fn staging_bytes(mut self, bytes: u64) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Staging buffers, at least two: one is filled while the others are copied and decoded.
    #[must_use]
    pub const fn staging_buffers(mut self, count: usize) -> Self {
        self.staging_buffers = if count < 2 { 2 } else { count };
        self
    }

    /// The choice, after the environment.
    pub(super) fn chosen(&self) -> Result<AccessChoice, GpuError> {
        match std::env::var_os(ACCESS_VARIABLE).filter(|text| !text.is_empty()) {
            None => Ok(self.access),
            Some(text) => AccessChoice::parse(ACCESS_VARIABLE, &text.to_string_lossy()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_one_of_four_words() {
        assert_eq!(AccessChoice::parse("X", "staged"), Ok(AccessChoice::Staged));
        let error = AccessChoice::parse("X", "Staged").unwrap_err().to_string();
        assert_eq!(error, "X is \"Staged\": one of auto, ats, registered, staged is needed");
    }
}
