//! Transactions: several tensors become visible in one step, or none of them does.
//!
//! The names are claimed first; until the end nobody else puts, updates or removes tensors of these names, so nothing
//! has to be undone by name. Each tensor is put as any other, and its commit prepares it: it is whole, and nobody finds
//! it. The commit of the transaction reveals all; whatever ends before leaves nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tierpack_shm::message::{Entry, ErrorCode, MAX_NAME_BYTES, Refusal};

use super::access::{Caller, Right};
use super::budget::Charge;
use super::namespace::{Namespace, Tensor, Unpublished};
use super::shares::{Limit, User};
use super::{Outcome, Store, heap};

/// Transactions under way at once.
const LIMIT: Limit = Limit { what: "puts of several tensors under way", all: 1024, reserve: 16 };
/// Names that one message claims.
const MAX_CLAIMED: usize = 2048;
/// Those of one session.
const MAX_OF_SESSION: usize = 16;

#[derive(Debug, Default)]
struct State {
    names: Vec<String>,
    /// The heap of the names, here and in the namespace.
    charges: Vec<Charge>,
    prepared: BTreeMap<String, Box<Tensor>>,
    has_ended: bool,
}

/// One transaction under way.
#[derive(Debug)]
pub(crate) struct Transaction {
    number: u64,
    session: u64,
    user: User,
    pub(super) namespace: Arc<Namespace>,
    pub(super) overwrite: bool,
    /// As [`Namespace::bars`] when it began.
    bars: u64,
    state: Mutex<State>,
    last_used: Mutex<Instant>,
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Invalid, text)
}

impl Transaction {
    pub(super) fn has_claimed(&self, name: &str) -> bool {
        self.namespace.has_claimed(name, self.number)
    }

    /// Notes that it is not idle.
    pub(super) fn touch(&self) {
        *self.last_used.lock() = Instant::now();
    }

    fn claim(&self, store: &Store, names: Vec<String>) -> Outcome<()> {
        self.touch();
        if names.len() > MAX_CLAIMED {
            let n = names.len();
            return Err(invalid(format!("{n} names in one message, the limit is {MAX_CLAIMED}")));
        }
        if let Some(name) = names.iter().find(|name| name.len() > MAX_NAME_BYTES) {
            let len = name.len();
            return Err(invalid(format!("tensor name has {len} bytes, the limit is {MAX_NAME_BYTES}")));
        }
        let len = names.iter().map(|name| heap::of_claim(name)).sum();
        let charge = store.charge(&self.namespace.heap, self.user, len)?;
        let mut state = self.state.lock();
        if state.has_ended {
            return Err(self.ended());
        }
        self.namespace.claim(&names, self.number, self.overwrite)?;
        state.names.extend(names);
        state.charges.push(charge);
        Ok(())
    }

    /// Takes a tensor that is whole; it becomes visible with the others. As [`Namespace::prepare`].
    pub(super) fn prepare(&self, name: &str, content: Unpublished) -> Outcome<Result<Entry, Unpublished>> {
        self.touch();
        let (tensor, entry) = match self.namespace.prepare(name, content)? {
            Ok(made) => made,
            Err(no_room) => return Ok(Err(no_room)),
        };
        let mut state = self.state.lock();
        if state.has_ended {
            drop(state);
            self.namespace.discard([tensor]);
            return Err(self.ended());
        }
        let before = state.prepared.insert(name.to_owned(), tensor);
        drop(state);
        self.namespace.discard(before);
        Ok(Ok(entry))
    }

    fn ended(&self) -> Refusal {
        invalid(format!("put {} of several tensors has ended: begin it again", self.number))
    }

    /// Ends it; returns what it has prepared.
    fn end(&self) -> State {
        let state = std::mem::replace(&mut *self.state.lock(), State { has_ended: true, ..State::default() });
        if !state.has_ended {
            self.namespace.count_put(false);
        }
        state
    }

    fn abort(&self, store: &Store) {
        let State { names, prepared, .. } = self.end();
        self.namespace.discard(prepared.into_values());
        self.namespace.unclaim(&names, self.number);
        store.note_freed();
    }

