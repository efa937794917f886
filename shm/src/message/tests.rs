use proptest::prelude::*;

use super::*;
use crate::attachment::SlotRef;
use crate::page::NamespaceId;
use crate::types::{CodecChoice, Prefer, SlotIdx};

fn entry() -> Entry {
    Entry {
        namespace: "default".into(),
        name: "layer\n\0\u{1F980}".into(),
        dtype: Dtype::Bf16,
        shape: vec![3, 0, u64::MAX],
        codec: CodecId::Raw,
        access: Access::Whole,
        raw_bytes: 1,
        stored_bytes: 64,
        revision: 2,
        generation: 1,
        predicted_bytes: 60,
        runner_up: Some((CodecId::Raw, 70)),
        escapes: 3,
        participating: 4,
    }
}

fn requests() -> Vec<Request> {
    let codecs =
        [CodecChoice::Only(CodecId::Raw), CodecChoice::Auto(Prefer::Ratio), CodecChoice::Auto(Prefer::Speed)];
    let (namespace, name) = ("ns".to_owned(), "tensor".to_owned());
    let begin = |codec| PutBegin {
        namespace: namespace.clone(),
        name: name.clone(),
        dtype: Dtype::F6E2m3,
        shape: vec![1, 2],
        access: Access::Rows,
        row_elems: Some(7),
        codec,
        overwrite: true,
        file_metadata: Some(Blob::Inline(b"{}".to_vec())),
        transaction: None,
    };
    let begins = codecs.map(|codec| Request::PutBegin(begin(codec)));
    let others = [
        Request::Attach { namespace: namespace.clone() },
        Request::Open { namespace: namespace.clone(), name: name.clone() },
        Request::FileMetadata { namespace: namespace.clone(), name: name.clone() },
        Request::PutChunk { transfer: 1, first_block: 2, data: Blob::Descriptor { len: 3 } },
        Request::PutSample { transfer: 1, data: Blob::Descriptor { len: 3 } },
        Request::PutCommit { transfer: 1 },
        Request::PutAbort { transfer: 1 },
        Request::Remove { namespace: namespace.clone(), name: name.clone() },
        Request::Verify { namespace: "n".into(), name: "t".into(), first_block: 3 },
        Request::List { namespace: None, after: Some(("a".into(), "b".into())) },
        Request::NamespaceCreate { namespace: "n".into(), change: NamespaceChange::default() },
        Request::NamespaceChange {
            namespace: "n".into(),
            change: NamespaceChange {
                uid: Some(1),
                gid: Some(2),
                mode: Some(0o640),
                quota_bytes: Some(Some(5)),
            },
        },
        Request::NamespaceRemove { namespace: "n".into(), with_tensors: true },
        Request::NamespaceList { after: Some("m".into()) },
        Request::Update(Update {
            namespace: "n".into(),
            name: "t".into(),
            slot: SlotRef { address: 1, idx: SlotIdx::new(2).unwrap(), publication: 3 },
            n_pieces: 4,
            data: Blob::Descriptor { len: 5 },
        }),
        Request::Fold { namespace: "n".into(), name: "t".into() },
        Request::TransactionBegin { namespace: "n".into(), overwrite: true },
        Request::TransactionClaim { transaction: 1, names: vec!["a".into(), "b".into()] },
        Request::TransactionCommit { transaction: 1 },
        Request::TransactionAbort { transaction: 1 },
        Request::OpenMany { namespace: "n".into(), which: Which::Named(vec!["a".into()]) },
        Request::OpenMany { namespace: "n".into(), which: Which::After(Some("a".into())) },
        Request::Hold { namespace: "n".into() },
        Request::Release { namespace: "n".into() },
        Request::Refit { namespace: "n".into(), name: "t".into(), mode: RefitMode::Force },
    ];
    begins.into_iter().chain(others).collect()
}

fn client_messages() -> Vec<ClientMessage> {
    let segment = SegmentId { kind: SegmentKind::Data, index: 4, serial: 5 };
    let requests =
        requests().into_iter().map(|request| ClientMessage::Request { id: 9, deadline_ms: 8, request });
    let unmapped = ClientMessage::Unmapped { namespace: 3, segments: vec![segment] };
    requests.chain([unmapped, ClientMessage::Detach { namespace: 3 }, ClientMessage::Goodbye]).collect()
}

