//! Requests that wait for workers: a line per session and class, served in turn.
//!
//! Users have turns, and within a user its sessions: who asks much waits for itself.
//! Look-ups never wait behind bulk work: they go first, and one worker takes nothing else.
//! The poll loop bounds what is in here, by session and by user.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::requests::Job;

/// How long requests of a kind take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Short.
    LookUp = 0,
    /// As long as there is something to do.
    Bulk = 1,
}

/// What a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    LookUps,
    Everything,
}

/// Look-ups that one worker takes in a row while bulk work waits.
const LOOK_UPS_IN_A_ROW: u32 = 4;

/// The jobs of one class, by session and user.
#[derive(Debug, Default)]
struct Lines {
    /// Users with jobs, in the order of their turns.
    users: VecDeque<u32>,
    /// Of each user, the sessions with jobs, in the order of their turns.
    sessions: BTreeMap<u32, VecDeque<u64>>,
    jobs: BTreeMap<u64, VecDeque<Job>>,
}

impl Lines {
    fn push(&mut self, job: Job) {
        let (session, uid) = (job.session, job.caller.uid);
        let line = self.jobs.entry(session).or_default();
        line.push_back(job);
        if line.len() > 1 {
            return;
        }
        let sessions = self.sessions.entry(uid).or_default();
        sessions.push_back(session);
        if sessions.len() == 1 {
            self.users.push_back(uid);
        }
    }

    fn pop(&mut self) -> Option<Job> {
        let uid = self.users.pop_front()?;
        let sessions = self.sessions.get_mut(&uid)?;
        let session = sessions.pop_front()?;
        let line = self.jobs.get_mut(&session)?;
        let job = line.pop_front();
        if line.is_empty() {
            self.jobs.remove(&session);
        } else {
            sessions.push_back(session);
        }
        if sessions.is_empty() {
            self.sessions.remove(&uid);
        } else {
            self.users.push_back(uid);
        }
        job
    }

    fn take_session(&mut self, session: u64) -> VecDeque<Job> {
        let Some(line) = self.jobs.remove(&session) else { return VecDeque::new() };
        let uid = line.front().map(|job| job.caller.uid).unwrap_or_default();
        if let Some(sessions) = self.sessions.get_mut(&uid) {
            sessions.retain(|other| *other != session);
            if sessions.is_empty() {
                self.sessions.remove(&uid);
                self.users.retain(|other| *other != uid);
            }
        }
        line
    }
}

#[derive(Debug, Default)]
struct State {
    lines: [Lines; 2],
    /// Bulk work that waits for memory, and until when.
    parked: Vec<(Instant, Job)>,
    /// Workers that wait for a job, by what they take.
    idle: [usize; 2],
    workers: usize,
    is_stopping: bool,
}

impl State {
    /// Puts what `is_due` back into its lines.
    fn unpark(&mut self, is_due: impl Fn(Instant) -> bool) {
        for (_, job) in self.parked.extract_if(.., |(until, _)| is_due(*until)) {
            self.lines[Class::Bulk as usize].push(job);
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// For workers, by what they take.
    wake: [Condvar; 2],
    ended: Condvar,
}

impl Queue {
    pub(crate) fn push(&self, job: Job, class: Class) {
        let mut state = self.state.lock();
        state.lines[class as usize].push(job);
        let is_reserved_idle = class == Class::LookUp && state.idle[Takes::LookUps as usize] > 0;
        let takes = if is_reserved_idle { Takes::LookUps } else { Takes::Everything };
        drop(state);
        self.wake[takes as usize].notify_one();
    }

    /// Keeps bulk work until memory has come back, at most until `until`, unless some `has_come` since it was tried.
    pub(crate) fn park(&self, job: Job, until: Instant, has_come: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        // Under the lock: what comes back after this is followed by an `unpark`.
        if has_come() {
            state.lines[Class::Bulk as usize].push(job);
        } else {
            state.parked.push((until, job));
        }
        drop(state);
        // An idle worker minds the time.
        self.wake[Takes::Everything as usize].notify_one();
    }

    /// Memory has come back: all that waits for it is tried again.
    pub(crate) fn unpark(&self) {
        self.state.lock().unpark(|_| true);
        self.wake[Takes::Everything as usize].notify_all();
    }

    /// The next job for a worker; waits for one. `None` when the daemon ends.
    pub(crate) fn next(&self, takes: Takes, in_a_row: &mut u32) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            let now = Instant::now();
            state.unpark(|until| until <= now);
            let [look_ups, bulk] = &mut state.lines;
            let takes_bulk = takes == Takes::Everything;
            let is_bulk_due = takes_bulk && *in_a_row >= LOOK_UPS_IN_A_ROW && !bulk.users.is_empty();
            if !is_bulk_due && let Some(job) = look_ups.pop() {
                *in_a_row += 1;
                return Some(job);
            }
            *in_a_row = 0;
            if takes_bulk && let Some(job) = bulk.pop() {
                return Some(job);
            }
            state.idle[takes as usize] += 1;
            match state.parked.iter().map(|(until, _)| *until).min().filter(|_| takes_bulk) {
                Some(until) => drop(self.wake[takes as usize].wait_until(&mut state, until)),
                None => self.wake[takes as usize].wait(&mut state),
            }
            state.idle[takes as usize] -= 1;
        }
    }

