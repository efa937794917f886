//! Namespaces that are left, segments for which there is no room, and sockets that the program closes.

use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;

use tierpack_shm::attachment::{NoGuard, SlotRef};
use tierpack_shm::directory::Directory;
use tierpack_shm::layout::SEGMENT_SPAN_BYTES;
use tierpack_shm::message::{DaemonMessage, ErrorCode, Refusal};
use tierpack_shm::page::NamespaceId;
use tierpack_shm::segment::Segment;
use tierpack_shm::types::{CodecId, Dtype};

use super::tests::{SUBJECT, list, soon};
use super::*;
use crate::fake_daemon::{ID, Peer, data, serve};
use crate::fake_tensor::{FakeTensor, entry};
use crate::namespaces::Tensors;

fn detach(namespace: u32) -> ClientMessage {
    ClientMessage::Detach { namespace }
}

/// Replies to the next request, behind what was sent before.
fn answer_list(peer: &Peer) {
    let (id, request) = peer.asked();
    assert!(matches!(request, Request::List { .. }), "{request:?}");
    peer.reply(id, Ok(Reply::Listed { entries: Vec::new(), more: false }));
}

#[test]
fn a_right_that_is_taken_away_ends_new_reads_and_detaches_after_the_last_view() {
    let (sender, receiver) = mpsc::channel();
    let mut tensor = FakeTensor::open(Dtype::U8, &[4], CodecId::Raw, move |peer, words, answer| {
        receiver.recv().unwrap();
        peer.send(&DaemonMessage::Detached { namespace: 3 }, &[]);
        answer_list(&peer);
        let (id, request) = peer.asked();
        assert!(matches!(request, Request::Open { .. }), "{request:?}");
        peer.reply(id, Err(Refusal::new(ErrorCode::Denied, "not yours")));
        // The view is read and dropped between the two.
        answer_list(&peer);
        assert_eq!(peer.recv::<ClientMessage>(), detach(3));
        // What was on its way when the client detached.
        let late = Segment::create(1 << 20).unwrap();
        peer.segments(data(7, 9), &late);
        peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![data(0, 2)] }, &[]);
        peer.send(&DaemonMessage::Detached { namespace: 3 }, &[]);
        let id = peer.request();
        peer.reply(id, Ok(answer.opened()));
        peer.attach_to(words.directory());
        answer_list(&peer);
        // From here on it is a message out of turn again.
        peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![data(0, 2)] }, &[]);
        peer.drain();
    });
    tensor.put(&[1, 2, 3, 4], None);
    let client = tensor.client.clone();
    let view = tensor.handle.view().unwrap();
    sender.send(()).unwrap();
    client.list().unwrap();
    let denied = tensor.handle.get();
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    assert_eq!(view.block(0).unwrap(), [1, 2, 3, 4]);
    client.list().unwrap();
    drop(view);
    let session = client.shared.session(&soon()).unwrap();
    while session.inner.state.lock().is_leaving(3) {
        std::thread::yield_now();
    }
    client.open("t").unwrap();
    client.list().unwrap();
    while session.inner.state.lock().end.is_none() {
        std::thread::yield_now();
    }
    let lost = session.lost("x");
    assert!(matches!(lost, Error::Protocol { .. }), "{lost:?}");
    drop((client, session));
    tensor.close();
}

#[test]
fn a_name_that_means_another_namespace_and_one_that_is_removed_are_left() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        for (number, before) in [(3, vec![]), (4, vec![detach(3)])] {
            let id = NamespaceId { namespace: number, ..ID };
            let mut directory = Directory::new(Segment::create(1 << 20).unwrap(), id);
            let slot = directory.take_slot().unwrap();
            let slot = SlotRef { address: slot.address(), idx: slot.idx(), publication: 1 };
            let (request, _) = peer.asked();
            let entry = entry(Dtype::U8, &[4], CodecId::Raw, 4);
            peer.reply(request, Ok(Reply::Opened { namespace: number, entry, row_elems: None, slot }));
            let mut messages: Vec<ClientMessage> = (0..=before.len()).map(|_| peer.recv()).collect();
            messages.retain(|message| !before.contains(message));
            let [ClientMessage::Request { id: request, request: Request::Attach { .. }, .. }] = messages[..]
            else {
                panic!("{messages:?}")
            };
            peer.attached(request, &directory, id);
        }
        let (id, request) = peer.asked();
        assert!(matches!(request, Request::NamespaceRemove { .. }), "{request:?}");
        peer.reply(id, Ok(Reply::Done));
        assert_eq!(peer.recv::<ClientMessage>(), detach(4));
        assert_eq!(peer.recv::<ClientMessage>(), ClientMessage::Goodbye);
    });
    let client = crate::Client::builder().socket(&path).connect().unwrap();
    let (_first, _second) = (client.open("t").unwrap(), client.open("t").unwrap());
    client.remove_namespace(Tensors::Remove).unwrap();
    let session = client.shared.session(&soon()).unwrap();
    while session.inner.state.lock().is_leaving(4) {
        std::thread::yield_now();
    }
    drop((client, session, _first, _second));
    daemon.join().unwrap();
}

