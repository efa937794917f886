//! A peer that does not keep to the protocol ends its own session and nothing else.
//!
//! Greetings, versions, cut and damaged messages; what a put can be made to do is in `hostile_put.rs`, and what
//! connections and pages can in `hostile_peers.rs`.

use std::os::fd::AsFd;

use nix::sys::socket::{MsgFlags, send};
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    Blob, ClientMessage, ErrorCode, Hello, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Request,
    SegmentId, encode,
};
use tierpack_shm::segment::SegmentKind;
use tierpack_tests::Daemon;
use tierpack_tests::data::Random;
use tierpack_tests::kept::{check_kept as check, daemon_with_kept};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::{Peer, begin};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

fn daemon() -> (Daemon, Baseline) {
    daemon_with_kept(PROGRAM, "32MiB")
}

fn hello() -> Hello {
    Hello { protocol: PROTOCOL_VERSION, layout: LAYOUT_VERSION, features: 0, software: "hostile".to_owned() }
}

/// The bytes with a checksum that is right.
fn with_checksum(body: &[u8]) -> Vec<u8> {
    [&crc32c(body).to_le_bytes(), body].concat()
}

/// CRC32C bit by bit: what the messages use, from its definition (reflected polynomial 0x82F63B78).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[test]
fn a_first_message_that_is_no_greeting_ends_the_session() {
    let (mut daemon, before) = daemon();
    let mut random = Random::new(1);
    let mut noise =
        |len: usize| -> Vec<u8> { (0..len).map(|_| random.next_u64().to_le_bytes()[0]).collect() };
    let request =
        ClientMessage::Request { id: 1, deadline_ms: 1, request: Request::PutAbort { transfer: 1 } };
    let mut first: Vec<Vec<u8>> = [1, 3, 4, 5, 100, 4096, MAX_MESSAGE_BYTES].map(&mut noise).to_vec();
    first.extend([1, 2, 100, 60_000].map(|len| with_checksum(&noise(len))));
    // A text of software that claims 2^63 bytes.
    first.push(with_checksum(&[1, 1, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]));
    first.push(with_checksum(&[0xFF; 11]));
    let greeting = encode(&hello()).expect("a greeting");
    first.extend((1..greeting.len()).map(|len| greeting[..len].to_vec()));
    for bytes in first {
        let peer = Peer::connect(&daemon.socket());
        peer.send_bytes(&bytes, &[]).expect("the daemon listens");
        // Noise can be a greeting of another version, which is answered first.
        assert!(peer.until_hang_up() <= 1, "{} bytes", bytes.len());
    }
    let peer = Peer::connect(&daemon.socket());
    peer.send_bytes(&encode(&request).expect("a request"), &[]).expect("the daemon listens");
    peer.until_hang_up();
    let peer = Peer::connect(&daemon.socket());
    peer.send_bytes(&greeting, &[peer.as_fd()]).expect("the daemon listens");
    assert_eq!(peer.until_hang_up(), 0, "a greeting with a descriptor");
    let peer = Peer::connect(&daemon.socket());
    send(peer.raw(), &vec![0; MAX_MESSAGE_BYTES + 1], MsgFlags::empty()).expect("the daemon listens");
    assert_eq!(peer.until_hang_up(), 0, "a greeting that is too long");
    check(&mut daemon, &before);
}

#[test]
fn a_second_greeting_ends_the_session() {
    let (mut daemon, before) = daemon();
    let peer = Peer::greeted(&daemon.socket());
    peer.send_bytes(&encode(&hello()).expect("a greeting"), &[]).expect("the daemon listens");
    peer.until_hang_up();
    check(&mut daemon, &before);
}

#[test]
fn every_other_version_is_refused_with_both_versions() {
    let (mut daemon, before) = daemon();
    for protocol in [0, PROTOCOL_VERSION, PROTOCOL_VERSION + 1, u16::MAX] {
        for layout in [0, LAYOUT_VERSION, LAYOUT_VERSION + 1, u16::MAX] {
            if (protocol, layout) == (PROTOCOL_VERSION, LAYOUT_VERSION) {
                continue;
            }
            let peer = Peer::connect(&daemon.socket());
            let HelloReply::Refused { protocol: daemon_protocol, layout: daemon_layout, refusal } =
                peer.greet(protocol, layout)
            else {
                unreachable!("protocol {protocol}, layout {layout} was let in")
            };
            assert_eq!((daemon_protocol, daemon_layout), (PROTOCOL_VERSION, LAYOUT_VERSION));
            assert_eq!(refusal.code(), Some(ErrorCode::Version));
            for words in [
                format!("speaks protocol {PROTOCOL_VERSION} and layout {LAYOUT_VERSION}"),
                format!("protocol {protocol} and layout {layout}"),
                "restart the daemon".to_owned(),
            ] {
                assert!(refusal.text.contains(&words), "{}", refusal.text);
            }
            assert_eq!(peer.until_hang_up(), 0);
        }
    }
    check(&mut daemon, &before);
}

