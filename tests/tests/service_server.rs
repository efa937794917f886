//! The daemon serves everybody whatever one peer does: reads nothing, asks for too much, unmaps nothing, never says
//! goodbye, or sends what blocks who closes it.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::libc::linger;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use tierpack_client::{Client, Dtype, Tensors};
use tierpack_shm::faults::Point;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, ErrorCode, NamespaceChange, Refusal, Reply, Request, SegmentId, encode,
};
use tierpack_shm::segment::SegmentKind;
use tierpack_tests::data::Source;
use tierpack_tests::peer::{Peer, chunk};
use tierpack_tests::{Daemon, TestClient, eventually, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

const MIB: u64 = 1 << 20;

fn daemon(pool: &str) -> (Daemon, Client) {
    let daemon = Daemon::start(PROGRAM, &["--pool-size", pool, "--lock", "off"]);
    let client = daemon.client();
    (daemon, client)
}

fn put(client: &Client, name: &str, bytes: u64) -> Result<(), tierpack_client::Error> {
    let mut source = Source::new(1, 1);
    client.put_with(name, Dtype::U64, &[bytes / 512, 64], &mut source, &raw()).map(drop)
}

fn is_busy(result: &Result<Reply, Refusal>) -> bool {
    result.as_ref().is_err_and(|refusal| refusal.code() == Some(ErrorCode::Busy))
}

/// A peer that is attached and never unmaps what is retired, while most of a pool of 64 MiB waits for that.
fn peer_that_unmaps_nothing(daemon: &Daemon, client: &Client) -> Peer {
    put(client, "large", 48 * MIB).expect("room");
    let mut peer = Peer::greeted(&daemon.socket());
    peer.attach("default");
    client.remove("large").expect("it is there");
    eventually("a segment that waits for the peer", || {
        (daemon.stats().pool.returning_bytes > 32 * MIB).then_some(())
    });
    peer
}

#[test]
fn a_peer_that_reads_nothing_is_read_on_and_refused() {
    const REQUESTS: usize = 2000;
    let (daemon, client) = daemon("64MiB");
    // A page of the list is about 48 KiB.
    for n in 0..40 {
        client.put(&format!("{n:03}{}", "n".repeat(2000)), Dtype::U8, &[0], &[]).expect("it takes no room");
    }
    let mut peer = Peer::greeted(&daemon.socket());
    for _ in 0..REQUESTS {
        peer.ask(Request::List { namespace: None, after: None }, &[]).expect("the daemon reads on");
    }
    client.list().expect("others are served");
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < REQUESTS {
        let (message, _) = peer.receive().expect("the session goes on");
        let DaemonMessage::Reply { result, .. } = message else { continue };
        if is_busy(&result) {
            refused += 1;
        } else {
            assert!(matches!(result, Ok(Reply::Listed { .. })), "{result:?}");
            answered += 1;
        }
    }
    assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused");
    assert!(peer.request(Request::List { namespace: None, after: None }, &[]).is_ok(), "the session goes on");
}

#[test]
fn look_ups_do_not_wait_behind_bulk_work_of_others() {
    const SESSIONS: usize = 9;
    const EACH: usize = 50;
    let (daemon, client) = daemon("64MiB");
    put(&client, "large", 32 * MIB).expect("room");
    let mut peers: Vec<_> = (0..SESSIONS).map(|_| Peer::greeted(&daemon.socket())).collect();
    let verify =
        Request::Verify { namespace: "default".to_owned(), name: "large".to_owned(), first_block: 0 };
    for peer in &mut peers {
        for _ in 0..EACH {
            peer.ask(verify.clone(), &[]).expect("the daemon reads");
        }
    }
    let mut looker = Peer::greeted(&daemon.socket());
    for _ in 0..5 {
        let list = looker.request(Request::List { namespace: None, after: None }, &[]);
        assert!(list.is_ok(), "a full queue of others refuses nobody: {list:?}");
        client.open("large").expect("it is there");
    }
    let done = daemon.stats().requests.done;
    let all = (SESSIONS * EACH) as u64;
    assert!(done < all, "the look-ups waited until {done} of {all} requests were done");
    for peer in &peers {
        for _ in 0..EACH {
            let (message, _) = peer.receive().expect("an answer");
            assert!(
                matches!(message, DaemonMessage::Reply { result: Ok(Reply::Verified { .. }), .. }),
                "{message:?}"
            );
        }
    }
}

#[test]
fn bulk_work_does_not_wait_behind_puts_that_wait_for_memory() {
    const CHUNKS: u64 = 20;
    let daemon = Daemon::start(PROGRAM, &["--pool-size", "64MiB", "--lock", "off", "--workers", "2"]);
    let client = daemon.client();
    put(&client, "kept", MIB).expect("room");
    let holder = peer_that_unmaps_nothing(&daemon, &client);
    let mut putter = Peer::greeted(&daemon.socket());
    let transfer = putter.begin("waits", CHUNKS * 2 * MIB / 512);
    // What finds room is answered; the others, more than there are workers, wait until the holder is gone.
    for n in 0..CHUNKS {
        let (request, fd) = chunk(transfer, n * 8, 2 * MIB / 512);
        putter.ask(request, &[fd.as_fd()]).expect("the daemon reads");
    }
    let (namespace, name) = ("default".to_owned(), "kept".to_owned());
    let verify = putter.ask(Request::Verify { namespace, name, first_block: 0 }, &[]).expect("it reads");
    let mut reply = || loop {
        if let (DaemonMessage::Reply { id, result }, _) = putter.receive().expect("a reply") {
            assert!(result.is_ok(), "{id} was refused: {result:?}");
            return id;
        }
    };
    let before = std::iter::repeat_with(&mut reply).take_while(|id| *id != verify).count() as u64;
    assert!(before + 2 < CHUNKS, "only {} chunks wait", CHUNKS - before);
    drop(holder);
    for _ in before..CHUNKS {
        reply();
    }
}

#[test]
fn shutdown_waits_for_nobody() {
    let (mut daemon, client) = daemon("64MiB");
    let _holder = peer_that_unmaps_nothing(&daemon, &client);
    let mut putters: Vec<_> = (0..8).map(|_| Peer::greeted(&daemon.socket())).collect();
    for (n, peer) in putters.iter_mut().enumerate() {
        let transfer = peer.begin(&format!("put-{n}"), 5 * MIB / 512);
        for block in 0..20 {
            let (request, fd) = chunk(transfer, block % 5 * 4, MIB / 512);
            peer.ask(request, &[fd.as_fd()]).expect("the daemon reads");
        }
    }
    eventually("workers that wait for memory", || {
        let stats = daemon.stats();
        (stats.pool.size_bytes - stats.pool.segment_bytes < 2 * MIB).then_some(())
    });
    let begun = Instant::now();
    assert!(daemon.stop().success());
    let took = begun.elapsed();
    println!("the daemon ended within {took:?}");
    assert!(took < Duration::from_secs(12), "the daemon ended after {took:?}");
    // What was queued was refused as such.
    let refusals = putters.iter().flat_map(|peer| std::iter::from_fn(|| peer.receive().ok()));
    let is_stopping = |message: &DaemonMessage| {
        matches!(message, DaemonMessage::Reply { result: Err(refusal), .. }
            if refusal.code() == Some(ErrorCode::Stopping))
    };
    assert!(refusals.filter(|(message, _)| is_stopping(message)).count() > 0);
}

#[test]
fn who_unmaps_nothing_is_named_and_ended_and_its_memory_counts_until_it_is_gone() {
    let (daemon, client) = daemon("64MiB");
    let peer = peer_that_unmaps_nothing(&daemon, &client);
    let text = put(&client, "more", 56 * MIB).expect_err("no room").to_string();
    assert!(text.contains("segments that clients have not unmapped yet (session "), "{text}");
    let stats = daemon.stats();
    let holder = stats.sessions.iter().find(|session| session.unmapping_bytes > 0);
    let holder = holder.expect("the stats name it");
    assert!(holder.unmapping_bytes > 32 * MIB, "{holder:?}");
    assert!(text.contains(&format!("session {} ", holder.session)), "{text}");
    peer.until_hang_up();
    let ended = eventually("the end of its session", || {
        let stats = daemon.stats();
        stats.sessions.iter().any(|session| session.ended).then_some(stats)
    });
    assert!(ended.pool.returning_bytes > 32 * MIB, "it may map the segments still");
    drop(peer);
    eventually("the return of the memory", || (daemon.stats().pool.returning_bytes == 0).then_some(()));
}

#[test]
fn memory_is_freed_while_everybody_is_served() {
    let daemon = Daemon::with_faults(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    let ghost = client.namespace("ghost").expect("a name");
    put(&client, "large", 16 * MIB).expect("room");
    put(&ghost, "large", 16 * MIB).expect("room");
    daemon.arm(Point::FreerTurn, "pause");
    client.remove("large").expect("it is there");
    ghost.remove_namespace(Tensors::Remove).expect("it is ours");
    drop(ghost);
    eventually("memory that waits to be freed", || {
        (daemon.stats().pool.returning_bytes > 16 * MIB).then_some(())
    });
    put(&client, "kept", MIB).expect("room");
    assert_eq!(daemon.client().list().expect("newcomers are served").len(), 1);
    daemon.arm(Point::FreerTurn, "off");
    eventually("the memory", || (daemon.stats().pool.returning_bytes == 0).then_some(()));
}

/// Times that the main thread of a process, which is the poll loop, has gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).expect("it is alive");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("Linux has it").trim().parse().expect("a number")
}

#[test]
fn a_removed_namespace_is_listed_until_nobody_maps_it_and_costs_nothing() {
    let (mut daemon, _client) = daemon("64MiB");
    let mut peer = Peer::greeted(&daemon.socket());
    let (namespace, change) = ("ghost".to_owned(), NamespaceChange::default());
    peer.request(Request::NamespaceCreate { namespace: namespace.clone(), change }, &[]).expect("room");
    let (id, ..) = peer.attach("ghost");
    peer.request(Request::NamespaceRemove { namespace, with_tensors: false }, &[]).expect("it is empty");
    let stats = daemon.stats();
    let [ghost] = &stats.removed[..] else { unreachable!("{:?}", stats.removed) };
    assert_eq!((&ghost.name[..], ghost.sessions.len()), ("ghost", 1));
    assert!(ghost.segment_bytes > 0);
    let pid = daemon.process().pid();
    std::thread::sleep(Duration::from_millis(200));
    let before = sleeps(pid);
    std::thread::sleep(Duration::from_secs(2));
    let slept = sleeps(pid) - before;
    assert!(slept < 40, "an idle daemon woke up {slept} times in 2 s");
    let detach = ClientMessage::Detach { namespace: id.namespace };
    peer.send_bytes(&encode(&detach).expect("a message"), &[]).expect("the daemon reads");
    eventually("the end of the namespace", || daemon.stats().removed.is_empty().then_some(()));
    assert!(peer.request(Request::List { namespace: None, after: None }, &[]).is_ok(), "the session goes on");
}

#[test]
fn naming_more_segments_than_were_retired_ends_the_session() {
    let (daemon, client) = daemon("64MiB");
    client.put("kept", Dtype::U8, &[1], &[1]).expect("room");
    let mut peer = Peer::greeted(&daemon.socket());
    let (id, ..) = peer.attach("default");
    let segments = vec![SegmentId { kind: SegmentKind::Data, index: 0, serial: 0 }; 20_000];
    let message = ClientMessage::Unmapped { namespace: id.namespace, segments };
    peer.send_bytes(&encode(&message).expect("a message"), &[]).expect("the daemon reads");
    peer.until_hang_up();
    client.list().expect("others are served");
    assert!(daemon.log().contains("20000 segments were named as unmapped, 0 were retired"));
}

#[test]
fn what_an_ended_session_goes_on_sending_is_hardly_read() {
    const MESSAGES: u64 = 4000;
    let (daemon, client) = daemon("64MiB");
    client.put("kept", Dtype::U8, &[1], &[1]).expect("room");
    let mut peer = Peer::greeted(&daemon.socket());
    let (id, ..) = peer.attach("default");
    let segments = vec![SegmentId { kind: SegmentKind::Data, index: 0, serial: 0 }; 5000];
    let message = ClientMessage::Unmapped { namespace: id.namespace, segments };
    let bytes = encode(&message).expect("a message");
    peer.send_bytes(&bytes, &[]).expect("the daemon reads");
    peer.until_hang_up();
    let begun = Instant::now();
    let mut sent = 0;
    while sent < MESSAGES && begun.elapsed() < Duration::from_secs(3) {
        if peer.try_send_bytes(&bytes) {
            sent += 1;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    client.list().expect("others are served");
    // What its socket holds, and a turn a second.
    let limit = 64 + 32 * (begun.elapsed().as_secs() + 1);
    assert!(sent < limit, "{sent} messages were taken, the limit is {limit}");
}

#[test]
fn without_memory_for_another_connection_the_loop_goes_on_and_tries_now_and_then() {
    // Each of which is followed by a pause of the listener.
    const FAILURES: u32 = 20;
    let daemon = Daemon::with_faults(PROGRAM, &["--pool-size", "64MiB", "--lock", "off"]);
    let client = daemon.client();
    client.put("t", Dtype::U8, &[1], &[1]).expect("room");
    daemon.arm(Point::Accept, &format!("{FAILURES}*return(ENOBUFS)->off"));
    let begun = Instant::now();
    let socket = daemon.socket();
    let newcomer = std::thread::spawn(move || Peer::greeted(&socket));
    while !newcomer.is_finished() {
        client.open("t").expect("who is connected is served");
    }
    let took = begun.elapsed();
    let _peer = newcomer.join().expect("it is taken in once there is memory");
    assert!(took > Duration::from_millis(20) * FAILURES, "{FAILURES} attempts were made within {took:?}");
}

/// A socket whose close waits, for as long as the test runs, for bytes that nobody reads.
fn lingering() -> (OwnedFd, (TcpListener, TcpStream)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    let (other, _) = listener.accept().expect("a connection");
    setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 600 }).expect("a socket");
    stream.set_nonblocking(true).expect("a socket");
    while stream.write(&[0; 1 << 16]).is_ok() {}
    (stream.into(), (listener, other))
}

#[test]
fn a_descriptor_that_blocks_who_closes_it_blocks_nobody_else() {
    let (mut daemon, client) = daemon("64MiB");
    let mut kept = Vec::new();
    // With a message that names none, with one that names one, as a greeting, and never read at all.
    for way in 0..4 {
        let peer = if way < 2 { Peer::greeted(&daemon.socket()) } else { Peer::connect(&daemon.socket()) };
        let (fd, ends) = lingering();
        let (named, _) = chunk(1, 0, 512);
        let request = if way == 1 { named } else { Request::List { namespace: None, after: None } };
        let bytes = encode(&ClientMessage::Request { id: 1, deadline_ms: 1000, request }).expect("a message");
        for _ in 0..if way == 3 { 3 } else { 1 } {
            // A session that the first message has ended may be closed.
            let _ = peer.send_bytes(&bytes, &[fd.as_fd()]).is_ok();
        }
        drop((fd, peer));
        kept.push(ends);
        client.list().expect("others are served");
    }
    daemon.process().signal(Signal::SIGTERM);
    assert!(daemon.process().wait().success());
}

#[test]
fn without_a_goodbye_a_lease_counts_until_the_process_ends() {
    let (daemon, client) = daemon("64MiB");
    put(&client, "large", 16 * MIB).expect("room");
    let mut other = TestClient::start(CLIENT, &daemon, &["abandon"]);
    assert_eq!(other.line().as_deref(), Some("hung up"));
    let stats = eventually("the hang-up", || {
        let stats = daemon.stats();
        stats.sessions.iter().any(|session| session.hung_up).then_some(stats)
    });
    assert_eq!(stats.sessions.len(), 2);
    client.remove("large").expect("it is there");
    put(&client, "small", MIB).expect("room");
    // Longer than any tick of the daemon.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(daemon.stats().pool.held_bytes >= 16 * MIB, "its process may still read");
    other.process().kill();
    let stats = daemon.quiet();
    assert_eq!((stats.sessions.len(), stats.pool.held_bytes), (1, 0));
}
