//! What the loop waits for: one epoll, so that a turn costs what is ready and not what is connected.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::{Error, Result};

/// Ready sources that one turn attends to; the others come first in the next. Few, so that what has become ready
/// meanwhile does not wait for long.
const READY_PER_TURN: usize = 8;

/// Something that the loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The request to shut down.
    Shutdown,
    /// Events from other threads.
    Inbox,
    /// The listening socket.
    Front,
    /// The socket of a session, by its number.
    Session(u64),
    /// The process of a session whose connection is closed.
    Process(u64),
}

impl Source {
    /// The kind in the lowest bits, so that neither can be taken for the other.
    const fn token(self) -> u64 {
        match self {
            Self::Shutdown => 0,
            Self::Inbox => 4,
            Self::Front => 8,
            Self::Session(number) => number << 2 | 1,
            Self::Process(number) => number << 2 | 2,
        }
    }

    const fn from_token(token: u64) -> Self {
        match (token & 3, token) {
            (1, _) => Self::Session(token >> 2),
            (2, _) => Self::Process(token >> 2),
            (_, 4) => Self::Inbox,
            (_, 8) => Self::Front,
            _ => Self::Shutdown,
        }
    }
}

/// The epoll and what it found ready.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: Epoll,
    ready: Vec<EpollEvent>,
}

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|source| Error::Poll { source })?;
        Ok(Self { epoll, ready: vec![EpollEvent::empty(); READY_PER_TURN] })
    }

    /// Waits for something to do, at most for `limit`; returns how much was found.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<usize> {
        // Rounded up: the last part of a millisecond is waited for, not spun through.
        let millis = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let timeout = EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::ZERO);
        match self.epoll.wait(&mut self.ready, timeout) {
            Ok(n) => Ok(n),
            Err(Errno::EINTR) => Ok(0),
            Err(source) => Err(Error::Poll { source }),
        }
    }

    /// The `n`th of what was found ready.
    pub(super) fn ready(&self, n: usize) -> (Source, EpollFlags) {
        (Source::from_token(self.ready[n].data()), self.ready[n].events())
    }

    /// Waits for a source from now on; hang-ups are reported whatever `wanted` says.
    pub(super) fn add(&self, fd: impl AsFd, source: Source, wanted: EpollFlags) -> Result<()> {
        match self.epoll.add(fd, EpollEvent::new(wanted, source.token())) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(source) => Err(Error::Poll { source }),
        }
    }

    pub(super) fn change(&self, fd: impl AsFd, source: Source, wanted: EpollFlags) -> Result<()> {
        let changed = self.epoll.modify(fd, &mut EpollEvent::new(wanted, source.token()));
        changed.map_err(|source| Error::Poll { source })
    }

    /// Waits no longer for a source that another thread closes later.
    pub(super) fn remove(&self, fd: impl AsFd) {
        // It may not have been added for want of memory.
        let _ = self.epoll.delete(fd).is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_comes_back_from_its_token() {
        let all = [Source::Shutdown, Source::Inbox, Source::Front, Source::Session(1), Source::Process(1)];
        for source in all {
            assert_eq!(Source::from_token(source.token()), source);
        }
    }
}
