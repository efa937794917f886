//! Handles: an open tensor, and what happens when it is not where it was.
//!
//! Reads run in [`Handle::attempt`], which is the only place that knows what a missing guard means.
//! A handle whose tensor was replaced, or whose daemon is gone, is opened again and the read goes on, as long as
//! dtype, shape and row length are what they were; else the caller gets an error.
//! No guard is held while waiting: the daemon may be waiting for it.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::attachment::{Attachment, AttachmentId, Guard, NoGuard, SlotRef};
use tierpack_shm::layout::{MAX_SEGMENTS, page};
use tierpack_shm::message::Entry;
use tierpack_shm::page::{ClientPage, Counter};
use tierpack_shm::types::{CodecId, Dtype};

use crate::client::Client;
use crate::deadline::Deadline;
use crate::decode::KeptCoders;
use crate::device::DeviceForms;
use crate::error::{Error, Result};
use crate::protocol::ProtocolFault;
use crate::session::Session;

/// Times that one call connects again.
const MAX_HANG_UPS: u32 = 2;

/// An open tensor; cheap to clone, for any number of threads.
///
/// A handle stays good while its tensor is replaced by one of the same dtype and shape, and when the daemon is
/// restarted and has such a tensor again.
#[derive(Clone, Debug)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    name: String,
    /// Never changes, unlike where the tensor is.
    shape: Vec<u64>,
    geometry: Geometry,
    state: ArcSwap<Opened>,
}

/// Where an open tensor is.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) geometry: Geometry,
    /// That of the tensor when it was opened: a refit may have changed it since.
    pub(crate) codec: CodecId,
    pub(crate) slot: SlotRef,
    pub(crate) coders: KeptCoders,
    /// The coders' metadata on the GPUs that have read the tensor.
    pub(crate) forms: Arc<DeviceForms>,
    shape: Vec<u64>,
    attachment: Arc<Attachment>,
    /// Its end is the end of every lease in its client pages, so it outlives the guards.
    session: Arc<Session>,
}

/// Why a read did not succeed.
#[derive(Debug)]
pub(crate) enum Fault {
    NoGuard(NoGuard),
    Failed(Error),
    /// What is opened keeps as many coders as it can, and another is needed.
    NoRoom,
}

impl From<NoGuard> for Fault {
    fn from(reason: NoGuard) -> Self {
        Self::NoGuard(reason)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Opened {
    /// Checks what the daemon said about a tensor.
    pub(crate) fn new(
        entry: Entry,
        row_elems: Option<u64>,
        slot: SlotRef,
        attachment: Arc<Attachment>,
        session: Arc<Session>,
    ) -> core::result::Result<Self, ProtocolFault> {
        let geometry = geometry(&entry, row_elems)?;
        Ok(Self::of((geometry, entry.codec, entry.shape), slot, attachment, session))
    }

    /// What was checked already, with no coder yet.
    pub(crate) fn of(
        (geometry, codec, shape): (Geometry, CodecId, Vec<u64>),
        slot: SlotRef,
        attachment: Arc<Attachment>,
        session: Arc<Session>,
    ) -> Self {
        let (coders, forms) = (KeptCoders::default(), Arc::default());
        Self { geometry, codec, slot, coders, forms, shape, attachment, session }
    }

    /// Leave to read the tensor.
    #[inline]
    pub(crate) fn guard(&self) -> core::result::Result<Guard<&Attachment>, NoGuard> {
        Guard::new(&*self.attachment, self.slot)
    }

    /// As [`Opened::guard`], for as long as the caller likes; `self` is kept as long.
    pub(crate) fn owned_guard(&self) -> core::result::Result<Guard<Arc<Attachment>>, NoGuard> {
        Guard::new(Arc::clone(&self.attachment), self.slot)
    }

    /// The tensor's shape, outermost dimension first.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The page whose counters count its reads.
    pub(crate) fn page(&self) -> &ClientPage {
        self.attachment.page()
    }

    /// Which attachment it is read through.
    pub(crate) fn attachment_number(&self) -> AttachmentId {
        self.attachment.number()
    }

    /// The error for a session that has ended.
    pub(crate) fn lost(&self, operation: &'static str) -> Error {
        self.session.lost(operation)
    }

    /// The shared memory that it is read from.
    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The daemon whose slot this is.
    pub(crate) fn instance(&self) -> u64 {
        self.session.instance()
    }

    fn without_coders(&self) -> Self {
        let what = (self.geometry, self.codec, self.shape.clone());
        Self::of(what, self.slot, Arc::clone(&self.attachment), Arc::clone(&self.session))
    }

    fn is_like(&self, shape: &[u64], geometry: &Geometry) -> bool {
        let rows = |geometry: &Geometry| (geometry.dtype(), geometry.n_rows(), geometry.row_bytes());
        self.shape == shape && rows(&self.geometry) == rows(geometry)
    }
}

/// The geometry of a tensor as the daemon describes it.
pub(crate) fn geometry(
    entry: &Entry,
    row_elems: Option<u64>,
) -> core::result::Result<Geometry, ProtocolFault> {
    let found = entry.raw_bytes;
    let geometry = Geometry::new(entry.dtype, &entry.shape, entry.access, row_elems)
        .map_err(|_| ProtocolFault::Entry { found, needed: 0 })?;
    if geometry.raw_bytes() == found {
        Ok(geometry)
    } else {
        Err(ProtocolFault::Entry { found, needed: geometry.raw_bytes() })
    }
}

/// What one call has tried so far.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    deadline: Option<Deadline>,
    hang_ups: u32,
}

impl Handle {
    pub(crate) fn new(client: Client, name: &str, opened: Opened) -> Self {
        let (name, shape, geometry) = (name.to_owned(), opened.shape.clone(), opened.geometry);
        let state = ArcSwap::from_pointee(opened);
        Self { inner: Arc::new(Inner { client, name, shape, geometry, state }) }
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.inner.geometry.dtype()
    }

