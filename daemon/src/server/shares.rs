//! What one session, one user, and all users together may take of the daemon's tables and queues.
//!
//! Every limit has a share per user and a reserve that only the operator may use, so that nobody locks others out.

use std::collections::BTreeMap;

use tierpack_shm::message::{ErrorCode, Refusal};

use super::session::Session;
use crate::store::Outcome;
use crate::store::access::Caller;

/// Namespaces that one session, one user, and all together may be attached to: each costs a page and a mapping.
pub(super) const ATTACHMENTS: [usize; 3] = [4096, 8192, 32_768];
/// Requests that wait for workers, the ones that workers have included.
const REQUESTS: [usize; 3] = [128, 2048, 16_384];
/// Bytes of their messages.
const BYTES: [usize; 3] = [4 << 20, 16 << 20, 128 << 20];
/// Descriptors that came with them.
const DESCRIPTORS: [usize; 3] = [64, 256, 1024];
/// Of all, one part in so many is kept for the operator.
const RESERVE: usize = 8;
/// Sessions that are kept for the operator, at most one part in [`RESERVE`].
const RESERVED_SESSIONS: usize = 16;

/// Requests under way, and what they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
    pub(crate) descriptors: usize,
}

impl Load {
    /// One request.
    pub(crate) fn one(bytes: usize, descriptors: usize) -> Self {
        Self { requests: 1, bytes, descriptors }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.descriptors += other.descriptors;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.requests -= other.requests;
        self.bytes -= other.bytes;
        self.descriptors -= other.descriptors;
    }
}

#[derive(Debug, Default)]
struct Share {
    sessions: usize,
    attachments: usize,
    load: Load,
}

/// What everybody has, by user.
#[derive(Debug)]
pub(crate) struct Shares {
    max_sessions: usize,
    users: BTreeMap<u32, Share>,
    all: Share,
    /// What [`Shares::changed_request_bytes`] returned last.
    noted_bytes: u64,
}

impl Shares {
    pub(crate) fn new(max_sessions: usize) -> Self {
        Self { max_sessions, users: BTreeMap::new(), all: Share::default(), noted_bytes: 0 }
    }

    fn user(&mut self, uid: u32) -> &mut Share {
        self.users.entry(uid).or_default()
    }

    /// Counts a session in, unless it would be one too many.
    pub(crate) fn admit(&mut self, caller: &Caller) -> Outcome<()> {
        let (max, all) = (self.max_sessions, self.all.sessions);
        let reserved = RESERVED_SESSIONS.min(max / RESERVE);
        let own = self.user(caller.uid).sessions;
        let text = if all >= max {
            format!("{all} sessions are open, the limit is {max} (--max-sessions)")
        } else if !caller.is_operator && all >= max - reserved {
            format!(
                "{all} sessions are open, the limit is {max} (--max-sessions), of which {reserved} are kept for root \
                 and the daemon's own user"
            )
        } else if !caller.is_operator && own >= (max / 2).max(1) {
            let limit = (max / 2).max(1);
            format!("user {} has {own} sessions open, the limit for one user is {limit}", caller.uid)
        } else {
            self.user(caller.uid).sessions += 1;
            self.all.sessions += 1;
            return Ok(());
        };
        if own == 0 {
            self.users.remove(&caller.uid);
        }
        Err(Refusal::new(ErrorCode::Limit, text))
    }

    /// Counts a session out, with everything that it has.
    pub(crate) fn leave(&mut self, session: &Session) {
        let (attachments, load) = (session.attached.len(), session.load);
        for share in [self.users.entry(session.caller.uid).or_default(), &mut self.all] {
            share.sessions -= 1;
            share.attachments -= attachments;
            share.load.subtract(load);
        }
        if self.users.get(&session.caller.uid).is_some_and(|share| share.sessions == 0) {
            self.users.remove(&session.caller.uid);
        }
    }

    /// Counts an attachment in, unless it would be one too many.
    pub(crate) fn attach(&mut self, session: &Session) -> Outcome<()> {
        let caller = &session.caller;
        let [_, for_user, for_all] = ATTACHMENTS;
        let own = [session.attached.len(), self.user(caller.uid).attachments, self.all.attachments];
        if let Some((found, limit)) = beyond(own, ATTACHMENTS, 1, caller) {
            let text = format!(
                "one attachment more than the limit: this is {found} of {limit} (one user may have {for_user}, all \
                 together {for_all}): close handles of namespaces that are no longer read"
            );
            return Err(Refusal::new(ErrorCode::Limit, text));
        }
        self.user(caller.uid).attachments += 1;
        self.all.attachments += 1;
        Ok(())
    }

    /// Counts an attachment out.
    pub(crate) fn detach(&mut self, uid: u32) {
        self.user(uid).attachments -= 1;
        self.all.attachments -= 1;
    }

