//! A tensor of a scripted daemon: the test stores words, bytes and changes in the ring as it likes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket};
use parking_lot::Mutex;
use tempfile::TempDir;
use tierpack_client::{Client, CodecId, Dtype, Handle};
use tierpack_kernels::codec::{Encoding, encode_block};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::attachment::SlotRef;
use tierpack_shm::directory::{Directory, SlotFields};
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, Entry, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request,
    SegmentId, decode, encode as encode_message,
};
use tierpack_shm::overlay::encode;
use tierpack_shm::page::{ClientPage, NamespaceId};
use tierpack_shm::pool::Pool;
use tierpack_shm::ring::Changed;
use tierpack_shm::segment::{Segment, SegmentKind};
use tierpack_shm::socket::{recv, send};
use tierpack_shm::types::{Access, BlockWord, Extent, SlotIdx, index};

/// The page of the client, once it has attached.
type Page = Arc<Mutex<Option<ClientPage>>>;

const ID: NamespaceId = NamespaceId { instance: 77, namespace: 3 };

/// A raw tensor of `u64`s, 64 in a row, and a client that has opened it.
pub(crate) struct Scripted {
    _client: Client,
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    directory: Arc<Directory>,
    table: Extent,
    slot: SlotIdx,
    pool: Pool,
    page: Page,
    _daemon: JoinHandle<()>,
    _dir: TempDir,
}

impl Scripted {
    pub(crate) fn open(n_rows: u64) -> Self {
        let (dtype, shape) = (Dtype::U64, [n_rows, 64]);
        let geometry = Geometry::new(dtype, &shape, Access::Rows, None).expect("a geometry");
        let mut directory = Directory::new(Segment::create(1 << 20).expect("memory"), ID);
        let n_blocks = geometry.n_blocks();
        let slot = directory.take_slot().expect("room");
        let none = vec![BlockWord::from_bits(0); index(n_blocks)];
        let table = directory.new_table(&none).expect("room");
        let generations = directory.new_generations().expect("room");
        let fields = SlotFields {
            table: &table,
            n_blocks,
            generations: &generations,
            dtype: dtype as u8,
            access: Access::Rows as u8,
            n_rows: geometry.n_rows(),
            row_bytes: geometry.row_bytes(),
            raw_bytes: geometry.raw_bytes(),
        };
        let publication = directory.publish(&slot, fields).expect("a slot of this directory");
        let opened = SlotRef { address: slot.address(), idx: slot.idx(), publication };
        let segment = Arc::new(Segment::create(16 << 20).expect("memory"));
        let mut pool = Pool::default();
        let first = pool.next_index().expect("room");
        pool.add(first, Arc::clone(&segment), 0);
        let (directory, slot) = (Arc::new(directory), slot.idx());
        let entry = entry(dtype, &shape, geometry.raw_bytes());
        let page = Page::default();
        let (mine, its_page) = (Arc::clone(&directory), Arc::clone(&page));
        let (dir, daemon) = serve(move |conn| answer(&conn, (&mine, &its_page), &segment, (&entry, opened)));
        let client = Client::builder().socket(dir.path().join("control.sock")).connect().expect("a daemon");
        let handle = client.open("t").expect("it is there");
        Self {
            _client: client,
            handle,
            geometry,
            directory,
            table,
            slot,
            pool,
            page,
            _daemon: daemon,
            _dir: dir,
        }
    }

    /// Writes a block of these raw bytes; the extent can be freed again, and written again.
    pub(crate) fn write(&mut self, block_idx: u64, raw: &[u8]) -> Extent {
        let mut out = Vec::new();
        encode_block(Encoding::Raw, &self.geometry, block_idx, raw, &mut out).expect("a block");
        let mut fresh = self.pool.allocate(out.len() as u64).expect("room");
        fresh.write(0, &out);
        fresh.freeze()
    }

    /// Covers a block by an overlay of its first row, with the value that it has.
    pub(crate) fn cover(&mut self, block_idx: u64) {
        let words = self.directory.table_words(&self.table, self.geometry.n_blocks()).expect("a table");
        let below = BlockWord::from_bits(words[index(block_idx)].load(Ordering::Acquire));
        let handle = self.handle.gather(&[self.geometry.block(block_idx).first_row]).expect("a row");
        let (mut out, row_bytes) = (Vec::new(), self.geometry.block(block_idx).row_bytes);
        encode(below, 0, row_bytes, std::iter::once((0, handle.as_bytes())), &mut out);
        let mut fresh = self.pool.allocate(out.len() as u64).expect("room");
        fresh.write(0, &out);
        let sequence = below.sequence() + 1;
        self.store(block_idx, BlockWord::resident(fresh.freeze().offset(), 0, BlockWord::OVERLAY, sequence));
    }

