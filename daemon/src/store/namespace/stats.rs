//! What a namespace holds, for the stats and for refusals.

use std::ops::Bound;

use tierpack_shm::message::RefitState;
use tierpack_shm::stats::NamespaceStats;

use super::{BATCH, Namespace};

impl Namespace {
    /// What it holds. The fields of overlays, generations and refits change in many places: they are summed over the
    /// tensors, a few at a time, so that nobody waits for it.
    pub(crate) fn stats(&self) -> NamespaceStats {
        let mut stats = self.sums();
        let mut last = None;
        while let Some(name) = self.add_tensors(&mut stats, last.as_deref()) {
            last = Some(name);
        }
        stats
    }

    fn sums(&self) -> NamespaceStats {
        let inner = self.inner.lock();
        let mut stats = NamespaceStats::default();
        stats.name.clone_from(&self.name);
        stats.tensors = inner.tensors.len() as u64;
        stats.raw_bytes = inner.raw_bytes;
        stats.stored_bytes = inner.stored_bytes;
        stats.used_bytes = inner.data.used_bytes();
        stats.directory_bytes = inner.directory.pool().used_bytes();
        stats.held_bytes = inner.held_bytes();
        stats.heap_bytes = self.heap_bytes();
        stats.closed_bytes = inner.closed_bytes();
        stats.data_segment_bytes = inner.data.segment_bytes();
        stats.segment_bytes = inner.data.segment_bytes() + inner.directory.pool().segment_bytes();
        stats.epoch = inner.directory.epoch();
        stats
    }

    /// Adds what the next few tensors after a name have; returns the name of the last one, unless that was the end.
    fn add_tensors(&self, stats: &mut NamespaceStats, after: Option<&str>) -> Option<String> {
        let inner = self.inner.lock();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (n, (name, tensor)) in
            (1..).zip(inner.tensors.range::<str, _>((start, Bound::Unbounded)).take(BATCH))
        {
            stats.overlay_bytes += tensor.content.sums.overlay_bytes;
            stats.generations += u64::from(tensor.content.generations.n_alive());
            stats.refits += tensor.refit.refits;
            stats.predicted_bytes += tensor.predicted_bytes();
            stats.reencoded_bytes += tensor.refit.reencoded_bytes;
            stats.refitting += u64::from(tensor.refit.state != RefitState::Idle);
            last = (n == BATCH).then(|| name.clone());
        }
        last
    }
}
