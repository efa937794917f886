//! Shapes, names and metadata that nobody means well with: refused with the cause, or kept exactly as they are.

use std::os::fd::AsFd;

use tierpack_client::{Dtype, Error};
use tierpack_shm::chunk::ChunkWriter;
use tierpack_shm::message::{
    Blob, ErrorCode, MAX_FILE_METADATA_BYTES, MAX_NAME_BYTES, PutBegin, Reply, Request,
};
use tierpack_shm::types::Access;
use tierpack_tests::Daemon;
use tierpack_tests::kept::{check_kept as check, daemon_with_kept};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::{Peer, begin};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn daemon() -> (Daemon, Baseline) {
    daemon_with_kept(PROGRAM, "32MiB")
}

#[test]
fn hostile_shapes_are_refused() {
    let (mut daemon, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let max = u64::MAX;
    let shapes: [(Dtype, &[u64], Option<u64>); 14] = [
        (Dtype::U8, &[max], None),
        (Dtype::U8, &[max, max], None),
        (Dtype::F4, &[max, 2], None),
        (Dtype::F4, &[max - 1], None),
        (Dtype::F4, &[3], None),
        (Dtype::F64, &[1 << 61], None),
        (Dtype::F64, &[1 << 58], None),
        (Dtype::U8, &[1; 65], None),
        (Dtype::U8, &[2; 64], None),
        // 2^40 blocks of 256 KiB, then of one byte.
        (Dtype::U8, &[1 << 40, 256 << 10], None),
        (Dtype::U8, &[1 << 40], Some(1)),
        (Dtype::U8, &[16], Some(0)),
        (Dtype::U8, &[16], Some(max)),
        (Dtype::U8, &[16, 2], Some(3)),
    ];
    for (dtype, shape, row_elems) in shapes {
        for access in [Access::Rows, Access::Whole] {
            let hostile = PutBegin { dtype, shape: shape.to_vec(), row_elems, access, ..begin("new", 0) };
            let refusal = peer.request(Request::PutBegin(hostile), &[]).expect_err("a hostile shape");
            let code = refusal.code();
            assert!(
                matches!(code, Some(ErrorCode::Invalid | ErrorCode::PoolFull)),
                "{dtype} {shape:?}: {}",
                refusal.text
            );
        }
    }
    drop(peer);
    check(&mut daemon, &before);
}

#[test]
fn huge_shapes_without_elements_are_kept() {
    let (mut daemon, before) = daemon();
    let client = daemon.client();
    let max = u64::MAX;
    let shapes: [&[u64]; 4] = [&[max, 0], &[max, max, 0], &[0, 1 << 40], &[0, 0]];
    for (n, shape) in shapes.into_iter().enumerate() {
        let name = format!("empty-{n}");
        client.put(&name, Dtype::F32, shape, &[]).expect("it takes no room");
        let tensor = client.get(&name).expect("it is there");
        assert_eq!((tensor.shape(), tensor.as_bytes()), (shape, &[][..]));
        client.remove(&name).expect("it is there");
    }
    drop(client);
    check(&mut daemon, &before);
}

#[test]
fn names_are_bounded_and_otherwise_free() {
    let (mut daemon, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let client = daemon.client();
    let longest = "n".repeat(MAX_NAME_BYTES);
    let names =
        [longest.as_str(), "", "a\nb", "a\0b", "\u{1b}[2J", "../../etc/passwd", "\u{1F980}", "\u{202e}x"];
    for name in names {
        client.put(name, Dtype::U8, &[1], &[9]).expect("a name is any text");
        assert_eq!(client.get(name).expect("it is there").as_bytes(), [9]);
        assert!(client.list().expect("a list").iter().any(|entry| entry.name == name));
        client.remove(name).expect("it is there");
    }
    let too_long = "n".repeat(MAX_NAME_BYTES + 1);
    let refusal = peer.request(Request::PutBegin(begin(&too_long, 1)), &[]).expect_err("too long");
    assert!(refusal.text.contains("4097 bytes, the limit is 4096"), "{}", refusal.text);
    let open = Request::Open { namespace: "default".to_owned(), name: too_long.clone() };
    let refusal = peer.request(open, &[]).expect_err("there is none");
    assert_eq!(refusal.code(), Some(ErrorCode::NotFound));
    assert!(matches!(client.open(&too_long), Err(Error::NameTooLong { .. })));
    for namespace in ["", "n\n", &"n".repeat(256), "\u{7f}"] {
        let hostile = PutBegin { namespace: namespace.to_owned(), ..begin("new", 1) };
        let refusal = peer.request(Request::PutBegin(hostile), &[]).expect_err("a hostile namespace");
        assert_eq!(refusal.code(), Some(ErrorCode::Invalid), "{}", refusal.text);
        assert!(!refusal.text.contains('\n'), "one line: {}", refusal.text);
    }
    drop((peer, client));
    check(&mut daemon, &before);
}

#[test]
fn metadata_that_is_no_metadata_harms_nobody() {
    let (mut daemon, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let client = daemon.client();
    for (n, bytes) in
        [&b""[..], b"\xFF\xFE", b"[1, 2]", b"{\"a\": 1}", &[b'['; 10_000]].into_iter().enumerate()
    {
        let name = format!("text-{n}");
        let blob = Some(Blob::Inline(bytes.to_vec()));
        let hostile = PutBegin { file_metadata: blob, shape: vec![0], ..begin(&name, 0) };
        match peer.request(Request::PutBegin(hostile), &[]) {
            Ok(Reply::Transfer { transfer }) => {
                assert!(peer.request(Request::PutCommit { transfer }, &[]).is_ok());
                assert!(client.file_metadata(&name).is_err(), "{name} has no metadata that means anything");
                client.remove(&name).expect("it is there");
            }
            Ok(other) => unreachable!("{other:?}"),
            Err(refusal) => assert_eq!(refusal.code(), Some(ErrorCode::Invalid), "{}", refusal.text),
        }
    }
    let len = MAX_FILE_METADATA_BYTES + 1;
    let fd = ChunkWriter::new(len).and_then(ChunkWriter::seal).expect("a chunk");
    let hostile = PutBegin { file_metadata: Some(Blob::Descriptor { len }), ..begin("new", 1) };
    let refusal = peer.request(Request::PutBegin(hostile), &[fd.as_fd()]).expect_err("too long");
    assert!(refusal.text.contains("over the limit"), "{}", refusal.text);
    drop((peer, client));
    check(&mut daemon, &before);
}
