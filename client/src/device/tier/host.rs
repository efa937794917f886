//! Gathers by the host, for a GPU that cannot read the pool in place.
//!
//! The row numbers come to the host and the rows go to the GPU, decoded; there is no cache.
//! The call waits for its stream, twice.

use std::sync::Arc;

use tierpack_kernels::cuda::driver::Stream;
use tierpack_shm::page::{Counter, DeviceAccess};
use tierpack_shm::types::index;

use super::launch::Request;
use super::raw;
use crate::device::gpu;
use crate::error::{Error, Result};
use crate::handle::Fault;
use crate::together::are_current;

/// Raw bytes that the host gathers at a time.
const BATCH_BYTES: u64 = 16 << 20;

/// Gathers for all requests, and waits for them; again until their tensors were current together.
pub(super) fn gather(gpu: &Arc<gpu::Inner>, requests: &[Request], stream: &Stream) -> Result<()> {
    let requests: Vec<_> = requests.iter().filter(|request| !request.is_keep).collect();
    let mut deadline = None;
    loop {
        let opened: Vec<_> = requests.iter().map(|request| request.tier.handle.opened()).collect();
        for request in &requests {
            let gathered = gather_one(gpu, request, stream);
            gathered.map_err(|error| error.of(&request.tier.handle, requests.len()))?;
        }
        let [first, _, ..] = &*requests else { return Ok(()) };
        let deadline = deadline.get_or_insert_with(|| first.tier.handle.client().shared.deadline());
        // A gather may have opened its tensor again.
        let is_same = requests.iter().zip(&opened).all(|(request, opened)| request.tier.handle.is_on(opened));
        match are_current(&opened, deadline) {
            Ok(()) if is_same => return Ok(()),
            Err((idx, Fault::Failed(error))) => {
                return Err(error.of(&requests[idx].tier.handle, requests.len()));
            }
            Ok(()) | Err(_) if deadline.left().is_zero() => {
                return Err(deadline.passed("read tensors that are replaced again and again"));
            }
            Ok(()) | Err(_) => {}
        }
    }
}

fn gather_one(gpu: &gpu::Inner, request: &Request, stream: &Stream) -> Result<()> {
    let handle = &request.tier.handle;
    let rows = raw::read_ids(gpu, &request.ids, stream)?;
    let bytes = handle.check_rows(&rows)?;
    let row_bytes = handle.row_bytes();
    let most = index((BATCH_BYTES / row_bytes.max(1)).max(1));
    let room = most.min(rows.len()) as u64 * row_bytes;
    let mut out = Vec::new();
    out.try_reserve_exact(index(room)).map_err(|_| Error::Memory { bytes: u128::from(room) })?;
    for (batch, first) in rows.chunks(most).zip((0_u64..).step_by(most)) {
        out.resize(batch.len() * index(row_bytes), 0);
        handle.gather_into(batch, &mut out)?;
        if !out.is_empty() {
            raw::write_rows(gpu, request.out + first * row_bytes, &out, stream)?;
        }
    }
    let opened = handle.opened();
    opened.page().count(0, Counter::DeviceGathers, 1);
    opened.page().count(0, Counter::DeviceBytes, u64::try_from(bytes).unwrap_or(u64::MAX));
    opened.page().note_device_access(DeviceAccess::Staged);
    Ok(())
}