    /// Shape, outermost dimension first.
    pub fn shape(&self) -> Vec<u64> {
        self.inner.shape.clone()
    }

    /// Rows that a gather can name.
    pub fn n_rows(&self) -> u64 {
        self.inner.geometry.n_rows()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.inner.geometry.row_bytes()
    }

    /// Bytes of the tensor.
    pub fn raw_bytes(&self) -> u64 {
        self.inner.geometry.raw_bytes()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The geometry as far as it never changes: dtype, rows, row length, raw bytes.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }

    /// Where the tensor is, as far as this handle knows.
    pub(crate) fn opened(&self) -> Arc<Opened> {
        self.inner.state.load_full()
    }

    /// Whether that is where it still is.
    pub(crate) fn is_on(&self, opened: &Arc<Opened>) -> bool {
        Arc::ptr_eq(&*self.inner.state.load(), opened)
    }

    pub(crate) fn shape_ref(&self) -> &[u64] {
        &self.inner.shape
    }

    /// Runs `read` until it succeeds or fails for good.
    ///
    /// `read` takes its guard from what is passed and drops it before it returns.
    #[inline]
    pub(crate) fn attempt<T>(
        &self,
        mut read: impl FnMut(&Arc<Opened>) -> core::result::Result<T, Fault>,
    ) -> Result<T> {
        self.inner.client.shared.check_here()?;
        let mut recovery = Recovery::default();
        loop {
            let opened = self.inner.state.load();
            match read(&opened) {
                Ok(value) => return Ok(value),
                Err(fault) => self.prepare_retry(fault, &opened, &mut recovery)?,
            }
        }
    }

    /// Does what another try takes; fails where none would help.
    #[cold]
    pub(crate) fn prepare_retry(
        &self,
        fault: Fault,
        opened: &Arc<Opened>,
        recovery: &mut Recovery,
    ) -> Result<()> {
        match fault {
            Fault::Failed(error) => Err(error),
            Fault::NoRoom => {
                self.forget_coders(opened);
                Ok(())
            }
            Fault::NoGuard(reason) => self.recover(reason, opened, recovery),
        }
    }

    fn recover(&self, reason: NoGuard, opened: &Arc<Opened>, recovery: &mut Recovery) -> Result<()> {
        let deadline = *recovery.deadline.get_or_insert_with(|| self.inner.client.shared.deadline());
        let (namespace, name) = (self.inner.client.namespace.to_string(), self.inner.name.clone());
        match reason {
            NoGuard::Forked => return Err(Error::Forked),
            NoGuard::TooManyLeases => return Err(Error::TooManyLeases { limit: page::N_LEASES }),
            NoGuard::Corrupt => return Err(Error::Corrupt { namespace, name }),
            NoGuard::NotMapped(_, segment_idx) if segment_idx >= MAX_SEGMENTS => {
                return Err(Error::Corrupt { namespace, name });
            }
            NoGuard::NotMapped(kind, segment_idx) => {
                opened.session.wait_mapped(&opened.attachment, (kind, segment_idx), &deadline)?;
            }
            NoGuard::HungUp if recovery.hang_ups == MAX_HANG_UPS => {
                return Err(opened.session.lost("read a tensor"));
            }
            NoGuard::HungUp => {
                recovery.hang_ups += 1;
                self.reopen(opened, &deadline)?;
            }
            NoGuard::Replaced | NoGuard::Detached => self.reopen(opened, &deadline)?,
        }
        if deadline.left().is_zero() {
            return Err(deadline.passed("read a tensor that is replaced again and again"));
        }
        self.inner.state.load().attachment.page().count(0, Counter::Retries, 1);
        Ok(())
    }

    /// Starts with no coder, unless another thread has.
    ///
    /// Who reads with the old ones goes on with them.
    fn forget_coders(&self, full: &Arc<Opened>) {
        let state = &self.inner.state;
        state.compare_and_swap(full, Arc::new(full.without_coders()));
    }

    /// Finds the tensor again, unless another thread has.
    pub(crate) fn reopen(&self, stale: &Arc<Opened>, deadline: &Deadline) -> Result<()> {
        let Inner { client, name, shape, geometry, state } = &*self.inner;
        if !Arc::ptr_eq(&*state.load(), stale) {
            return Ok(());
        }
        let fresh = match client.open_slot(name, deadline) {
            // A slot address and an epoch of another daemon mean nothing: only its instance tells it apart.
            Err(Error::NotFound { namespace, name })
                if client.shared.instance() != stale.session.instance() =>
            {
                return Err(Error::Lost { namespace, name });
            }
            opened => opened?,
        };
        if !fresh.is_like(shape, geometry) {
            return Err(Error::Replaced {
                namespace: client.namespace.to_string(),
                name: name.clone(),
                was: describe(shape, geometry),
                now: describe(&fresh.shape, &fresh.geometry),
            });
        }
        state.store(Arc::new(fresh));
        Ok(())
    }
}

fn describe(shape: &[u64], geometry: &Geometry) -> String {
    let (dtype, n_rows, row_bytes) = (geometry.dtype(), geometry.n_rows(), geometry.row_bytes());
    format!("{dtype} {shape:?} in {n_rows} rows of {row_bytes} bytes")
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.inner.client.shared.is_here() {
            // As in `Client::drop`: what other threads may have been changing is left alone.
            let _ = ManuallyDrop::new(Arc::clone(&self.inner));
        }
    }
}
