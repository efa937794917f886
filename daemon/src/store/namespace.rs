//! One namespace: its tensors, its segments, and what is retired in it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use tierpack_shm::attachment::SlotRef;
use tierpack_shm::directory::{Directory, Slot, SlotFields};
use tierpack_shm::epoch::{Leases, Stamp};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::{SEGMENT_SPAN_BYTES, generation, slot, table};
use tierpack_shm::message::{Entry, ErrorCode, Refusal, SegmentId};
use tierpack_shm::page::{ClientPage, NamespaceId};
use tierpack_shm::pool::{Fresh, Pool};
use tierpack_shm::segment::{Segment, SegmentKind};
use tierpack_shm::stats::NamespaceStats;
use tierpack_shm::sync::Ordering;
use tierpack_shm::types::{BlockWord, Extent, SlotIdx, UNIT_BYTES};

use super::Outcome;
use super::access::Access;
use super::content::{Content, StoredMetadata};
use super::file_metadata::SharedText;
use crate::size::ByteSize;

mod admin;
mod verify;

/// A tensor that is visible.
#[derive(Debug)]
struct Tensor {
    content: Content,
    slot: Slot,
    publication: u64,
    table: Extent,
    generations: Extent,
}

/// Memory that nobody can find any more, but that a lease may still cover.
#[derive(Debug)]
struct Retired {
    stamp: Stamp,
    slot_idx: SlotIdx,
    data: Vec<Extent>,
    directory: Vec<Extent>,
    slot: Option<Slot>,
}

impl Retired {
    fn data_bytes(&self) -> u64 {
        self.data.iter().map(Extent::len_bytes).sum()
    }
}

#[derive(Debug)]
struct Inner {
    access: Access,
    data: Pool,
    directory: Directory,
    tensors: BTreeMap<String, Tensor>,
    /// Stored bytes of `tensors`.
    stored_bytes: u64,
    retired: VecDeque<Retired>,
    /// Serial numbers of the segments that are present.
    serials: HashMap<(SegmentKind, u32), u64>,
    /// Whether a put was ever committed, or the namespace was asked for: then it stays, even when it is empty.
    was_published: bool,
    /// The client pages of all sessions that are attached, until the kernel reports them gone.
    pages: Vec<(u64, Arc<ClientPage>)>,
    /// Puts under way.
    puts: u64,
    /// Whether it was removed: nothing can be published any more.
    is_removed: bool,
}

/// A namespace of the store.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) id: NamespaceId,
    pub(crate) name: String,
    /// Held by whoever makes a segment, so that two do not.
    pub(super) growing: Mutex<()>,
    inner: Mutex<Inner>,
}

/// What `open` tells: see `Reply::Opened`.
pub(crate) struct Opened {
    pub(crate) entry: Entry,
    pub(crate) row_elems: Option<u64>,
    pub(crate) slot: SlotRef,
}

impl Namespace {
    pub(super) fn new(id: NamespaceId, name: String, access: Access, header: Segment, serial: u64) -> Self {
        let inner = Inner {
            access,
            data: Pool::default(),
            directory: Directory::new(header, id),
            tensors: BTreeMap::new(),
            stored_bytes: 0,
            retired: VecDeque::new(),
            serials: HashMap::from([((SegmentKind::Directory, 0), serial)]),
            was_published: false,
            pages: Vec::new(),
            puts: 0,
            is_removed: false,
        };
        Self { id, name, growing: Mutex::new(()), inner: Mutex::new(inner) }
    }

    /// Takes an extent of the data segments; `None` when they have no room.
    pub(super) fn allocate(&self, len: u64) -> Option<Fresh> {
        self.inner.lock().data.allocate(len)
    }

    /// Gives back extents that were never published.
    pub(super) fn free(&self, extents: impl IntoIterator<Item = Extent>) {
        let mut inner = self.inner.lock();
        extents.into_iter().for_each(|extent| inner.data.free(extent));
    }

    pub(super) fn has_room(&self, kind: SegmentKind, len: u64) -> bool {
        let mut inner = self.inner.lock();
        let pool = inner.pool_mut(kind);
        match pool.allocate(len) {
            Some(fresh) => {
                pool.free(fresh.freeze());
                true
            }
            None => false,
        }
    }

