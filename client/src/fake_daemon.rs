//! A scripted daemon for tests: what a real one must not do, and what it may do at a bad moment.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tierpack_shm::directory::Directory;
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, Hello, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Refusal, Reply,
    Request, SegmentId, decode, encode,
};
use tierpack_shm::page::{ClientPage, NamespaceId};
use tierpack_shm::segment::{Segment, SegmentKind};
use tierpack_shm::socket::{recv, send};

pub(crate) const ID: NamespaceId = NamespaceId { instance: 77, namespace: 3 };
pub(crate) const HEADER: SegmentId = SegmentId { kind: SegmentKind::Directory, index: 0, serial: 1 };

/// The daemon's end of a connection.
pub(crate) struct Peer(pub(crate) OwnedFd);

impl Peer {
    pub(crate) fn recv<T: DeserializeOwned>(&self) -> T {
        self.recv_with_descriptors().0
    }

    fn recv_with_descriptors<T: DeserializeOwned>(&self) -> (T, usize) {
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        let received = recv(&self.0, &mut buf).unwrap();
        (decode(&buf[..received.len]).unwrap(), received.descriptors.len())
    }

    /// The next request, and its id; as many descriptors came as it names.
    pub(crate) fn asked(&self) -> (u64, Request) {
        let (message, descriptors) = self.recv_with_descriptors::<ClientMessage>();
        assert_eq!(descriptors, message.descriptors());
        match message {
            ClientMessage::Request { id, request, .. } => (id, request),
            other => panic!("{other:?}"),
        }
    }

    /// As [`Peer::asked`], for a request without a descriptor, which may come behind detaches; `None` once the client
    /// has hung up.
    pub(crate) fn asked_or_closed(&self) -> Option<(u64, Request)> {
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        loop {
            let received = recv(&self.0, &mut buf).ok()?;
            match decode(&buf[..received.len]).unwrap() {
                ClientMessage::Request { id, request, .. } => return Some((id, request)),
                ClientMessage::Detach { .. } => {}
                ClientMessage::Goodbye => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    /// The id of the next request.
    pub(crate) fn request(&self) -> u64 {
        self.asked().0
    }

    pub(crate) fn send(&self, message: &impl serde::Serialize, descriptors: &[BorrowedFd<'_>]) {
        send(&self.0, &encode(message).unwrap(), descriptors).unwrap();
    }

    pub(crate) fn reply(&self, id: u64, result: Result<Reply, Refusal>) {
        self.send(&DaemonMessage::Reply { id, result }, &[]);
    }

    /// As [`Peer::reply`], to a client that may have stopped waiting.
    pub(crate) fn reply_if_there(&self, id: u64, reply: Reply) {
        let message = DaemonMessage::Reply { id, result: Ok(reply) };
        let _ = send(&self.0, &encode(&message).unwrap(), &[]).is_ok();
    }

    pub(crate) fn welcome(&self) {
        drop(self.recv::<Hello>());
        self.send(&welcome(PROTOCOL_VERSION, LAYOUT_VERSION), &[]);
    }

    /// Answers an attach with a page and a new directory.
    pub(crate) fn attach(&self) -> Directory {
        let directory = Directory::new(Segment::create(1 << 20).unwrap(), ID);
        self.attach_to(&directory);
        directory
    }

    /// Answers an attach with a page and this directory.
    pub(crate) fn attach_to(&self, directory: &Directory) {
        self.attached(self.request(), directory, ID);
    }

    /// Replies to an attach with a page and this directory.
    pub(crate) fn attached(&self, id: u64, directory: &Directory, namespace: NamespaceId) {
        let (_page, page) = ClientPage::create(namespace).unwrap();
        let segment = directory.header_segment();
        let reply = Reply::Attached { id: namespace, header_len: segment.len(), header: HEADER };
        let message = DaemonMessage::Reply { id, result: Ok(reply) };
        self.send(&message, &[page.as_fd(), segment.as_fd()]);
    }

    pub(crate) fn segments(&self, id: SegmentId, segment: &Segment) {
        let segments = vec![(id, segment.len())];
        self.send(&DaemonMessage::Segments { namespace: 3, segments }, &[segment.as_fd()]);
    }

    /// Waits until the client has hung up.
    pub(crate) fn drain(self) {
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        while recv(&self.0, &mut buf).is_ok() {}
    }
}

pub(crate) fn welcome(protocol: u16, layout: u16) -> HelloReply {
    HelloReply::Welcome { protocol, layout, instance: 77, features: 0, software: "fake".to_owned() }
}

pub(crate) fn data(index: u32, serial: u64) -> SegmentId {
    SegmentId { kind: SegmentKind::Data, index, serial }
}

/// Runs `script` as the daemon of the next connection.
pub(crate) fn serve(script: impl FnOnce(Peer) + Send + 'static) -> (TempDir, PathBuf, JoinHandle<()>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&fd, Backlog::new(4).unwrap()).unwrap();
    let daemon = std::thread::spawn(move || script(Peer(accept(&fd).unwrap())));
    (dir, path, daemon)
}
