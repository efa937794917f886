//! Chunks, sources, and puts against a scripted daemon.

use std::time::Duration;

use tierpack_shm::message::{Blob, ErrorCode, Refusal};
use tierpack_shm::types::{Access, CodecId};

use super::*;
use crate::fake_daemon::{Peer, serve};
use crate::fake_tensor;

#[test]
fn chunks_are_whole_blocks_and_cover_the_tensor() {
    for shape in [&[0, 4][..], &[5], &[1 << 20, 16], &[3, 40 << 20], &[1000, 50_001]] {
        for access in [Access::Rows, Access::Whole] {
            let geometry = Geometry::new(Dtype::F64, shape, access, None).unwrap();
            let (mut block, mut total) = (0, 0);
            while block < geometry.n_blocks() {
                assert_eq!(geometry.block(block).byte_offset, total);
                let (end, len) = chunk_at(&geometry, block);
                assert!(end > block && len > 0 && len <= MAX_CHUNK_BYTES, "{shape:?}");
                (block, total) = (end, total + len);
            }
            assert_eq!(total, geometry.raw_bytes());
        }
    }
}

#[test]
fn a_source_that_ends_early_says_how_far_it_came() {
    let mut got = 10;
    let error = fill(&mut &[1_u8, 2, 3][..], &mut [0; 8], &mut got, 100).unwrap_err();
    assert!(matches!(error, Error::Source { got: 13, needed: 100, .. }), "{error}");
}

#[test]
fn a_source_that_lies_about_its_length_is_no_panic() {
    struct Liar;
    impl Read for Liar {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Ok(usize::MAX)
        }
    }
    let mut got = 0;
    fill(&mut Liar, &mut [0; 8], &mut got, 8).unwrap();
    assert_eq!(got, 8);
}

fn entry() -> Entry {
    fake_tensor::entry(Dtype::U8, &[40_000], CodecId::Raw, 40_000)
}

fn busy(peer: &Peer, id: u64) {
    peer.reply(id, Err(Refusal::new(ErrorCode::Busy, "try again")));
}

fn begin(peer: &Peer) {
    let (id, request) = peer.asked();
    assert!(matches!(request, Request::PutBegin(_)), "{request:?}");
    peer.reply(id, Ok(Reply::Transfer { transfer: 5 }));
}

#[test]
fn a_busy_daemon_is_offered_the_chunk_and_the_commit_again() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        begin(&peer);
        for round in 0..4 {
            let (id, request) = peer.asked();
            let chunk =
                Request::PutChunk { transfer: 5, first_block: 0, data: Blob::Descriptor { len: 40_000 } };
            assert_eq!(request, chunk);
            if round < 3 { busy(&peer, id) } else { peer.reply(id, Ok(Reply::Done)) }
        }
        for round in 0..2 {
            let (id, request) = peer.asked();
            assert_eq!(request, Request::PutCommit { transfer: 5 });
            if round < 1 { busy(&peer, id) } else { peer.reply(id, Ok(Reply::Committed(entry()))) }
        }
        peer.drain();
    });
    let client = Client::builder().socket(&path).connect().unwrap();
    assert_eq!(client.put("t", Dtype::U8, &[40_000], &[7; 40_000]).unwrap(), entry());
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_stays_busy_ends_in_busy_and_an_abort() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        begin(&peer);
        loop {
            match peer.asked() {
                (id, Request::PutChunk { .. }) => busy(&peer, id),
                (id, Request::PutAbort { transfer: 5 }) => {
                    peer.reply(id, Ok(Reply::Done));
                    break;
                }
                (_, other) => panic!("{other:?}"),
            }
        }
        peer.drain();
    });
    let client = Client::builder().socket(&path).deadline(Duration::from_millis(100)).connect().unwrap();
    let result = client.put("t", Dtype::U8, &[9], &[7; 9]);
    assert!(matches!(&result, Err(Error::Busy { text, .. }) if text == "try again"), "{result:?}");
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn a_refused_chunk_is_the_error_that_the_caller_gets() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        begin(&peer);
        let id = peer.request();
        peer.reply(id, Err(Refusal::new(ErrorCode::PoolFull, "pool is full")));
        let (id, request) = peer.asked();
        assert_eq!(request, Request::PutAbort { transfer: 5 });
        peer.reply(id, Err(Refusal::new(ErrorCode::Invalid, "no such put")));
        peer.drain();
    });
    let client = Client::builder().socket(&path).connect().unwrap();
    let result = client.put("t", Dtype::U8, &[9], &[7; 9]);
    assert!(matches!(&result, Err(Error::PoolFull { text, .. }) if text == "pool is full"), "{result:?}");
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn a_list_that_does_not_go_on_is_a_fault_and_no_endless_loop() {
    for entries in [vec![], vec![entry()]] {
        let (_dir, path, daemon) = serve(move |peer| {
            peer.welcome();
            for _ in 0..=entries.len() {
                let id = peer.request();
                peer.reply(id, Ok(Reply::Listed { entries: entries.clone(), more: true }));
            }
            peer.drain();
        });
        let client = Client::builder().socket(&path).connect().unwrap();
        let result = client.list();
        assert!(matches!(result, Err(Error::Protocol { .. })), "{result:?}");
        drop(client);
        daemon.join().unwrap();
    }
}
