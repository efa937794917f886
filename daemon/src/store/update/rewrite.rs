//! Blocks stored again with the values that they have: by folds, refits and compaction.

use tierpack_kernels::codec::Encoded;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::types::UNIT_BYTES;

use super::{Form, Workspace};
use crate::store::namespace::quota::Place;
use crate::store::namespace::{BlockCopy, Intent, Namespace, Target};
use crate::store::shares::User;
use crate::store::{Outcome, Store};

/// A block keeps its own generation only while fewer than so many are newer: there are 16, and leases need some.
const MAX_NEWER: usize = 8;

/// What becomes of a form of a block that is longer than the one that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Longer {
    /// It is stored: someone asked for it.
    Stored,
    /// It is dropped: the block stays as it is, or is encoded with its own generation once more.
    Dropped,
}

/// What came of storing a block again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Rewritten {
    pub(in crate::store) raw_bytes: u64,
    /// Stored bytes before, overlays included, and after.
    pub(in crate::store) old_bytes: u64,
    pub(in crate::store) new_bytes: u64,
    /// Whether nothing was stored, because it would have been longer.
    pub(in crate::store) is_kept: bool,
}

impl BlockCopy {
    /// Whether it may stay in the form that it has.
    fn may_keep(&self) -> bool {
        self.newer < MAX_NEWER
    }

    /// The form that it has.
    fn own(&self) -> Form {
        self.generation.map(|number| (self.word.generation_idx(), number))
    }
}

/// Bytes of an extent for so many.
fn rounded(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).next_multiple_of(UNIT_BYTES)
}

impl Store {
    /// Stores a block again as it is now, overlays included, with the current generation or where that makes it longer
    /// as `longer` says.
    ///
    /// What takes time is done without the writing lock, unless updates come between again and again.
    pub(in crate::store) fn rewrite(
        &self,
        namespace: &Namespace,
        target: &Target,
        (block_idx, longer): (u64, Longer),
        work: &mut Workspace,
    ) -> Outcome<Rewritten> {
        const TRIES: usize = 3;
        let mut done = Rewritten::default();
        for attempt in 0..=TRIES {
            let patient = (attempt == TRIES).then(|| target.writing.lock());
            let copied = namespace.read_block(target, block_idx, &mut work.coders, &mut work.raw)?;
            let (raw_bytes, old_bytes) = (work.raw.len() as u64, copied.stored_bytes());
            done = Rewritten { raw_bytes, old_bytes, new_bytes: old_bytes, is_kept: true };
            let shorter = longer == Longer::Dropped && copied.may_keep();
            let own = copied.own().filter(|_| shorter && !copied.overlays.is_empty());
            // A generation that ended meanwhile is another one by now.
            let Some((form, told)) = work.encode_shortest(namespace, target, block_idx, own)? else {
                continue;
            };
            let new_bytes = rounded(&work.encoded);
            if shorter && copied.overlays.is_empty() && new_bytes > old_bytes {
                return Ok(done);
            }
            let exempt = (Place::Exempt, User::DAEMON);
            let change =
                self.store_encoded(namespace, (block_idx, copied.word), (form, told), exempt, work)?;
            reach(Point::RewriteEncoded);
            let _writing = patient.is_none().then(|| target.writing.lock());
            let lives = namespace.has_generation(&target.key, form);
            if lives != Ok(true) {
                // Or the tensor is gone.
                namespace.free([change.into_extent()]);
                self.note_freed();
                lives?;
                continue;
            }
            let (_, missed) = namespace.store_blocks(&target.key, vec![change], Intent::Rewrite)?;
            if missed.is_empty() {
                return Ok(Rewritten { new_bytes, is_kept: false, ..done });
            }
            self.note_freed();
        }
        Ok(done)
    }
}

impl Workspace {
    /// Encodes the raw bytes with the current generation, or with the block's own where that is passed and makes them
    /// shorter; `None` where the current one has ended meanwhile.
    fn encode_shortest(
        &mut self,
        namespace: &Namespace,
        target: &Target,
        block_idx: u64,
        own: Form,
    ) -> Outcome<Option<(Form, Encoded)>> {
        let current = namespace.current_generation(&target.key)?;
        let Some(told) = self.encode(namespace, target, block_idx, current)? else { return Ok(None) };
        if own.is_none() || own == current {
            return Ok(Some((current, told)));
        }
        let by_current = std::mem::take(&mut self.encoded);
        if let Some(told) = self.encode(namespace, target, block_idx, own)?
            && rounded(&self.encoded) < rounded(&by_current)
        {
            return Ok(Some((own, told)));
        }
        self.encoded = by_current;
        Ok(Some((current, told)))
    }
}
