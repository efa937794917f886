//! The client page: the one piece of shared memory that a client writes.
//!
//! It holds the session's leases in one namespace, its counters, and a sampled ring of accessed blocks.
//! The daemon reads it as hostile: whatever a client puts here changes only how long memory is held for it and
//! what the stats say about it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::{Error, Result};
use crate::faults::{Point, check};
use crate::layout::{LAYOUT_VERSION, page};
use crate::mapping::{Access, Mapping};
use crate::memfd::{self, Seals};
use crate::ring::Changed;
use crate::sync::{AtomicU64, Ordering};
use crate::types::index;

/// Which namespace of which daemon a page or directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct NamespaceId {
    /// The daemon's instance id, new at every start.
    pub instance: u64,
    /// The namespace within the instance.
    pub namespace: u32,
}

/// One of the counters of a shard, which has room for sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Counter {
    /// Calls of `get` and `get_into`.
    Gets = 0,
    /// Calls of `gather` and `gather_into`.
    Gathers = 1,
    /// Rows returned by gathers.
    Rows = 2,
    /// Raw bytes returned by gets and gathers.
    Bytes = 3,
    /// Guards that had to be taken again: a stale handle, a segment not mapped yet.
    Retries = 4,
    /// Views taken.
    Views = 5,
    /// Blocks that were looked for in the pool in vain.
    Misses = 6,
    /// Whole tensors that were decoded on a GPU.
    DeviceGets = 7,
    /// Raw bytes sent to GPUs.
    DeviceBytes = 8,
    /// Gathers on a GPU: one per tensor and launch.
    DeviceGathers = 9,
    /// Rows that a GPU's cache had.
    DeviceHits = 10,
    /// Rows that a GPU fetched from the pool.
    DeviceMisses = 11,
    /// Of these, rows that went into its cache.
    DeviceInserts = 12,
    /// Lines of its cache that changed while they were read, or that another row was being written to.
    DeviceConflicts = 13,
    /// Rows from the pool that no line of its cache can hold.
    DeviceBypasses = 14,
}

/// How a GPU of a client reads the pool; the bits of one word of the page, set once that way is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum DeviceAccess {
    /// In place: the GPU reads pageable memory.
    Ats = 1,
    /// In place, over segments that are registered with the driver.
    Registered = 2,
    /// Through buffers that the copy engine fills.
    Staged = 4,
}

impl DeviceAccess {
    /// Every way.
    pub const ALL: &'static [Self] = &[Self::Ats, Self::Registered, Self::Staged];

    /// The name that settings and the stats use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ats => "ats",
            Self::Registered => "registered",
            Self::Staged => "staged",
        }
    }
}

/// The sums of a page's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Calls of `get` and `get_into`.
    pub gets: u64,
    /// Calls of `gather` and `gather_into`.
    pub gathers: u64,
    /// Rows returned by gathers.
    pub rows: u64,
    /// Raw bytes returned by gets and gathers.
    pub bytes: u64,
    /// Guards that had to be taken again.
    pub retries: u64,
    /// Views taken.
    pub views: u64,
    /// Blocks that were looked for in the pool in vain.
    pub misses: u64,
    /// Whole tensors that were decoded on a GPU.
    pub device_gets: u64,
    /// Raw bytes sent to GPUs.
    pub device_bytes: u64,
    /// Gathers on a GPU: one per tensor and launch.
    pub device_gathers: u64,
    /// Rows that a GPU's cache had.
    pub device_hits: u64,
    /// Rows that a GPU fetched from the pool.
    pub device_misses: u64,
    /// Of these, rows that went into its cache.
    pub device_inserts: u64,
    /// Lines of its cache that changed while they were read, or that another row was being written to.
    pub device_conflicts: u64,
    /// Rows from the pool that no line of its cache can hold.
    pub device_bypasses: u64,
}

impl Counts {
    /// The sum of two; it wraps, since clients write what they like.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            gets: self.gets.wrapping_add(other.gets),
            gathers: self.gathers.wrapping_add(other.gathers),
            rows: self.rows.wrapping_add(other.rows),
            bytes: self.bytes.wrapping_add(other.bytes),
            retries: self.retries.wrapping_add(other.retries),
            views: self.views.wrapping_add(other.views),
            misses: self.misses.wrapping_add(other.misses),
            device_gets: self.device_gets.wrapping_add(other.device_gets),
            device_bytes: self.device_bytes.wrapping_add(other.device_bytes),
            device_gathers: self.device_gathers.wrapping_add(other.device_gathers),
            device_hits: self.device_hits.wrapping_add(other.device_hits),
            device_misses: self.device_misses.wrapping_add(other.device_misses),
            device_inserts: self.device_inserts.wrapping_add(other.device_inserts),
            device_conflicts: self.device_conflicts.wrapping_add(other.device_conflicts),
            device_bypasses: self.device_bypasses.wrapping_add(other.device_bypasses),
        }
    }
}

