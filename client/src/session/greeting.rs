//! The first exchange: who we are, which versions, which instance of the daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::SockType;
use nix::unistd::geteuid;
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    ErrorCode, Hello, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, check_descriptors, decode_hello,
    encode,
};
use tierpack_shm::socket;

use crate::address;
use crate::deadline::Deadline;
use crate::error::{Error, Result, Tried};
use crate::protocol::{Subject, refused};
use crate::wire;

const GREETING: Subject<'static> = Subject { operation: "greet the daemon", namespace: "", name: "" };

/// Connects and exchanges greetings; returns the socket and the daemon's instance id.
pub(super) fn greet(path: &Path, deadline: &Deadline) -> Result<(OwnedFd, u64)> {
    address::check(path)?;
    let fd = wire::connect(path, SockType::SeqPacket, deadline).map_err(|errno| match errno {
        Errno::ETIMEDOUT => deadline.passed(GREETING.operation),
        errno if wire::is_own_limit(errno) => {
            failed(ShmError::Io { operation: "open a socket", source: errno.into() }, deadline)
        }
        errno => Error::NoDaemon { tried: vec![Tried { path: path.to_owned(), cause: errno.into() }] },
    })?;
    check_peer(path, &fd)?;
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        layout: LAYOUT_VERSION,
        features: 0,
        software: concat!("tierpack-client ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let bytes = encode(&hello).map_err(|source| GREETING.fault(source))?;
    match wire::send(&fd, &bytes, &[], deadline) {
        // A daemon that turns us away says why before it listens.
        Ok(()) | Err(ShmError::Closed) => {}
        Err(source) => return Err(failed(source, deadline)),
    }
    let reply = receive(&fd, deadline)?;
    Ok((fd, instance(path, reply, deadline)?))
}

/// In the shared temporary folder anybody may have made the socket: it must be served by us, or by root.
fn check_peer(path: &Path, fd: &OwnedFd) -> Result<()> {
    if !address::is_temporary(path) {
        return Ok(());
    }
    let operation = GREETING.operation;
    let peer = socket::peer(fd).map_err(|source| Error::System { operation, source })?;
    let needed = geteuid().as_raw();
    if peer.uid == needed || peer.uid == 0 {
        return Ok(());
    }
    Err(Error::Stranger { path: path.to_owned(), found: peer.uid, needed })
}

fn receive(fd: &OwnedFd, deadline: &Deadline) -> Result<HelloReply> {
    let ready = wire::wait(fd.as_fd(), PollFlags::POLLIN, Some(deadline.left())).map_err(|errno| {
        failed(ShmError::Io { operation: "wait for a socket", source: errno.into() }, deadline)
    })?;
    if ready.is_empty() {
        return Err(deadline.passed(GREETING.operation));
    }
    let mut buf = vec![0; MAX_MESSAGE_BYTES];
    let received = socket::recv(fd, &mut buf).map_err(|source| failed(source, deadline))?;
    check_descriptors(0, received.descriptors.len()).map_err(|source| GREETING.fault(source))?;
    decode_hello(&buf[..received.len]).map_err(|source| GREETING.fault(source))
}

fn failed(source: ShmError, deadline: &Deadline) -> Error {
    match source {
        ShmError::WouldBlock => deadline.passed(GREETING.operation),
        ShmError::Closed => Error::Disconnected { operation: GREETING.operation },
        source @ (ShmError::Io { .. } | ShmError::DescriptorsCut) => {
            Error::System { operation: GREETING.operation, source }
        }
        source => GREETING.fault(source),
    }
}

/// Nothing is mapped before both versions are known to be ours.
fn instance(path: &Path, reply: HelloReply, deadline: &Deadline) -> Result<u64> {
    let client = (PROTOCOL_VERSION, LAYOUT_VERSION);
    let other = |daemon| Error::Version { path: path.to_owned(), client, daemon };
    match reply {
        HelloReply::Welcome { protocol, layout, instance, .. } if (protocol, layout) == client => {
            Ok(instance)
        }
        HelloReply::Welcome { protocol, layout, .. } => Err(other((protocol, layout))),
        HelloReply::Refused { protocol, layout, refusal } => {
            let by_version = refusal.code() == Some(ErrorCode::Version) || (protocol, layout) != client;
            Err(if by_version {
                other((protocol, layout))
            } else {
                refused(refusal, &GREETING, deadline.seconds())
            })
        }
    }
}
