//! A tensor of a scripted daemon for tests: blocks, overlays and metadata are stored as the test says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use tempfile::TempDir;
use tierpack_kernels::Coder;
use tierpack_kernels::codec::{Encoding, encode_block};
use tierpack_kernels::fit::{Piece, fit};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::attachment::SlotRef;
use tierpack_shm::directory::{Directory, SlotFields};
use tierpack_shm::message::{Entry, Reply};
use tierpack_shm::overlay::encode;
use tierpack_shm::pool::Pool;
use tierpack_shm::segment::Segment;
use tierpack_shm::types::{Access, BlockWord, CodecId, Dtype, Extent, index};

use crate::builder::ClientBuilder;
use crate::client::Client;
use crate::fake_daemon::{ID, Peer, data, serve};
use crate::handle::Handle;

const SEGMENT_BYTES: u64 = 16 << 20;

/// The tensor, and a client that has opened it.
pub(crate) struct FakeTensor {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    pub(crate) words: Words,
    pool: Pool,
    daemon: JoinHandle<()>,
    _dir: TempDir,
}

/// Where the tensor's block words are: for the daemon's thread as well.
#[derive(Clone)]
pub(crate) struct Words {
    directory: Arc<Directory>,
    table: Arc<Extent>,
    generations: Arc<Extent>,
    n_blocks: u64,
}

impl Words {
    pub(crate) fn store(&self, block_idx: u64, word: BlockWord) {
        let words = self.directory.table_words(&self.table, self.n_blocks).unwrap();
        words[index(block_idx)].store(word.bits(), Ordering::Release);
    }

    pub(crate) fn load(&self, block_idx: u64) -> BlockWord {
        let words = self.directory.table_words(&self.table, self.n_blocks).unwrap();
        BlockWord::from_bits(words[index(block_idx)].load(Ordering::Acquire))
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn count_update(&self) -> u64 {
        self.directory.count_update(&self.table).unwrap()
    }
}

/// What the daemon answers to `open`.
#[derive(Clone)]
pub(crate) struct Answer {
    entry: Entry,
    pub(crate) slot: SlotRef,
}

impl Answer {
    pub(crate) fn opened(&self) -> Reply {
        let (entry, slot) = (self.entry.clone(), self.slot);
        Reply::Opened { namespace: ID.namespace, entry, row_elems: None, slot }
    }
}

impl FakeTensor {
    /// A tensor of `dtype` and `shape` that says that it has `codec`; `script` is the daemon once it is open.
    pub(crate) fn open(
        dtype: Dtype,
        shape: &[u64],
        codec: CodecId,
        script: impl FnOnce(Peer, Words, Answer) + Send + 'static,
    ) -> Self {
        Self::open_with(Client::builder(), (dtype, shape, codec), script)
    }

    /// As [`FakeTensor::open`], with a client of these settings.
    pub(crate) fn open_with(
        builder: ClientBuilder,
        (dtype, shape, codec): (Dtype, &[u64], CodecId),
        script: impl FnOnce(Peer, Words, Answer) + Send + 'static,
    ) -> Self {
        let geometry = Geometry::new(dtype, shape, Access::Rows, None).unwrap();
        let mut directory = Directory::new(Segment::create(1 << 20).unwrap(), ID);
        let n_blocks = geometry.n_blocks();
        let slot = directory.take_slot().unwrap();
        let table = directory.new_table(&vec![BlockWord::from_bits(0); index(n_blocks)]).unwrap();
        let generations = directory.new_generations().unwrap();
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
        let publication = directory.publish(&slot, fields).unwrap();
        let slot = SlotRef { address: slot.address(), idx: slot.idx(), publication };
        let answer = Answer { entry: entry(dtype, shape, codec, geometry.raw_bytes()), slot };

        let segment = Arc::new(Segment::create(SEGMENT_BYTES).unwrap());
        let mut pool = Pool::default();
        let idx = pool.next_index().unwrap();
        pool.add(idx, Arc::clone(&segment), 0);
        let (table, generations) = (Arc::new(table), Arc::new(generations));
        let words = Words { directory: Arc::new(directory), table, generations, n_blocks };
        let for_daemon = words.clone();
        let (dir, path, daemon) = serve(move |peer| {
            peer.welcome();
            let id = peer.request();
            peer.reply(id, Ok(answer.opened()));
            peer.attach_to(&for_daemon.directory);
            peer.segments(data(0, 2), &segment);
            script(peer, for_daemon, answer);
        });
        let client = builder.socket(&path).connect().unwrap();
        let handle = client.open("t").unwrap();
        Self { client, handle, geometry, words, pool, daemon, _dir: dir }
    }