/// A mapped client page, on either side.
#[derive(Debug)]
pub struct ClientPage {
    map: Mapping,
}

impl ClientPage {
    /// Daemon: makes and seals a page; the descriptor goes to the client.
    ///
    /// # Errors
    /// [`Error::Create`], [`Error::Map`] or [`Error::Seal`].
    pub fn create(id: NamespaceId) -> Result<(Self, OwnedFd)> {
        let (len, purpose) = (page::BYTES, "a client page");
        check(Point::PageCreate).map_err(|source| Error::Create { len, purpose, source })?;
        let fd = memfd::create(c"tierpack-client", len, true, purpose)?;
        let map = Mapping::new(&fd, page::BYTES, Access::Write)?;
        memfd::seal(&fd, page::BYTES, Seals::Page)?;
        let this = Self { map };
        this.word(page::MAGIC_AT).store(page::MAGIC, Ordering::Relaxed);
        this.word(page::INSTANCE_AT).store(id.instance, Ordering::Relaxed);
        this.word(page::NAMESPACE_AT).store(u64::from(id.namespace), Ordering::Relaxed);
        this.word(page::VERSION_AT).store(u64::from(LAYOUT_VERSION), Ordering::Release);
        Ok((this, fd))
    }

    /// Client: maps the page that the daemon sent, and checks that it is one of `id`.
    ///
    /// # Errors
    /// [`Error::Descriptor`] when it is not sealed as a page, [`Error::Layout`] when its header is another's.
    pub fn adopt(fd: BorrowedFd<'_>, id: NamespaceId) -> Result<Self> {
        memfd::check(fd, page::BYTES, Seals::Page, "a client page")?;
        let this = Self { map: Mapping::new(fd.as_fd(), page::BYTES, Access::Write)? };
        let expected = [
            (page::VERSION_AT, "layout version", u64::from(LAYOUT_VERSION)),
            (page::MAGIC_AT, "magic", page::MAGIC),
            (page::INSTANCE_AT, "instance", id.instance),
            (page::NAMESPACE_AT, "namespace", u64::from(id.namespace)),
        ];
        check_fields("client page", expected, |at| this.word(at).load(Ordering::Acquire))?;
        Ok(this)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.map.word(at).expect("the page's length is fixed by the layout")
    }

    /// The lease words.
    ///
    /// # Panics
    /// Never: the page's length is fixed by the layout.
    #[inline]
    pub fn leases(&self) -> &[AtomicU64] {
        self.map.words(page::LEASES_AT, page::N_LEASES).expect("the page's length is fixed by the layout")
    }

    /// The second words of the leases, in the same order: see [`crate::epoch::finish`].
    ///
    /// # Panics
    /// Never: the page's length is fixed by the layout.
    #[inline]
    pub fn last_looks(&self) -> &[AtomicU64] {
        self.map.words(page::LAST_LOOKS_AT, page::N_LEASES).expect("the page's length is fixed by the layout")
    }

    /// Both words of each lease.
    pub fn lease_pairs(&self) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
        self.leases().iter().zip(self.last_looks())
    }

    /// Client: adds to a counter, in the shard of lease `lease_idx`.
    #[inline]
    pub fn count(&self, lease_idx: usize, counter: Counter, amount: u64) {
        self.word(page::COUNTERS_AT + shard_of(lease_idx) * page::SHARD_BYTES + counter as u64 * 8)
            .fetch_add(amount, Ordering::Relaxed);
    }

    /// Client: notes that one of its GPUs reads the pool in this way.
    pub fn note_device_access(&self, access: DeviceAccess) {
        self.word(page::DEVICE_ACCESS_AT).fetch_or(access as u64, Ordering::Relaxed);
    }

    /// The ways in which the client says that its GPUs read the pool.
    pub fn device_access(&self) -> Vec<DeviceAccess> {
        let bits = self.word(page::DEVICE_ACCESS_AT).load(Ordering::Relaxed);
        DeviceAccess::ALL.iter().copied().filter(|&access| bits & access as u64 != 0).collect()
    }

    /// Client: records an access to a block; the caller samples.
    pub fn record_access(&self, accessed: Changed) {
        let position =
            self.word(page::ACCESS_HEAD_AT).fetch_add(1, Ordering::Relaxed) % page::ACCESS_CAPACITY;
        let bits = u64::from(accessed.slot.get()) << crate::ring::BLOCK_BITS | accessed.block_idx;
        self.word(page::ACCESS_AT + position * 8).store(bits, Ordering::Relaxed);
    }

    /// The sums of all shards; what a client wrote, so only good for stats.
    pub fn counts(&self) -> Counts {
        let sum = |counter: Counter| {
            (0..page::SHARDS)
                .map(|shard| page::COUNTERS_AT + shard * page::SHARD_BYTES + counter as u64 * 8)
                .fold(0_u64, |sum, at| sum.wrapping_add(self.word(at).load(Ordering::Relaxed)))
        };
        Counts {
            gets: sum(Counter::Gets),
            gathers: sum(Counter::Gathers),
            rows: sum(Counter::Rows),
            bytes: sum(Counter::Bytes),
            retries: sum(Counter::Retries),
            views: sum(Counter::Views),
            misses: sum(Counter::Misses),
            device_gets: sum(Counter::DeviceGets),
            device_bytes: sum(Counter::DeviceBytes),
            device_gathers: sum(Counter::DeviceGathers),
            device_hits: sum(Counter::DeviceHits),
            device_misses: sum(Counter::DeviceMisses),
            device_inserts: sum(Counter::DeviceInserts),
            device_conflicts: sum(Counter::DeviceConflicts),
            device_bypasses: sum(Counter::DeviceBypasses),
        }
    }

    /// Lease words that are taken.
    pub fn leases_taken(&self) -> usize {
        self.leases().iter().filter(|lease| lease.load(Ordering::Relaxed) != 0).count()
    }
}

