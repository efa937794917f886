//! The puts under way, by the ids that clients use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::types::index;

use super::{Transfer, invalid};
use crate::store::shares::{Limit, User};
use crate::store::{Outcome, Store};

/// Puts under way at once.
const LIMIT: Limit = Limit { what: "puts under way", all: 4096, reserve: 64 };
/// Those of one session.
const MAX_OF_SESSION: usize = 1024;

/// Transfers by slab key, each with the number that makes its id one that is never used twice.
#[derive(Debug, Default)]
struct Table {
    slab: Slab<(u32, Arc<Transfer>)>,
    last_number: u32,
    by_user: HashMap<u32, usize>,
    by_session: HashMap<u64, usize>,
}

impl Table {
    /// The transfer with this id and its key, if it is one of this session.
    fn find(&self, id: u64, session: u64) -> Outcome<(usize, &Arc<Transfer>)> {
        let key = index(id & 0xFFFF_FFFF);
        let found = self.slab.get(key).filter(|(number, _)| u64::from(*number) == id >> 32);
        let owned = found.map(|(_, transfer)| (key, transfer)).filter(|(_, found)| found.session == session);
        owned.ok_or_else(|| {
            invalid(format!("put {id} of this session does not exist: it ended, or idled too long"))
        })
    }

    /// Refuses one more beyond the limits.
    fn check(&self, user: User, session: u64) -> Outcome<()> {
        let own = self.by_user.get(&user.uid).copied().unwrap_or_default();
        LIMIT.check(user, own, self.slab.len())?;
        if self.by_session.get(&session).is_some_and(|own| *own >= MAX_OF_SESSION) {
            let text = format!(
                "this session has {MAX_OF_SESSION} puts under way, which is the limit: commit or abort some"
            );
            return Err(Refusal::new(ErrorCode::Limit, text));
        }
        Ok(())
    }

    fn count_out(&mut self, transfer: &Transfer) {
        take_one(&mut self.by_user, transfer.user.uid);
        take_one(&mut self.by_session, transfer.session);
    }
}

fn take_one<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let std::collections::hash_map::Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// The puts under way.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    table: Mutex<Table>,
}

impl Transfers {
    /// Refuses one more put of a session beyond the limits, before anything is done for it.
    pub(super) fn check(&self, user: User, session: u64) -> Outcome<()> {
        self.table.lock().check(user, session)
    }

    pub(super) fn insert(&self, transfer: Arc<Transfer>) -> Outcome<u64> {
        let table = &mut *self.table.lock();
        table.check(transfer.user, transfer.session)?;
        *table.by_user.entry(transfer.user.uid).or_default() += 1;
        *table.by_session.entry(transfer.session).or_default() += 1;
        table.last_number = table.last_number.wrapping_add(1);
        let key = table.slab.insert((table.last_number, transfer));
        Ok(u64::from(table.last_number) << 32 | key as u64)
    }

    /// The transfer, if it is one of this session.
    pub(super) fn get(&self, id: u64, session: u64) -> Outcome<Arc<Transfer>> {
        self.table.lock().find(id, session).map(|(_, transfer)| Arc::clone(transfer))
    }

    pub(super) fn take(&self, id: u64, session: u64) -> Outcome<Arc<Transfer>> {
        let mut table = self.table.lock();
        let key = table.find(id, session)?.0;
        let (_, transfer) = table.slab.remove(key);
        table.count_out(&transfer);
        Ok(transfer)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().slab.len()
    }

    /// Ends the puts of a session that is gone.
    pub(crate) fn abort_session(&self, store: &Store, session: u64) {
        if self.table.lock().by_session.contains_key(&session) {
            self.abort_where(store, |transfer| transfer.session == session);
        }
        store.transactions.end_session(session);
    }

    /// Ends the puts that nobody has moved for `limit`.
    pub(crate) fn abort_idle(&self, store: &Store, limit: Duration) {
        self.abort_where(store, |transfer| transfer.progress.lock().last_used.elapsed() > limit);
        store.transactions.end_idle(limit);
    }

    fn abort_where(&self, store: &Store, ended: impl Fn(&Transfer) -> bool) {
        let mut gone = Vec::new();
        let mut table = self.table.lock();
        table.slab.retain(|_, (_, transfer)| {
            let keep = !ended(transfer);
            if !keep {
                gone.push(Arc::clone(transfer));
            }
            keep
        });
        gone.iter().for_each(|transfer| table.count_out(transfer));
        drop(table);
        for transfer in gone {
            tracing::debug!(tensor = transfer.name, session = transfer.session, "put ended without commit");
            transfer.abort(store);
        }
    }
}
