//! Gathers on a stream of the caller, between memory of the caller: here cudarc's.
#![expect(unsafe_code, reason = "addresses and streams are the caller's word")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use tierpack_client::{DeviceHandle, Result};

/// A stream of another runtime of the process.
pub(crate) struct Other(Arc<CudaStream>);

impl Other {
    /// A stream of the GPU that is open.
    pub(crate) fn open() -> Self {
        let context = CudaContext::new(0).expect("the same GPU");
        // SAFETY: each stream is used by one thread, which waits for it.
        unsafe { context.disable_event_tracking() };
        Self(context.new_stream().expect("a stream"))
    }

    /// Gathers on it, and copies the rows behind the gather.
    pub(crate) fn gather(&self, handle: &DeviceHandle, ids: &[u64]) -> Result<Vec<u8>> {
        let row_bytes = handle.handle().row_bytes();
        let len = ids.len() * usize::try_from(row_bytes).expect("a row of a test");
        let out = self.0.alloc_zeros::<u8>(len).expect("memory");
        let ids = self.0.clone_htod(ids).expect("memory");
        let (ids_at, _) = ids.device_ptr(&self.0);
        let (out_at, _) = out.device_ptr(&self.0);
        let stream = self.0.cu_stream().addr() as u64;
        // SAFETY: memory and stream are cudarc's, of the device's primary context, and outlive the gather.
        let gather =
            unsafe { handle.gather_raw((ids_at, ids.len() as u64, 8), (out_at, len as u64), stream) }?;
        let rows = self.0.clone_dtoh(&out).expect("a copy");
        self.0.synchronize().expect("a stream that works");
        gather.wait()?;
        Ok(rows)
    }
}
