//! One namespace: its tensors, its segments, and what is retired in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tierpack_shm::directory::{Directory, NoSlot, Slot, SlotFields};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::{SEGMENT_SPAN_BYTES, generation, page, slot, table};
use tierpack_shm::message::{Entry, ErrorCode, OpenTensor, Refusal, Reply, SegmentId, Which};
use tierpack_shm::page::{ClientPage, NamespaceId};
use tierpack_shm::pool::{Fresh, Pool};
use tierpack_shm::segment::{Segment, SegmentKind};
use tierpack_shm::types::{BlockWord, Extent, UNIT_BYTES};

use super::access::{Access, Caller, Right};
use super::budget::{Budget, Charge};
use super::content::{Content, StoredMetadata};
use super::file_metadata::SharedText;
use super::{Outcome, heap};

mod admin;
mod audience;
mod blocks;
mod claims;
mod generations;
mod hold;
pub(super) mod quota;
mod reclaim;
mod segments;
mod stats;
pub(super) mod sums;
mod tensor;
mod verify;

use audience::Audience;
pub(in crate::store) use blocks::BLOCKS;
pub(crate) use blocks::{BlockCopy, Change, Intent, Stored};
pub(crate) use generations::{Current, NewGeneration, Standing};
use hold::Commits;
use quota::{Place, table_bytes};
pub(crate) use reclaim::Holds;
use reclaim::Queue;
pub(super) use reclaim::{Patience, Retiring};
use sums::Guarded;
pub(super) use tensor::Tensor;
pub(crate) use tensor::{Due, Key, Target};

/// A tensor that has no slot and no tables yet, and the heap that it is charged with.
pub(super) type Unpublished = (Content, Charge);

/// Tensors that one turn under the lock goes through.
pub(super) const BATCH: usize = 256;

#[derive(Debug)]
pub(super) struct Inner {
    access: Access,
    pub(super) data: Pool,
    directory: Directory,
    /// In boxes: the nodes of the table are half empty when names come in order.
    pub(super) tensors: BTreeMap<String, Box<Tensor>>,
    /// Tensors of a transaction that are visible already, and on their way into `tensors`: looked up first.
    revealed: BTreeMap<String, Box<Tensor>>,
    /// Names that transactions have claimed, and which.
    claims: HashMap<String, u64>,
    /// How often rights to read were taken away.
    bars: u64,
    /// Stored and raw bytes of `tensors`.
    stored_bytes: u64,
    raw_bytes: u64,
    retired: Queue,
    /// Where heap is charged, and the sum of what this namespace is charged with.
    budget: Arc<Budget>,
    heap: Arc<AtomicU64>,
    /// Names of tensors that changed since the refit thread looked at them.
    changed: BTreeSet<String>,
    /// The one that was looked at last.
    changed_cursor: Option<String>,
    /// Who was sent which segment.
    audience: Audience,
    /// When compaction last looked in vain for something to move out of a segment that is barred.
    pub(super) looked_through: HashMap<usize, Instant>,
    /// Serial numbers of the segments that are present.
    serials: HashMap<(SegmentKind, u32), u64>,
    /// Whether a put was ever committed, or the namespace was asked for: then it stays, even when it is empty.
    was_published: bool,
    /// The client pages of all sessions that are attached, until the kernel reports them gone.
    pages: Vec<(u64, Arc<ClientPage>)>,
    /// What those pages take of the pool: it is not the namespace's, since its owner does not choose who attaches.
    page_charges: HashMap<u64, Charge>,
    /// Puts under way.
    puts: u64,
    commits: Commits,
    /// What changes names or slots at the moment.
    changing: u32,
    /// Whether something was allocated since the background thread last looked.
    was_used: bool,
    /// Whether it was removed: nothing can be published any more.
    is_removed: bool,
    /// Whether its tensors are on their way out.
    is_clearing: bool,
    /// Whether its segments were returned to the budget.
    is_buried: bool,
}

/// A namespace of the store.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) id: NamespaceId,
    pub(crate) name: String,
    /// Held while a segment is made, so that one is made at a time.
    pub(super) growing: Mutex<()>,
    /// Held while a transaction is revealed: one at a time.
    pub(super) revealing: Mutex<()>,
    pub(super) inner: Guarded,
    /// Who owns it, to be counted without its lock.
    pub(super) owner: AtomicU32,
    /// Bytes promised to puts into it that are under way.
    pub(super) reserved: AtomicU64,
    /// Bytes of heap that are charged to it.
    pub(super) heap: Arc<AtomicU64>,
    /// The heap that it takes while it is empty.
    _charge: Charge,
}

