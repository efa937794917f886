//! What happens by the clock: deadlines of sessions, reclamation, unused namespaces, the socket files.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;
use tierpack_shm::socket::{PeerProcess, peer_process};

use super::Server;
use super::poller::Source;
use super::session::State;

/// How soon after something may have been retired it is looked whether leases have ended.
const HELD_TICK: Duration = Duration::from_millis(5);
/// How long that pause becomes while they have not.
const LONGEST_TICK: Duration = Duration::from_millis(40);
/// How often the loop looks for idle puts, unused namespaces, and its socket files.
const CHECK_TICK: Duration = Duration::from_secs(1);

/// How long nobody is taken in once the system has had no memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// When the loop looks around next.
#[derive(Debug)]
pub(super) struct Ticks {
    reclaim: Option<Instant>,
    pause: Duration,
    check: Instant,
    /// When the listening socket is waited for again.
    accept: Option<Instant>,
}

impl Ticks {
    pub(super) fn new() -> Self {
        Self { reclaim: None, pause: HELD_TICK, check: Instant::now() + CHECK_TICK, accept: None }
    }

    /// Something may be free soon: at most one look per tick, however many say so.
    pub(super) fn expect_reclaim(&mut self) {
        self.pause = HELD_TICK;
        let at = Instant::now() + HELD_TICK;
        self.reclaim = Some(self.reclaim.map_or(at, |other| other.min(at)));
    }
}

impl Server {
    /// How long until something is due.
    pub(super) fn until_next(&self) -> Duration {
        let first = self.deadlines.first().map(|(at, _)| *at);
        let others = [first, self.ticks.reclaim, self.ticks.accept].into_iter().flatten();
        let next = others.fold(self.ticks.check, Instant::min);
        next.saturating_duration_since(Instant::now())
    }

    /// The system has no memory for another connection: the loop goes on, and takes nobody in for a while.
    pub(super) fn rest_front(&mut self) {
        self.poller.remove(self.front.as_fd());
        self.ticks.accept = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// Waits for the listening socket, which may have been made again.
    fn await_front(&mut self) {
        self.ticks.accept = None;
        if let Err(error) = self.poller.add(self.front.as_fd(), Source::Front, EpollFlags::EPOLLIN) {
            tracing::error!(error = crate::error::chain(&error), "the control socket is not waited for");
        }
    }

    /// Deadlines, reclamation, the socket files.
    pub(super) fn keep_time(&mut self) {
        let now = Instant::now();
        if self.ticks.accept.is_some_and(|at| now >= at) {
            self.await_front();
        }
        while self.deadlines.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, number)) = self.deadlines.pop_first()
        {
            self.check_deadlines(number, now);
        }
        self.settle_touched();
        if self.ticks.reclaim.is_some_and(|at| now >= at) {
            let is_held = self.store.reclaim();
            self.store.tidy();
            self.ticks.reclaim = is_held.then(|| Instant::now() + self.ticks.pause);
            self.ticks.pause = (self.ticks.pause * 2).min(LONGEST_TICK);
        }
        if now >= self.ticks.check {
            self.ticks.check = now + CHECK_TICK;
            // The background thread retires as well.
            self.ticks.reclaim.get_or_insert(now);
            self.resume(|_| true);
            self.transfers.abort_idle(&self.store, self.put_idle_limit);
            self.store.drop_unused_namespaces();
            self.store.bury();
            self.store.tidy();
            self.front.keep_files();
            self.await_front();
        }
    }

    fn check_deadlines(&mut self, number: u64, now: Instant) {
        let Some(session) = self.touch(number) else { return };
        session.check_at = None;
        if session.has_unmapped_too_late(now) {
            self.end_session(number, "it has not unmapped what was retired, within 30 s");
        } else if session.is_overdue(now) {
            self.end_session(number, "the peer kept the daemon waiting past a deadline");
        } else if session.sends_again(now) {
            session.flush_writable();
        } else if let State::HungUp { look_again: Some(_) } = session.state {
            self.hung_up(number);
        } else if session.is_deaf(now) && matches!(peer_process(&*session), Ok(PeerProcess::Alive(_))) {
            // It cannot learn that it has ended: it only sends.
            self.hung_up(number);
        }
    }

    /// Looks at the sessions to which something happened in this turn: what to wait for, deadlines, their ends.
    fn settle_touched(&mut self) {
        while let Some(number) = self.touched.pop() {
            let Some(session) = self.sessions.get_mut(&number) else { continue };
            session.touched = false;
            if !session.is_open() && !std::mem::replace(&mut session.settled, true) {
                let is_attached = !session.attached.is_empty();
                self.board.session_ended(number);
                self.forget_requests(number);
                if !is_attached {
                    self.drop_session(number);
                    continue;
                }
            }
            self.await_session(number);
        }
    }

    /// Brings the poller and the list of deadlines up to date with what a session waits for.
    fn await_session(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let (wanted, at) = (session.wanted(), session.next_deadline());
        if wanted != session.awaited {
            session.awaited = wanted;
            if self.poller.change(&*session, Source::Session(number), wanted).is_err() {
                return self.drop_session(number);
            }
        }
        if let Some(at) = at
            && session.check_at.is_none_or(|earlier| at < earlier)
        {
            if let Some(earlier) = session.check_at.replace(at) {
                self.deadlines.remove(&(earlier, number));
            }
            self.deadlines.insert((at, number));
        }
    }
}
