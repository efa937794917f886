//! Work that a user who may only read asks for.

use std::time::Duration;

use tierpack_shm::message::{Blob, PutBegin, RefitMode, Reply};
use tierpack_shm::socket::Peer;
use tierpack_shm::types::{Access, CodecChoice, CodecId, Dtype};

use super::*;
use crate::config::{Config, LockMode};
use crate::server::events;
use crate::size::MIB;
use crate::store::transfer::Transfers;

const BLOCKS: u64 = 32;

#[test]
fn a_request_folds_a_few_blocks_and_one_dry_run_goes_on_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let config =
        Config::embedded(directory.path().join("t.sock"), 64 * MIB).unwrap().with_lock(LockMode::Off);
    let (events, _inbox) = events::channel().unwrap();
    let (store, _tasks) = Store::new(&config, events).unwrap();
    let caller = Caller::new(Peer { pid: 1, uid: 0, gid: 0 }, Vec::new(), 0);
    let begin = PutBegin {
        namespace: "default".to_owned(),
        name: "t".to_owned(),
        dtype: Dtype::U64,
        shape: vec![BLOCKS * 512, 64],
        access: Access::Rows,
        row_elems: None,
        codec: CodecChoice::Only(CodecId::Raw),
        overwrite: false,
        file_metadata: None,
        transaction: None,
    };
    let transfers = Transfers::default();
    let transfer = transfers.begin(&store, 1, &caller, begin, None).unwrap();
    let data = ChunkData::Inline(vec![0; index(BLOCKS * 512 * 512)]);
    transfers.chunk(&store, (1, &caller), (transfer, 0), &data, (&mut 0, false)).unwrap();
    transfers.commit(&store, (1, &caller), transfer).unwrap();

    let namespace = store.namespace("default").unwrap();
    let rows = (0..BLOCKS).flat_map(|block| (block * 512).to_le_bytes());
    let bytes: Vec<u8> = rows.chain(vec![1; index(BLOCKS * 512)]).collect();
    let Reply::Opened { slot, .. } = namespace.open("t", &caller).unwrap() else { panic!("another reply") };
    let update = Update {
        namespace: "default".to_owned(),
        name: "t".to_owned(),
        slot,
        n_pieces: BLOCKS,
        data: Blob::Inline(Vec::new()),
    };
    store.update(&caller, &update, &ChunkData::Inline(bytes)).unwrap();
    let overlaid = || namespace.inner.lock().tensors["t"].content.overlaid.len() as u64;
    let fold = |deadline| store.fold(&caller, "default", "t", deadline).unwrap();
    assert_eq!(overlaid(), BLOCKS);
    fold(Instant::now());
    assert_eq!(overlaid(), BLOCKS, "nothing is folded past the deadline");
    fold(Instant::now() + Duration::from_secs(600));
    assert_eq!(overlaid(), BLOCKS - FOLD_BYTES / (512 * 512));
    fold(Instant::now() + Duration::from_secs(600));
    assert_eq!(overlaid(), 0, "who asks again gets the rest");

    let dry_run = || store.refit(&caller, "default", "t", RefitMode::DryRun);
    let under_way = store.looking.lock();
    assert_eq!(dry_run().unwrap_err().code(), Some(ErrorCode::Busy));
    assert!(store.refit(&caller, "default", "t", RefitMode::Look).is_ok());
    drop(under_way);
    assert!(dry_run().is_ok());
}
