//! A visible tensor: its content, where the directory keeps it, and how it drifts.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::attachment::SlotRef;
use tierpack_shm::directory::{Directory, Slot};
use tierpack_shm::message::{Drift, Entry, ErrorCode, MAX_CHUNK_BYTES, RefitState, Refusal};
use tierpack_shm::sync::{AtomicU64, Ordering};
use tierpack_shm::types::{CodecChoice, CodecId, Extent, SlotIdx};

use super::{Inner, Namespace};
use crate::store::Outcome;
use crate::store::budget::Charge;
use crate::store::content::Content;

/// Changed tensors that one look goes through.
const LOOKS: usize = 256;
/// How long overlays wait for more of them before they are folded.
const FOLD_AFTER: Duration = Duration::from_millis(500);
/// A tensor is looked at once this part of it has changed, one in so many bytes.
const CHANGED_SHARE: u64 = 10;
/// A tensor that was not updated for so long rests.
const REST_AFTER: Duration = Duration::from_secs(2);
/// How long after a look the next one may come.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// How long a tensor is left alone after a step that failed: doubled each time, so often at most.
const BACK_OFF: Duration = Duration::from_secs(1);
const MAX_DOUBLINGS: u32 = 8;

/// A tensor that is visible.
#[derive(Debug)]
pub(in crate::store) struct Tensor {
    pub(in crate::store) content: Content,
    pub(super) slot: Slot,
    pub(super) publication: u64,
    pub(super) table: Extent,
    pub(super) generations: Extent,
    /// Held while blocks of it are stored, by one at a time: see the module `update`.
    pub(super) writing: Arc<Mutex<()>>,
    pub(super) refit: RefitRecord,
    /// The heap that it takes.
    pub(super) charge: Charge,
}

/// What the refit thread knows about a tensor.
#[derive(Debug)]
pub(crate) struct RefitRecord {
    pub(crate) state: RefitState,
    pub(crate) blocks_left: u64,
    /// Raw bytes that changed since its last look.
    pub(crate) changed_bytes: u64,
    pub(crate) last_look: Option<Instant>,
    pub(crate) predicted_bytes: u64,
    pub(crate) predicted_codec: Option<CodecId>,
    pub(crate) refits: u64,
    pub(crate) reencoded_bytes: u64,
    pub(crate) last_refit: Option<Instant>,
    pub(crate) last_failure: Option<String>,
    /// When a step for it failed: it is left alone for a while.
    failed_at: Option<Instant>,
    /// How often in a row.
    pub(crate) failures: u32,
    /// Since when it has overlays.
    overlaid_since: Option<Instant>,
    last_update: Instant,
    /// Whether the last look promised a gain that is only worth a refit once the tensor rests.
    pub(crate) has_small_gain: bool,
}

/// What the background thread is to do with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Its overlays go into its blocks.
    Fold,
    /// A sample of it is fitted.
    Look,
}

/// Names one publication of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) slot_idx: SlotIdx,
    pub(crate) publication: u64,
}

/// A tensor as those see it who change its blocks.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) key: Key,
    pub(crate) geometry: Geometry,
    pub(crate) writing: Arc<Mutex<()>>,
}

impl Tensor {
    pub(super) fn new(
        content: Content,
        slot: Slot,
        publication: u64,
        table: Extent,
        generations: Extent,
        charge: Charge,
    ) -> Self {
        // A put chooses by its first chunk; what is longer than that has not been looked at as a whole.
        let raw_bytes = content.geometry.raw_bytes();
        let changed_bytes = if raw_bytes > MAX_CHUNK_BYTES { raw_bytes } else { 0 };
        let refit = RefitRecord {
            state: RefitState::Idle,
            blocks_left: 0,
            changed_bytes,
            last_look: None,
            predicted_bytes: 0,
            predicted_codec: None,
            refits: 0,
            reencoded_bytes: 0,
            last_refit: None,
            last_failure: None,
            failed_at: None,
            failures: 0,
            overlaid_since: None,
            last_update: Instant::now(),
            has_small_gain: false,
        };
        Self { content, slot, publication, table, generations, writing: Arc::default(), refit, charge }
    }

    /// What counts of it against the quota.
    pub(super) fn counted_bytes(&self) -> u64 {
        let directory = self.table.len_bytes() + self.generations.len_bytes();
        self.content.sums.stored_bytes + directory + self.charge.len()
    }

