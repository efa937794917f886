//! Namespaces as wholes: made, changed, listed, removed.
//!
//! A removed namespace is hidden at once; its memory goes when nobody maps it any more.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tierpack_shm::layout::MIN_SEGMENT_BYTES;
use tierpack_shm::message::{ErrorCode, MAX_NAMESPACE_BYTES, NamespaceChange, NamespaceEntry, Refusal};
use tierpack_shm::page::NamespaceId;

use super::access::{Access, Caller, check_mode};
use super::budget::Purpose;
use super::namespace::Namespace;
use super::shares::{Limit, User};
use super::{Outcome, Store, heap};
use crate::server::events::Event;

/// Namespaces of one daemon, the removed ones that somebody still maps included: each costs a directory segment.
const LIMIT: Limit =
    Limit { what: "namespaces (removed ones that are still mapped included)", all: 4096, reserve: 64 };
/// The namespace that belongs to the daemon's owner.
const DEFAULT: &str = "default";

impl Store {
    /// A namespace to put into: made for the caller if it does not exist.
    pub(super) fn namespace_for_put(&self, name: &str, caller: &Caller) -> Outcome<Arc<Namespace>> {
        if let Some(found) = self.namespaces.read().get(name) {
            return Ok(Arc::clone(found));
        }
        self.make(name, self.first_access(name, caller), caller.into()).map(|(namespace, _)| namespace)
    }

    /// What a namespace starts with: it is the caller's, but `default` is the daemon's, whichever user comes first.
    fn first_access(&self, name: &str, caller: &Caller) -> Access {
        let access = Access::of(caller);
        if name == DEFAULT { Access { uid: self.uid, gid: self.gid, ..access } } else { access }
    }

    /// Makes a namespace, unless another request was first; says whether it did.
    fn make(&self, name: &str, access: Access, user: User) -> Outcome<(Arc<Namespace>, bool)> {
        check_name(name)?;
        self.check_namespaces(user)?;
        let charge = self.charge(&Arc::default(), user, heap::of_namespace(name))?;
        let fits = self.share_left(user.uid) >= MIN_SEGMENT_BYTES;
        let segment = fits
            .then(|| self.budgeted_segment(MIN_SEGMENT_BYTES, Purpose::Growth))
            .flatten()
            .ok_or_else(|| self.full(user, MIN_SEGMENT_BYTES))??;
        let mut namespaces = self.namespaces.write();
        if let Some(found) = namespaces.get(name) {
            self.budget.start_return(segment.len());
            self.budget.end_return(segment.len(), segment.is_locked());
            return Ok((Arc::clone(found), false));
        }
        // Relaxed: the number only has to be unique.
        let number = self.next_namespace.fetch_add(1, Ordering::Relaxed);
        let id = NamespaceId { instance: self.instance, namespace: number };
        let header = (segment, self.next_serial());
        let budget = Arc::clone(&self.budget);
        let made = Namespace::new(id, name.to_owned(), access, header, (budget, charge), &self.retiring);
        namespaces.insert(name.to_owned(), Arc::clone(&made));
        tracing::info!(namespace = name, uid = access.uid, "namespace made");
        Ok((made, true))
    }

    /// Refuses one more namespace beyond the limit or a user's share of it.
    ///
    /// Requests side by side may each pass it with the last one: that many more there can be.
    fn check_namespaces(&self, user: User) -> Outcome<()> {
        let (mut own, mut all) = (0, 0);
        self.each_namespace(|namespace| {
            all += 1;
            // Relaxed: a number for a comparison.
            own += usize::from(namespace.owner.load(Ordering::Relaxed) == user.uid);
        });
        LIMIT.check(user, own, all)
    }

    pub(crate) fn create_namespace(
        &self,
        name: &str,
        caller: &Caller,
        change: &NamespaceChange,
    ) -> Outcome<()> {
        let mut access = self.first_access(name, caller);
        access.check_owner(name, caller)?;
        apply(&mut access, name, caller, change)?;
        match self.make(name, access, caller.into())? {
            (namespace, true) => {
                namespace.keep();
                Ok(())
            }
            (_, false) => Err(Refusal::new(ErrorCode::Exists, format!("namespace {name:?} exists"))),
        }
    }

    pub(crate) fn change_namespace(
        &self,
        name: &str,
        caller: &Caller,
        change: &NamespaceChange,
    ) -> Outcome<()> {
        let namespace = self.namespace(name)?;
        let has_changed = namespace.change_access(|access| {
            access.check_owner(name, caller)?;
            apply(access, name, caller, change)
        })?;
        if has_changed {
            self.keep_back();
            // Before the reply, which goes the same way: then who may not read is sent nothing more.
            self.events.send(Event::RightsChanged { namespace: namespace.id.namespace });
        }
        Ok(())
    }