fn daemon_messages() -> Vec<DaemonMessage> {
    let segment = SegmentId { kind: SegmentKind::Directory, index: 4, serial: 5 };
    let slot = SlotRef { address: 1, idx: SlotIdx::new(2).unwrap(), publication: 3 };
    let id = NamespaceId { instance: 1, namespace: 2 };
    let replies = [
        Reply::Done,
        Reply::Attached { id, header_len: 1 << 20, header: segment },
        Reply::Opened { namespace: 2, entry: entry(), row_elems: None, slot },
        Reply::FileMetadata(Some(Blob::Descriptor { len: 9 })),
        Reply::Transfer { transfer: 77 },
        Reply::Committed(entry()),
        Reply::Listed { entries: vec![entry(), entry()], more: true },
        Reply::Verified {
            n_blocks: 3,
            next_block: 2,
            raw_bytes: 9,
            damage: Some(Damage { block_idx: 1, fault: "x".into() }),
        },
        Reply::Namespaces {
            entries: vec![NamespaceEntry {
                name: "n".into(),
                uid: 1,
                gid: 2,
                mode: 0o600,
                quota_bytes: None,
                tensors: 3,
                stored_bytes: 4,
            }],
            more: false,
        },
        Reply::Updated { revision: 6 },
        Reply::Transaction { transaction: 7 },
        Reply::OpenedMany {
            namespace: 2,
            names: 8,
            tensors: vec![OpenTensor { entry: entry(), row_elems: Some(3), slot, file_metadata: Some(4) }],
            more: true,
        },
        Reply::Held { limit_ms: 100 },
        Reply::Drift(Drift {
            state: RefitState::Running,
            last_failure: Some("x".into()),
            ..Drift::default()
        }),
    ];
    let refused = Err(Refusal::new(ErrorCode::PoolFull, "no room"));
    let results = replies.into_iter().map(Ok).chain([refused]);
    let mut all: Vec<_> = results.map(|result| DaemonMessage::Reply { id: 6, result }).collect();
    all.push(DaemonMessage::Segments { namespace: 1, segments: vec![(segment, 64)] });
    all.push(DaemonMessage::Retired { namespace: 1, segments: vec![segment] });
    all.push(DaemonMessage::Detached { namespace: 1 });
    all
}

fn hello() -> Hello {
    Hello { protocol: PROTOCOL_VERSION, layout: 1, features: 0, software: "test 1".into() }
}

#[test]
fn every_message_round_trips() {
    for message in client_messages() {
        assert_eq!(decode::<ClientMessage>(&encode(&message).unwrap()).unwrap(), message);
    }
    for message in daemon_messages() {
        assert_eq!(decode::<DaemonMessage>(&encode(&message).unwrap()).unwrap(), message);
    }
    assert_eq!(decode_hello::<Hello>(&encode(&hello()).unwrap()).unwrap(), hello());
    let refusal = Refusal::new(ErrorCode::Version, "old");
    let refused = HelloReply::Refused { protocol: 1, layout: 1, refusal };
    assert_eq!(decode_hello::<HelloReply>(&encode(&refused).unwrap()).unwrap(), refused);
}

#[test]
fn every_truncation_and_every_changed_byte_is_an_error() {
    let check = |bytes: &[u8]| {
        assert!(decode::<ClientMessage>(bytes).is_err());
        assert!(decode::<DaemonMessage>(bytes).is_err());
        assert!(decode_hello::<Hello>(bytes).is_err());
        assert!(decode_hello::<HelloReply>(bytes).is_err());
    };
    let clients = client_messages().into_iter().map(|message| encode(&message).unwrap());
    let daemons = daemon_messages().into_iter().map(|message| encode(&message).unwrap());
    for good in clients.chain(daemons).chain([encode(&hello()).unwrap()]) {
        (0..good.len()).for_each(|len| check(&good[..len]));
        for at in 0..good.len() {
            for change in 1..=255 {
                let mut bad = good.clone();
                bad[at] ^= change;
                check(&bad);
            }
        }
    }
}

#[test]
fn left_over_bytes_are_an_error_except_after_hello() {
    let mut bytes = encode(&hello()).unwrap();
    bytes.push(1);
    let checksum = crc32c::crc32c(&bytes[4..]).to_le_bytes();
    bytes[..4].copy_from_slice(&checksum);
    assert_eq!(decode_hello::<Hello>(&bytes).unwrap(), hello());
    let left = decode::<Hello>(&bytes);
    assert!(matches!(left, Err(Error::Malformed { fault: MessageFault::LeftOver(1), .. })), "{left:?}");
}

#[test]
fn a_long_message_is_refused_on_both_sides() {
    let long = ClientMessage::Request {
        id: 1,
        deadline_ms: 1,
        request: Request::Attach { namespace: "x".repeat(MAX_MESSAGE_BYTES) },
    };
    assert!(matches!(encode(&long), Err(Error::MessageTooLong { .. })));
    assert!(matches!(
        decode::<ClientMessage>(&vec![0; MAX_MESSAGE_BYTES + 1]),
        Err(Error::MessageTooLong { .. })
    ));
}

#[test]
fn messages_name_their_descriptors() {
    assert_eq!(client_messages().iter().map(ClientMessage::descriptors).sum::<usize>(), 3);
    assert_eq!(daemon_messages().iter().map(DaemonMessage::descriptors).sum::<usize>(), 4);
    assert!(check_descriptors(1, 1).is_ok() && check_descriptors(1, 2).is_err());
}

#[test]
fn error_codes_keep_their_numbers() {
    for &code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_number(code as u16), Some(code));
    }
    assert_eq!(Refusal { code: 999, text: String::new() }.code(), None);
}

proptest! {
    #[test]
    fn any_bytes_with_a_right_checksum_decode_or_fail(rest in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = crc32c::crc32c(&rest).to_le_bytes().to_vec();
        bytes.extend(rest);
        let _ = decode::<ClientMessage>(&bytes).is_ok();
        let _ = decode::<DaemonMessage>(&bytes).is_ok();
        let _ = decode_hello::<HelloReply>(&bytes).is_ok();
    }
}
