//! A store with tensors of 64-bit words in blocks of 512 rows, for tests of what happens within it.

use tempfile::TempDir;
use tierpack_shm::message::{Blob, PutBegin, Reply, Update};
use tierpack_shm::socket::Peer;
use tierpack_shm::types::{Access, CodecChoice, Dtype, index};

use super::Store;
use super::access::Caller;
use super::namespace::{Namespace, Target};
use super::refit::RefitTask;
use super::transfer::{ChunkData, Transfers};
use crate::config::{Config, LockMode};
use crate::server::events::{self, Inbox};
use crate::size::MIB;

/// Rows of a block, and words of a row.
pub(super) const BLOCK_ROWS: u64 = 512;
pub(super) const ROW_WORDS: u64 = 64;
/// Bytes of a row.
const ROW_BYTES: u64 = 8 * ROW_WORDS;

/// A store whose events nobody takes, and whose refits nobody carries out.
pub(super) struct Stored {
    pub(super) store: Store,
    pub(super) caller: Caller,
    _directory: TempDir,
    _inbox: Inbox,
    _tasks: crossbeam::channel::Receiver<RefitTask>,
}

impl Stored {
    pub(super) fn new(pool_bytes: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::embedded(directory.path().join("t.sock"), pool_bytes).unwrap();
        let (events, inbox) = events::channel().unwrap();
        let (store, tasks) = Store::new(&config.with_lock(LockMode::Off), events).unwrap();
        let caller = Caller::new(Peer { pid: 1, uid: 0, gid: 0 }, Vec::new(), 0);
        Self { store, caller, _directory: directory, _inbox: inbox, _tasks: tasks }
    }

    pub(super) fn namespace(&self) -> std::sync::Arc<Namespace> {
        self.store.namespace("default").unwrap()
    }

    /// Puts tensor `t` of whole blocks.
    pub(super) fn put(&self, codec: CodecChoice, bytes: &[u8]) -> Target {
        let n_rows = bytes.len() as u64 / ROW_BYTES;
        let begin = PutBegin {
            namespace: "default".to_owned(),
            name: "t".to_owned(),
            dtype: Dtype::U64,
            shape: vec![n_rows, ROW_WORDS],
            access: Access::Rows,
            row_elems: None,
            codec,
            overwrite: false,
            file_metadata: None,
            transaction: None,
        };
        let transfers = Transfers::default();
        let who = (1, &self.caller);
        let transfer = transfers.begin(&self.store, 1, &self.caller, begin, None).unwrap();
        let chunk_bytes = index(16 * MIB);
        for (chunk, n) in bytes.chunks(chunk_bytes).zip(0..) {
            let first_row = n * chunk_bytes as u64 / ROW_BYTES;
            let data = ChunkData::Inline(chunk.to_vec());
            transfers.chunk(&self.store, who, (transfer, first_row), &data, (&mut 0, false)).unwrap();
        }
        transfers.commit(&self.store, who, transfer).unwrap();
        self.namespace().target("t", None).unwrap()
    }

    /// New values for rows of `t`.
    pub(super) fn update(&self, rows: impl ExactSizeIterator<Item = u64>, bytes: &[u8]) {
        let Reply::Opened { slot, .. } = self.namespace().open("t", &self.caller).unwrap() else {
            panic!("another reply")
        };
        let update = Update {
            namespace: "default".to_owned(),
            name: "t".to_owned(),
            slot,
            n_pieces: rows.len() as u64,
            data: Blob::Inline(Vec::new()),
        };
        let data: Vec<u8> = rows.flat_map(u64::to_le_bytes).chain(bytes.iter().copied()).collect();
        self.store.update(&self.caller, &update, &ChunkData::Inline(data)).unwrap();
    }
}
