use tierpack_shm::layout::MIN_SEGMENT_BYTES;
use tierpack_shm::page::{ClientPage, NamespaceId};
use tierpack_shm::segment::Segment;
use tierpack_shm::socket::Peer;
use tierpack_shm::sync::Ordering;

use super::*;
use crate::store::access::{Access, Caller};
use crate::store::budget::Budget;

/// Extents of 64 bytes that are retired at first, each by a step of its own.
const RETIRED: usize = 3000;

struct World {
    retiring: Arc<Retiring>,
    namespace: Arc<Namespace>,
    page: Arc<ClientPage>,
}

pub(in crate::store::namespace) fn caller() -> Arc<Caller> {
    Arc::new(Caller::new(Peer { pid: 1, uid: 1, gid: 1 }, Vec::new(), 1))
}

fn segment() -> Segment {
    Segment::create(MIN_SEGMENT_BYTES).unwrap()
}

/// A namespace of [`caller`] without a store, in a budget of any size.
pub(in crate::store::namespace) fn namespace(retiring: &Arc<Retiring>) -> Arc<Namespace> {
    let budget = Arc::new(Budget::new(u64::MAX));
    let charge = budget.charge(&Arc::default(), 0).unwrap();
    let (id, access) = (NamespaceId { instance: 9, namespace: 4 }, Access::of(&caller()));
    Namespace::new(id, "ns".into(), access, (segment(), 1), (budget, charge), retiring)
}

impl World {
    fn new() -> Self {
        let (retiring, caller) = (Arc::default(), caller());
        let namespace = namespace(&retiring);
        let page = Arc::new(ClientPage::create(namespace.id).unwrap().0);
        namespace.attach(1, &caller, Arc::clone(&page)).unwrap();
        let mut inner = namespace.inner.lock();
        let segment_idx = inner.data.next_index().unwrap();
        inner.data.add(segment_idx, Arc::new(segment()), 0);
        drop(inner);
        Self { retiring, namespace, page }
    }

    fn retire(&self, n: usize, extents_each: usize) {
        let mut inner = self.namespace.inner.lock();
        for _ in 0..n {
            let published = inner.directory.epoch();
            let left = |extent| Left { extent, published };
            let extents =
                (0..extents_each).map(|_| left(inner.data.allocate(64).unwrap().freeze())).collect();
            let leftover = Leftover { extents, indexes: Vec::new() };
            let slot_idx = SlotIdx::new(7).unwrap();
            let key = Key { name: "t".into(), slot_idx, publication: 1 };
            inner.retire_leftover(&key, leftover).unwrap();
        }
    }

    fn lease(&self, epoch: u64, slot: u64) {
        self.page.leases()[5].store(epoch << 24 | slot, Ordering::Release);
    }

    fn held(&self) -> u64 {
        let held = self.namespace.held_bytes();
        let inner = self.namespace.inner.lock();
        let sum: u64 = inner
            .retired
            .entries
            .iter()
            .flat_map(|retired| &retired.data)
            .map(|left| left.extent.len_bytes())
            .sum();
        assert_eq!((held, held), (sum, inner.data.used_bytes()), "the running sum is the sum");
        held / 64
    }
}

#[test]
fn a_turn_of_the_poll_loop_is_bounded_and_waits_for_no_lock() {
    let world = World::new();
    assert!(world.retiring.is_empty());
    world.retire(RETIRED, 1);
    let guard = world.namespace.inner.lock();
    assert!(!world.namespace.reclaim(Patience::OneTurn), "somebody has the lock");
    drop(guard);
    assert!(world.namespace.reclaim(Patience::OneTurn));
    assert!(world.held() >= (RETIRED - TURN) as u64, "one turn");
    assert!(!world.retiring.is_empty());
    assert!(world.namespace.reclaim(Patience::All));
    assert_eq!((world.held(), world.retiring.is_empty()), (0, true));
}

#[test]
fn a_turn_is_bounded_within_one_tensor() {
    let world = World::new();
    world.retire(1, RETIRED);
    assert!(world.namespace.reclaim(Patience::OneTurn));
    assert_eq!(world.held(), (RETIRED - TURN) as u64);
    assert!(world.namespace.reclaim(Patience::All));
    assert_eq!((world.held(), world.retiring.is_empty()), (0, true));
}

#[test]
fn what_is_held_stays_in_the_list_and_has_a_holder() {
    let world = World::new();
    world.lease(10, 7);
    world.retire(RETIRED, 1);
    assert!(world.namespace.reclaim(Patience::All));
    // Steps 1 to 9 came before the lease.
    assert_eq!(world.held(), RETIRED as u64 - 9);
    assert_eq!(world.retiring.namespaces().len(), 1);
    let [(1, holds)] = world.namespace.holders()[..] else { panic!("one holder") };
    assert_eq!(holds.bytes, (RETIRED as u64 - 9) * 64);
    world.lease(10, 8);
    assert!(world.namespace.reclaim(Patience::All));
    assert_eq!((world.held(), world.retiring.is_empty()), (0, true));
    assert!(world.namespace.holders().is_empty());
}

#[test]
fn a_finished_lease_holds_what_was_published_before_its_last_look() {
    let world = World::new();
    world.lease(1, 1 << 39 << 24 | 7);
    world.page.last_looks()[5].store(10, Ordering::Release);
    world.retire(RETIRED, 1);
    assert!(world.namespace.reclaim(Patience::All));
    assert_eq!(world.held(), 10, "each was published in the epoch in which it retired");
    assert_eq!(world.namespace.holders()[0].1.bytes, 640);
    // Of one entry, what was published later goes first.
    world.retire(1, 3);
    world.namespace.inner.lock().retired.entries.back_mut().unwrap().data[0].published = 1;
    assert!(world.namespace.reclaim(Patience::All));
    assert_eq!(world.held(), 11);
    world.lease(0, 0);
    assert!(world.namespace.reclaim(Patience::All));
    assert_eq!((world.held(), world.retiring.is_empty()), (0, true));
}