    /// Leases that the client has taken.
    pub(crate) fn leases(&self) -> usize {
        self.page.lock().as_ref().map_or(0, ClientPage::leases_taken)
    }

    pub(crate) fn free(&mut self, extent: Extent) {
        self.pool.free(extent);
    }

    pub(crate) fn word(&self, extent: &Extent, sequence: u32) -> BlockWord {
        BlockWord::resident(extent.offset(), 0, BlockWord::RAW, sequence)
    }

    /// Stores a word, and tells of it.
    pub(crate) fn store(&self, block_idx: u64, word: BlockWord) {
        let words = self.directory.table_words(&self.table, self.geometry.n_blocks()).expect("a table");
        words[index(block_idx)].store(word.bits(), Ordering::Release);
        self.tell(block_idx);
    }

    /// Tells of a store, as of another tensor's block of this number if there is no such block.
    pub(crate) fn tell(&self, block_idx: u64) {
        self.directory.push_changed(Changed { slot: self.slot, block_idx });
    }

    /// Where a block's bytes are in the tensor.
    pub(crate) fn range(&self, block_idx: u64) -> std::ops::Range<usize> {
        let shape = self.geometry.block(block_idx);
        index(shape.byte_offset)..index(shape.byte_offset + shape.raw_bytes)
    }
}

fn entry(dtype: Dtype, shape: &[u64], raw_bytes: u64) -> Entry {
    Entry {
        namespace: "default".to_owned(),
        name: "t".to_owned(),
        dtype,
        shape: shape.to_vec(),
        codec: CodecId::Raw,
        access: Access::Rows,
        raw_bytes,
        stored_bytes: raw_bytes,
        revision: 0,
        generation: 0,
        predicted_bytes: 0,
        runner_up: None,
        escapes: 0,
        participating: 0,
    }
}

/// Runs a daemon for one connection.
fn serve(script: impl FnOnce(OwnedFd) + Send + 'static) -> (TempDir, JoinHandle<()>) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let listener =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let address = UnixAddr::new(&dir.path().join("control.sock")).expect("a short path");
    bind(listener.as_raw_fd(), &address).expect("a free path");
    listen(&listener, Backlog::MAXCONN).expect("a bound socket");
    let daemon =
        std::thread::spawn(move || script(accept4(&listener, SockFlag::SOCK_CLOEXEC).expect("a client")));
    (dir, daemon)
}

/// Answers a greeting, opens and attaches, until the client hangs up.
fn answer(
    conn: &OwnedFd,
    (directory, place): (&Directory, &Page),
    segment: &Segment,
    (entry, slot): (&Entry, SlotRef),
) {
    let software = "a test".to_owned();
    let (protocol, layout, instance) = (PROTOCOL_VERSION, LAYOUT_VERSION, ID.instance);
    let welcome = HelloReply::Welcome { protocol, layout, instance, features: 0, software };
    let mut buf = vec![0; MAX_MESSAGE_BYTES];
    drop(recv(conn, &mut buf).expect("a greeting"));
    send(conn, &encode_message(&welcome).expect("a short message"), &[]).expect("the client reads");
    while let Ok(received) = recv(conn, &mut buf) {
        let Ok(ClientMessage::Request { id, request, .. }) = decode(&buf[..received.len]) else { continue };
        let namespace = ID.namespace;
        if !matches!(request, Request::Attach { .. }) {
            let reply = Reply::Opened { namespace, entry: entry.clone(), row_elems: None, slot };
            let message = DaemonMessage::Reply { id, result: Ok(reply) };
            send(conn, &encode_message(&message).expect("a short message"), &[]).expect("the client reads");
            continue;
        }
        let (mine, page) = ClientPage::create(ID).expect("memory");
        *place.lock() = Some(mine);
        let header = directory.header_segment();
        let number = |kind, serial| SegmentId { kind, index: 0, serial };
        let reply =
            Reply::Attached { id: ID, header_len: header.len(), header: number(SegmentKind::Directory, 1) };
        let message = DaemonMessage::Reply { id, result: Ok(reply) };
        let message = encode_message(&message).expect("a short message");
        send(conn, &message, &[page.as_fd(), header.as_fd()]).expect("the client reads");
        let segments = vec![(number(SegmentKind::Data, 2), segment.len())];
        let message =
            encode_message(&DaemonMessage::Segments { namespace, segments }).expect("a short message");
        send(conn, &message, &[segment.as_fd()]).expect("the client reads");
    }
}
