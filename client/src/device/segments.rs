//! Segments that are registered with the driver: for all GPUs of the process together.
//!
//! A segment is registered when a GPU first reads a block in it, and unregistered when the session is about to
//! unmap it, when its attachment ends, or when the last GPU that uses it is closed.
//! The driver knows registrations per process, and refuses a second one of the same memory: so there is one table,
//! which is never dropped, so that an attachment always finds it.
//!
//! Lock: the table's, held while the driver registers and unregisters (milliseconds).
//! Without it a segment could be unmapped while its registration, just taken out of the table, still exists.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tierpack_kernels::cuda::driver::{Device, GpuError, Registration};
use tierpack_shm::attachment::{Attachment, AttachmentId, SegmentObserver};
use tierpack_shm::segment::SegmentKind;

use super::flight::has_abandoned;
use super::gpu::GpuId;
use super::raw;

/// The registered segments of this process.
#[derive(Debug, Default)]
pub(super) struct Segments {
    table: Mutex<HashMap<(AttachmentId, usize), Registered>>,
    /// Data segments that were unmapped, of attachments that this observes.
    unmapped: AtomicU64,
}

#[derive(Debug)]
struct Registered {
    registration: Registration,
    /// Where each GPU that uses it finds it.
    addresses: Vec<(GpuId, u64)>,
}

impl Segments {
    pub(super) fn of_process() -> &'static Arc<Self> {
        static SEGMENTS: OnceLock<Arc<Segments>> = OnceLock::new();
        SEGMENTS.get_or_init(Arc::default)
    }

    /// Where a GPU finds a data segment, which a guard of the caller reads; registers it at the first use.
    pub(super) fn address(
        self: &Arc<Self>,
        (gpu, device): (GpuId, &Arc<Device>),
        attachment: &Attachment,
        segment_idx: usize,
    ) -> Result<u64, GpuError> {
        // Called before it could matter: also of segments that are registered in this moment.
        self.watch(attachment);
        let mut table = self.table.lock();
        let key = (attachment.number(), segment_idx);
        let registered = match table.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let registration = raw::register(device, attachment, segment_idx)?;
                entry.insert(Registered { registration, addresses: Vec::new() })
            }
        };
        if let Some(&(_, address)) = registered.addresses.iter().find(|(known, _)| *known == gpu) {
            return Ok(address);
        }
        let address = registered.registration.address(device);
        match address {
            Ok(address) => registered.addresses.push((gpu, address)),
            Err(_) if registered.addresses.is_empty() => table.remove(&key).into_iter().for_each(end),
            Err(_) => {}
        }
        address
    }

    /// Hears of segments that are unmapped, from now on.
    pub(super) fn watch(self: &Arc<Self>, attachment: &Attachment) {
        let observer: Arc<dyn SegmentObserver> = Arc::clone(self) as _;
        attachment.observe(&observer);
    }

    /// Counts segments that were unmapped: who reads a block word and then the same count as before knows that the
    /// segment which the word names is the one that it was.
    pub(super) fn unmapped(&self) -> u64 {
        // Acquire: pairs with the Release in `before_unmap`, by way of the daemon, which publishes a word that names
        // the segment's successor only after the session has said that the segment is unmapped.
        self.unmapped.load(Ordering::Acquire)
    }

    /// Unregisters what no other GPU uses.
    pub(super) fn forget(&self, gpu: GpuId) {
        if has_abandoned() {
            // The GPU may still read any of them.
            return;
        }
        let unused = |_: &_, registered: &mut Registered| {
            registered.addresses.retain(|(known, _)| *known != gpu);
            registered.addresses.is_empty()
        };
        self.table.lock().extract_if(unused).for_each(|(_, registered)| end(registered));
    }

    /// Segments that are registered for a GPU, and their bytes.
    pub(super) fn of(&self, gpu: GpuId) -> (u64, u64) {
        let table = self.table.lock();
        let used = table.values().filter(|entry| entry.addresses.iter().any(|(known, _)| *known == gpu));
        used.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.registration.len() as u64))
    }
}

/// Cannot be: a guard keeps the segment, and the bytes in it, where they were.
pub(super) fn moved() -> GpuError {
    GpuError::NoAccess { asked: "registered", reason: "a segment is not mapped any more".to_owned() }
}

/// Unregisters a segment, under the table's lock.
fn end(registered: Registered) {
    if let Err(error) = registered.registration.end() {
        tracing::error!(
            %error,
            "a segment of the pool stays registered with the GPU's driver: its memory stays locked, and reads of a \
             segment that is mapped there later may fail; start this process again, or choose access `staged`"
        );
    }
}

impl SegmentObserver for Segments {
    fn before_unmap(&self, attachment: AttachmentId, kind: SegmentKind, segment_idx: usize) {
        if kind == SegmentKind::Data {
            // Release: pairs with the Acquire in `unmapped`.
            self.unmapped.fetch_add(1, Ordering::Release);
            let mut table = self.table.lock();
            table.remove(&(attachment, segment_idx)).into_iter().for_each(end);
        }
    }
}
