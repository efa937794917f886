//! Snapshots: many tensors as they are at one moment, whatever is put, updated or removed meanwhile.
//!
//! A snapshot takes one lease on every slot, looks up the words of all blocks, and finishes the lease: from then on it
//! holds what it has found, and nothing that is stored later (see `look_up.rs`).
//! Its values are decoded from there when they are asked for.

mod look_up;

use std::collections::BTreeMap;
use std::sync::Arc;

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::attachment::{Attachment, Generation, Guard, NoGuard, SlotRef};
use tierpack_shm::message::{Entry, FileMetadata};
use tierpack_shm::page::Counter;
use tierpack_shm::types::{BlockWord, index};

use crate::blocks::copy_found;
use crate::client::Client;
use crate::decode::Coders;
use crate::error::{Error, Result};
use crate::handle::{Fault, Opened};
use crate::parts::fitting;
use crate::session::Session;
use crate::tensor::Tensor;

/// Several tensors of a namespace as they were at one moment: made by [`Client::snapshot`] and
/// [`Client::snapshot_all`].
///
/// Until it is dropped, the daemon can free no memory of the namespace that was in use at that moment: what is replaced
/// meanwhile counts as held by this client. One of 1024 leases is taken.
#[derive(Debug)]
pub struct Snapshot {
    // Dropped before the session, which keeps the lease counting.
    guard: Guard<Arc<Attachment>>,
    attachment: Arc<Attachment>,
    session: Arc<Session>,
    client: Client,
    /// By name.
    tensors: Vec<Found>,
    /// Of all tensors, one behind the other.
    words: Vec<BlockWord>,
    /// By number.
    file_metadata: BTreeMap<u64, FileMetadata>,
}

/// A tensor of a snapshot, and where it is.
#[derive(Debug)]
struct Found {
    entry: Entry,
    slot: SlotRef,
    geometry: Geometry,
    file_metadata: Option<u64>,
    first_word: usize,
    /// Those that its words name, by their indexes.
    generations: Box<[(u8, Generation)]>,
}

/// One tensor of a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct SnapshotTensor<'s> {
    snapshot: &'s Snapshot,
    found: &'s Found,
}

/// A read of one tensor of a snapshot in parts, made by [`SnapshotTensor::parts`].
#[derive(Debug)]
pub struct SnapshotParts<'s> {
    tensor: SnapshotTensor<'s>,
    opened: Opened,
    next_block: u64,
}

impl Client {
    /// Takes a snapshot of the tensors of these names.
    ///
    /// All are of one moment: of puts and removals, of transactions of several tensors, and of updates, each is in the
    /// snapshot as a whole or not at all, and none is without one that was acknowledged before it began.
    /// Where the namespace changes faster than its tensors can be looked up, the daemon is asked to let commits wait for a
    /// moment, at most 100 ms.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let config = tierpack_daemon::Config::embedded(folder.path().join("control.sock"), 64 << 20)?;
    /// # let daemon = tierpack_daemon::Embedded::start(&config)?;
    /// # let client = tierpack_client::Client::builder().socket(daemon.socket()).connect()?;
    /// # use tierpack_client::Dtype;
    /// client.put("a", Dtype::U8, &[2], &[1, 2])?;
    /// client.put("b", Dtype::U8, &[2], &[3, 4])?;
    /// let snapshot = client.snapshot_all()?;
    /// client.remove("a")?;
    /// for tensor in snapshot.tensors() {
    ///     println!("{}: {:?}", tensor.entry().name, tensor.get()?.as_bytes());
    /// }
    /// # assert_eq!(snapshot.tensor("a").expect("it was there").get()?.as_bytes(), [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Deadline`] when the namespace changes too fast even so;
    /// [`Error::TooManyLeases`]; as every call that asks the daemon.
    pub fn snapshot<S: AsRef<str>>(&self, names: &[S]) -> Result<Snapshot> {
        let mut names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
        names.iter().try_for_each(|name| crate::client::check_name(name))?;
        names.sort_unstable();
        names.dedup();
        look_up::take(self, Some(&names))
    }

    /// As [`Client::snapshot`], of every tensor of the namespace.
    ///
    /// # Errors
    /// As [`Client::snapshot`]; [`Error::NotFound`] when the namespace does not exist.
    pub fn snapshot_all(&self) -> Result<Snapshot> {
        look_up::take(self, None)
    }
}

