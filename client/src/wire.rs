//! Sockets with deadlines: connect, wait, send.
//!
//! Every socket of a client is non-blocking and every wait is a `poll` with a time limit, so that a daemon that has
//! stopped cannot hold a caller for longer than the caller allows.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_socket, socket};
use nix::sys::stat::fstat;
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::socket;

use crate::deadline::Deadline;

/// Pause between attempts where the system has no event to wait for.
const PAUSE: Duration = Duration::from_millis(2);

/// Connects a socket of `kind` to `path`.
///
/// # Errors
/// The system's answer; `ETIMEDOUT` when the daemon accepts nobody until the deadline.
pub(crate) fn connect(path: &Path, kind: SockType, deadline: &Deadline) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, kind, flags, None)?;
    let address = UnixAddr::new(path)?;
    loop {
        match connect_socket(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(fd),
            // The daemon's queue of connections is full; Unix sockets tell nobody when it no longer is.
            Err(Errno::EAGAIN) if deadline.left().is_zero() => return Err(Errno::ETIMEDOUT),
            Err(Errno::EAGAIN) => std::thread::sleep(PAUSE),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether it is this process that has no room for another socket: that says nothing about the daemon.
pub(crate) fn is_own_limit(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)
}

/// Waits until `fd` is ready for `events`; `None` waits without a limit.
///
/// Returns what it is ready for, hang-up included; nothing when the time is over.
///
/// # Errors
/// The system's answer.
pub(crate) fn wait(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    limit: Option<Duration>,
) -> Result<PollFlags, Errno> {
    let deadline = limit.map(Deadline::after);
    loop {
        let left = deadline.as_ref().map_or(PollTimeout::NONE, |deadline| timeout(deadline.left()));
        let mut fds = [PollFd::new(fd, events)];
        match poll(&mut fds, left) {
            Ok(0) => return Ok(PollFlags::empty()),
            Ok(_) => return Ok(fds[0].revents().unwrap_or(PollFlags::POLLERR)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether there is something to receive, be it the end of the connection or an error.
pub(crate) fn has_incoming(ready: PollFlags) -> bool {
    !ready.difference(PollFlags::POLLOUT).is_empty()
}

/// Rounded up: the last millisecond is waited for, not spun through.
fn timeout(left: Duration) -> PollTimeout {
    let millis = left.as_nanos().div_ceil(1_000_000);
    i32::try_from(millis)
        .ok()
        .and_then(|millis| PollTimeout::try_from(millis).ok())
        .unwrap_or(PollTimeout::MAX)
}

/// Device and number of the file behind a descriptor.
///
/// # Errors
/// [`ShmError::Io`] with the system's answer.
pub(crate) fn identity(fd: impl AsFd) -> Result<(u64, u64), ShmError> {
    let found =
        fstat(fd).map_err(|errno| ShmError::Io { operation: "look at a socket", source: errno.into() })?;
    Ok((found.st_dev, found.st_ino))
}

/// Whether the peer has hung up.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>) -> bool {
    // Hang-ups and errors are reported whatever is asked for.
    wait(fd, PollFlags::empty(), Some(Duration::ZERO)).is_ok_and(|ready| !ready.is_empty())
}

/// Sends one message.
///
/// # Errors
/// [`ShmError::WouldBlock`] when the daemon has not read enough by the deadline; else as [`socket::send`].
pub(crate) fn send(
    fd: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: &Deadline,
) -> Result<(), ShmError> {
    until_sent(&fd, deadline, || socket::send(&fd, bytes, descriptors))
}

/// Calls `try_send` until it no longer would block.
///
/// # Errors
/// [`ShmError::WouldBlock`] when it would at the deadline; else its own.
pub(crate) fn until_sent(
    fd: impl AsFd,
    deadline: &Deadline,
    mut try_send: impl FnMut() -> Result<(), ShmError>,
) -> Result<(), ShmError> {
    let mut was_ready = false;
    loop {
        match try_send() {
            Err(ShmError::WouldBlock) if !deadline.left().is_zero() => {}
            done => return done,
        }
        // A limit of the system on passed descriptors blocks as well, and poll does not see it.
        if was_ready {
            std::thread::sleep(PAUSE);
        }
        let ready = wait(fd.as_fd(), PollFlags::POLLOUT, Some(deadline.left()))
            .map_err(|errno| ShmError::Io { operation: "wait for a socket", source: errno.into() })?;
        was_ready = !ready.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::socketpair;
    use tierpack_shm::message::MAX_MESSAGE_BYTES;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    #[test]
    fn a_peer_that_does_not_read_ends_in_would_block() {
        let (ours, _theirs) = pair();
        let deadline = Deadline::after(Duration::from_millis(50));
        let sent = (0..1000).find_map(|_| send(&ours, &[0; MAX_MESSAGE_BYTES], &[], &deadline).err());
        assert!(matches!(sent, Some(ShmError::WouldBlock)));
        assert!(deadline.left().is_zero());
    }

    #[test]
    fn a_send_goes_on_when_the_peer_reads() {
        let (ours, theirs) = pair();
        let reader = std::thread::spawn(move || {
            let mut buf = vec![0; MAX_MESSAGE_BYTES];
            for _ in 0..100 {
                wait(theirs.as_fd(), PollFlags::POLLIN, None).unwrap();
                socket::recv(&theirs, &mut buf).unwrap();
            }
        });
        let deadline = Deadline::after(Duration::from_secs(30));
        for _ in 0..100 {
            send(&ours, &[0; MAX_MESSAGE_BYTES], &[], &deadline).unwrap();
        }
        reader.join().unwrap();
        assert!(is_hung_up(ours.as_fd()));
    }

    #[test]
    fn a_waiting_message_is_no_hang_up() {
        let (ours, theirs) = pair();
        assert!(!is_hung_up(ours.as_fd()));
        socket::send(&theirs, b"x", &[]).unwrap();
        assert!(!is_hung_up(ours.as_fd()));
    }
}
