//! Metadata in device memory: uploaded once per generation number, kept per opened tensor and GPU.

use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_kernels::cuda::driver::{DeviceBuffer, GpuError};

use super::gpu::GpuId;

/// Forms that an opened tensor keeps, over all GPUs; the oldest goes first.
const MOST: usize = 64;

/// The forms of one publication of a tensor; generation numbers are never used again within one.
#[derive(Debug, Default)]
pub(crate) struct DeviceForms(Mutex<Vec<(Key, Arc<DeviceBuffer>)>>);

type Key = (GpuId, u32);

impl DeviceForms {
    /// The form of a generation on a GPU; `upload` brings it there, not under the lock.
    pub(super) fn get(
        &self,
        key: Key,
        upload: impl FnOnce() -> Result<DeviceBuffer, GpuError>,
    ) -> Result<Arc<DeviceBuffer>, GpuError> {
        let find = |forms: &[(Key, Arc<DeviceBuffer>)]| {
            forms.iter().find(|(known, _)| *known == key).map(|(_, form)| Arc::clone(form))
        };
        if let Some(form) = find(&self.0.lock()) {
            return Ok(form);
        }
        let fresh = Arc::new(upload()?);
        let mut forms = self.0.lock();
        // Another thread may have been faster.
        if let Some(form) = find(&forms) {
            return Ok(form);
        }
        if forms.len() == MOST {
            // Who uses it keeps it.
            forms.remove(0);
        }
        forms.push((key, Arc::clone(&fresh)));
        Ok(fresh)
    }
}