    fn commit(&self, store: &Store) -> Outcome<()> {
        let State { names, charges, prepared, .. } = self.end();
        let missing = names.iter().find(|name| !prepared.contains_key(*name));
        let outcome = match missing {
            Some(name) => {
                let (n, all) = (prepared.len(), names.len());
                let text =
                    format!("{n} of {all} tensors came: tensor {name:?} is missing, and none is stored");
                Err((invalid(text), prepared))
            }
            None => self.namespace.reveal(prepared, self.bars),
        };
        let outcome = outcome.map_err(|(refusal, prepared)| {
            self.namespace.discard(prepared.into_values());
            refusal
        });
        // Where all went well they have ended already.
        self.namespace.unclaim(&names, self.number);
        drop(charges);
        store.note_freed();
        store.reclaim_one(&self.namespace);
        outcome
    }
}

/// The transactions under way, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    all: Mutex<HashMap<u64, Arc<Transaction>>>,
    /// Those that ended without a commit, and have yet to be cleared.
    ended: Mutex<Vec<Arc<Transaction>>>,
    last_number: AtomicU64,
}

impl Transactions {
    pub(crate) fn begin(
        &self,
        store: &Store,
        (session, caller): (u64, &Caller),
        namespace: &str,
        overwrite: bool,
    ) -> Outcome<u64> {
        let user = User::from(caller);
        let namespace = store.namespace_for_put(namespace, caller)?;
        namespace.check(caller, Right::Write)?;
        let mut all = self.all.lock();
        let own = all.values().filter(|other| other.user.uid == user.uid).count();
        LIMIT.check(user, own, all.len())?;
        if all.values().filter(|other| other.session == session).count() >= MAX_OF_SESSION {
            let text =
                format!("this session has {MAX_OF_SESSION} puts of several tensors under way, the limit");
            return Err(Refusal::new(ErrorCode::Limit, text));
        }
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        namespace.count_put(true);
        let (state, last_used) = (Mutex::default(), Mutex::new(Instant::now()));
        let bars = namespace.bars();
        let begun = Transaction { number, session, user, namespace, overwrite, bars, state, last_used };
        all.insert(number, Arc::new(begun));
        Ok(number)
    }

    /// The transaction, if it is one of this session and its caller may still write.
    pub(super) fn get(&self, (session, caller): (u64, &Caller), number: u64) -> Outcome<Arc<Transaction>> {
        let found = self.all.lock().get(&number).filter(|found| found.session == session).map(Arc::clone);
        let found = found.ok_or_else(|| {
            invalid(format!(
                "put {number} of several tensors does not exist in this session: it ended, or idled too long"
            ))
        })?;
        found.namespace.check(caller, Right::Write)?;
        Ok(found)
    }

    fn take(&self, session: u64, number: u64) -> Option<Arc<Transaction>> {
        let mut all = self.all.lock();
        all.get(&number).filter(|found| found.session == session)?;
        all.remove(&number)
    }

    pub(crate) fn claim(
        &self,
        store: &Store,
        asked: (u64, &Caller),
        number: u64,
        names: Vec<String>,
    ) -> Outcome<()> {
        self.get(asked, number)?.claim(store, names)
    }

    pub(crate) fn commit(&self, store: &Store, asked: (u64, &Caller), number: u64) -> Outcome<()> {
        let found = self.get(asked, number)?;
        let Some(_revealing) = found.namespace.revealing.try_lock() else {
            let text = "another put of several tensors is being revealed: try again";
            return Err(Refusal::new(ErrorCode::Busy, text));
        };
        let _committing = found.namespace.begin_commit()?;
        // The thread that took it has ended it.
        self.take(asked.0, number).ok_or_else(|| found.ended())?.commit(store)
    }

    pub(crate) fn abort(&self, store: &Store, session: u64, number: u64) {
        if let Some(found) = self.take(session, number) {
            found.abort(store);
        }
    }

    /// Ends those of a session that is gone; [`Transactions::clear_ended`] frees what they have.
    pub(super) fn end_session(&self, session: u64) {
        self.end_where(|found| found.session == session);
    }

    /// Ends those that nobody has moved for `limit`, likewise.
    pub(super) fn end_idle(&self, limit: Duration) {
        self.end_where(|found| found.last_used.lock().elapsed() > limit);
    }

    fn end_where(&self, is_over: impl Fn(&Transaction) -> bool) {
        let mut all = self.all.lock();
        if !all.is_empty() {
            self.ended.lock().extend(all.extract_if(|_, found| is_over(found)).map(|(_, found)| found));
        }
    }

    /// For the background thread, since there may be many tensors: frees those of ended transactions.
    pub(super) fn clear_ended(&self, store: &Store) {
        for found in std::mem::take(&mut *self.ended.lock()) {
            tracing::debug!(session = found.session, "put of several tensors ended without commit");
            found.abort(store);
        }
    }
}