    /// A tensor whose daemon answers nothing more.
    pub(crate) fn silent(dtype: Dtype, shape: &[u64], codec: CodecId) -> Self {
        Self::open(dtype, shape, codec, |peer, _, _| peer.drain())
    }

    /// Hangs up and waits for the daemon's end.
    pub(crate) fn close(self) {
        drop((self.client, self.handle));
        self.daemon.join().unwrap();
    }

    fn write(&mut self, bytes: &[u8]) -> u64 {
        let mut fresh = self.pool.allocate(bytes.len() as u64).unwrap();
        fresh.write(0, bytes);
        fresh.freeze().offset()
    }

    /// Enters metadata of `codec`, fitted to `raw`, as generation `number` at `idx` of the table.
    pub(crate) fn generation(&mut self, idx: u8, number: u32, codec: CodecId, raw: &[u8]) -> Coder {
        let geometry = self.geometry;
        let sample: Vec<_> =
            (0..geometry.n_blocks()).map(|n| (Piece::block(&geometry, n), &raw[self.range(n)])).collect();
        let metadata = fit(codec, &geometry, &sample).unwrap().metadata.unwrap().with_generation(number);
        let bytes = metadata.to_bytes();
        let mut fresh = self.pool.allocate(bytes.len() as u64).unwrap();
        fresh.write(0, &bytes);
        let entry = (number, u32::try_from(bytes.len()).unwrap());
        self.words.directory.set_generation(&self.words.generations, idx, entry, &fresh.freeze()).unwrap();
        Coder::new(&metadata, &geometry).unwrap()
    }

    /// Where a block lies in the tensor.
    pub(crate) fn range(&self, block_idx: u64) -> std::ops::Range<usize> {
        let shape = self.geometry.block(block_idx);
        index(shape.byte_offset)..index(shape.byte_offset + shape.raw_bytes)
    }

    /// Encodes a block, and returns the word that would show it.
    pub(crate) fn block(&mut self, block_idx: u64, raw: &[u8], coder: Option<(u8, &Coder)>) -> BlockWord {
        let encoding = coder.map_or(Encoding::Raw, |(_, coder)| Encoding::Coded(coder));
        let mut out = Vec::new();
        let encoded = encode_block(encoding, &self.geometry, block_idx, raw, &mut out).unwrap();
        let flags = if encoded.codec == CodecId::Raw { BlockWord::RAW } else { 0 };
        assert_eq!(flags == 0, coder.is_some(), "the test wants another codec");
        let sequence = self.words.load(block_idx).sequence() + 1;
        BlockWord::resident(self.write(&out), coder.map_or(0, |(idx, _)| idx), flags, sequence)
    }

    /// Stores every block of `raw`.
    pub(crate) fn put(&mut self, raw: &[u8], coder: Option<(u8, &Coder)>) {
        for block_idx in 0..self.geometry.n_blocks() {
            let range = self.range(block_idx);
            let word = self.block(block_idx, &raw[range], coder);
            self.words.store(block_idx, word);
        }
    }

    /// Covers a block by an overlay of these rows, which has `depth` others below it.
    pub(crate) fn cover(&mut self, block_idx: u64, depth: u64, rows: &[(u32, Vec<u8>)]) {
        let (below, mut out) = (self.words.load(block_idx), Vec::new());
        let row_bytes = self.geometry.block(block_idx).row_bytes;
        encode(below, depth, row_bytes, rows.iter().map(|(number, row)| (*number, &row[..])), &mut out);
        let offset = self.write(&out);
        let sequence = below.sequence() + 1;
        let word = BlockWord::resident(offset, below.generation_idx(), BlockWord::OVERLAY, sequence);
        self.words.store(block_idx, word);
    }
}

pub(crate) fn entry(dtype: Dtype, shape: &[u64], codec: CodecId, raw_bytes: u64) -> Entry {
    Entry {
        namespace: "default".to_owned(),
        name: "t".to_owned(),
        dtype,
        shape: shape.to_vec(),
        codec,
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