impl Snapshot {
    /// Its tensors, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = SnapshotTensor<'_>> {
        self.tensors.iter().map(|found| SnapshotTensor { snapshot: self, found })
    }

    /// The tensor of a name, if it is in the snapshot.
    pub fn tensor(&self, name: &str) -> Option<SnapshotTensor<'_>> {
        let at = self.tensors.binary_search_by(|found| found.entry.name.as_str().cmp(name)).ok()?;
        Some(SnapshotTensor { snapshot: self, found: &self.tensors[at] })
    }

    fn words_of(&self, found: &Found) -> &[BlockWord] {
        &self.words[found.first_word..][..index(found.geometry.n_blocks())]
    }
}

impl<'s> SnapshotTensor<'s> {
    /// What the daemon says about it.
    pub fn entry(&self) -> &'s Entry {
        &self.found.entry
    }

    /// The metadata of the file that it came from, as [`Client::file_metadata`].
    pub fn file_metadata(&self) -> Option<&'s BTreeMap<String, String>> {
        self.snapshot.file_metadata.get(&self.found.file_metadata?)
    }

    /// All of it.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Memory`], [`Error::Corrupt`]; [`Error::System`] when the process has closed the
    /// client's socket, which ends what the snapshot holds.
    pub fn get(&self) -> Result<Tensor> {
        let (snapshot, Entry { dtype, shape, raw_bytes, .. }) = (self.snapshot, &self.found.entry);
        snapshot.client.shared.check_here()?;
        let buffer = snapshot.client.shared.buffers.take(*raw_bytes)?;
        let mut tensor = Tensor::new(*dtype, shape.clone(), buffer);
        self.parts()?.read_blocks(self.found.geometry.n_blocks(), tensor.as_mut_bytes())?;
        Ok(tensor)
    }

    /// Starts to read it part by part, in the order of its bytes.
    ///
    /// # Errors
    /// As [`SnapshotTensor::get`].
    pub fn parts(&self) -> Result<SnapshotParts<'s>> {
        let (snapshot, found) = (self.snapshot, self.found);
        snapshot.client.shared.check_here()?;
        let (attachment, session) = (Arc::clone(&snapshot.attachment), Arc::clone(&snapshot.session));
        let what = (found.geometry, found.entry.codec, found.entry.shape.clone());
        let opened = Opened::of(what, found.slot, attachment, session);
        snapshot.guard.count(Counter::Gets, 1);
        Ok(SnapshotParts { tensor: *self, opened, next_block: 0 })
    }
}

impl Found {
    #[cold]
    fn corrupt(&self) -> Error {
        let Entry { namespace, name, .. } = &self.entry;
        Error::Corrupt { namespace: namespace.clone(), name: name.clone() }
    }
}

impl SnapshotParts<'_> {
    /// Fills the front of `buf` with the next part; returns its bytes, 0 when all parts have been read.
    ///
    /// # Errors
    /// [`Error::BufferLength`] when `buf` does not hold one block, which [`crate::Parts::MIN_BUFFER_BYTES`] do; else as
    /// [`SnapshotTensor::get`].
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let geometry = &self.opened.geometry;
        if self.next_block == geometry.n_blocks() {
            return Ok(0);
        }
        let (len, end) = fitting(geometry, self.next_block..geometry.n_blocks(), buf.len() as u64)?;
        self.read_blocks(end, &mut buf[..len])?;
        Ok(len)
    }

    /// Reads the blocks up to `end`.
    fn read_blocks(&mut self, end: u64, out: &mut [u8]) -> Result<()> {
        let SnapshotTensor { snapshot, found } = self.tensor;
        if !snapshot.guard.is_here() {
            return Err(Error::Forked);
        }
        let words = &snapshot.words_of(found)[index(self.next_block)..index(end)];
        let len = out.len() as u64;
        let copied = Coders::of(&snapshot.guard, &self.opened, &found.generations)
            .and_then(|coders| copy_found(&coders, self.next_block, words, out).map(drop));
        copied.and_then(|()| Ok(snapshot.guard.check_held()?)).map_err(|fault| match fault {
            Fault::Failed(error) => error,
            Fault::NoGuard(NoGuard::HungUp) => self.opened.lost("read a snapshot"),
            // The snapshot has looked at every segment, and its lease keeps the bytes where they were.
            Fault::NoGuard(_) | Fault::NoRoom => found.corrupt(),
        })?;
        snapshot.guard.count(Counter::Bytes, len);
        self.next_block = end;
        Ok(())
    }
}
