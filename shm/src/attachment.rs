//! A client's side of one namespace: its mapped segments, its page, and the guards under which it reads.
//!
//! Everything a reader needs is here, and taking a guard makes no system call and waits for nobody.
//! A guard is a lease with a check: the session is alive, the process is the one that attached, and the tensor is
//! still the publication that the handle was opened on.

#![expect(unsafe_code, reason = "hands out published bytes under a lease, and ends mappings")]

mod claims;
mod link;
mod look;
mod observers;
mod segments;

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::epoch;
use crate::error::{Error, Result};
use crate::faults::{Point, reach};
use crate::fork::ForkCookie;
use crate::layout::{LAYOUT_VERSION, SEGMENT_SPAN_UNITS, header, slot};
use crate::page::{ClientPage, Counter, NamespaceId, check_fields};
use crate::pool::in_segment;
use crate::publish::is_published;
use crate::ring::{Changed, Drained, Ring};
use crate::segment::{ClientSegment, SegmentKind};
use crate::sync::{AtomicU64, Ordering};
use crate::types::{BlockWord, SlotIdx, index};

pub use link::Link;
pub use look::{Generation, Look, SlotRef};
pub use observers::{AttachmentId, SegmentObserver};

use claims::Claims;
use observers::Observers;
use segments::SegmentTable;

/// Why no guard was created, or why it could not read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGuard {
    /// This process is a fork of the one that attached.
    Forked,
    /// The daemon has hung up.
    HungUp,
    /// The session is leaving the namespace: it is gone, or no longer the caller's to read.
    Detached,
    /// Every lease of the page is taken.
    TooManyLeases,
    /// The slot holds another publication now.
    Replaced,
    /// The session has not mapped this segment yet.
    NotMapped(SegmentKind, usize),
    /// The directory says something that cannot be: an address outside its segment.
    Corrupt,
}