#[test]
fn a_namespace_without_a_handle_is_left_after_a_while_and_one_with_a_handle_is_not() {
    let idle_limit = Duration::from_millis(20);
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let _directory = peer.attach();
        answer_list(&peer);
        assert_eq!(peer.recv::<ClientMessage>(), detach(3));
        let _directory = peer.attach();
        peer.drain();
    });
    let session = Session::connect_with(&path, ForkCookie::current().unwrap(), &soon(), idle_limit).unwrap();
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    std::thread::sleep(idle_limit * 10);
    session.request(&SUBJECT, list(), &soon()).unwrap();
    assert!(!attachment.is_closed());
    drop(attachment);
    while !session.inner.state.lock().attachments.is_empty() {
        std::thread::yield_now();
    }
    session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    drop(session);
    daemon.join().unwrap();
}

#[test]
fn a_segment_that_cannot_be_mapped_fails_who_needs_it_and_nobody_else() {
    let mut tensor = FakeTensor::open(Dtype::U8, &[4], CodecId::Raw, |peer, _, _| {
        // Longer than any mapping of a segment may be.
        let segment = Segment::create(1 << 20).unwrap();
        let segments = vec![(data(1, 5), 2 * SEGMENT_SPAN_BYTES)];
        peer.send(&DaemonMessage::Segments { namespace: 3, segments }, &[segment.as_fd()]);
        answer_list(&peer);
        let id = peer.request();
        peer.send(&DaemonMessage::Retired { namespace: 3, segments: vec![data(1, 5)] }, &[]);
        peer.reply(id, Ok(Reply::Listed { entries: Vec::new(), more: false }));
        let ClientMessage::Unmapped { segments, .. } = peer.recv() else { panic!("not unmapped") };
        assert_eq!(segments, [data(1, 5)]);
        peer.segments(data(1, 6), &segment);
        peer.drain();
    });
    tensor.put(&[1, 2, 3, 4], None);
    tensor.client.list().unwrap();
    let session = tensor.client.shared.session(&soon()).unwrap();
    let attachment = session.attach(&SUBJECT_DEFAULT, ID.namespace, &soon()).unwrap();
    assert_eq!(tensor.handle.get().unwrap().as_bytes(), [1, 2, 3, 4]);
    let needed = session.wait_mapped(&attachment, (SegmentKind::Data, 1), &soon());
    assert!(matches!(needed, Err(Error::System { .. })), "{needed:?}");
    tensor.client.list().unwrap();
    session.wait_mapped(&attachment, (SegmentKind::Data, 1), &soon()).unwrap();
    assert!(session.is_alive() && session.inner.state.lock().apart.is_empty());
    drop((session, attachment));
    tensor.close();
}

const SUBJECT_DEFAULT: Subject<'static> = Subject { namespace: "default", ..SUBJECT };

#[test]
fn a_socket_that_the_program_closes_ends_what_is_held() {
    let (sender, receiver) = mpsc::channel();
    let mut tensor = FakeTensor::open(Dtype::U8, &[4], CodecId::Raw, move |peer, _, _| {
        receiver.recv().unwrap();
        peer.reply_if_there(999, Reply::Done);
        receiver.recv().unwrap();
    });
    tensor.put(&[1, 2, 3, 4], None);
    let view = tensor.handle.view().unwrap();
    let opened = tensor.handle.opened();
    let guard = opened.guard().unwrap();
    assert_eq!((view.block(0).unwrap(), guard.check_held()), (&[1, 2, 3, 4][..], Ok(())));
    let session = tensor.client.shared.session(&soon()).unwrap();
    nix::unistd::close(session.inner.socket.as_fd().as_raw_fd()).unwrap();
    assert!(!session.is_alive());
    // Wakes the thread, as what the daemon sends to others who write does.
    sender.send(()).unwrap();
    while session.inner.state.lock().end.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(guard.check_held(), Err(NoGuard::HungUp));
    let lost = view.block(0);
    assert!(
        matches!(&lost, Err(Error::System { source, .. })
        if source.to_string().contains("this process has closed")),
        "{lost:?}"
    );
    sender.send(()).unwrap();
    drop((view, session));
    drop(guard);
    drop(opened);
    tensor.close();
}
