//! `SOCK_SEQPACKET` sockets with passed descriptors and peer credentials.
//!
//! One message is one packet; descriptors travel with it.
//! A message whose descriptors were cut off is an error, and what did arrive is closed.

#![expect(unsafe_code, reason = "receives descriptors; nix leaks them when the control message is cut")]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, sendmsg,
    socket, sockopt::PeerCredentials,
};

use crate::error::{Error, Result};
use crate::message::MAX_MESSAGE_BYTES;

/// Descriptors that one message may carry.
pub const MAX_DESCRIPTORS: usize = 16;
/// Room for every descriptor the kernel may pass at once (`SCM_MAX_FD`), so that only our own limit on open files
/// can cut a control message off.
const CONTROL_WORDS: usize = (16 + 253 * 4_usize).div_ceil(8) + 2;

/// `SO_PEERGROUPS`, which neither nix nor libc names (asm-generic/socket.h).
const SO_PEERGROUPS: libc::c_int = 59;
/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Who is at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 when the peer is in a pid namespace that we cannot see. For display only.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// What one `recv` brought.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message in the buffer.
    pub len: usize,
    /// Descriptors that came with it: the first ones, when `is_cut`.
    pub descriptors: Vec<OwnedFd>,
    /// Whether descriptors were lost at this process's limit on open files.
    pub is_cut: bool,
}

/// Connects to a daemon.
///
/// # Errors
/// The kernel's answer: `ENOENT` and `ECONNREFUSED` mean that no daemon is there.
pub fn connect_to(path: &Path) -> core::result::Result<OwnedFd, Errno> {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

/// The credentials of the peer.
///
/// # Errors
/// [`Error::Io`] with the kernel's answer.
pub fn peer(fd: impl AsFd) -> Result<Peer> {
    let credentials = getsockopt(&fd, PeerCredentials)
        .map_err(|source| Error::Io { operation: "read the peer's credentials", source: source.into() })?;
    Ok(Peer { pid: credentials.pid(), uid: credentials.uid(), gid: credentials.gid() })
}

/// The supplementary groups of the peer, when the connection was made.
///
/// # Errors
/// [`Error::Io`] with the kernel's answer.
pub fn peer_groups(fd: impl AsFd) -> Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut len = libc::socklen_t::try_from(size_of_val(&groups[..])).unwrap_or(libc::socklen_t::MAX);
        let (raw, buf) = (fd.as_fd().as_raw_fd(), groups.as_mut_ptr());
        // SAFETY: the buffer is live and `len` is its true length in bytes.
        let got = unsafe { libc::getsockopt(raw, libc::SOL_SOCKET, SO_PEERGROUPS, buf.cast(), &raw mut len) };
        let needed = len as usize / size_of::<u32>();
        match (got, Errno::last()) {
            (0, _) => {
                groups.truncate(needed);
                return Ok(groups);
            }
            // NGROUPS_MAX is 65,536: more is no answer of the kernel's.
            (_, Errno::ERANGE) if needed > groups.len() && needed <= 1 << 16 => groups.resize(needed, 0),
            (_, source) => {
                return Err(Error::Io { operation: "read the peer's groups", source: source.into() });
            }
        }
    }
}

/// What the kernel knows of the process that connected.
#[derive(Debug)]
pub enum PeerProcess {
    /// It lives; the descriptor is readable once it has ended.
    Alive(OwnedFd),
    /// It has ended.
    Gone,
    /// This kernel does not say.
    Unknown,
}