impl Namespace {
    pub(super) fn new(
        id: NamespaceId,
        name: String,
        access: Access,
        header: (Segment, u64),
        (budget, charge): (Arc<Budget>, Charge),
        retiring: &Arc<Retiring>,
    ) -> Arc<Self> {
        let ((header, serial), heap) = (header, charge.sum());
        let sum = Arc::clone(&heap);
        let inner = |this: &Weak<Self>| Inner {
            access,
            data: Pool::default(),
            directory: Directory::new(header, id),
            tensors: BTreeMap::new(),
            revealed: BTreeMap::new(),
            claims: HashMap::new(),
            bars: 0,
            stored_bytes: 0,
            raw_bytes: 0,
            retired: Queue::new(id.namespace, Weak::clone(this), retiring),
            budget,
            heap: sum,
            changed: BTreeSet::new(),
            changed_cursor: None,
            audience: Audience::default(),
            looked_through: HashMap::new(),
            serials: HashMap::from([((SegmentKind::Directory, 0), serial)]),
            was_published: false,
            pages: Vec::new(),
            page_charges: HashMap::new(),
            puts: 0,
            commits: Commits::default(),
            changing: 0,
            was_used: false,
            is_removed: false,
            is_clearing: false,
            is_buried: false,
        };
        Arc::new_cyclic(|this| Self {
            id,
            name,
            growing: Mutex::new(()),
            revealing: Mutex::new(()),
            inner: Guarded::new(inner(this)),
            owner: AtomicU32::new(access.uid),
            reserved: AtomicU64::new(0),
            heap,
            _charge: charge,
        })
    }

    /// Takes an extent for what is moved out of another segment, in reserved segments first; `None` without room.
    pub(super) fn allocate_for_move(&self, len: u64) -> Option<Fresh> {
        self.inner.lock().allocate_for_move(len)
    }

    /// Whether nothing was allocated since the last call.
    pub(super) fn is_resting(&self) -> bool {
        !std::mem::take(&mut self.inner.lock().was_used)
    }

    /// Frees extents that were never published.
    pub(super) fn free(&self, extents: impl IntoIterator<Item = Extent>) {
        let mut inner = self.inner.lock();
        extents.into_iter().for_each(|extent| inner.data.free(extent));
    }

    /// Whether it holds nothing and never had a tensor.
    pub(super) fn is_unused(&self) -> bool {
        let inner = self.inner.lock();
        !inner.was_published && inner.pages.is_empty() && inner.puts == 0 && inner.data.used_bytes() == 0
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
        (content, charge): Unpublished,
        overwrite: bool,
    ) -> Outcome<Result<Entry, Unpublished>> {
        let mut inner = self.inner.lock();
        if let Err(refusal) = inner.check_free(&self.name, name, overwrite) {
            content.into_extents().for_each(|extent| inner.data.free(extent));
            return Err(refusal);
        }
        let tensor = match inner.make_tensor(&self.name, name, (content, charge))? {
            Ok(tensor) => tensor,
            Err(no_room) => return Ok(Err(no_room)),
        };
        reach(Point::PutPublished);
        inner.was_published = true;
        let entry = tensor.entry(&self.name, name, &inner.directory);
        inner.change_names(|inner| match inner.insert(name.to_owned(), tensor) {
            Some(replaced) => inner.retire_uncounted(vec![replaced]),
            None => Ok(()),
        })?;
        Ok(Ok(entry))
    }

    pub(crate) fn remove(&self, name: &str) -> Outcome<()> {
        let mut inner = self.inner.lock();
        inner.check_claim(name)?;
        inner.commits.check()?;
        let tensor = inner.tensors.remove(name).ok_or_else(|| self.not_found(name))?;
        inner.change_names(|inner| inner.retire(tensor))
    }

    /// Opens a tensor for a caller who may read it.
    pub(crate) fn open(&self, name: &str, caller: &Caller) -> Outcome<Reply> {
        self.open_in(&self.inner.lock(), name, caller)
    }