    /// Adds a segment, and tells of it by `announce` before anybody can take it out again.
    pub(super) fn add_segment(
        &self,
        kind: SegmentKind,
        segment: Segment,
        serial: u64,
        announce: impl FnOnce(SegmentId, Arc<Segment>),
    ) -> Outcome<SegmentId> {
        let (mut inner, segment) = (self.inner.lock(), Arc::new(segment));
        let pool = inner.pool_mut(kind);
        let Some(segment_idx) = pool.next_index() else {
            let text =
                format!("namespace {:?} has no address left for another {} segment", self.name, kind.name());
            return Err(Refusal::new(ErrorCode::PoolFull, text));
        };
        pool.add(segment_idx, Arc::clone(&segment), 0);
        let index = u32::try_from(segment_idx).expect("at most MAX_SEGMENTS");
        inner.serials.insert((kind, index), serial);
        let id = SegmentId { kind, index, serial };
        // Under the lock: else another thread could tell of its end before this one tells of its start.
        announce(id, segment);
        Ok(id)
    }

    /// Takes out data segments in which nothing is used, the first `keep` of them aside, and tells of each by
    /// `retire` in the order of all that is told of this namespace.
    pub(super) fn take_free_segments(&self, keep: usize, mut retire: impl FnMut(SegmentId, Arc<Segment>)) {
        let mut inner = self.inner.lock();
        for (kind, keep) in [(SegmentKind::Data, keep), (SegmentKind::Directory, 0)] {
            for segment_idx in inner.pool_mut(kind).free_segments().into_iter().skip(keep) {
                let index = u32::try_from(segment_idx).expect("at most MAX_SEGMENTS");
                // Segment 0 of the directory holds the header.
                if (kind, index) == (SegmentKind::Directory, 0) {
                    continue;
                }
                let segment = inner.pool_mut(kind).take_if_free(segment_idx);
                let serial = inner.serials.remove(&(kind, index)).unwrap_or_default();
                if let Some(segment) = segment {
                    retire(SegmentId { kind, index, serial }, segment);
                }
            }
        }
    }

    /// Whether it holds nothing and never had a tensor.
    pub(super) fn is_unused(&self) -> bool {
        let inner = self.inner.lock();
        !inner.was_published && inner.pages.is_empty() && inner.puts == 0 && inner.data.used_bytes() == 0
    }

    /// Every segment, for when the namespace goes.
    pub(super) fn all_segments(&self) -> Vec<Arc<Segment>> {
        let inner = self.inner.lock();
        let both = [inner.directory.pool(), &inner.data];
        both.into_iter().flat_map(|pool| pool.segments().map(|(_, segment)| Arc::clone(segment))).collect()
    }

    pub(super) fn vacate(&self, id: SegmentId) {
        self.inner.lock().pool_mut(id.kind).vacate(tierpack_shm::types::index(u64::from(id.index)));
    }

    pub(crate) fn segment_bytes(&self, kind: SegmentKind) -> u64 {
        self.inner.lock().pool_mut(kind).segment_bytes()
    }

