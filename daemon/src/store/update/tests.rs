//! Work that a user who may only read asks for.

use std::time::Duration;

use tierpack_shm::message::RefitMode;
use tierpack_shm::types::{CodecChoice, CodecId};

use super::*;
use crate::size::MIB;
use crate::store::testing::{BLOCK_ROWS, Stored};

const BLOCKS: u64 = 32;

#[test]
fn a_request_folds_a_few_blocks_and_one_dry_run_goes_on_at_a_time() {
    let stored = Stored::new(64 * MIB);
    stored.put(CodecChoice::Only(CodecId::Raw), &vec![0; index(BLOCKS * BLOCK_ROWS * 512)]);
    let rows: Vec<u64> = (0..BLOCKS).map(|block| block * BLOCK_ROWS).collect();
    stored.update(rows.into_iter(), &vec![1; index(BLOCKS * 512)]);
    let (Stored { store, caller, .. }, namespace) = (&stored, stored.namespace());
    let overlaid = || namespace.inner.lock().tensors["t"].content.overlaid.len() as u64;
    let fold = |deadline| store.fold(caller, "default", "t", deadline).unwrap();
    assert_eq!(overlaid(), BLOCKS);
    fold(Instant::now());
    assert_eq!(overlaid(), BLOCKS, "nothing is folded past the deadline");
    fold(Instant::now() + Duration::from_secs(600));
    assert_eq!(overlaid(), BLOCKS - FOLD_BYTES / (BLOCK_ROWS * 512));
    fold(Instant::now() + Duration::from_secs(600));
    assert_eq!(overlaid(), 0, "who asks again gets the rest");

    let dry_run = || store.refit(caller, "default", "t", RefitMode::DryRun);
    let under_way = store.looking.lock();
    assert_eq!(dry_run().unwrap_err().code(), Some(ErrorCode::Busy));
    assert!(store.refit(caller, "default", "t", RefitMode::Look).is_ok());
    drop(under_way);
    assert!(dry_run().is_ok());
}