    /// As [`Namespace::open`], if that needs no waiting.
    pub(super) fn try_open(&self, name: &str, caller: &Caller) -> Option<Outcome<Reply>> {
        Some(self.open_in(&*self.inner.try_lock()?, name, caller))
    }

    fn open_in(&self, inner: &Inner, name: &str, caller: &Caller) -> Outcome<Reply> {
        inner.access.check(&self.name, caller, Right::Read)?;
        let tensor = inner.visible(name).ok_or_else(|| self.not_found(name))?;
        Ok(Reply::Opened {
            namespace: self.id.namespace,
            entry: tensor.entry(&self.name, name, &inner.directory),
            row_elems: tensor.content.row_elems,
            slot: tensor.slot_ref(),
        })
    }

    /// Opens the first of several tensors as far as `take` takes them, for a caller who may read them.
    pub(crate) fn open_many(
        &self,
        which: &Which,
        caller: &Caller,
        mut take: impl FnMut(OpenTensor) -> bool,
    ) -> Outcome<(u64, bool)> {
        let inner = self.inner.lock();
        inner.access.check(&self.name, caller, Right::Read)?;
        let opened = |name: &str, tensor: &Tensor| OpenTensor {
            entry: tensor.entry(&self.name, name, &inner.directory),
            row_elems: tensor.content.row_elems,
            slot: tensor.slot_ref(),
            file_metadata: tensor.content.file_metadata.as_ref().map(|text| text.number()),
        };
        let more = match which {
            // A name without a tensor ends the reply.
            Which::Named(names) => {
                let found = names.iter().map_while(|name| Some((name, inner.visible(name)?)));
                found.map(|(name, tensor)| take(opened(name, tensor))).any(|taken| !taken)
            }
            Which::After(after) => !inner.walk(after.as_deref(), |name, tensor| take(opened(name, tensor))),
        };
        Ok((inner.directory.names(), more))
    }

    pub(crate) fn file_metadata(&self, name: &str) -> Outcome<Option<SharedText>> {
        let inner = self.inner.lock();
        let tensor = inner.visible(name).ok_or_else(|| self.not_found(name))?;
        Ok(tensor.content.file_metadata.as_ref().map(Arc::clone))
    }

    /// Hands entries after `after` to `take` until it has enough; says whether it took all.
    pub(crate) fn list(&self, after: Option<&str>, mut take: impl FnMut(Entry) -> bool) -> bool {
        let inner = self.inner.lock();
        inner.walk(after, |name, tensor| take(tensor.entry(&self.name, name, &inner.directory)))
    }

    /// Counts a session in: from now on its leases hold memory. Returns what it must map.
    pub(crate) fn attach(
        &self,
        session: u64,
        caller: &Arc<Caller>,
        page: Arc<ClientPage>,
    ) -> Outcome<Vec<(SegmentId, Arc<Segment>)>> {
        let mut inner = self.inner.lock();
        inner.access.check(&self.name, caller, Right::Read)?;
        let charge = inner.budget.charge_anyway(&Arc::default(), page::BYTES + heap::ATTACHMENT_BYTES);
        inner.page_charges.insert(session, charge);
        inner.pages.push((session, page));
        let segments = inner.present_segments();
        let ids: Vec<_> = segments.iter().map(|(id, _)| *id).collect();
        inner.note_sent(caller, &ids);
        Ok(segments)
    }

    /// Counts a session out: the kernel has reported it gone, and its leases with it.
    pub(crate) fn detach(&self, session: u64) {
        let mut inner = self.inner.lock();
        inner.pages.retain(|(attached, _)| *attached != session);
        inner.page_charges.remove(&session);
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

    /// Hands visible tensors after `after`, by name, to `take` until it has enough; says whether it took all.
    fn walk(&self, after: Option<&str>, mut take: impl FnMut(&str, &Tensor) -> bool) -> bool {
        let start = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut revealed = self.revealed.range::<str, _>(start).peekable();
        let mut rest = self.tensors.range::<str, _>(start).peekable();
        loop {
            let is_revealed = match (revealed.peek(), rest.peek()) {
                (Some((revealed, _)), Some((name, _))) => revealed <= name,
                (first, _) => first.is_some(),
            };
            let next = if is_revealed { revealed.next() } else { rest.next() };
            let Some((name, tensor)) = next else { return true };
            // What was revealed is in the place of what it replaces.
            let _ = rest.next_if(|(replaced, _)| is_revealed && *replaced == name);
            if !take(name, tensor) {
                return false;
            }
        }
    }

    /// Runs what changes names or slots, between the two steps of their sequence count.
    fn change_names<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.begin_names();
        let done = change(self);
        self.end_names();
        done
    }

