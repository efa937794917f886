//! Holds: commits to a namespace wait a moment, so that a client can open many tensors as of one moment.
//!
//! A hold refuses commits with `Busy`, which clients try again; it begins when the commits under way are done.
//! One at a time, of at most [`LIMIT`], and a user who had one waits nine times as long for the next, others as long as it
//! took: what readers do keeps writers waiting for half of the time at most, and one user's readers for a tenth.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tierpack_shm::message::{ErrorCode, Refusal, Reply};

use super::Namespace;
use crate::store::Outcome;
use crate::store::access::{Caller, Right};

/// How long commits wait at most.
const LIMIT: Duration = Duration::from_millis(100);
/// A user waits so many times as long as its last hold took.
const REST: u32 = 9;

#[derive(Debug)]
struct Hold {
    session: u64,
    uid: u32,
    began: Instant,
}

/// Commits under way, and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Commits {
    under_way: u32,
    hold: Option<Hold>,
    /// When a user may hold again.
    resting: HashMap<u32, Instant>,
    /// When anybody may.
    rests_until: Option<Instant>,
}

fn busy(text: &str) -> Refusal {
    Refusal::new(ErrorCode::Busy, text)
}

impl Commits {
    /// Ends the hold, if `is_over` says so.
    fn end(&mut self, now: Instant, is_over: impl Fn(&Hold) -> bool) {
        if let Some(Hold { uid, began, .. }) = self.hold.take_if(|hold| is_over(hold)) {
            let end = now.min(began + LIMIT);
            let took = end - began;
            self.resting.retain(|_, until| *until > now);
            self.resting.insert(uid, end + took * REST);
            self.rests_until = Some(end + took);
        }
    }

    /// Ends a hold that has lasted for as long as one may.
    fn expire(&mut self, now: Instant) {
        self.end(now, |hold| now >= hold.began + LIMIT);
    }

    /// Refuses a commit while there is a hold.
    pub(super) fn check(&mut self) -> Outcome<()> {
        if self.hold.is_some() {
            self.expire(Instant::now());
        }
        match self.hold {
            Some(_) => {
                Err(busy("a client is opening the tensors of this namespace as of one moment: try again"))
            }
            None => Ok(()),
        }
    }

    fn begin(&mut self, session: u64, uid: u32) -> Outcome<()> {
        let now = Instant::now();
        self.expire(now);
        match &self.hold {
            Some(hold) if hold.session == session => {}
            Some(_) => return Err(busy("another client holds the commits of this namespace: try again")),
            None if self.resting.get(&uid).into_iter().chain(&self.rests_until).any(|until| *until > now) => {
                return Err(busy("the commits of this namespace were held a moment ago: try again"));
            }
            None => self.hold = Some(Hold { session, uid, began: now }),
        }
        if self.under_way == 0 { Ok(()) } else { Err(busy("commits are under way: try again")) }
    }
}

/// A commit under way; none begins during a hold.
#[derive(Debug)]
pub(in crate::store) struct Committing<'a>(&'a Namespace);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().commits.under_way -= 1;
    }
}

impl Namespace {
    /// Begins a commit, which ends when what is returned is dropped.
    pub(in crate::store) fn begin_commit(&self) -> Outcome<Committing<'_>> {
        let mut inner = self.inner.lock();
        inner.commits.check()?;
        inner.commits.under_way += 1;
        Ok(Committing(self))
    }

    /// Refuses commits for a moment; succeeds once none is under way.
    pub(crate) fn hold(&self, session: u64, caller: &Caller) -> Outcome<Reply> {
        let mut inner = self.inner.lock();
        inner.access.check(&self.name, caller, Right::Read)?;
        inner.commits.begin(session, caller.uid)?;
        Ok(Reply::Held { limit_ms: u32::try_from(LIMIT.as_millis()).unwrap_or(u32::MAX) })
    }

    /// Lets commits go on.
    pub(crate) fn release(&self, session: u64) {
        self.inner.lock().commits.end(Instant::now(), |hold| hold.session == session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the hold had begun `by` earlier.
    fn pass(commits: &mut Commits, by: Duration) {
        let earlier = |at: &mut Instant| *at = at.checked_sub(by).expect("the machine has run for a while");
        commits.hold.iter_mut().for_each(|hold| earlier(&mut hold.began));
        commits.resting.values_mut().for_each(earlier);
        commits.rests_until.iter_mut().for_each(earlier);
    }

    #[test]
    fn a_hold_ends_by_itself_and_holds_are_a_share_of_the_time() {
        let mut commits = Commits { under_way: 1, ..Commits::default() };
        assert!(commits.begin(1, 7).is_err(), "a commit is under way");
        assert!(commits.check().is_err(), "but no other one begins");
        assert!(commits.begin(2, 8).is_err(), "one hold at a time");
        commits.under_way = 0;
        commits.begin(1, 7).unwrap();
        pass(&mut commits, LIMIT);
        commits.check().unwrap();
        assert!(commits.begin(2, 8).is_err(), "writers have as long as it took");
        pass(&mut commits, LIMIT);
        assert!(commits.begin(1, 7).is_err(), "and its user waits longer");
        commits.begin(2, 8).unwrap();
        commits.end(Instant::now(), |hold| hold.session == 2);
        pass(&mut commits, LIMIT * REST);
        commits.begin(1, 7).unwrap();
        commits.end(Instant::now(), |hold| hold.session == 1);
        assert_eq!(commits.resting.len(), 1, "who may hold again is forgotten");
    }
}
