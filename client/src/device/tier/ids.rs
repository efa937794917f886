//! Row numbers in the memory of a GPU.

use std::sync::Arc;

use tierpack_kernels::cuda::driver::{DeviceBuffer, GpuError};
use tierpack_kernels::cuda::gather::GatherCall;

use crate::device::gpu::{self, Gpu};
use crate::error::Result;
use crate::row_id::RowId;

/// Row numbers in memory of a GPU: 8 bytes each, as [`Gpu::ids`] puts them there.
#[derive(Debug)]
pub struct DeviceIds {
    gpu: Arc<gpu::Inner>,
    buffer: Option<Arc<DeviceBuffer>>,
    len: u32,
}

/// Where row numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) address: u64,
    pub(super) len: u32,
    /// 4 or 8.
    pub(super) bytes: u32,
}

impl Gpu {
    /// Copies row numbers to the GPU, and waits for that.
    ///
    /// They are not checked here: a gather reports the first one that is no row of its tensor, by its position.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`], among others [`GpuError::TooManyIds`].
    pub fn ids<I: RowId>(&self, rows: &[I]) -> Result<DeviceIds> {
        DeviceIds::new(&self.inner, rows)
    }
}

impl DeviceIds {
    pub(super) fn new<I: RowId>(gpu: &Arc<gpu::Inner>, rows: &[I]) -> Result<Self> {
        let mut ids = Self { gpu: Arc::clone(gpu), buffer: None, len: 0 };
        ids.set(rows)?;
        Ok(ids)
    }

    /// Puts other row numbers there, in the same memory if they fit and no gather reads it.
    ///
    /// # Errors
    /// As [`Gpu::ids`].
    pub fn set<I: RowId>(&mut self, rows: &[I]) -> Result<()> {
        let len = count(rows.len() as u64)?;
        // A negative number is none that a tensor has, whatever its length.
        let words: Vec<u8> = rows
            .iter()
            .flat_map(|row| row.row().map_or_else(|| low_bits(row.value()), u64::to_le_bytes))
            .collect();
        let has_room = |buffer: &&mut DeviceBuffer| buffer.len() >= words.len() as u64;
        let device = &self.gpu.device;
        self.len = 0;
        if words.is_empty() {
            return Ok(());
        }
        if self.buffer.as_mut().and_then(Arc::get_mut).filter(has_room).is_none() {
            self.buffer = Some(Arc::new(DeviceBuffer::new(device, words.len() as u64)?));
        }
        if let Some(buffer) = self.buffer.as_mut().and_then(Arc::get_mut) {
            buffer.write(&words, &self.gpu.uploads)?;
        }
        self.len = len;
        Ok(())
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        self.buffer.as_ref()
    }

    pub(super) fn at(&self) -> Ids {
        Ids { address: self.buffer.as_ref().map_or(0, |buffer| buffer.address()), len: self.len, bytes: 8 }
    }

    pub(super) fn gpu(&self) -> &gpu::Inner {
        &self.gpu
    }
}

/// As many row numbers as one gather may have.
pub(super) fn count(len: u64) -> core::result::Result<u32, GpuError> {
    let most = GatherCall::MAX_IDS;
    u32::try_from(len).ok().filter(|&len| len <= most).ok_or(GpuError::TooManyIds { len, most })
}

fn low_bits(value: i128) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&value.to_le_bytes()[..8]);
    bytes
}