    /// Bytes of the budget that tensors and directories take, puts under way included.
    pub(super) fn committed_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.data.used_bytes() + inner.directory.pool().segment_bytes()
    }

    /// Whether a put under this name would be refused.
    pub(super) fn check_free(&self, name: &str, overwrite: bool) -> Outcome<()> {
        self.inner.lock().check_free(&self.name, name, overwrite)
    }

    /// Makes a tensor visible; the one that it replaces is retired in the same step.
    ///
    /// # Errors
    /// `Ok(Err(content))` when the directory has no room: the caller grows it and tries again.
    pub(super) fn publish(
        &self,
        name: &str,
        content: Content,
        overwrite: bool,
    ) -> Outcome<Result<Entry, Content>> {
        let mut inner = self.inner.lock();
        let checked = inner
            .check_free(&self.name, name, overwrite)
            .and_then(|()| inner.check_quota(&self.name, name, content.stored_bytes));
        if let Err(refusal) = checked {
            content.into_extents().for_each(|extent| inner.data.free(extent));
            return Err(refusal);
        }
        let Some((slot, table, generations)) = inner.directory_parts(&content) else {
            return Ok(Err(content));
        };
        let fields = SlotFields {
            table: &table,
            n_blocks: content.blocks.len() as u64,
            generations: &generations,
            dtype: content.geometry.dtype() as u8,
            access: content.geometry.access() as u8,
            n_rows: content.geometry.n_rows(),
            row_bytes: content.geometry.row_bytes(),
            raw_bytes: content.geometry.raw_bytes(),
        };
        let publication = inner.directory.publish(&slot, fields).expect("the slot came from this directory");
        reach(Point::PutPublished);
        inner.was_published = true;
        let tensor = Tensor { content, slot, publication, table, generations };
        let entry = tensor.entry(&self.name, name, &inner.directory);
        inner.stored_bytes += entry.stored_bytes;
        if let Some(replaced) = inner.tensors.insert(name.to_owned(), tensor) {
            inner.retire(replaced)?;
        }
        Ok(Ok(entry))
    }

    pub(crate) fn remove(&self, name: &str) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let tensor = inner.tensors.remove(name).ok_or_else(|| self.not_found(name))?;
        inner.retire(tensor)
    }

    pub(crate) fn open(&self, name: &str) -> Outcome<Opened> {
        let inner = self.inner.lock();
        let tensor = inner.tensors.get(name).ok_or_else(|| self.not_found(name))?;
        let slot = SlotRef {
            address: tensor.slot.address(),
            idx: tensor.slot.idx(),
            publication: tensor.publication,
        };
        let entry = tensor.entry(&self.name, name, &inner.directory);
        Ok(Opened { entry, row_elems: tensor.content.row_elems, slot })
    }

    pub(crate) fn file_metadata(&self, name: &str) -> Outcome<Option<SharedText>> {
        let inner = self.inner.lock();
        let tensor = inner.tensors.get(name).ok_or_else(|| self.not_found(name))?;
        Ok(tensor.content.file_metadata.as_ref().map(Arc::clone))
    }

    /// Hands entries after `after` to `take` until it has enough; says whether it took all.
    pub(crate) fn list(&self, after: Option<&str>, mut take: impl FnMut(Entry) -> bool) -> bool {
        let inner = self.inner.lock();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = inner.tensors.range::<str, _>((start, Bound::Unbounded));
        rest.all(|(name, tensor)| take(tensor.entry(&self.name, name, &inner.directory)))
    }

    /// Counts a session in: from now on its leases hold memory. Gives what it must map.
    pub(crate) fn attach(&self, session: u64, page: Arc<ClientPage>) -> Vec<(SegmentId, Arc<Segment>)> {
        let mut inner = self.inner.lock();
        inner.pages.push((session, page));
        inner.present_segments()
    }

    /// Counts a session out: the kernel has reported it gone, and its leases with it.
    pub(crate) fn detach(&self, session: u64) {
        self.inner.lock().pages.retain(|(attached, _)| *attached != session);
    }

    /// Frees what no lease holds any more; says whether it freed something, and whether something is still held.
    pub(super) fn reclaim(&self) -> (bool, bool) {
        let mut inner = self.inner.lock();
        let before = inner.retired.len();
        if before == 0 {
            return (false, false);
        }
        let leases = Leases::scan(inner.pages.iter().flat_map(|(_, page)| page.leases()));
        for retired in std::mem::take(&mut inner.retired) {
            if leases.hold(retired.stamp, retired.slot_idx) {
                inner.retired.push_back(retired);
                continue;
            }
            reach(Point::BeforeFree);
            retired.data.into_iter().for_each(|extent| inner.data.free(extent));
            retired.directory.into_iter().for_each(|extent| inner.directory.pool_mut().free(extent));
            retired.slot.into_iter().for_each(|slot| inner.directory.give_slot(slot));
        }
        let held = inner.retired.len();
        (held < before, held > 0)
    }

    pub(crate) fn stats(&self) -> NamespaceStats {
        let inner = self.inner.lock();
        let mut stats = NamespaceStats::default();
        stats.name.clone_from(&self.name);
        stats.tensors = inner.tensors.len() as u64;
        stats.raw_bytes = inner.tensors.values().map(|tensor| tensor.content.geometry.raw_bytes()).sum();
        stats.stored_bytes = inner.stored_bytes;
        stats.used_bytes = inner.data.used_bytes();
        stats.directory_bytes = inner.directory.pool().used_bytes();
        stats.held_bytes = inner.retired.iter().map(Retired::data_bytes).sum();
        stats.segment_bytes = inner.data.segment_bytes() + inner.directory.pool().segment_bytes();
        stats.epoch = inner.directory.epoch();
        stats
    }

    fn not_found(&self, name: &str) -> Refusal {
        let text = format!("tensor {name:?} does not exist in namespace {:?}", self.name);
        Refusal::new(ErrorCode::NotFound, text)
    }
}

impl Inner {
    fn present_segments(&self) -> Vec<(SegmentId, Arc<Segment>)> {
        let both = [(SegmentKind::Directory, self.directory.pool()), (SegmentKind::Data, &self.data)];
        let all = both
            .into_iter()
            .flat_map(|(kind, pool)| pool.segments().map(move |(idx, segment)| (kind, idx, segment)));
        all.map(|(kind, segment_idx, segment)| {
            let index = u32::try_from(segment_idx).expect("at most MAX_SEGMENTS");
            let serial = self.serials.get(&(kind, index)).copied().unwrap_or_default();
            (SegmentId { kind, index, serial }, Arc::clone(segment))
        })
        .collect()
    }