/// The process of the peer: the one that connected, whatever has its number now.
///
/// # Errors
/// [`Error::Io`] when there is no descriptor for it.
pub fn peer_process(fd: impl AsFd) -> Result<PeerProcess> {
    let mut raw: RawFd = -1;
    let mut len = libc::socklen_t::try_from(size_of_val(&raw)).unwrap_or(libc::socklen_t::MAX);
    let (socket, level) = (fd.as_fd().as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the buffer is live and `len` is its true length in bytes.
    let got = unsafe { libc::getsockopt(socket, level, SO_PEERPIDFD, (&raw mut raw).cast(), &raw mut len) };
    match (got, Errno::last()) {
        // SAFETY: the kernel has just installed this descriptor for us, and nothing else knows of it.
        (0, _) => Ok(PeerProcess::Alive(unsafe { OwnedFd::from_raw_fd(raw) })),
        (_, Errno::ESRCH | Errno::EINVAL) => Ok(PeerProcess::Gone),
        (_, Errno::ENOPROTOOPT | Errno::ENODATA) => Ok(PeerProcess::Unknown),
        (_, source) => Err(Error::Io { operation: "find the peer's process", source: source.into() }),
    }
}

/// Sends one message; never raises `SIGPIPE`.
///
/// # Errors
/// [`Error::WouldBlock`] when a non-blocking socket is full, [`Error::Closed`] when the peer is gone,
/// [`Error::MessageTooLong`] over the limit of the protocol.
pub fn send(fd: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(Error::MessageTooLong { len: bytes.len(), limit: MAX_MESSAGE_BYTES });
    }
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    loop {
        let sent = sendmsg::<()>(
            fd.as_fd().as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        return match sent {
            Ok(_) => Ok(()),
            Err(Errno::EINTR) => continue,
            // Too many descriptors of this user are on their way: as a full socket, it ends when they are read.
            Err(Errno::EAGAIN | Errno::ETOOMANYREFS) => Err(Error::WouldBlock),
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Err(Error::Closed),
            Err(source) => Err(Error::Io { operation: "send a message", source: source.into() }),
        };
    }
}

/// Receives one message into `buf`.
///
/// # Errors
/// [`Error::Closed`] at the end of the connection, [`Error::WouldBlock`] when a non-blocking socket is empty,
/// [`Error::MessageTooLong`] when the message does not fit `buf`, [`Error::DescriptorsCut`] when descriptors were
/// lost; what arrived is closed then.
pub fn recv(fd: impl AsFd, buf: &mut [u8]) -> Result<Received> {
    let received = recv_some(fd, buf)?;
    if received.is_cut { Err(Error::DescriptorsCut) } else { Ok(received) }
}

/// As [`recv`]; a message that has lost descriptors comes with those that arrived.
///
/// # Errors
/// As [`recv`], without [`Error::DescriptorsCut`].
pub fn recv_some(fd: impl AsFd, buf: &mut [u8]) -> Result<Received> {
    let mut descriptors = Vec::new();
    let (len, is_cut) = receive(fd, buf, &mut descriptors)?;
    Ok(Received { len, descriptors, is_cut })
}

/// As [`recv`], and returns the length: what arrived is in `descriptors` even then, for a caller whom closing a
/// descriptor of a peer may block.
///
/// # Errors
/// As [`recv`].
pub fn recv_keeping(fd: impl AsFd, buf: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize> {
    let (len, is_cut) = receive(fd, buf, descriptors)?;
    if is_cut { Err(Error::DescriptorsCut) } else { Ok(len) }
}

/// Receives one message: its length, and whether descriptors were lost.
fn receive(fd: impl AsFd, buf: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<(usize, bool)> {
    let mut control = [0_u64; CONTROL_WORDS];
    let limit = buf.len();
    let mut slices = [IoSliceMut::new(buf)];
    // SAFETY: all zeros is a valid `msghdr`: null pointers with zero lengths.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slices.as_mut_ptr().cast();
    header.msg_iovlen = slices.len();
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let len = loop {
        // SAFETY: the header points to live buffers with their true lengths; `IoSliceMut` has the layout of `iovec`.
        let len = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(len) {
            Ok(len) => break len,
            Err(_) => match Errno::last() {
                Errno::EINTR => {}
                Errno::EAGAIN => return Err(Error::WouldBlock),
                Errno::ECONNRESET => return Err(Error::Closed),
                source => return Err(Error::Io { operation: "receive a message", source: source.into() }),
            },
        }
    };
    descriptors.extend(take_descriptors(&control, header.msg_controllen));
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Error::MessageTooLong { len: limit.saturating_add(1), limit });
    }
    // An empty packet is not distinguishable from the end, and no message is empty.
    if len == 0 {
        return Err(Error::Closed);
    }
    Ok((len, header.msg_flags & libc::MSG_CTRUNC != 0))
}

/// Takes every descriptor out of a control buffer that the kernel filled with `len` bytes.
fn take_descriptors(control: &[u64], len: usize) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // A `cmsghdr` is a usize length, then level and type as i32, then the data; messages are 8-byte aligned.
    const HEADER_BYTES: usize = 16;
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
    let mut rest = &bytes[..];
    while rest.len() >= HEADER_BYTES {
        let number = |at: usize| i32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let message_len = rest.first_chunk::<8>().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
        let Some(data) = rest.get(HEADER_BYTES..message_len) else { break };
        if (number(8), number(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for raw in data.as_chunks::<4>().0 {
                // SAFETY: the kernel has just installed this descriptor for us, and nothing else knows of it.
                found.push(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(*raw)) });
            }
        }
        rest = rest.get(message_len.next_multiple_of(8)..).unwrap_or(&[]);
    }
    found
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::socketpair;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    #[test]
    fn messages_keep_their_bounds_and_their_descriptors() {
        let (a, b) = pair();
        send(&a, b"one", &[a.as_fd(), b.as_fd()]).unwrap();
        send(&a, b"three", &[]).unwrap();
        let mut buf = [0; 16];
        let first = recv(&b, &mut buf).unwrap();
        assert_eq!((first.len, first.descriptors.len()), (3, 2));
        let second = recv(&b, &mut buf).unwrap();
        assert_eq!((second.len, second.descriptors.len()), (5, 0));
        drop((a, first));
        assert!(matches!(recv(&b, &mut buf), Err(Error::Closed)));
        assert!(matches!(send(&b, b"x", &[]), Err(Error::Closed)));
    }

    #[test]
    fn a_long_message_is_an_error_on_both_sides() {
        let (a, b) = pair();
        assert!(matches!(send(&a, &vec![0; MAX_MESSAGE_BYTES + 1], &[]), Err(Error::MessageTooLong { .. })));
        send(&a, &[1; 17], &[a.as_fd()]).unwrap();
        assert!(matches!(recv(&b, &mut [0; 16]), Err(Error::MessageTooLong { .. })));
    }

    #[test]
    fn more_descriptors_than_the_protocol_allows_all_arrive_and_are_closed() {
        let (a, b) = pair();
        let raw = vec![a.as_raw_fd(); 253];
        sendmsg::<()>(
            a.as_raw_fd(),
            &[IoSlice::new(b"x")],
            &[ControlMessage::ScmRights(&raw)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let received = recv(&b, &mut [0; 16]).unwrap();
        assert_eq!(received.descriptors.len(), 253);
        drop(received);
        assert!(open() <= before + 8, "descriptors leak");
    }

    #[test]
    fn the_peer_is_ourselves() {
        let (a, _b) = pair();
        let peer = peer(&a).unwrap();
        assert_eq!(u32::try_from(peer.pid).unwrap(), std::process::id());
        assert_eq!(peer.uid, nix::unistd::getuid().as_raw());
        let mut ours: Vec<u32> = nix::unistd::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut seen = peer_groups(&a).unwrap();
        ours.sort_unstable();
        seen.sort_unstable();
        assert_eq!(seen, ours);
    }
}
