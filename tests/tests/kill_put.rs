//! A client that vanishes in the middle of a put leaves nothing: at its begin, half way, before its commit, and with a
//! request on its way.

use std::os::fd::AsFd;

use tierpack_client::Dtype;
use tierpack_shm::message::{PutBegin, Reply, Request};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::{Peer, begin, chunk};
use tierpack_tests::{Daemon, eventually, full, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// Rows of a chunk of 16 MiB, and the blocks in it.
const CHUNK_ROWS: u64 = 32 << 10;
const CHUNK_BLOCKS: u64 = CHUNK_ROWS / 512;

/// How far a put comes before its client is gone.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Begun,
    HalfWay,
    BeforeCommit,
    /// The last request was sent and is not answered.
    InBegin,
    InChunk,
    InCommit,
}

const MOMENTS: [Moment; 6] = [
    Moment::Begun,
    Moment::HalfWay,
    Moment::BeforeCommit,
    Moment::InBegin,
    Moment::InChunk,
    Moment::InCommit,
];

/// Puts as far as `moment`, and hangs up.
fn vanish(daemon: &Daemon, name: &str, chunks: u64, moment: Moment) {
    let mut peer = Peer::greeted(&daemon.socket());
    if let Moment::InBegin = moment {
        let request = Request::PutBegin(begin(name, chunks * CHUNK_ROWS));
        peer.ask(request, &[]).expect("the daemon reads");
        return;
    }
    let transfer = peer.begin(name, chunks * CHUNK_ROWS);
    let sent = match moment {
        Moment::Begun | Moment::InBegin => 0,
        Moment::HalfWay | Moment::InChunk => chunks / 2,
        Moment::BeforeCommit | Moment::InCommit => chunks,
    };
    for n in 0..sent {
        let (request, fd) = chunk(transfer, n * CHUNK_BLOCKS, CHUNK_ROWS);
        assert_eq!(peer.request(request, &[fd.as_fd()]), Ok(Reply::Done));
    }
    match moment {
        Moment::InChunk => {
            let (request, fd) = chunk(transfer, sent * CHUNK_BLOCKS, CHUNK_ROWS);
            peer.ask(request, &[fd.as_fd()]).expect("the daemon reads");
        }
        Moment::InCommit => {
            peer.ask(Request::PutCommit { transfer }, &[]).expect("the daemon reads");
        }
        _ => {}
    }
}

#[test]
fn an_unfinished_put_leaves_nothing() {
    let (pool, chunks, rounds) = if full() { ("1GiB", 25, 20) } else { ("128MiB", 3, 4) };
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", pool, "--lock", "off"]);
    let client = daemon.client();
    client.put("kept", Dtype::U8, &[100], &[1; 100]).expect("room");
    let before = daemon.quiet().pool;
    for round in 0..rounds {
        for moment in MOMENTS {
            let name = format!("{moment:?}-{round}");
            vanish(&daemon, &name, chunks, moment);
            eventually(&format!("the end of a put that vanished at {moment:?}"), || {
                assert!(daemon.process().is_running(), "the daemon ended at {moment:?}: {}", daemon.log());
                let stats = daemon.stats();
                // A commit that was sent counts, whether or not somebody waited for the answer.
                if let Moment::InCommit = moment {
                    let _ = client.remove(&name).is_ok();
                }
                let is_over = stats.transfers == 0
                    && (stats.pool.reserved_bytes, stats.pool.held_bytes) == (0, 0)
                    && stats.pool.used_bytes == before.used_bytes;
                is_over.then_some(())
            });
        }
    }
    let names: Vec<_> = client.list().expect("a list").into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["kept"]);
    // Nearly the whole pool can be used.
    let rows = daemon.stats().pool.size_bytes / 10 * 9 / 512;
    let mut zeros = std::io::repeat(0);
    client.put_with("large", Dtype::U64, &[rows, 64], &mut zeros, &raw()).expect("room for it");
}

#[test]
fn a_client_that_vanishes_with_many_requests_on_their_way_leaves_nothing() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "128MiB", "--lock", "off"]);
    let before = daemon.quiet().pool;
    for round in 0..if full() { 500 } else { 50 } {
        let mut peer = Peer::greeted(&daemon.socket());
        let transfer = peer.begin("many", 4 * CHUNK_ROWS / 16);
        let (mut request, fd) = chunk(transfer, 0, CHUNK_ROWS / 16);
        for n in 0..4 {
            if let Request::PutChunk { first_block, .. } = &mut request {
                *first_block = n * CHUNK_BLOCKS / 16;
            }
            peer.ask(request.clone(), &[fd.as_fd()]).expect("the daemon reads");
            peer.ask(Request::PutBegin(begin(&format!("other-{n}"), 512)), &[]).expect("the daemon reads");
        }
        if round % 2 == 0 {
            // Ended while its chunks are on their way: the transfer goes, whatever a worker is doing with it.
            peer.ask(Request::PutCommit { transfer }, &[]).expect("the daemon reads");
            peer.ask(Request::PutAbort { transfer }, &[]).expect("the daemon reads");
        }
    }
    let client = daemon.client();
    eventually("the end of all puts", || {
        assert!(daemon.process().is_running(), "the daemon ended: {}", daemon.log());
        let _ = client.remove("many").is_ok();
        let stats = daemon.stats();
        let is_over = stats.transfers == 0 && stats.pool.reserved_bytes == 0;
        (is_over && stats.pool.used_bytes == before.used_bytes).then_some(())
    });
}

#[test]
fn an_unfinished_put_leaves_no_namespace() {
    let mut daemon = Daemon::start(PROGRAM, &["--pool-size", "32MiB", "--lock", "off"]);
    daemon.client().put("kept", Dtype::U8, &[1], &[1]).expect("room");
    let before = Baseline::take(&daemon, 0);
    // Together they would fill the pool several times.
    for round in 0..10 {
        let mut peer = Peer::greeted(&daemon.socket());
        for n in 0..10 {
            let namespace = format!("namespace-{round}-{n}");
            let transfer = peer.request(Request::PutBegin(PutBegin { namespace, ..begin("new", 512) }), &[]);
            let Ok(Reply::Transfer { transfer }) = transfer else { unreachable!("{transfer:?}") };
            let (request, fd) = chunk(transfer, 0, 512);
            if n % 2 == 0 {
                assert_eq!(peer.request(request, &[fd.as_fd()]), Ok(Reply::Done));
            }
        }
        drop(peer);
        eventually("the end of all but one namespace", || {
            (daemon.stats().namespaces.len() == 1).then_some(())
        });
    }
    before.returns(&mut daemon);
    assert_eq!(daemon.client().get("kept").expect("it is there").as_bytes(), [1]);
    assert!(daemon.stats().pool.segment_bytes <= 4 << 20);
}
