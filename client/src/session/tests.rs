//! Sessions against a scripted daemon.

use std::time::Duration;

use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{DaemonMessage, ErrorCode, Hello, HelloReply, PROTOCOL_VERSION, Refusal};
use tierpack_shm::segment::Segment;
use tierpack_shm::socket::send;

use super::*;
use crate::fake_daemon::{HEADER, ID, Peer, data, serve, welcome};

pub(super) const SUBJECT: Subject<'static> = Subject { operation: "ask", namespace: "ns", name: "t" };

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn connect(path: &Path, deadline: &Deadline) -> Result<Session> {
    Session::connect(path, ForkCookie::current().unwrap(), deadline)
}

pub(super) fn list() -> Request {
    Request::List { namespace: None, after: None }
}

#[test]
fn a_daemon_of_another_version_is_refused_with_both_versions() {
    let text = |reply: HelloReply| {
        let (_dir, path, daemon) = serve(move |peer| {
            let hello: Hello = peer.recv();
            assert_eq!((hello.protocol, hello.layout), (PROTOCOL_VERSION, LAYOUT_VERSION));
            peer.send(&reply, &[]);
            peer.drain();
        });
        let error = connect(&path, &soon()).unwrap_err();
        daemon.join().unwrap();
        assert!(matches!(error, Error::Version { .. }), "{error}");
        error.to_string()
    };
    assert!(text(welcome(PROTOCOL_VERSION + 1, LAYOUT_VERSION)).contains("upgrade the client"));
    let refusal = Refusal::new(ErrorCode::Version, "no");
    let refused = text(HelloReply::Refused { protocol: 0, layout: 9, refusal });
    assert!(
        refused.contains("protocol 0 and layout 9") && refused.contains("restart the daemon"),
        "{refused}"
    );
}

#[test]
fn a_refused_greeting_keeps_its_reason() {
    let (_dir, path, daemon) = serve(|peer| {
        drop(peer.recv::<Hello>());
        let refusal = Refusal::new(ErrorCode::Limit, "1024 sessions are open");
        peer.send(&HelloReply::Refused { protocol: PROTOCOL_VERSION, layout: LAYOUT_VERSION, refusal }, &[]);
        peer.drain();
    });
    let error = connect(&path, &soon()).unwrap_err();
    assert!(matches!(&error, Error::Limit { text, .. } if text.contains("1024")), "{error}");
    daemon.join().unwrap();
}

#[test]
fn a_greeting_that_is_garbage_or_missing_is_an_error_of_its_own() {
    let error = |script: fn(Peer)| {
        let (_dir, path, daemon) = serve(script);
        let error = connect(&path, &Deadline::after(Duration::from_millis(300))).unwrap_err();
        daemon.join().unwrap();
        error
    };
    let garbage = error(|peer| {
        send(&peer.0, b"HTTP/1.1 400 Bad Request", &[]).unwrap();
        peer.drain();
    });
    assert!(matches!(garbage, Error::Protocol { .. }), "{garbage}");
    let passed = error(|peer| {
        let bytes = encode(&welcome(PROTOCOL_VERSION, LAYOUT_VERSION)).unwrap();
        send(&peer.0, &bytes, &[peer.0.as_fd()]).unwrap();
        peer.drain();
    });
    assert!(matches!(passed, Error::Protocol { .. }), "{passed}");
    let gone = error(|peer| drop(peer.recv::<Hello>()));
    assert!(matches!(gone, Error::Disconnected { .. }), "{gone}");
    let silent = error(Peer::drain);
    assert!(matches!(silent, Error::Deadline { .. }), "{silent}");
}

#[test]
fn a_hang_up_in_mid_request_fails_everyone_who_waits_and_all_later_calls() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let (_, _) = (peer.request(), peer.request());
    });
    let session = Arc::new(connect(&path, &soon()).unwrap());
    assert_eq!(session.instance(), 77);
    let other = Arc::clone(&session);
    let waiter = std::thread::spawn(move || other.request(&SUBJECT, list(), &soon()));
    let results = [session.request(&SUBJECT, list(), &soon()), waiter.join().unwrap()];
    for result in results {
        assert!(matches!(result, Err(Error::Disconnected { operation: "ask" })), "{result:?}");
    }
    daemon.join().unwrap();
    assert!(!session.is_alive());
    assert!(session.request(&SUBJECT, list(), &soon()).is_err());
    assert!(session.attach(&SUBJECT, ID.namespace, &soon()).is_err());
}