    pub(crate) fn remove_namespace(&self, name: &str, caller: &Caller, with_tensors: bool) -> Outcome<()> {
        let mut namespaces = self.namespaces.write();
        let missing = || Refusal::new(ErrorCode::NotFound, format!("namespace {name:?} does not exist"));
        let namespace = Arc::clone(namespaces.get(name).ok_or_else(missing)?);
        namespace.change_access(|access| access.check_owner(name, caller))?;
        let removed = namespace.begin_removal(with_tensors)?;
        namespaces.remove(name);
        self.removed.lock().push(Arc::clone(&namespace));
        drop(namespaces);
        namespace.clear(removed)?;
        tracing::info!(namespace = name, uid = caller.uid, "namespace removed");
        self.reclaim_all();
        self.bury();
        self.trim(0);
        Ok(())
    }

    /// Hands the namespaces that the caller may read to `take`, in order; says whether it took all.
    pub(crate) fn list_namespaces(
        &self,
        caller: &Caller,
        after: Option<&str>,
        mut take: impl FnMut(NamespaceEntry) -> bool,
    ) -> bool {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest: Vec<_> = {
            let namespaces = self.namespaces.read();
            namespaces
                .range::<str, _>((start, Bound::Unbounded))
                .map(|(_, found)| Arc::clone(found))
                .collect()
        };
        rest.iter().filter(|found| found.is_readable(caller)).all(|found| take(found.entry()))
    }

    /// Drops the namespaces that were made for puts of which none was committed, once nobody uses them.
    pub(crate) fn drop_unused_namespaces(&self) {
        let is_unused = |found: &Arc<Namespace>| Arc::strong_count(found) == 1 && found.is_unused();
        if !self.namespaces.read().values().any(is_unused) {
            return;
        }
        // Under the lock that others need to find it: nobody can begin to use what has one owner now.
        let dropped: Vec<_> = self.namespaces.write().extract_if(.., |_, found| is_unused(found)).collect();
        for (name, namespace) in dropped {
            self.return_segments(&namespace);
            tracing::info!(namespace = name, "namespace dropped: no put into it was committed");
        }
    }

    /// Returns the memory of a namespace that nobody maps or finds any more.
    fn return_segments(&self, namespace: &Namespace) {
        for (id, segment) in namespace.bury() {
            self.return_segment(namespace, id, segment);
        }
    }

    /// Returns the memory of removed namespaces that nobody maps.
    pub(crate) fn bury(&self) {
        let mut removed = self.removed.lock();
        removed.retain(|namespace| {
            if !namespace.is_abandoned() {
                return true;
            }
            self.return_segments(namespace);
            false
        });
    }

    /// Removed namespaces that sessions still map.
    pub(crate) fn removed_namespaces(&self) -> Vec<Arc<Namespace>> {
        self.removed.lock().iter().map(Arc::clone).collect()
    }
}

/// Applies a change, or refuses it as a whole.
fn apply(access: &mut Access, name: &str, caller: &Caller, change: &NamespaceChange) -> Outcome<()> {
    if !caller.is_operator && change.uid.is_some_and(|uid| uid != caller.uid) {
        let text = format!("user {} may not give namespace {name:?} to another user", caller.uid);
        return Err(Refusal::new(ErrorCode::Denied, text));
    }
    let foreign = |gid: &u32| *gid != caller.gid && !caller.groups.contains(gid);
    if let Some(gid) = change.gid.filter(|gid| !caller.is_operator && foreign(gid)) {
        let text =
            format!("user {} is not in group {gid} and may not give namespace {name:?} to it", caller.uid);
        return Err(Refusal::new(ErrorCode::Denied, text));
    }
    access.mode = change.mode.map_or(Ok(access.mode), check_mode)?;
    access.uid = change.uid.unwrap_or(access.uid);
    access.gid = change.gid.unwrap_or(access.gid);
    access.quota_bytes = change.quota_bytes.unwrap_or(access.quota_bytes);
    Ok(())
}

fn check_name(name: &str) -> Outcome<()> {
    let fault = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > MAX_NAMESPACE_BYTES {
        format!("it has {} bytes, the limit is {MAX_NAMESPACE_BYTES}", name.len())
    } else if name.chars().any(char::is_control) {
        "it holds a control character".to_owned()
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(40).collect();
    Err(Refusal::new(ErrorCode::Invalid, format!("namespace name {shown:?} is refused: {fault}")))
}