    /// Counts a request in, unless the session, its user, or all together have enough under way.
    pub(crate) fn queue(&mut self, session: &mut Session, load: Load) -> Outcome<()> {
        let caller = &session.caller;
        let (own, all) = (self.user(caller.uid).load, self.all.load);
        let each = |field: fn(&Load) -> usize| [field(&session.load), field(&own), field(&all)];
        let full = beyond(each(|load| load.requests), REQUESTS, 1, caller)
            .map(|found| ("requests", found))
            .or_else(|| {
                beyond(each(|load| load.bytes), BYTES, load.bytes, caller)
                    .map(|found| ("bytes of requests", found))
            })
            .or_else(|| {
                let found = beyond(each(|load| load.descriptors), DESCRIPTORS, load.descriptors, caller);
                found.map(|found| ("descriptors of requests", found))
            });
        if let Some((what, (found, limit))) = full {
            let text = format!("{found} {what} are under way, the limit is {limit}: try again");
            return Err(Refusal::new(ErrorCode::Busy, text));
        }
        session.load.add(load);
        self.user(session.caller.uid).load.add(load);
        self.all.load.add(load);
        Ok(())
    }

    /// Bytes of the requests under way, if they are not those of the last call.
    pub(crate) fn changed_request_bytes(&mut self) -> Option<u64> {
        let now = self.all.load.bytes as u64;
        (std::mem::replace(&mut self.noted_bytes, now) != now).then_some(now)
    }

    /// Counts requests out that were answered or dropped.
    pub(crate) fn unqueue(&mut self, session: &mut Session, load: Load) {
        session.load.subtract(load);
        self.user(session.caller.uid).load.subtract(load);
        self.all.load.subtract(load);
    }
}

/// The first of session, user and all that would pass its limit by `more`, with the limit.
fn beyond(own: [usize; 3], limits: [usize; 3], more: usize, caller: &Caller) -> Option<(usize, usize)> {
    let [for_session, for_user, for_all] = limits;
    let limits = if caller.is_operator {
        [for_session, for_all, for_all]
    } else {
        [for_session, for_user, for_all - for_all / RESERVE]
    };
    own.into_iter().zip(limits).find(|(found, limit)| more > 0 && found + more > *limit)
}

#[cfg(test)]
mod tests {
    use tierpack_shm::fork::Unshared;
    use tierpack_shm::socket::Peer;

    use super::*;

    fn caller(uid: u32) -> Caller {
        Caller::new(Peer { pid: 1, uid, gid: uid }, Vec::new(), 7)
    }

    fn session(number: u64, uid: u32) -> Session {
        let fd = std::fs::File::open("/dev/null").expect("a file of every system");
        Session::new(number, Peer { pid: 1, uid, gid: uid }, caller(uid), Unshared::new(fd.into()).unwrap())
    }

    #[test]
    fn what_waits_is_bounded_by_session_and_by_user() {
        let mut shares = Shares::new(1024);
        let fill = |shares: &mut Shares, session: &mut Session| {
            (0..1000).filter(|_| shares.queue(session, Load::one(100, 0)).is_ok()).count()
        };
        let mut sessions: Vec<_> = (0..20).map(|number| session(number, 100)).collect();
        let taken: Vec<_> = sessions.iter_mut().map(|session| fill(&mut shares, session)).collect();
        assert_eq!((taken[0], taken[15], taken[16]), (REQUESTS[0], REQUESTS[0], 0));
        let mut other = session(30, 101);
        assert_eq!(fill(&mut shares, &mut other), REQUESTS[0], "others have their own share");
        let refusal = shares.queue(&mut other, Load::one(100, 0)).unwrap_err();
        assert_eq!(refusal.code(), Some(ErrorCode::Busy));
        assert!(refusal.text.contains("128 requests are under way, the limit is 128"), "{}", refusal.text);
        shares.unqueue(&mut other, Load::one(100, 0));
        assert!(shares.queue(&mut other, Load::one(5 << 20, 0)).is_err(), "too many bytes");
        assert!(shares.queue(&mut other, Load::one(100, 65)).is_err(), "too many descriptors");
        let attached = (0..10_000).filter(|_| shares.attach(&other).is_ok()).count();
        assert_eq!(attached, ATTACHMENTS[1]);
        assert!(shares.attach(&sessions[0]).is_ok(), "others have their own share");
    }

    #[test]
    fn a_user_leaves_room_for_others_and_all_leave_room_for_the_operator() {
        let mut shares = Shares::new(64);
        let admitted =
            |shares: &mut Shares, uid| (0..64).filter(|_| shares.admit(&caller(uid)).is_ok()).count();
        assert_eq!(admitted(&mut shares, 100), 32);
        assert_eq!(admitted(&mut shares, 101), 24);
        let text = shares.admit(&caller(102)).unwrap_err().text;
        assert!(text.contains("56 sessions are open, the limit is 64"), "{text}");
        assert_eq!(admitted(&mut shares, 7), 8);
        assert!(shares.admit(&caller(0)).is_err());
    }
}
