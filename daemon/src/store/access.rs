//! Who may do what in a namespace: owner, group and mode, as the kernel reported the peer when it connected.
//!
//! Reading (`r`) covers attach, open, get, list; writing (`w`) covers put, update and remove.
//! Root and the daemon's own user may do everything, and they and the owner may change a namespace.
//! A peer from a user namespace that maps it to nobody appears as uid 65534: it owns nothing and gets what `other` gets.
//! A right that is taken away is gone at once: see the modules `namespace::audience` and `server::rights`.

use tierpack_shm::message::{ErrorCode, NamespaceEntry, Refusal};
use tierpack_shm::socket::Peer;

use super::Outcome;

/// The user id that the kernel shows for users it cannot map.
const OVERFLOW_ID: u32 = 65_534;
/// Mode bits: read and write for owner, group and others.
const MODE_MASK: u16 = 0o666;
/// The mode of a namespace that a put makes.
pub(crate) const DEFAULT_MODE: u16 = 0o600;

/// A peer and the groups it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// Whether it is root or the daemon's own user.
    pub(crate) is_operator: bool,
}

impl Caller {
    pub(crate) fn new(peer: Peer, groups: Vec<u32>, daemon_uid: u32) -> Self {
        let is_operator = peer.uid == 0 || peer.uid == daemon_uid;
        Self { uid: peer.uid, gid: peer.gid, groups, is_operator }
    }

    fn is_in(&self, gid: u32) -> bool {
        gid != OVERFLOW_ID && (self.gid == gid || self.groups.contains(&gid))
    }
}

/// What is asked of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
}

/// Owner, group, mode and quota of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    /// Stored bytes that its tensors may take together.
    pub(crate) quota_bytes: Option<u64>,
}

impl Access {
    /// A namespace of the caller's own.
    pub(crate) fn of(caller: &Caller) -> Self {
        Self { uid: caller.uid, gid: caller.gid, mode: DEFAULT_MODE, quota_bytes: None }
    }

    /// Whether the rights of users are the same by both; the quota is none of them.
    pub(crate) fn has_rights_of(&self, other: &Self) -> bool {
        (self.uid, self.gid, self.mode) == (other.uid, other.gid, other.mode)
    }

    pub(crate) fn allows(&self, caller: &Caller, right: Right) -> bool {
        let bit = match right {
            Right::Read => 0o4,
            Right::Write => 0o2,
        };
        let shift = if caller.uid == self.uid && caller.uid != OVERFLOW_ID {
            6
        } else if caller.is_in(self.gid) {
            3
        } else {
            0
        };
        caller.is_operator || self.mode >> shift & bit != 0
    }

    /// Refuses a caller who may not.
    pub(crate) fn check(&self, namespace: &str, caller: &Caller, right: Right) -> Outcome<()> {
        if self.allows(caller, right) {
            return Ok(());
        }
        let verb = if right == Right::Read { "read" } else { "write" };
        // Who may not read it learns no more of it.
        let access = if self.allows(caller, Right::Read) {
            format!(" (owner {}, group {}, mode {:04o})", self.uid, self.gid, self.mode)
        } else {
            String::new()
        };
        let text = format!(
            "user {} may not {verb} namespace {namespace:?}{access}: ask its owner for `tierpack ns chmod`",
            caller.uid
        );
        Err(Refusal::new(ErrorCode::Denied, text))
    }

    /// Refuses a caller who may not change the namespace itself.
    pub(crate) fn check_owner(&self, namespace: &str, caller: &Caller) -> Outcome<()> {
        if caller.is_operator || caller.uid == self.uid && caller.uid != OVERFLOW_ID {
            return Ok(());
        }
        let owner =
            if self.allows(caller, Right::Read) { format!(" of user {}", self.uid) } else { String::new() };
        let text = format!("user {} may not change namespace {namespace:?}{owner}", caller.uid);
        Err(Refusal::new(ErrorCode::Denied, text))
    }

    pub(crate) fn entry(&self, name: &str, tensors: u64, stored_bytes: u64) -> NamespaceEntry {
        NamespaceEntry {
            name: name.to_owned(),
            uid: self.uid,
            gid: self.gid,
            mode: self.mode,
            quota_bytes: self.quota_bytes,
            tensors,
            stored_bytes,
        }
    }
}

/// A mode from a client.
pub(crate) fn check_mode(mode: u16) -> Outcome<u16> {
    if mode & !MODE_MASK == 0 {
        return Ok(mode);
    }
    let text = format!("mode {mode:04o} is refused: only the bits of {MODE_MASK:04o} mean something");
    Err(Refusal::new(ErrorCode::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller::new(Peer { pid: 1, uid, gid }, groups.to_vec(), 7)
    }

    fn access(mode: u16) -> Access {
        Access { uid: 10, gid: 20, mode, quota_bytes: None }
    }

    #[test]
    fn the_most_specific_class_decides() {
        let (owner, member, other) = (caller(10, 1, &[]), caller(11, 1, &[20]), caller(12, 1, &[]));
        for (mode, expected) in
            [(0o600, [true, false, false]), (0o060, [false, true, false]), (0o006, [false, false, true])]
        {
            let allowed = [&owner, &member, &other].map(|caller| {
                let allowed = access(mode).allows(caller, Right::Read);
                assert_eq!(allowed, access(mode).allows(caller, Right::Write));
                allowed
            });
            assert_eq!(allowed, expected, "{mode:o}");
        }
        assert!(access(0o400).allows(&owner, Right::Read) && !access(0o400).allows(&owner, Right::Write));
    }

    #[test]
    fn root_and_the_daemons_user_may_everything() {
        for operator in [caller(0, 0, &[]), caller(7, 7, &[])] {
            assert!(access(0).allows(&operator, Right::Write));
            assert!(access(0).check_owner("ns", &operator).is_ok());
        }
        assert!(access(0o666).check_owner("ns", &caller(12, 20, &[])).is_err());
    }

    #[test]
    fn nobody_owns_nothing() {
        let nobodys = Access { uid: OVERFLOW_ID, gid: OVERFLOW_ID, mode: 0o660, quota_bytes: None };
        let nobody = caller(OVERFLOW_ID, OVERFLOW_ID, &[OVERFLOW_ID]);
        assert!(!nobodys.allows(&nobody, Right::Read));
        assert!(nobodys.check_owner("ns", &nobody).is_err());
    }

    #[test]
    fn modes_have_only_read_and_write() {
        assert_eq!(check_mode(0o640), Ok(0o640));
        assert!(check_mode(0o755).is_err() && check_mode(0o1000).is_err());
    }
}
