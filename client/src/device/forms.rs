//! Metadata in device memory: uploaded once per generation number, kept per opened tensor and GPU.

use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_kernels::cuda::driver::{DeviceBuffer, GpuError};

use super::gpu::GpuId;

/// Forms that an opened tensor keeps for one GPU; the oldest goes first.
const MOST: usize = 32;

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
        let of_this = forms.iter().filter(|((gpu, _), _)| *gpu == key.0).count();
        // Who uses it keeps it.
        let oldest = forms.iter().position(|((gpu, _), _)| *gpu == key.0).filter(|_| of_this == MOST);
        let oldest = oldest.map(|at| forms.remove(at));
        forms.push((key, Arc::clone(&fresh)));
        drop(forms);
        // Frees memory of the device, which is not for under the lock.
        drop(oldest);
        Ok(fresh)
    }

    /// Drops the forms of a GPU that ends.
    pub(super) fn forget(&self, gpu: GpuId) {
        let mut forms = self.0.lock();
        let (gone, kept) = forms.drain(..).partition(|((of, _), _)| *of == gpu);
        *forms = kept;
        drop(forms);
        let gone: Vec<(Key, Arc<DeviceBuffer>)> = gone;
        drop(gone);
    }
}