#[test]
fn a_greeting_that_a_later_release_made_longer_is_understood() {
    let (mut daemon, before) = daemon();
    let bytes = encode(&hello()).expect("a greeting");
    let longer = with_checksum(&[&bytes[4..], &[1, 2, 3]].concat());
    let peer = Peer::connect(&daemon.socket());
    peer.send_bytes(&longer, &[]).expect("the daemon listens");
    let mut buf = [0; 1024];
    assert!(tierpack_shm::socket::recv(&peer, &mut buf).is_ok());
    drop(peer);
    check(&mut daemon, &before);
}

/// One of each kind; those that name a tensor name this one.
fn messages(tensor: &str) -> Vec<ClientMessage> {
    let name = || ("default".to_owned(), tensor.to_owned());
    let requests = [
        Request::Attach { namespace: name().0 },
        Request::Open { namespace: name().0, name: name().1 },
        Request::FileMetadata { namespace: name().0, name: name().1 },
        Request::PutBegin(begin("new", 1000)),
        Request::PutChunk { transfer: 1 << 32, first_block: 0, data: Blob::Inline(vec![0; 100]) },
        Request::PutSample { transfer: 1 << 32, data: Blob::Inline(vec![0; 100]) },
        Request::PutCommit { transfer: 1 << 32 },
        Request::PutAbort { transfer: 1 << 32 },
        Request::Remove { namespace: name().0, name: "no-such-tensor".to_owned() },
        Request::List { namespace: Some(name().0), after: Some(name()) },
    ];
    let as_message = |request| ClientMessage::Request { id: 1, deadline_ms: 60_000, request };
    let segments = vec![SegmentId { kind: SegmentKind::Data, index: 0, serial: 1 }; 3];
    let unmapped = ClientMessage::Unmapped { namespace: 0, segments };
    requests.into_iter().map(as_message).chain([unmapped]).collect()
}

#[test]
fn a_message_that_is_cut_or_damaged_ends_the_session() {
    let (mut daemon, before) = daemon();
    for message in messages("kept") {
        let bytes = encode(&message).expect("a message");
        for len in 1..bytes.len() {
            let peer = Peer::greeted(&daemon.socket());
            // Cut on the way, and cut by a sender who says that this is all.
            let cut = if len % 2 == 0 {
                bytes[..len].to_vec()
            } else {
                with_checksum(&bytes[4..][..len.min(bytes.len() - 4) - 1])
            };
            peer.send_bytes(&cut, &[]).expect("the daemon listens");
            assert_eq!(peer.until_hang_up(), 0, "{len} bytes of {message:?}");
        }
        for at in 0..bytes.len() {
            let peer = Peer::greeted(&daemon.socket());
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            peer.send_bytes(&damaged, &[]).expect("the daemon listens");
            assert_eq!(peer.until_hang_up(), 0, "byte {at} of {message:?}");
        }
    }
    check(&mut daemon, &before);
}

#[test]
fn noise_with_a_right_checksum_is_survived() {
    let (mut daemon, before) = daemon();
    let mut random = Random::new(2);
    for _ in 0..if tierpack_tests::full() { 20_000 } else { 1000 } {
        // Not the one that is kept: a damaged question can be an order to remove.
        let all = messages("other");
        let message = &all[usize::try_from(random.below(all.len() as u64)).expect("a small number")];
        let mut body = encode(message).expect("a message").split_off(4);
        for _ in 0..=random.below(3) {
            let at = usize::try_from(random.below(body.len() as u64)).expect("a small number");
            body[at] = random.next_u64().to_le_bytes()[0];
        }
        let mut peer = Peer::greeted(&daemon.socket());
        // It may mean something: whatever it asks for is over when the peer is gone.
        peer.send_bytes(&with_checksum(&body), &[]).expect("the daemon listens");
        // Not everything is answered, but this is, unless the session has ended.
        let _ = peer.ask(Request::List { namespace: None, after: None }, &[]).is_ok();
        let _ = peer.receive().is_ok();
    }
    check(&mut daemon, &before);
}