    /// Whether the refit thread has something to look at.
    pub(super) fn is_due(&self) -> bool {
        self.refit.changed_bytes > 0 || self.refit.has_small_gain || !self.content.overlaid.is_empty()
    }

    /// What the background thread is to do now.
    fn due(&self, is_auto: bool) -> Option<Due> {
        let is_past = |since: Option<Instant>, time| since.is_none_or(|since| since.elapsed() >= time);
        let back_off = BACK_OFF.saturating_mul(1 << self.refit.failures.min(MAX_DOUBLINGS));
        if self.refit.failures > 0 && !is_past(self.refit.failed_at, back_off) {
            return None;
        }
        if !self.content.overlaid.is_empty() {
            return is_past(self.refit.overlaid_since, FOLD_AFTER).then_some(Due::Fold);
        }
        let has_drifted =
            self.refit.changed_bytes >= self.content.geometry.raw_bytes().div_ceil(CHANGED_SHARE).max(1);
        let is_worth_it = has_drifted || self.refit.has_small_gain && self.is_resting();
        let is_due = is_auto && is_worth_it && self.refit.state == RefitState::Idle;
        (is_due && is_past(self.refit.last_look, LOOK_AFTER)).then_some(Due::Look)
    }

    /// Whether its last update is a while ago.
    fn is_resting(&self) -> bool {
        self.refit.last_update.elapsed() >= REST_AFTER
    }

    /// Notes that its blocks changed.
    pub(super) fn note_change(&mut self, raw_bytes: u64) {
        let now = Instant::now();
        self.refit.changed_bytes = self.refit.changed_bytes.saturating_add(raw_bytes);
        if raw_bytes > 0 {
            self.refit.last_update = now;
        }
        if self.content.overlaid.is_empty() {
            self.refit.overlaid_since = None;
        } else {
            self.refit.overlaid_since.get_or_insert(now);
        }
    }

    pub(super) fn slot_ref(&self) -> SlotRef {
        SlotRef { address: self.slot.address(), idx: self.slot.idx(), publication: self.publication }
    }

    pub(in crate::store) fn target(&self, name: &str) -> Target {
        let key = Key { name: name.to_owned(), slot_idx: self.slot.idx(), publication: self.publication };
        Target { key, geometry: self.content.geometry, writing: Arc::clone(&self.writing) }
    }

    pub(super) fn words<'d>(&self, directory: &'d Directory) -> &'d [AtomicU64] {
        directory.table_words(&self.table, self.content.n_blocks()).expect("the table is this tensor's")
    }

    pub(super) fn revision(&self, directory: &Directory) -> u64 {
        let header = directory.pool().words(self.table.offset(), 1);
        header.map_or(0, |words| words[0].load(Ordering::Acquire))
    }

    pub(super) fn entry(&self, namespace: &str, name: &str, directory: &Directory) -> Entry {
        let Content { geometry, generations, sums, .. } = &self.content;
        Entry {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            dtype: geometry.dtype(),
            shape: self.content.shape.clone(),
            codec: self.content.codec,
            access: geometry.access(),
            raw_bytes: geometry.raw_bytes(),
            stored_bytes: sums.stored_bytes,
            revision: self.revision(directory),
            generation: generations.current().map_or(0, |(_, number)| number),
            predicted_bytes: self.content.predicted_bytes,
            runner_up: self.content.runner_up,
            escapes: sums.escapes,
            participating: sums.participating,
        }
    }

    /// Stored bytes after a refit, by the last look; one that makes them more is not begun by itself.
    pub(super) fn predicted_bytes(&self) -> u64 {
        let stored_bytes = self.content.sums.stored_bytes;
        self.refit.last_look.map_or(stored_bytes, |_| self.refit.predicted_bytes.min(stored_bytes))
    }

    pub(super) fn drift(&self) -> Drift {
        let Content { generations, sums, codec, .. } = &self.content;
        let mut drift = Drift::default();
        drift.stored_bytes = sums.stored_bytes;
        drift.predicted_bytes = self.refit.predicted_bytes;
        drift.codec = Some(*codec);
        drift.predicted_codec = self.refit.predicted_codec;
        drift.generation = generations.current().map_or(0, |(_, number)| number);
        drift.generations_alive = generations.n_alive();
        drift.overlay_bytes = sums.overlay_bytes;
        drift.state = self.refit.state;
        drift.n_blocks = self.content.n_blocks();
        drift.blocks_left = self.refit.blocks_left;
        drift.refits = self.refit.refits;
        drift.reencoded_bytes = self.refit.reencoded_bytes;
        let age = self.refit.last_refit.map(|at| at.elapsed().as_millis());
        drift.last_refit_ms = age.map(|age| u64::try_from(age).unwrap_or(u64::MAX));
        drift.last_failure.clone_from(&self.refit.last_failure);
        drift
    }
}