/// Compares header words with what this build needs.
pub(crate) fn check_fields<const N: usize>(
    what: &'static str,
    expected: [(u64, &'static str, u64); N],
    read: impl Fn(u64) -> u64,
) -> Result<()> {
    for (at, field, needed) in expected {
        let found = read(at);
        if found != needed {
            return Err(Error::Layout { what, field, found, needed });
        }
    }
    Ok(())
}

/// The lease that the `n`th guard of a session takes first.
///
/// Neighbors in this order lie on different cache lines, so that threads do not share one.
#[inline]
pub const fn spread(n: usize) -> usize {
    let lines = index(page::N_LEASES / 8);
    let n = n % index(page::N_LEASES);
    n % lines * 8 + n / lines
}

/// The shard in which a lease counts: leases of neighboring cache lines have different ones.
#[inline]
pub const fn shard_of(lease_idx: usize) -> u64 {
    lease_idx as u64 / 8 % page::SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: NamespaceId = NamespaceId { instance: 9, namespace: 4 };

    #[test]
    fn the_daemon_sees_what_the_client_writes() {
        let (daemon, fd) = ClientPage::create(ID).unwrap();
        let client = ClientPage::adopt(fd.as_fd(), ID).unwrap();
        client.leases()[1023].store(5, Ordering::Relaxed);
        client.count(3, Counter::Rows, 10);
        client.count(4, Counter::Rows, 1);
        client.count(15, Counter::DeviceBytes, 12);
        client.note_device_access(DeviceAccess::Staged);
        client.note_device_access(DeviceAccess::Ats);
        assert_eq!(daemon.leases_taken(), 1);
        assert_eq!((daemon.counts().rows, daemon.counts().device_bytes), (11, 12));
        assert_eq!(daemon.device_access(), [DeviceAccess::Ats, DeviceAccess::Staged]);
    }

    #[test]
    fn a_page_of_another_namespace_is_refused() {
        let (_daemon, fd) = ClientPage::create(ID).unwrap();
        let other = NamespaceId { namespace: 5, ..ID };
        assert!(matches!(
            ClientPage::adopt(fd.as_fd(), other),
            Err(Error::Layout { field: "namespace", .. })
        ));
    }

    #[test]
    fn the_length_of_a_page_is_sealed() {
        let (_daemon, fd) = ClientPage::create(ID).unwrap();
        assert!(nix::unistd::ftruncate(&fd, 0).is_err());
        assert!(nix::unistd::ftruncate(&fd, 1 << 20).is_err());
        let punch = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
            | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // A hole in its own page reads as zeros: the client only loses its own leases.
        let _ = nix::fcntl::fallocate(&fd, punch, 0, 4096);
    }

    #[test]
    fn spread_visits_every_lease_once() {
        let mut seen = vec![false; 1024];
        (0..1024).for_each(|n| assert!(!std::mem::replace(&mut seen[spread(n)], true)));
        assert_ne!(spread(0) / 8, spread(1) / 8);
    }

    #[test]
    fn threads_share_a_shard_only_when_there_are_more_than_shards() {
        let shards: std::collections::BTreeSet<_> = (5..21).map(|thread| shard_of(spread(thread))).collect();
        assert_eq!(shards.len() as u64, page::SHARDS);
    }
}
