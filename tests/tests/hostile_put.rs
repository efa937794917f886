//! A put that contradicts itself is refused with the cause, and leaves nothing.
//!
//! Descriptors, chunks, transfers of others, shapes and names.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::ftruncate;
use tierpack_shm::chunk::ChunkWriter;
use tierpack_shm::message::{
    Blob, ClientMessage, DaemonMessage, ErrorCode, PutBegin, Refusal, Reply, Request, encode,
};
use tierpack_tests::Daemon;
use tierpack_tests::kept::{check_kept, daemon_with_kept};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::{Peer, begin, chunk};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// Rows of one block of 256 KiB.
const BLOCK_ROWS: u64 = 512;
const BLOCK_BYTES: u64 = BLOCK_ROWS * 512;

fn daemon() -> (Daemon, Baseline) {
    daemon_with_kept(PROGRAM, "64MiB")
}

/// The daemon lives, has lost nothing, shows nothing new, and serves.
fn check(daemon: &mut Daemon, before: &Baseline) {
    let entries = daemon.client().list_all().expect("a list");
    let names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["kept"]);
    check_kept(daemon, before);
}

/// The refusal's text; it must be an invalid request.
fn refused(result: Result<Reply, Refusal>) -> String {
    let refusal = result.expect_err("the request contradicts itself");
    assert_eq!(refusal.code(), Some(ErrorCode::Invalid), "{}", refusal.text);
    refusal.text
}

fn memory_file(flags: MFdFlags, len: u64) -> Option<OwnedFd> {
    let fd = memfd_create(c"hostile", flags).ok()?;
    ftruncate(&fd, i64::try_from(len).expect("a short file")).ok()?;
    Some(fd)
}

fn sealed(len: u64) -> OwnedFd {
    ChunkWriter::new(len).and_then(ChunkWriter::seal).expect("a chunk")
}

