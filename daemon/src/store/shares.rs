//! Shares: what one user may take of what all users have together.
//!
//! Root and the daemon's own user are the operator: they may take all of it, and a part that nobody else gets.

use tierpack_shm::message::{ErrorCode, Refusal};

use super::Outcome;
use super::access::Caller;

/// The user whom something is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) is_operator: bool,
}

impl User {
    /// The daemon itself, for what nobody asked for.
    pub(super) const DAEMON: Self = Self { uid: 0, is_operator: true };
}

impl From<&Caller> for User {
    fn from(caller: &Caller) -> Self {
        Self { uid: caller.uid, is_operator: caller.is_operator }
    }
}

/// A limit on a number of things, over all users.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// What they are, for people: "puts under way".
    pub(super) what: &'static str,
    pub(super) all: usize,
    /// How many of them only the operator may take.
    pub(super) reserve: usize,
}

impl Limit {
    /// What one user other than the operator may take.
    const fn share(self) -> usize {
        self.all / 2
    }

    /// Refuses one more for a user who has `own` of the `taken`.
    pub(super) fn check(self, user: User, own: usize, taken: usize) -> Outcome<()> {
        let Self { what, all, reserve } = self;
        let uid = user.uid;
        let text = if taken >= all {
            format!("there are {taken} {what}, which is the limit: try again later")
        } else if user.is_operator {
            return Ok(());
        } else if own >= self.share() {
            format!("user {uid} has {own} {what}, which is one user's share of {all}: try again later")
        } else if taken >= all - reserve {
            format!(
                "there are {taken} {what} of {all}, and the last {reserve} are the operator's: try again later"
            )
        } else {
            return Ok(());
        };
        Err(Refusal::new(ErrorCode::Limit, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_but_the_operator_takes_more_than_half_or_the_reserve() {
        let limit = Limit { what: "things", all: 100, reserve: 10 };
        let (user, operator) = (User { uid: 7, is_operator: false }, User::DAEMON);
        assert!(limit.check(user, 49, 89).is_ok());
        assert!(limit.check(user, 50, 50).unwrap_err().text.contains("user 7 has 50 things"));
        assert!(limit.check(user, 0, 90).unwrap_err().text.contains("the last 10 are the operator's"));
        assert!(limit.check(operator, 99, 99).is_ok());
        assert!(limit.check(operator, 0, 100).is_err());
    }
}