    /// Takes out what a session asked for that no worker has yet.
    pub(crate) fn take_session(&self, session: u64) -> Vec<Job> {
        let mut state = self.state.lock();
        let mut taken: Vec<_> =
            state.lines.iter_mut().flat_map(|lines| lines.take_session(session)).collect();
        taken.extend(state.parked.extract_if(.., |(_, job)| job.session == session).map(|(_, job)| job));
        taken
    }

    /// Ends the workers after the job that each has; returns what none has taken.
    pub(crate) fn stop(&self) -> Vec<Job> {
        let mut state = self.state.lock();
        state.is_stopping = true;
        state.unpark(|_| true);
        let mut left = Vec::new();
        for lines in &mut state.lines {
            left.extend(std::iter::from_fn(|| lines.pop()));
        }
        drop(state);
        for wake in &self.wake {
            wake.notify_all();
        }
        left
    }

    pub(crate) fn count_worker(&self, begins: bool) {
        let mut state = self.state.lock();
        state.workers = if begins { state.workers + 1 } else { state.workers - 1 };
        self.ended.notify_all();
    }

    /// Waits until every worker has ended; says whether they have.
    pub(crate) fn wait_ended(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while state.workers > 0 {
            if self.ended.wait_until(&mut state, deadline).timed_out() {
                return state.workers == 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tierpack_shm::message::Request;
    use tierpack_shm::socket::Peer;

    use super::super::requests::Waiting;
    use super::super::shares::Load;
    use super::*;
    use crate::store::access::Caller;

    fn job(uid: u32, session: u64, id: u64) -> Job {
        Job {
            session,
            caller: Arc::new(Caller::new(Peer { pid: 1, uid, gid: uid }, Vec::new(), 7)),
            id,
            deadline: Instant::now(),
            request: Request::List { namespace: None, after: None },
            descriptors: Vec::new(),
            load: Load::one(1, 0),
            waiting: Waiting::default(),
        }
    }

    #[test]
    fn users_then_sessions_have_turns_and_look_ups_go_first() {
        let queue = Queue::default();
        // User 1 has two sessions, and asks first and most; user 2 has one.
        for id in 0..3 {
            queue.push(job(1, 10, id), Class::Bulk);
            queue.push(job(1, 11, 10 + id), Class::Bulk);
        }
        queue.push(job(2, 20, 20), Class::Bulk);
        queue.push(job(1, 10, 30), Class::LookUp);
        let mut in_a_row = 0;
        let mut next = || queue.next(Takes::Everything, &mut in_a_row).expect("a job").id;
        assert_eq!([next(), next(), next(), next(), next()], [30, 0, 20, 10, 1]);
        assert_eq!(queue.take_session(11).len(), 2);
        assert_eq!(queue.next(Takes::Everything, &mut 0).expect("a job").id, 2);
        assert!(queue.stop().is_empty() && queue.next(Takes::LookUps, &mut 0).is_none());
    }

    #[test]
    fn bulk_work_has_turns_among_look_ups() {
        let queue = Queue::default();
        queue.push(job(1, 10, 100), Class::Bulk);
        (0..10).for_each(|id| queue.push(job(2, 20, id), Class::LookUp));
        let mut in_a_row = 0;
        let order: Vec<_> =
            (0..11).map(|_| queue.next(Takes::Everything, &mut in_a_row).expect("a job").id).collect();
        assert_eq!(order[..6], [0, 1, 2, 3, 100, 4]);
    }
}
