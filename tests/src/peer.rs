//! A client that speaks the protocol by hand, so that a test can say anything at an exact moment.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{MsgFlags, send as send_packet, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use tierpack_shm::chunk::ChunkWriter;
use tierpack_shm::error::Error;
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    Blob, ClientMessage, DaemonMessage, Hello, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, PutBegin,
    Refusal, Reply, Request, decode, decode_hello, encode,
};
use tierpack_shm::page::NamespaceId;
use tierpack_shm::socket::{connect_to, recv, send};
use tierpack_shm::types::{Access, CodecChoice, CodecId, Dtype};

use crate::DEADLINE;

/// A connection that says what a test wants it to say.
#[derive(Debug)]
pub struct Peer {
    fd: OwnedFd,
    next_id: u64,
    /// Whether it says goodbye before it closes: it has greeted, and holds nothing when it is dropped.
    says_goodbye: Cell<bool>,
}

impl Peer {
    /// Connects, and says nothing.
    ///
    /// # Panics
    /// When nobody listens.
    pub fn connect(socket: &Path) -> Self {
        let fd = connect_to(socket).expect("connect to the test's daemon");
        let limit = TimeVal::new(i64::try_from(DEADLINE.as_secs()).expect("a short time"), 0);
        setsockopt(&fd, sockopt::ReceiveTimeout, &limit).expect("set a time limit");
        setsockopt(&fd, sockopt::SendTimeout, &limit).expect("set a time limit");
        Self { fd, next_id: 1, says_goodbye: Cell::new(false) }
    }

    /// Connects and exchanges greetings.
    ///
    /// # Panics
    /// When it is not welcome.
    pub fn greeted(socket: &Path) -> Self {
        let peer = Self::connect(socket);
        let reply = peer.greet(PROTOCOL_VERSION, LAYOUT_VERSION);
        assert!(matches!(reply, HelloReply::Welcome { .. }), "{reply:?}");
        peer
    }

    /// Says hello with these versions.
    ///
    /// # Panics
    /// When no answer comes.
    pub fn greet(&self, protocol: u16, layout: u16) -> HelloReply {
        let hello = Hello { protocol, layout, features: 0, software: "a test".to_owned() };
        self.send_bytes(&encode(&hello).expect("a hello is short"), &[]).expect("send a hello");
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        let received = recv(&self.fd, &mut buf).expect("an answer to hello");
        self.says_goodbye.set(true);
        decode_hello(&buf[..received.len]).expect("an answer to hello")
    }

    /// Sends any bytes as one packet.
    ///
    /// # Errors
    /// As [`send`]: the daemon may have hung up.
    pub fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        send(&self.fd, bytes, descriptors)
    }

    /// Sends any bytes as one packet if the socket has room for it now; says whether it has.
    pub fn try_send_bytes(&self, bytes: &[u8]) -> bool {
        send_packet(self.fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok()
    }

    /// Sends a request with the next id; returns the id.
    ///
    /// # Errors
    /// As [`send`].
    ///
    /// # Panics
    /// Never: the deadline is a short time.
    pub fn ask(&mut self, request: Request, descriptors: &[BorrowedFd<'_>]) -> Result<u64, Error> {
        let id = self.next_id;
        self.next_id += 1;
        let deadline_ms = u32::try_from(DEADLINE.as_millis()).expect("a short time");
        let message = ClientMessage::Request { id, deadline_ms, request };
        self.send_bytes(&encode(&message)?, descriptors)?;
        Ok(id)
    }

    /// The next message of the daemon.
    ///
    /// # Errors
    /// [`Error::Closed`] when the daemon has hung up; as [`recv`] and [`decode`].
    pub fn receive(&self) -> Result<(DaemonMessage, Vec<OwnedFd>), Error> {
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        let received = recv(&self.fd, &mut buf)?;
        Ok((decode(&buf[..received.len])?, received.descriptors))
    }

    /// Waits for the reply with this id; passes over announced segments.
    ///
    /// # Errors
    /// As [`Peer::receive`].
    pub fn reply(&self, id: u64) -> Result<(Result<Reply, Refusal>, Vec<OwnedFd>), Error> {
        loop {
            if let (DaemonMessage::Reply { id: found, result }, descriptors) = self.receive()?
                && found == id
            {
                return Ok((result, descriptors));
            }
        }
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// What the daemon refuses.
    ///
    /// # Panics
    /// When the daemon hangs up.
    pub fn request(&mut self, request: Request, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, Refusal> {
        let id = self.ask(request, descriptors).expect("the daemon reads");
        self.reply(id).expect("the daemon answers").0
    }

    /// Attaches to a namespace: its id, the client page, the first segment of the directory with its length.
    ///
    /// # Panics
    /// When that is refused.
    pub fn attach(&mut self, namespace: &str) -> (NamespaceId, OwnedFd, OwnedFd, u64) {
        let id =
            self.ask(Request::Attach { namespace: namespace.to_owned() }, &[]).expect("the daemon reads");
        let (reply, descriptors) = self.reply(id).expect("the daemon answers");
        let Ok(Reply::Attached { id, header_len, .. }) = reply else { unreachable!("attach: {reply:?}") };
        let [page, header] = <[OwnedFd; 2]>::try_from(descriptors).expect("two descriptors");
        (id, page, header, header_len)
    }

    /// Begins a put of `rows` rows of 512 bytes; returns the transfer.
    ///
    /// # Panics
    /// When that is refused.
    pub fn begin(&mut self, name: &str, rows: u64) -> u64 {
        match self.request(Request::PutBegin(begin(name, rows)), &[]) {
            Ok(Reply::Transfer { transfer }) => transfer,
            other => unreachable!("begin: {other:?}"),
        }
    }

    /// Waits until the daemon has hung up; returns the messages that came before that.
    ///
    /// # Panics
    /// When it does not.
    pub fn until_hang_up(&self) -> usize {
        let mut messages = 0;
        loop {
            let mut buf = vec![0; MAX_MESSAGE_BYTES];
            match recv(&self.fd, &mut buf) {
                Ok(_) => messages += 1,
                Err(Error::Closed) => return messages,
                Err(error) => unreachable!("the daemon did not hang up: {error}"),
            }
        }
    }

    /// Closes without a goodbye.
    pub fn hang_up(self) {
        self.says_goodbye.set(false);
    }

    /// The number of its descriptor.
    pub fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.says_goodbye.get()
            && let Ok(bytes) = encode(&ClientMessage::Goodbye)
        {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // The daemon may have hung up.
            let _ = send_packet(self.fd.as_raw_fd(), &bytes, flags).is_ok();
        }
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A put of `rows` rows of 512 bytes into namespace `default`, stored raw.
pub fn begin(name: &str, rows: u64) -> PutBegin {
    PutBegin {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        dtype: Dtype::U64,
        shape: vec![rows, 64],
        access: Access::Rows,
        row_elems: None,
        codec: CodecChoice::Only(CodecId::Raw),
        overwrite: false,
        file_metadata: None,
        transaction: None,
    }
}

/// A chunk request, and its descriptor: `rows` rows of zeros from block `first_block` on.
///
/// # Panics
/// When the system gives no memory.
pub fn chunk(transfer: u64, first_block: u64, rows: u64) -> (Request, OwnedFd) {
    let len = rows * 512;
    let fd = ChunkWriter::new(len).and_then(ChunkWriter::seal).expect("a chunk");
    (Request::PutChunk { transfer, first_block, data: Blob::Descriptor { len } }, fd)
}