#[test]
fn a_descriptor_that_is_no_sealed_memory_file_is_refused() {
    let (mut daemon, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let transfer = peer.begin("new", BLOCK_ROWS);
    let (request, good) = chunk(transfer, 0, BLOCK_ROWS);
    let (pipe, _end) = nix::unistd::pipe().expect("a pipe");
    let file = tempfile::tempfile().expect("a file");
    file.set_len(BLOCK_BYTES).expect("a sparse file");
    let hostile: [(&str, Option<OwnedFd>); 8] = [
        ("without seals", memory_file(MFdFlags::MFD_ALLOW_SEALING, BLOCK_BYTES)),
        ("that cannot be sealed", memory_file(MFdFlags::empty(), BLOCK_BYTES)),
        ("in huge pages", memory_file(MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB, 2 << 20)),
        ("too short", Some(sealed(BLOCK_BYTES - 1))),
        ("too long", Some(sealed(BLOCK_BYTES + 1))),
        ("a file", Some(file.into())),
        ("a pipe", Some(pipe)),
        ("a folder", std::fs::File::open("/").ok().map(OwnedFd::from)),
    ];
    for (what, fd) in hostile {
        let Some(fd) = fd else {
            println!("skipped: no memory file {what} on this system");
            continue;
        };
        let text = refused(peer.request(request.clone(), &[fd.as_fd()]));
        assert!(text.contains("descriptor for a chunk: "), "{what}: {text}");
    }
    // The put goes on as if nothing had been.
    assert_eq!(peer.request(request, &[good.as_fd()]), Ok(Reply::Done));
    assert!(peer.request(Request::PutCommit { transfer }, &[]).is_ok());
    daemon.client().remove("new").expect("it is there");
    drop(peer);
    check(&mut daemon, &before);
}

#[test]
fn a_sender_cannot_change_a_chunk_that_it_has_sealed() {
    let fd = sealed(BLOCK_BYTES);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    assert!(ftruncate(&fd, 0).is_err() && ftruncate(&fd, 1 << 20).is_err());
    assert!(fallocate(&fd, punch, 0, 4096).is_err());
    assert!(nix::unistd::write(&fd, b"x").is_err());
    let again = std::fs::File::options().write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if let Ok(again) = again {
        assert!(nix::unistd::write(&again, b"x").is_err() && ftruncate(&again, 0).is_err());
    }
}

#[test]
fn a_client_cannot_change_the_pool_or_the_length_of_its_page() {
    let (mut daemon, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let (_, page, header, header_len) = peer.attach("default");
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let path = format!("/proc/self/fd/{}", header.as_raw_fd());
    let again = std::fs::File::options().read(true).write(true).open(path).expect("a way around, it seems");
    let segments: [BorrowedFd<'_>; 2] = [header.as_fd(), again.as_fd()];
    for segment in segments {
        assert!(nix::unistd::write(segment, b"x").is_err(), "a write");
        assert!(fallocate(segment, punch, 0, 4096).is_err(), "a hole");
        for len in [0, header_len * 2] {
            assert!(ftruncate(segment, i64::try_from(len).expect("short")).is_err(), "length {len}");
        }
    }
    assert!(ftruncate(&page, 0).is_err() && ftruncate(&page, 1 << 20).is_err());
    drop((page, header, again, peer));
    check(&mut daemon, &before);
}

#[test]
fn too_many_or_missing_descriptors_end_the_session() {
    let (mut daemon, before) = daemon();
    let list = Request::List { namespace: None, after: None };
    let metadata = PutBegin { file_metadata: Some(Blob::Descriptor { len: 100 }), ..begin("new", 1) };
    for (request, needed) in [(list, 0), (chunk(1, 0, 1).0, 1), (Request::PutBegin(metadata), 1)] {
        let message = ClientMessage::Request { id: 1, deadline_ms: 1000, request };
        let bytes = encode(&message).expect("a message");
        for found in [0, 1, 2, 16, 17, 253] {
            if found == needed {
                continue;
            }
            let peer = Peer::greeted(&daemon.socket());
            let raw = vec![peer.raw(); found];
            let rights = [ControlMessage::ScmRights(&raw)];
            let control = if raw.is_empty() { &[][..] } else { &rights[..] };
            let slices = [std::io::IoSlice::new(&bytes)];
            sendmsg::<()>(peer.raw(), &slices, control, MsgFlags::MSG_NOSIGNAL, None)
                .expect("the daemon listens");
            // A socket within itself is never closed by its last user, so the peer must go first.
            assert_eq!(peer.until_hang_up(), 0, "{found} descriptors instead of {needed}");
        }
    }
    check(&mut daemon, &before);
}

#[test]
fn chunks_that_do_not_fit_are_refused() {
    let (mut daemon, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let rows = 4 * BLOCK_ROWS;
    let transfer = peer.begin("new", rows);
    let mut send = |first_block, rows| {
        let (request, fd) = chunk(transfer, first_block, rows);
        peer.request(request, &[fd.as_fd()])
    };
    assert_eq!(send(1, BLOCK_ROWS), Ok(Reply::Done));
    for (first_block, rows, words) in [
        (4, BLOCK_ROWS, "passes the end"),
        (3, 2 * BLOCK_ROWS, "passes the end"),
        (u64::MAX, BLOCK_ROWS, "passes the end"),
        (u64::MAX - 1, 2 * BLOCK_ROWS, "passes the end"),
        (0, BLOCK_ROWS / 2, "ends inside block 0"),
        (1, BLOCK_ROWS, "came twice"),
        (0, 40 << 10, "over the limit"),
    ] {
        let text = refused(send(first_block, rows));
        assert!(text.contains(words), "block {first_block}, {rows} rows: {text}");
    }
    let text = refused(peer.request(Request::PutCommit { transfer }, &[]));
    assert!(text.contains("of 4 blocks came"), "{text}");
    // The commit that failed was the end of it.
    for request in
        [chunk(transfer, 0, BLOCK_ROWS).0, Request::PutCommit { transfer }, Request::PutAbort { transfer }]
    {
        let fd = sealed(BLOCK_BYTES);
        let descriptors = [fd.as_fd()];
        let is_chunk = matches!(request, Request::PutChunk { .. });
        let text = refused(peer.request(request, if is_chunk { &descriptors } else { &[] }));
        assert!(text.contains("does not exist"), "{text}");
    }
    drop(peer);
    check(&mut daemon, &before);
}

#[test]
fn a_put_belongs_to_its_session() {
    let (mut daemon, before) = daemon();
    let (mut owner, mut thief) = (Peer::greeted(&daemon.socket()), Peer::greeted(&daemon.socket()));
    let transfer = owner.begin("new", BLOCK_ROWS);
    for transfer in [transfer, transfer + 1, transfer ^ 1 << 32, 0, u64::MAX] {
        let (request, fd) = chunk(transfer, 0, BLOCK_ROWS);
        refused(thief.request(request, &[fd.as_fd()]));
        refused(thief.request(Request::PutCommit { transfer }, &[]));
        refused(thief.request(Request::PutAbort { transfer }, &[]));
    }
    drop(thief);
    let (request, fd) = chunk(transfer, 0, BLOCK_ROWS);
    assert_eq!(owner.request(request, &[fd.as_fd()]), Ok(Reply::Done));
    assert!(matches!(owner.request(Request::PutCommit { transfer }, &[]), Ok(Reply::Committed(_))));
    daemon.client().remove("new").expect("it is there");
    drop(owner);
    check(&mut daemon, &before);
}

#[test]
fn requests_on_top_of_each_other_are_each_answered_once() {
    let (mut daemon, before) = daemon();
    let client = daemon.client();
    for round in 0..if tierpack_tests::full() { 1000 } else { 100 } {
        let mut peer = Peer::greeted(&daemon.socket());
        let mut other = Peer::greeted(&daemon.socket());
        let transfer = peer.begin("new", BLOCK_ROWS);
        let (request, fd) = chunk(transfer, 0, BLOCK_ROWS);
        assert_eq!(peer.request(request.clone(), &[fd.as_fd()]), Ok(Reply::Done));
        // Several ends of one put at once, and a put of somebody else that takes its place in the table.
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(peer.ask(Request::PutCommit { transfer }, &[]).expect("the daemon reads"));
        }
        ids.push(peer.ask(request, &[fd.as_fd()]).expect("the daemon reads"));
        let others = other.begin("others", BLOCK_ROWS);
        // In any order.
        let mut replies = Vec::new();
        while replies.len() < ids.len() {
            if let (DaemonMessage::Reply { id, result }, _) = peer.receive().expect("an answer") {
                replies.push((id, result));
            }
        }
        assert!(ids.iter().all(|id| replies.iter().any(|(found, _)| found == id)), "{replies:?}");
        let done = replies.iter().filter(|(_, reply)| matches!(reply, Ok(Reply::Committed(_)))).count();
        assert_eq!(done, 1, "round {round}: {replies:?}");
        assert_eq!(client.get("new").expect("it was committed").as_bytes().len() as u64, BLOCK_BYTES);
        client.remove("new").expect("it is there");
        let (request, fd) = chunk(others, 0, BLOCK_ROWS);
        assert_eq!(
            other.request(request, &[fd.as_fd()]),
            Ok(Reply::Done),
            "round {round}: somebody else's put"
        );
        assert!(daemon.process().is_running(), "the daemon ended: {}", daemon.log());
    }
    drop(client);
    check(&mut daemon, &before);
}