#[test]
fn a_malformed_reply_ends_the_session_with_its_fault() {
    let faults: [fn(&Peer, u64); 4] = [
        |peer, _| send(&peer.0, &[0; 40], &[]).unwrap(),
        // Descriptors that the message does not name.
        |peer, id| {
            let bytes = encode(&DaemonMessage::Reply { id, result: Ok(Reply::Done) }).unwrap();
            send(&peer.0, &bytes, &[peer.0.as_fd()]).unwrap();
        },
        // A message about a namespace that is not attached.
        |peer, _| peer.send(&DaemonMessage::Retired { namespace: 9, segments: vec![data(0, 1)] }, &[]),
        // A page that nobody asked for.
        |peer, id| {
            let reply = Reply::Attached { id: ID, header_len: 1, header: HEADER };
            let bytes = encode(&DaemonMessage::Reply { id, result: Ok(reply) }).unwrap();
            send(&peer.0, &bytes, &[peer.0.as_fd(), peer.0.as_fd()]).unwrap();
        },
    ];
    for fault in faults {
        let (_dir, path, daemon) = serve(move |peer| {
            peer.welcome();
            fault(&peer, peer.request());
            peer.drain();
        });
        let session = connect(&path, &soon()).unwrap();
        let result = session.request(&SUBJECT, list(), &soon());
        assert!(matches!(result, Err(Error::Protocol { .. })), "{result:?}");
        let later = session.request(&SUBJECT, list(), &soon());
        assert!(matches!(later, Err(Error::Protocol { .. })), "{later:?}");
        drop(session);
        daemon.join().unwrap();
    }
}

#[test]
fn a_reply_that_comes_too_late_is_passed_over() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let first = peer.request();
        let second = peer.request();
        peer.reply(first, Ok(Reply::Done));
        peer.reply(999, Ok(Reply::Done));
        peer.reply(second, Err(Refusal::new(ErrorCode::NotFound, "no")));
        peer.drain();
    });
    let session = connect(&path, &soon()).unwrap();
    let late = session.request(&SUBJECT, list(), &Deadline::after(Duration::from_millis(20)));
    assert!(matches!(late, Err(Error::Deadline { seconds, .. }) if seconds == 0.02), "{late:?}");
    let second = session.request(&SUBJECT, list(), &soon());
    assert!(matches!(&second, Err(Error::NotFound { namespace, name }) if namespace == "ns" && name == "t"));
    assert!(session.inner.state.lock().waiters.is_empty());
    drop(session);
    daemon.join().unwrap();
}

#[test]
fn a_namespace_is_attached_once_and_its_segments_come_and_go() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let _directory = peer.attach();
        let segment = Segment::create(1 << 20).unwrap();
        peer.segments(data(5, 2), &segment);
        peer.segments(data(5, 2), &segment);
        peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![data(5, 2)] }, &[]);
        let ClientMessage::Unmapped { namespace, segments } = peer.recv() else { panic!("not unmapped") };
        assert_eq!((namespace, segments), (3, vec![data(5, 2)]));
        // The index may be used again now.
        peer.segments(data(5, 3), &segment);
        peer.drain();
    });
    let session = Arc::new(connect(&path, &soon()).unwrap());
    let other = Arc::clone(&session);
    let thread = std::thread::spawn(move || other.attach(&SUBJECT, ID.namespace, &soon()).unwrap());
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    assert!(Arc::ptr_eq(&attachment, &thread.join().unwrap()));
    let started = std::time::Instant::now();
    while session.inner.state.lock().end.is_none() && started.elapsed() < Duration::from_secs(30) {
        session.wait_mapped(&attachment, (SegmentKind::Data, 5), &soon()).unwrap();
        if attachment.is_mapped(SegmentKind::Data, 5) {
            break;
        }
    }
    let nothing =
        session.wait_mapped(&attachment, (SegmentKind::Data, 6), &Deadline::after(Duration::from_millis(20)));
    assert!(matches!(nothing, Err(Error::Deadline { .. })), "{nothing:?}");
    assert!(session.is_alive());
    drop(session);
    daemon.join().unwrap();
}

