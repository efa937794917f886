//! Who has not unmapped what was retired: noted by the poll loop, read by refusals and stats.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;

use super::namespace::Holds;
use crate::size::ByteSize;

/// Sessions that a refusal names.
const NAMED: usize = 3;

/// Bytes of retired segments that sessions have not unmapped, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Unmapping {
    sessions: Mutex<BTreeMap<u64, (u64, Instant)>>,
}

impl Unmapping {
    /// Notes what a session has yet to unmap, and since when.
    pub(crate) fn note(&self, session: u64, bytes: u64, since: Option<Instant>) {
        let mut sessions = self.sessions.lock();
        match since.filter(|_| bytes > 0) {
            Some(since) => drop(sessions.insert(session, (bytes, since))),
            None => drop(sessions.remove(&session)),
        }
    }

    /// What each session has yet to unmap.
    pub(crate) fn holders(&self) -> BTreeMap<u64, Holds> {
        let sessions = self.sessions.lock();
        let holds = |(session, (bytes, since)): (&u64, &(u64, Instant))| {
            (*session, Holds { bytes: *bytes, age: since.elapsed() })
        };
        sessions.iter().map(holds).collect()
    }

    /// Who has most to unmap, for people; empty when nobody has.
    pub(super) fn named(&self) -> String {
        let mut holders: Vec<_> = self.holders().into_iter().collect();
        holders.sort_by_key(|(_, holds)| std::cmp::Reverse(holds.bytes));
        let named = holders.iter().take(NAMED).map(|(session, holds)| {
            let (bytes, age) = (ByteSize(holds.bytes), holds.age.as_secs_f64());
            format!("session {session} {bytes} since {age:.1} s")
        });
        let named: Vec<String> = named.collect();
        if named.is_empty() {
            String::new()
        } else {
            format!(", segments that clients have not unmapped yet ({})", named.join(", "))
        }
    }
}
