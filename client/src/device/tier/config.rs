//! The size of a cache, and what a gather may take of the GPU.

/// Thread blocks of `gather` that run at once on one multiprocessor: registers allow no more.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 3;

/// How a tensor is to be cached in the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    pub(super) bytes: u64,
    pub(super) multiprocessors: u32,
}

impl CacheConfig {
    /// A cache of at most so many bytes of the GPU's memory, tags included; 0: none.
    ///
    /// Rows are kept as they are stored, so that it holds more of them than their raw bytes would fit.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, multiprocessors: 0 }
    }

    /// Gathers occupy no more than so many multiprocessors at a time; 0, as at first: all that are free.
    ///
    /// The driver may spread them over more, each with other kernels next to them.
    #[must_use]
    pub const fn multiprocessors(mut self, count: u32) -> Self {
        self.multiprocessors = count;
        self
    }

    /// The most thread blocks of a launch; 0: the kernels' own limit.
    pub(super) const fn max_blocks(&self) -> u32 {
        self.multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR)
    }
}