/// A client's view of one namespace.
pub struct Attachment {
    id: NamespaceId,
    number: AttachmentId,
    observers: Observers,
    data: SegmentTable,
    directory: SegmentTable,
    page: ClientPage,
    claims: Claims,
    cookie: ForkCookie,
    link: Arc<Link>,
    is_closing: AtomicBool,
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Attachment {
    /// Maps the client page and segment 0 of the directory, and checks both headers.
    ///
    /// `link` is the session's state: once it has ended, no guard is created.
    ///
    /// # Errors
    /// [`Error::Descriptor`] or [`Error::Layout`] when what came is not what this build can read.
    pub fn new(
        id: NamespaceId,
        page: BorrowedFd<'_>,
        header: (OwnedFd, u64),
        cookie: ForkCookie,
        link: Arc<Link>,
    ) -> Result<Self> {
        let page = ClientPage::adopt(page, id)?;
        let segment = ClientSegment::adopt(&header.0, header.1)?;
        let read = |at| segment.map.word(at).map_or(0, |word| word.load(Ordering::Acquire));
        let expected = [
            (header::VERSION_AT, "layout version", u64::from(LAYOUT_VERSION)),
            (header::MAGIC_AT, "magic", header::MAGIC),
            (header::INSTANCE_AT, "instance", id.instance),
            (header::NAMESPACE_AT, "namespace", u64::from(id.namespace)),
            (header::RING_CAPACITY_AT, "ring capacity", header::RING_CAPACITY),
        ];
        check_fields("directory", expected, read)?;
        if segment.map.len() < header::END {
            return Err(Error::OutOfSegment { what: "the directory header", address: 0, len: header::END });
        }
        static ATTACHMENTS: AtomicUsize = AtomicUsize::new(0);
        let this = Self {
            id,
            number: AttachmentId(ATTACHMENTS.fetch_add(1, Ordering::Relaxed) as u64),
            observers: Observers::default(),
            data: SegmentTable::new(),
            directory: SegmentTable::new(),
            page,
            claims: Claims::new(),
            cookie,
            link,
            is_closing: AtomicBool::new(false),
        };
        this.directory.insert(0, segment);
        Ok(this)
    }

    /// Which namespace of which daemon this is.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Which attachment of this process this is.
    pub fn number(&self) -> AttachmentId {
        self.number
    }

    /// Registers `observer`, which is called before any segment is unmapped, as long as it lives.
    pub fn observe(&self, observer: &Arc<dyn SegmentObserver>) {
        self.observers.add(observer);
    }

    /// Address and length of a mapped segment.
    ///
    /// They are good as long as a guard reads the segment, and else until [`SegmentObserver::before_unmap`] is called.
    pub fn segment_range(
        &self,
        kind: SegmentKind,
        segment_idx: usize,
    ) -> Option<(NonNull<core::ffi::c_void>, usize)> {
        self.table(kind).get(segment_idx).map(|segment| segment.map.range())
    }

    /// The client page.
    pub fn page(&self) -> &ClientPage {
        &self.page
    }

    /// Maps a segment that the daemon announced and has not retired; one that is mapped already is left alone.
    ///
    /// # Errors
    /// [`Error::Descriptor`] when it is not sealed as a segment, [`Error::Map`] when it cannot be mapped.
    pub fn map(&self, kind: SegmentKind, segment_idx: usize, fd: impl AsFd, len: u64) -> Result<()> {
        if self.table(kind).get(segment_idx).is_none() {
            self.table(kind).insert(segment_idx, ClientSegment::adopt(fd, len)?);
        }
        Ok(())
    }

    /// The session, one thread at a time: fills the page tables of `len` bytes of a mapped segment from `at` on; advisory.
    ///
    /// Says whether the segment goes on behind them.
    /// Must not run while the same thread could be made to unmap the segment.
    pub fn prefault(&self, kind: SegmentKind, segment_idx: usize, at: u64, len: u64) -> bool {
        self.table(kind).get(segment_idx).is_some_and(|segment| segment.prefault(at, len))
    }

    /// The session, one thread at a time: unmaps a segment that the daemon has retired; says whether it was mapped.
    pub fn unmap(&self, kind: SegmentKind, segment_idx: usize) -> bool {
        self.observers.tell(self.number, kind, segment_idx);
        // SAFETY: the daemon retires a segment only when no extent in it is in use, and an extent stays in use as
        // long as a lease may cover a word that addresses it (`epoch::Leases`); so no guard reads the segment.
        unsafe { self.table(kind).remove(segment_idx) }
    }

    /// Allows no guard from now on; those that exist go on.
    pub fn close(&self) {
        // SeqCst: see `Guard::new`.
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// Whether no guard is created any more.
    pub fn is_closed(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// The session, one thread at a time: unmaps every segment of a closed attachment, unless a guard lives; says whether it has.
    pub fn unmap_all(&self) -> bool {
        // SeqCst: see `Guard::new`. It is an Acquire as well, and pairs with the Release in `Guard::drop`.
        if !self.is_closed() || self.claims.any() {
            return false;
        }
        for kind in [SegmentKind::Data, SegmentKind::Directory] {
            for segment_idx in self.table(kind).mapped() {
                self.observers.tell(self.number, kind, segment_idx);
                // SAFETY: no guard lives, and none is created any more.
                unsafe { self.table(kind).remove(segment_idx) };
            }
        }
        true
    }

    /// The sequence count of names and slots: see [`crate::seqcount`].
    #[inline]
    pub fn names(&self) -> &AtomicU64 {
        self.header(header::NAMES_AT)
    }

    /// The sequence count of values: it covers the block words as far as updates store them.
    #[inline]
    pub fn updates(&self) -> &AtomicU64 {
        self.header(header::UPDATES_AT)
    }

    /// Whether the session has mapped a segment.
    pub fn is_mapped(&self, kind: SegmentKind, segment_idx: usize) -> bool {
        self.table(kind).get(segment_idx).is_some()
    }

    fn table(&self, kind: SegmentKind) -> &SegmentTable {
        match kind {
            SegmentKind::Data => &self.data,
            SegmentKind::Directory => &self.directory,
        }
    }

    #[inline]
    fn words(&self, address: u64, count: u64) -> core::result::Result<&[AtomicU64], NoGuard> {
        let segment_idx = index(address / SEGMENT_SPAN_UNITS);
        let segment = self.directory.get(segment_idx);
        let segment = segment.ok_or(NoGuard::NotMapped(SegmentKind::Directory, segment_idx))?;
        segment.map.words(in_segment(address), count).ok_or(NoGuard::Corrupt)
    }

    #[inline]
    fn header(&self, at: u64) -> &AtomicU64 {
        let header = self.directory.get(0).expect("segment 0 is mapped as long as guards are given");
        header.map.word(at).expect("the header's length was checked by `new`")
    }

    #[inline]
    fn epoch(&self) -> &AtomicU64 {
        self.header(header::EPOCH_AT)
    }

    fn ring(&self) -> Ring<'_> {
        let header = self.directory.get(0).expect("segment 0 is mapped as long as guards are given");
        let entries = header.map.words(header::RING_AT, header::RING_CAPACITY);
        let entries = entries.expect("the header's length was checked by `new`");
        Ring::new(self.header(header::RING_HEAD_AT), entries)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // What a fork has are copies: the segments of its parent stay known where they are.
        if !self.cookie.is_here() || self.observers.is_empty() {
            return;
        }
        for kind in [SegmentKind::Data, SegmentKind::Directory] {
            for segment_idx in self.table(kind).mapped() {
                self.observers.tell(self.number, kind, segment_idx);
            }
        }
    }
}

/// Leave to read one tensor, until dropped.
#[derive(Debug)]
pub struct Guard<A: Deref<Target = Attachment>> {
    attachment: A,
    lease_idx: usize,
    slot: SlotRef,
}

impl<A: Deref<Target = Attachment>> Guard<A> {
    /// Takes a lease on `slot` and checks that it is still the same publication.
    ///
    /// # Errors
    /// [`NoGuard`]: nothing is held then.
    #[inline]
    pub fn new(attachment: A, slot: SlotRef) -> core::result::Result<Self, NoGuard> {
        let this = Self::take(attachment, slot)?;
        reach(Point::LeaseTaken);
        if !this.is_published(slot)? {
            return Err(NoGuard::Replaced);
        }
        Ok(this)
    }

    /// Takes a lease on every slot of the namespace; look-ups name theirs, as [`Guard::look`].
    ///
    /// # Errors
    /// As [`Guard::new`], [`NoGuard::Replaced`] aside.
    pub fn every(attachment: A) -> core::result::Result<Self, NoGuard> {
        Self::take(attachment, SlotRef { address: 0, idx: SlotIdx::EVERY, publication: 0 })
    }

    #[inline]
    fn take(attachment: A, slot: SlotRef) -> core::result::Result<Self, NoGuard> {
        if !attachment.cookie.is_here() {
            return Err(NoGuard::Forked);
        }
        if !attachment.link.is_open() {
            return Err(NoGuard::HungUp);
        }
        let lease_idx = attachment.claims.claim().ok_or(NoGuard::TooManyLeases)?;
        // SeqCst, with the swap in `claim`, the store in `close` and the look in `unmap_all`: either this sees that
        // the attachment is closing, or `unmap_all` sees the claim.
        if attachment.is_closing.load(Ordering::SeqCst) {
            attachment.claims.release(lease_idx);
            return Err(NoGuard::Detached);
        }
        epoch::begin(&attachment.page.leases()[lease_idx], attachment.epoch(), slot.idx);
        // From here on dropping the guard ends the lease.
        Ok(Self { attachment, lease_idx, slot })
    }

    /// Whether a slot that the lease covers is still the publication that it was.
    ///
    /// # Errors
    /// As [`Guard::words`].
    #[inline]
    pub fn is_published(&self, slot: SlotRef) -> core::result::Result<bool, NoGuard> {
        debug_assert!(!self.is_finished(), "a finished guard looks nothing up");
        let words = self.attachment.words(slot.address, slot::BYTES / 8)?;
        Ok(is_published(&words[index(slot::PUBLICATION_AT / 8)], slot.publication))
    }

    /// What a slot says about its tensor; the lease covers the slot, and [`Guard::is_published`] has said yes.
    #[inline]
    pub fn look(&self, slot: SlotRef) -> Look<'_> {
        debug_assert!(!self.is_finished(), "a finished guard looks nothing up");
        Look { attachment: &self.attachment, slot }
    }

    /// Says that all has been looked up: from now on only what was found may be read, by [`Guard::stored`].
    ///
    /// What is stored from now on is not held any more, however long this guard lives.
    #[inline]
    pub fn finish(&self) {
        let page = &self.attachment.page;
        epoch::finish(
            &page.leases()[self.lease_idx],
            &page.last_looks()[self.lease_idx],
            self.attachment.epoch(),
        );
    }

    /// The block words; read each with `publish::load_word`.
    ///
    /// # Errors
    /// [`NoGuard::NotMapped`]: drop the guard, wait until it is mapped, try again.
    #[inline]
    pub fn words(&self) -> core::result::Result<&[AtomicU64], NoGuard> {
        self.look(self.slot).words()
    }

    /// The tensor's revision: how many updates this publication has seen.
    ///
    /// # Errors
    /// As [`Guard::words`].
    pub fn revision(&self) -> core::result::Result<u64, NoGuard> {
        self.look(self.slot).revision()
    }

    /// Number and bytes of the metadata that a block word's generation index names.
    ///
    /// # Errors
    /// As [`Guard::words`]; [`NoGuard::Corrupt`] for an index beyond the table.
    pub fn generation(&self, generation_idx: u8) -> core::result::Result<(u32, &[u8]), NoGuard> {
        let generation = self.look(self.slot).generation(generation_idx)?;
        Ok((generation.number, self.metadata(generation)?))
    }

    /// The metadata of a generation, which was looked up before this guard was finished.
    ///
    /// # Errors
    /// [`NoGuard::NotMapped`], [`NoGuard::Corrupt`].
    pub fn metadata(&self, generation: Generation) -> core::result::Result<&[u8], NoGuard> {
        self.data(generation.address, u64::from(generation.len))
    }

    /// `len` stored bytes of a block, from the start of its extent on.
    ///
    /// `len` is what the tensor's geometry says, or what the block's own checked header says: at most the extent.
    ///
    /// # Errors
    /// As [`Guard::words`]; [`NoGuard::Corrupt`] when that passes the end of the segment.
    #[inline]
    pub fn stored(&self, word: BlockWord, len: u64) -> core::result::Result<&[u8], NoGuard> {
        self.data(word.offset(), len)
    }

    #[inline]
    fn data(&self, address: u64, len: u64) -> core::result::Result<&[u8], NoGuard> {
        let segment_idx = index(address / SEGMENT_SPAN_UNITS);
        let segment = self.attachment.data.get(segment_idx);
        let map = &segment.ok_or(NoGuard::NotMapped(SegmentKind::Data, segment_idx))?.map;
        // SAFETY: the word that names the address was found under this guard's lease before it was finished, so the
        // daemon, the only writer of the pool, frees and rewrites its extent only after the lease ends; and `len` stays
        // within the extent, since it comes from the geometry that sized it or from the header of the block itself.
        unsafe { map.bytes(in_segment(address), len) }.ok_or(NoGuard::Corrupt)
    }

    /// Where [`Guard::stored`] finds these bytes: the index of the data segment, and the offset in it.
    ///
    /// # Errors
    /// As [`Guard::stored`].
    pub fn place(&self, word: BlockWord, len: u64) -> core::result::Result<(usize, u64), NoGuard> {
        self.stored(word, len)?;
        Ok((index(word.offset() / SEGMENT_SPAN_UNITS), in_segment(word.offset())))
    }

    /// The position in the ring of changed blocks of the namespace: what is stored from now on comes behind it.
    pub fn changes(&self) -> u64 {
        self.attachment.ring().head()
    }

    /// Hands out the blocks of this tensor that were stored since the ring stood at `tail`.
    ///
    /// Words that are loaded afterwards are those of these stores, or newer.
    /// After [`Drained::Lapped`] any block may have been stored.
    pub fn changed_blocks(&self, tail: u64, mut found: impl FnMut(u64)) -> Drained {
        self.changed(tail, |changed| {
            if changed.slot == self.slot.idx {
                found(changed.block_idx);
            }
        })
    }

    /// As [`Guard::changed_blocks`], of every tensor.
    pub fn changed(&self, tail: u64, found: impl FnMut(Changed)) -> Drained {
        self.attachment.ring().drain(tail, found)
    }

    /// Whether [`Guard::finish`] was called.
    pub fn is_finished(&self) -> bool {
        epoch::is_finished(&self.attachment.page.leases()[self.lease_idx])
    }

    /// The attachment that the guard reads through.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Adds to a counter of the client page.
    #[inline]
    pub fn count(&self, counter: Counter, amount: u64) {
        self.attachment.page.count(self.lease_idx, counter, amount);
    }

    /// Records an access to a block for the eviction policy; the caller samples.
    pub fn record_access(&self, block_idx: u64) {
        self.attachment.page.record_access(Changed { slot: self.slot.idx, block_idx });
    }

    /// Fails when what was read under this guard may have been overwritten meanwhile.
    ///
    /// That is so once the process has closed the session's socket: the daemon takes its leases as ended.
    /// After the end of the daemon nobody writes any more, and guards read on.
    ///
    /// # Errors
    /// [`NoGuard::HungUp`].
    #[inline]
    pub fn check_held(&self) -> core::result::Result<(), NoGuard> {
        if self.attachment.link.is_lost() { Err(NoGuard::HungUp) } else { Ok(()) }
    }

    /// Whether the process that took this guard is the one that asks: a fork must not read on.
    pub fn is_here(&self) -> bool {
        self.attachment.cookie.is_here()
    }
}

impl<A: Deref<Target = Attachment>> Drop for Guard<A> {
    #[inline]
    fn drop(&mut self) {
        // A fork has its parent's guards in its memory, and the page is shared: they are not its to end.
        if self.attachment.cookie.is_here() {
            reach(Point::LeaseEnding);
            epoch::end(&self.attachment.page.leases()[self.lease_idx]);
            self.attachment.claims.release(self.lease_idx);
        }
    }
}

#[cfg(test)]
mod tests;