    fn pool_mut(&mut self, kind: SegmentKind) -> &mut Pool {
        match kind {
            SegmentKind::Data => &mut self.data,
            SegmentKind::Directory => self.directory.pool_mut(),
        }
    }

    fn check_quota(&self, namespace: &str, name: &str, more: u64) -> Outcome<()> {
        let Some(quota) = self.access.quota_bytes else { return Ok(()) };
        let replaced = self.tensors.get(name).map_or(0, |tensor| tensor.content.stored_bytes);
        let kept = self.stored_bytes - replaced;
        if kept.saturating_add(more) <= quota {
            return Ok(());
        }
        let text = format!(
            "quota of namespace {namespace:?} is {}, of which other tensors take {}: tensor {name:?} needs {} more",
            ByteSize(quota),
            ByteSize(kept),
            ByteSize(more)
        );
        Err(Refusal::new(ErrorCode::Quota, text))
    }

    fn check_free(&self, namespace: &str, name: &str, overwrite: bool) -> Outcome<()> {
        if self.is_removed {
            let text = format!("namespace {namespace:?} was removed: begin the put again");
            return Err(Refusal::new(ErrorCode::NotFound, text));
        }
        if overwrite || !self.tensors.contains_key(name) {
            return Ok(());
        }
        let text = format!(
            "tensor {name:?} exists in namespace {namespace:?}: remove it first, or put with overwrite"
        );
        Err(Refusal::new(ErrorCode::Exists, text))
    }

    /// A slot and the two tables of a tensor; `None`, and nothing taken, when the directory has no room.
    fn directory_parts(&mut self, content: &Content) -> Option<(Slot, Extent, Extent)> {
        let words: Vec<BlockWord> = content.blocks.iter().map(|block| content.word(block)).collect();
        let slot = self.directory.take_slot()?;
        let Some(table) = self.directory.new_table(&words) else {
            self.directory.give_slot(slot);
            return None;
        };
        let Some(generations) = self.directory.new_generations() else {
            self.directory.give_slot(slot);
            self.directory.pool_mut().free(table);
            return None;
        };
        if let Some(StoredMetadata { number, len, extent }) = &content.metadata {
            let entered = self.directory.set_generation(&generations, 0, (*number, *len), extent);
            entered.expect("the table was made above");
        }
        Some((slot, table, generations))
    }

    /// Hides a tensor; its memory is freed when no lease covers it.
    fn retire(&mut self, tensor: Tensor) -> Outcome<()> {
        self.stored_bytes -= tensor.content.stored_bytes;
        self.directory.unpublish(&tensor.slot).expect("the slot came from this directory");
        let Some(stamp) = self.directory.retire() else {
            let text = "the epoch of this namespace is at its end: restart the daemon";
            return Err(Refusal::new(ErrorCode::Internal, text));
        };
        reach(Point::EpochStepped);
        self.retired.push_back(Retired {
            stamp,
            slot_idx: tensor.slot.idx(),
            data: tensor.content.into_extents().collect(),
            directory: vec![tensor.table, tensor.generations],
            slot: Some(tensor.slot),
        });
        Ok(())
    }
}

impl Tensor {
    fn entry(&self, namespace: &str, name: &str, directory: &Directory) -> Entry {
        let header = directory.pool().words(self.table.offset(), 1);
        let revision = header.map_or(0, |words| words[0].load(Ordering::Acquire));
        Entry {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            dtype: self.content.geometry.dtype(),
            shape: self.content.shape.clone(),
            codec: self.content.codec,
            access: self.content.geometry.access(),
            raw_bytes: self.content.geometry.raw_bytes(),
            stored_bytes: self.content.stored_bytes,
            revision,
            generation: self.content.metadata.as_ref().map_or(0, |metadata| metadata.number),
            predicted_bytes: self.content.predicted_bytes,
            runner_up: self.content.runner_up,
            escapes: self.content.blocks.iter().map(|block| block.escapes).sum(),
            participating: self.content.blocks.iter().map(|block| block.participating).sum(),
        }
    }
}

/// Bytes of one free run of the directory that is enough to publish a tensor of `n_blocks`; `None` beyond a segment.
pub(super) fn directory_need(n_blocks: u64) -> Option<u64> {
    let slab = slot::PER_SLAB * slot::BYTES;
    let generations = generation::ENTRIES * generation::ENTRY_BYTES;
    let all =
        table::bytes(n_blocks)?.checked_next_multiple_of(UNIT_BYTES)?.checked_add(slab + generations)?;
    (all <= SEGMENT_SPAN_BYTES).then_some(all)
}
