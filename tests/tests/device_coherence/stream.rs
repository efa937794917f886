//! Gathers on a stream of the caller, between memory of the caller: here cudarc's.
#![expect(unsafe_code, reason = "addresses and streams are the caller's word")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use tierpack_client::{DeviceGather, DeviceHandle, Result};

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
        self.launch(handle, ids)?.rows()
    }

    /// Launches a gather on it.
    pub(crate) fn launch(&self, handle: &DeviceHandle, ids: &[u64]) -> Result<Launched> {
        let row_bytes = handle.handle().row_bytes();
        let len = ids.len() * usize::try_from(row_bytes).expect("a row of a test");
        let out = self.0.alloc_zeros::<u8>(len).expect("memory");
        let ids = self.0.clone_htod(ids).expect("memory");
        let (ids_at, _) = ids.device_ptr(&self.0);
        let (out_at, _) = out.device_ptr(&self.0);
        let (n_ids, stream) = (ids.len() as u64, self.0.cu_stream().addr() as u64);
        // SAFETY: memory and stream are cudarc's, of the device's primary context; each test waits for its gathers.
        let gather = unsafe { handle.gather_raw((ids_at, n_ids, 8), (out_at, len as u64), stream) }?;
        Ok(Launched { gather, out, _ids: ids })
    }
}

/// A gather that is on its way, with its memory.
pub(crate) struct Launched {
    gather: DeviceGather,
    out: CudaSlice<u8>,
    _ids: CudaSlice<u64>,
}

impl Launched {
    /// Its rows, copied behind it on its stream.
    pub(crate) fn rows(self) -> Result<Vec<u8>> {
        let stream = self.out.stream();
        let rows = stream.clone_dtoh(&self.out).expect("a copy");
        stream.synchronize().expect("a stream that works");
        self.gather.wait()?;
        Ok(rows)
    }
}