    fn begin_names(&mut self) {
        if self.changing == 0 {
            self.directory.begin_names();
        }
        self.changing += 1;
    }

    fn end_names(&mut self) {
        self.changing -= 1;
        if self.changing == 0 {
            self.directory.end_names();
        }
    }

    fn pool_mut(&mut self, kind: SegmentKind) -> &mut Pool {
        match kind {
            SegmentKind::Data => &mut self.data,
            SegmentKind::Directory => self.directory.pool_mut(),
        }
    }

    fn check_free(&self, namespace: &str, name: &str, overwrite: bool) -> Outcome<()> {
        self.check_there(namespace)?;
        self.check_claim(name)?;
        if overwrite || self.visible(name).is_none() {
            return Ok(());
        }
        let text = format!(
            "tensor {name:?} exists in namespace {namespace:?}: remove it first, or put with overwrite"
        );
        Err(Refusal::new(ErrorCode::Exists, text))
    }

    fn allocate_for_move(&mut self, len: u64) -> Option<Fresh> {
        self.data.allocate_reserved(len).or_else(|| self.data.allocate(len))
    }

    /// A tensor with its slot and its tables, which no name leads to.
    ///
    /// # Errors
    /// `Ok(Err(content))` when the directory has no room; what is refused is freed.
    fn make_tensor(
        &mut self,
        namespace: &str,
        name: &str,
        (content, charge): Unpublished,
    ) -> Outcome<Result<Box<Tensor>, Unpublished>> {
        let checked = self.check_quota(namespace, Place::Tensor(name), table_bytes(content.n_blocks()));
        if let Err(refusal) = checked {
            content.into_extents().for_each(|extent| self.data.free(extent));
            return Err(refusal);
        }
        let (slot, table, generations) = match self.directory_parts(&content) {
            Ok(parts) => parts,
            Err(NoSlot::Room | NoSlot::TableRoom) => return Ok(Err((content, charge))),
            Err(NoSlot::Limit(limit)) => {
                content.into_extents().for_each(|extent| self.data.free(extent));
                let text = format!(
                    "all {limit} slots of namespace {namespace:?} are in use, by tensors and by removed ones that \
                     clients still read: remove tensors, or put into another namespace"
                );
                return Err(Refusal::new(ErrorCode::Limit, text));
            }
        };
        let fields = SlotFields {
            table: &table,
            n_blocks: content.n_blocks(),
            generations: &generations,
            dtype: content.geometry.dtype() as u8,
            access: content.geometry.access() as u8,
            n_rows: content.geometry.n_rows(),
            row_bytes: content.geometry.row_bytes(),
            raw_bytes: content.geometry.raw_bytes(),
        };
        let publication = self.directory.publish(&slot, fields).expect("the slot came from this directory");
        Ok(Ok(Box::new(Tensor::new(content, slot, publication, table, generations, charge))))
    }

    /// A slot and the two tables of a tensor.
    ///
    /// # Errors
    /// What is missing; nothing is taken then.
    fn directory_parts(&mut self, content: &Content) -> Result<(Slot, Extent, Extent), NoSlot> {
        let words: Vec<BlockWord> = content.blocks().map(|block| block.word(1)).collect();
        let slot = self.directory.take_slot()?;
        let Some(table) = self.directory.new_table(&words) else {
            self.directory.give_slot(slot);
            return Err(NoSlot::TableRoom);
        };
        let Some(generations) = self.directory.new_generations() else {
            self.directory.give_slot(slot);
            self.directory.pool_mut().free(table);
            return Err(NoSlot::TableRoom);
        };
        for (generation_idx, StoredMetadata { number, len, extent, .. }) in content.generations.live() {
            let entered =
                self.directory.set_generation(&generations, *generation_idx, (*number, *len), extent);
            entered.expect("the table was made above");
        }
        Ok((slot, table, generations))
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