impl Namespace {
    /// Tensors with something to do for the background thread, of the next few that have changed: the lock is not held
    /// for long, however many there are.
    pub(crate) fn due(&self, is_auto: bool) -> Vec<(Target, Due)> {
        let Inner { changed, changed_cursor, tensors, .. } = &mut *self.inner.lock();
        let start = changed_cursor.take().map_or(Bound::Unbounded, Bound::Excluded);
        let names: Vec<String> = changed.range((start, Bound::Unbounded)).take(LOOKS).cloned().collect();
        *changed_cursor = names.last().filter(|_| names.len() == LOOKS).cloned();
        let mut found = Vec::new();
        for name in names {
            let tensor = tensors.get(&name);
            if let Some((tensor, due)) = tensor.and_then(|tensor| Some((tensor, tensor.due(is_auto)?))) {
                found.push((tensor.target(&name), due));
            }
            if !tensor.is_some_and(|tensor| tensor.is_due()) {
                changed.remove(&name);
            }
        }
        found
    }

    /// Whether a tensor's last update is a while ago.
    pub(crate) fn is_tensor_resting(&self, key: &Key) -> Outcome<bool> {
        let mut inner = self.inner.lock();
        Ok(self.keyed(&mut inner, key)?.is_resting())
    }

    /// Notes that a step for a tensor failed: it is looked at again later.
    pub(crate) fn note_failure(&self, key: &Key) {
        let mut inner = self.inner.lock();
        if let Ok(tensor) = self.keyed(&mut inner, key) {
            tensor.refit.failed_at = Some(Instant::now());
            tensor.refit.failures = tensor.refit.failures.saturating_add(1);
            tensor.refit.changed_bytes = tensor.content.geometry.raw_bytes();
            inner.changed.insert(key.name.clone());
        }
    }

    /// What the put of a tensor asked for.
    pub(crate) fn choice(&self, key: &Key) -> Outcome<CodecChoice> {
        let mut inner = self.inner.lock();
        Ok(self.keyed(&mut inner, key)?.content.choice)
    }

    /// A tensor to change; `slot` is the publication that the caller knows, if it knows one.
    pub(crate) fn target(&self, name: &str, slot: Option<SlotRef>) -> Outcome<Target> {
        let inner = self.inner.lock();
        let tensor = inner.tensors.get(name).ok_or_else(|| self.not_found(name))?;
        if slot.is_some_and(|slot| slot != tensor.slot_ref()) {
            return Err(self.replaced(name));
        }
        Ok(tensor.target(name))
    }

    pub(crate) fn drift(&self, key: &Key) -> Outcome<Drift> {
        let mut inner = self.inner.lock();
        Ok(self.keyed(&mut inner, key)?.drift())
    }

    /// Changes what the refit thread knows about a tensor.
    pub(crate) fn record(&self, key: &Key, change: impl FnOnce(&mut RefitRecord)) -> Outcome<()> {
        let mut inner = self.inner.lock();
        change(&mut self.keyed(&mut inner, key)?.refit);
        Ok(())
    }

    /// The tensor of a key, while it is the same publication.
    pub(in crate::store) fn keyed<'i>(&self, inner: &'i mut Inner, key: &Key) -> Outcome<&'i mut Tensor> {
        let tensor = inner.tensors.get_mut(&key.name).ok_or_else(|| self.not_found(&key.name))?;
        if (tensor.slot.idx(), tensor.publication) == (key.slot_idx, key.publication) {
            return Ok(tensor);
        }
        Err(self.replaced(&key.name))
    }

    fn replaced(&self, name: &str) -> Refusal {
        let text = format!("tensor {name:?} of namespace {:?} was replaced: open it again", self.name);
        Refusal::new(ErrorCode::Replaced, text)
    }
}