#[test]
fn segments_out_of_turn_end_the_session() {
    let faults: [fn(&Peer, &Segment); 4] = [
        // Another segment at an index that is in use.
        |peer, segment| {
            peer.segments(data(0, 2), segment);
            peer.segments(data(0, 3), segment);
        },
        // The segment that holds the epoch.
        |peer, _| peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![HEADER] }, &[]),
        |peer, _| peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![data(1, 1)] }, &[]),
        |peer, segment| peer.segments(data(1 << 15, 1), segment),
    ];
    for fault in faults {
        let (_dir, path, daemon) = serve(move |peer| {
            peer.welcome();
            let _directory = peer.attach();
            fault(&peer, &Segment::create(1 << 20).unwrap());
            peer.drain();
        });
        let session = connect(&path, &soon()).unwrap();
        let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
        // Returns when the session ends.
        session.wait_mapped(&attachment, (SegmentKind::Data, 77), &soon()).unwrap();
        let lost = session.lost("x");
        assert!(
            matches!(&lost, Error::Protocol { source, .. }
            if matches!(**source, ProtocolFault::Segment { .. })),
            "{lost:?}"
        );
        drop(session);
        daemon.join().unwrap();
    }
}

#[test]
fn a_refused_attach_can_be_tried_again() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let id = peer.request();
        peer.reply(id, Err(Refusal::new(ErrorCode::NotFound, "no")));
        let _directory = peer.attach();
        peer.drain();
    });
    let session = connect(&path, &soon()).unwrap();
    assert!(matches!(session.attach(&SUBJECT, ID.namespace, &soon()), Err(Error::NotFound { .. })));
    assert_eq!(session.attach(&SUBJECT, ID.namespace, &soon()).unwrap().id(), ID);
    drop(session);
    daemon.join().unwrap();
}

#[test]
fn nobody_at_the_socket_is_no_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let error = connect(&dir.path().join("control.sock"), &soon()).unwrap_err();
    assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("control.sock") && text.contains("tierpack serve"), "{text}");
    let long = connect(&dir.path().join("x".repeat(200)), &soon());
    assert!(matches!(long, Err(Error::SocketPathTooLong { limit: 107, .. })), "{long:?}");
}

/// Fills the socket towards a daemon that does not read.
fn fill(session: &Session) {
    let name = "n".repeat(4000);
    let request = || Request::Remove { namespace: "ns".to_owned(), name: name.clone() };
    let passed = std::iter::repeat_with(|| {
        session.send(&SUBJECT, request(), None, &Deadline::after(Duration::from_millis(50))).err()
    });
    let error = passed.flatten().next();
    assert!(matches!(error, Some(Error::Deadline { .. })), "{error:?}");
}

#[test]
fn acknowledgements_wait_without_keeping_replies_and_go_before_what_callers_send() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (_dir, path, daemon) = serve(move |peer| {
        peer.welcome();
        let _directory = peer.attach();
        peer.segments(data(5, 2), &Segment::create(1 << 20).unwrap());
        let (first, second) = (peer.request(), peer.request());
        // From here on the daemon does not read, and its client has filled the socket.
        receiver.recv().unwrap();
        peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![data(5, 2)] }, &[]);
        peer.reply(first, Ok(Reply::Done));
        receiver.recv().unwrap();
        peer.reply(second, Ok(Reply::Done));
        receiver.recv().unwrap();
        // The caller's list has waited for room since before the segment was retired.
        let mut seen = Vec::new();
        while !seen.contains(&"list") {
            match peer.recv() {
                ClientMessage::Unmapped { namespace: 3, segments } if segments == [data(5, 2)] => {
                    seen.push("unmapped");
                }
                ClientMessage::Request { request: Request::List { .. }, .. } => seen.push("list"),
                ClientMessage::Request { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, ["unmapped", "list"]);
        peer.drain();
    });
    let session = Arc::new(connect(&path, &soon()).unwrap());
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    session.wait_mapped(&attachment, (SegmentKind::Data, 5), &soon()).unwrap();
    let [first, second] = [(); 2].map(|()| session.send(&SUBJECT, list(), None, &soon()).unwrap());
    fill(&session);
    let other = Arc::clone(&session);
    let waiting = std::thread::spawn(move || other.send(&SUBJECT, list(), None, &soon()).map(drop));
    sender.send(()).unwrap();
    // The reply comes behind what retires the segment: both were read.
    first.wait(&SUBJECT).unwrap();
    assert!(!attachment.is_mapped(SegmentKind::Data, 5));
    sender.send(()).unwrap();
    second.wait(&SUBJECT).unwrap();
    sender.send(()).unwrap();
    waiting.join().unwrap().unwrap();
    drop(session);
    daemon.join().unwrap();
}

#[test]
fn a_session_says_goodbye_and_nothing_after_it() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        assert_eq!(peer.recv::<ClientMessage>(), ClientMessage::Goodbye);
        assert!(peer.asked_or_closed().is_none());
    });
    drop(connect(&path, &soon()).unwrap());
    daemon.join().unwrap();
}
