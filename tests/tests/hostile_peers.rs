//! Peers that come, go, stay silent, never read, or write nonsense into their page: the daemon lives, others are served,
//! and what they hold comes back when they are gone.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};
use tierpack_client::{Client, Dtype};
use tierpack_shm::attachment::Attachment;
use tierpack_shm::fork::ForkCookie;
use tierpack_shm::layout::{LAYOUT_VERSION, page};
use tierpack_shm::message::{ClientMessage, Hello, PROTOCOL_VERSION, Request, SegmentId, encode};
use tierpack_shm::page::ClientPage;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::sync::Ordering;
use tierpack_tests::data::{Random, Source};
use tierpack_tests::leaks::Baseline;
use tierpack_tests::peer::Peer;
use tierpack_tests::{Daemon, eventually, full, memory, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

const BYTES: u64 = 4 << 20;

/// A daemon with one tensor and one normal client, and what it has then.
fn daemon() -> (Daemon, Client, Baseline) {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    put(&client, "kept", 1);
    let before = Baseline::take(&daemon, 1);
    (daemon, client, before)
}

fn put(client: &Client, name: &str, id: u16) {
    let mut source = Source::new(id, 1);
    client.put_with(name, Dtype::U64, &[BYTES / 512, 64], &mut source, &raw()).expect("room");
}

/// The daemon lives, has lost nothing, and serves.
fn check(daemon: &mut Daemon, client: &Client, before: &Baseline) {
    let kept = client.get("kept").expect("a normal client is served");
    assert_eq!(tierpack_tests::data::mismatches(kept.as_bytes(), 1, 1, 0), 0);
    drop(kept);
    before.returns(daemon);
}

#[test]
fn peers_that_send_and_close_at_once_are_forgotten() {
    let (mut daemon, client, before) = daemon();
    let hello =
        Hello { protocol: PROTOCOL_VERSION, layout: LAYOUT_VERSION, features: 0, software: String::new() };
    let hello = encode(&hello).expect("a greeting");
    let goodbye = encode(&ClientMessage::Goodbye).expect("a message");
    let socket = daemon.socket();
    let stats_socket = tierpack_client::stats_socket::path_beside(&socket);
    for n in 0..if full() { 10_000 } else { 1000 } {
        match n % 8 {
            0 => drop(Peer::connect(&socket)),
            1 => assert!(Peer::connect(&socket).send_bytes(&hello, &[]).is_ok(), "the daemon listens"),
            2 => assert!(Peer::connect(&socket).send_bytes(&hello[..hello.len() / 2], &[]).is_ok()),
            3 => drop(UnixStream::connect(&stats_socket).expect("the daemon listens")),
            4 => {
                let mut stream = UnixStream::connect(&stats_socket).expect("the daemon listens");
                // The answer may have come already, and then nobody reads the question.
                let _ = stream.write_all(b"GET /metr").is_ok();
            }
            k => {
                let namespace = "default".to_owned();
                let request = match k {
                    5 => Request::Attach { namespace },
                    6 => Request::Open { namespace, name: "kept".to_owned() },
                    _ => Request::List { namespace: None, after: None },
                };
                let mut peer = Peer::connect(&socket);
                peer.send_bytes(&hello, &[]).expect("the daemon listens");
                peer.ask(request, &[]).expect("the daemon listens");
                // This process lives on: what it does not give up counts.
                peer.send_bytes(&goodbye, &[]).expect("the daemon listens");
            }
        }
    }
    check(&mut daemon, &client, &before);
}

#[test]
fn a_peer_that_only_closes_its_sending_side_is_gone() {
    let (mut daemon, client, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    peer.attach("default");
    peer.send_bytes(&encode(&ClientMessage::Goodbye).expect("a message"), &[]).expect("the daemon reads");
    shutdown(peer.raw(), Shutdown::Write).expect("a socket");
    peer.until_hang_up();
    check(&mut daemon, &client, &before);
}

#[test]
fn a_peer_that_never_reads_is_bounded_and_others_are_served() {
    let (mut daemon, client, before) = daemon();
    // Lists of many long names: about 48 KiB per page.
    for n in 0..100 {
        client.put(&format!("{n:03}{}", "n".repeat(2000)), Dtype::U8, &[0], &[]).expect("it takes no room");
    }
    let pid = daemon.process().pid();
    let memory_before = memory::rollup(pid, "Anonymous");
    let mut peers: Vec<_> = (0..4).map(|_| Peer::greeted(&daemon.socket())).collect();
    let list = Request::List { namespace: None, after: None };
    let request =
        encode(&ClientMessage::Request { id: 1, deadline_ms: 60_000, request: list }).expect("a request");
    let mut most = 0;
    // Until the daemon has ended or stopped reading all of them.
    for _ in 0..5000 {
        for peer in &mut peers {
            let _ = send(peer.raw(), &request, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok();
        }
        most = most.max(memory::rollup(pid, "Anonymous").saturating_sub(memory_before));
    }
    client.list().expect("others are served");
    most = most.max(memory::rollup(pid, "Anonymous").saturating_sub(memory_before));
    println!("four peers that never read cost the daemon {} KiB", most >> 10);
    assert!(most < 64 << 20, "four peers that never read cost the daemon {most} bytes");
    // They are given up after a while, although they are still there.
    eventually("the end of their sessions", || (daemon.stats().sessions.len() == 1).then_some(()));
    drop(peers);
    for entry in client.list().expect("a list").iter().filter(|entry| entry.name != "kept") {
        client.remove(&entry.name).expect("it is there");
    }
    check(&mut daemon, &client, &before);
}

#[test]
fn peers_that_never_greet_are_told_to_leave() {
    let (mut daemon, client, before) = daemon();
    let peers: Vec<_> = (0..50).map(|_| Peer::connect(&daemon.socket())).collect();
    assert!(daemon.client().list().is_ok(), "others get in");
    for peer in &peers {
        assert_eq!(peer.until_hang_up(), 0);
    }
    drop(peers);
    check(&mut daemon, &client, &before);
}

#[test]
fn a_page_full_of_nonsense_holds_memory_only_until_its_owner_is_gone() {
    let (mut daemon, client, before) = daemon();
    let mut random = Random::new(5);
    let every = 0xFF_FFFF_u64;
    type Word = Box<dyn FnMut() -> u64>;
    let patterns: [(&str, Word); 5] = [
        ("leases of every tensor from epoch 0", Box::new(move || every)),
        ("leases of every tensor from the last epoch", Box::new(|| u64::MAX)),
        ("leases of one tensor from the last epoch", Box::new(|| u64::MAX << 24)),
        ("leases of every tensor from epoch 1", Box::new(move || 1 << 24 | every)),
        ("noise", Box::new(move || random.next_u64())),
    ];
    for (what, mut word) in patterns {
        let mut peer = Peer::greeted(&daemon.socket());
        let (id, fd, _, _) = peer.attach("default");
        let map = ClientPage::adopt(fd.as_fd(), id).expect("our page");
        map.leases().iter().for_each(|lease| lease.store(word(), Ordering::Release));
        put(&client, "new", 2);
        client.remove("new").expect("it is there");
        assert_eq!(client.get("kept").expect("others read").as_bytes().len() as u64, BYTES, "{what}");
        if what.contains("epoch 0") || what.contains("epoch 1") {
            assert!(daemon.stats().pool.held_bytes >= BYTES, "{what} hold what is removed");
        }
        let stats = daemon.stats();
        let session = stats.sessions.iter().find(|session| session.leases > 1);
        assert_eq!(session.map(|session| session.leases), Some(page::N_LEASES), "{what}");
        drop((map, fd, peer));
        check(&mut daemon, &client, &before);
    }
}

#[test]
fn the_rest_of_a_page_full_of_nonsense_changes_nothing() {
    let (mut daemon, client, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let (_, fd, _, _) = peer.attach("default");
    let noise = vec![0xFF; usize::try_from(page::BYTES).expect("short")];
    nix::sys::uio::pwrite(&fd, &noise, 0).expect("the page is ours to write");
    put(&client, "new", 2);
    client.remove("new").expect("it is there");
    assert!(daemon.stats().sessions.len() >= 2, "the stats can still be read");
    drop((fd, peer));
    check(&mut daemon, &client, &before);
}

#[test]
fn acknowledgments_for_other_namespaces_change_nothing() {
    let (mut daemon, client, before) = daemon();
    let mut peer = Peer::greeted(&daemon.socket());
    let (id, page, header, header_len) = peer.attach("default");
    let segments = |kind, index, serial| vec![SegmentId { kind, index, serial }; 100];
    // For its own, more than were asked for end the session.
    for namespace in [id.namespace + 1, u32::MAX] {
        for index in [0, 1, 1 << 15, u32::MAX] {
            for kind in [SegmentKind::Data, SegmentKind::Directory] {
                for serial in 0..4 {
                    let message =
                        ClientMessage::Unmapped { namespace, segments: segments(kind, index, serial) };
                    peer.send_bytes(&encode(&message).expect("a message"), &[]).expect("the daemon reads");
                }
            }
        }
    }
    assert!(peer.request(Request::List { namespace: None, after: None }, &[]).is_ok());
    let cookie = ForkCookie::current().expect("a cookie");
    let attached = Attachment::new(id, page.as_fd(), (header, header_len), cookie, Default::default());
    assert!(attached.is_ok(), "what it has mapped stays");
    drop((attached, peer, page));
    check(&mut daemon, &client, &before);
    eventually("room for the next", || client.put("new", Dtype::U8, &[1], &[1]).ok());
}
