//! Who receives: callers where no thread does, the thread where nobody calls, and many callers at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tierpack_shm::attachment::{AttachmentId, SegmentObserver};
use tierpack_shm::directory::Directory;
use tierpack_shm::message::{Blob, DaemonMessage, SegmentId, decode};
use tierpack_shm::segment::Segment;
use tierpack_shm::socket::recv;

use super::tests::{SUBJECT, list, soon};
use super::*;
use crate::fake_daemon::{ID, Peer, data, serve};

/// A session whose thread never runs.
fn without_thread(path: &Path) -> Arc<Session> {
    let cookie = ForkCookie::current().unwrap();
    let inner = Inner::connect(path, cookie, &soon(), leaving::IDLE_LIMIT).unwrap();
    Arc::new(Session { inner: Arc::new(inner), thread: None })
}

fn retired(segment: SegmentId) -> DaemonMessage {
    DaemonMessage::Retired { namespace: ID.namespace, segments: vec![segment] }
}

/// The next message, which is an acknowledgement of these; fails where none comes.
fn expect_unmapped(peer: &Peer, expected: SegmentId) {
    let ready = wire::wait(peer.0.as_fd(), PollFlags::POLLIN, Some(Duration::from_secs(30))).unwrap();
    assert!(ready.contains(PollFlags::POLLIN), "nothing comes");
    let ClientMessage::Unmapped { segments, .. } = peer.recv() else { panic!("not unmapped") };
    assert_eq!(segments, [expected]);
}

/// Starts a caller and waits until it receives, or is blocked while another does.
fn start<T: Send + 'static>(
    session: &Arc<Session>,
    call: impl FnOnce(&Session) -> T + Send + 'static,
) -> JoinHandle<T> {
    let waiting = |state: &State| {
        let blocked = state.waiters.values().filter(|waiter| waiter.blocked.is_some()).count();
        usize::from(state.role.is_taken()) + usize::from(state.role.is_awaited) + blocked
    };
    let before = waiting(&session.inner.state.lock());
    let own = Arc::clone(session);
    let caller = std::thread::spawn(move || call(&own));
    while waiting(&session.inner.state.lock()) == before {
        assert!(!caller.is_finished());
        std::thread::yield_now();
    }
    caller
}

fn ask(limit: Duration) -> impl FnOnce(&Session) -> Result<Reply> {
    move |session| session.request(&SUBJECT, list(), &Deadline::after(limit))
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn callers_receive_themselves_where_the_thread_does_not_run() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let _directory = peer.attach();
        let id = peer.request();
        peer.segments(data(5, 2), &Segment::create(1 << 20).unwrap());
        peer.reply(id, Ok(Reply::Done));
        let id = peer.request();
        peer.send(&retired(data(5, 2)), &[]);
        peer.segments(data(6, 3), &Segment::create(1 << 20).unwrap());
        expect_unmapped(&peer, data(5, 2));
        peer.reply(id, Ok(Reply::Done));
        peer.request();
    });
    let session = without_thread(&path);
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    session.request(&SUBJECT, list(), &soon()).unwrap();
    assert!(attachment.is_mapped(SegmentKind::Data, 5));
    let pending = session.send(&SUBJECT, list(), None, &soon()).unwrap();
    session.wait_mapped(&attachment, (SegmentKind::Data, 6), &soon()).unwrap();
    assert!(!attachment.is_mapped(SegmentKind::Data, 5));
    pending.wait(&SUBJECT).unwrap();
    let gone = session.request(&SUBJECT, list(), &soon());
    assert!(matches!(gone, Err(Error::Disconnected { .. })), "{gone:?}");
    daemon.join().unwrap();
}

#[test]
fn who_receives_hands_the_role_to_another_who_waits() {
    let (sender, receiver) = mpsc::channel();
    let (_dir, path, daemon) = serve(move |peer| {
        peer.welcome();
        let _directory = peer.attach();
        let ids: [u64; 3] = std::array::from_fn(|_| peer.request());
        for id in ids {
            // The one before it is gone, by its reply or its deadline.
            receiver.recv().unwrap();
            peer.reply(id, Ok(Reply::Done));
        }
        receiver.recv().unwrap();
        peer.segments(data(5, 2), &Segment::create(1 << 20).unwrap());
        peer.drain();
    });
    let session = without_thread(&path);
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    let first = start(&session, ask(LONG));
    let late = start(&session, ask(Duration::from_millis(100)));
    let third = start(&session, ask(LONG));
    let mapped =
        start(&session, move |session| session.wait_mapped(&attachment, (SegmentKind::Data, 5), &soon()));
    // By turns one has the role: it leaves with its reply, late, with its reply, and the last with its segment.
    sender.send(()).unwrap();
    first.join().unwrap().unwrap();
    assert!(matches!(late.join().unwrap(), Err(Error::Deadline { .. })));
    sender.send(()).unwrap();
    sender.send(()).unwrap();
    third.join().unwrap().unwrap();
    sender.send(()).unwrap();
    mapped.join().unwrap().unwrap();
    drop(session);
    daemon.join().unwrap();
}

#[test]
fn a_panic_of_who_receives_ends_the_session_for_everybody() {
    #[derive(Debug)]
    struct Panics(AtomicBool);
    impl SegmentObserver for Panics {
        fn before_unmap(&self, _: AttachmentId, _: SegmentKind, _: usize) {
            assert!(self.0.swap(true, Ordering::Relaxed), "planted");
        }
    }
    let (sender, receiver) = mpsc::channel();
    let (_dir, path, daemon) = serve(move |peer| {
        peer.welcome();
        let _directory = peer.attach();
        peer.segments(data(5, 2), &Segment::create(1 << 20).unwrap());
        receiver.recv().unwrap();
        peer.send(&retired(data(5, 2)), &[]);
        peer.drain();
    });
    let session = without_thread(&path);
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    session.wait_mapped(&attachment, (SegmentKind::Data, 5), &soon()).unwrap();
    let observer: Arc<dyn SegmentObserver> = Arc::new(Panics(AtomicBool::new(false)));
    attachment.observe(&observer);
    let panics = start(&session, |session| {
        catch_unwind(AssertUnwindSafe(|| session.request(&SUBJECT, list(), &soon()))).is_err()
    });
    let other = start(&session, ask(LONG));
    sender.send(()).unwrap();
    assert!(panics.join().unwrap());
    let others = [other.join().unwrap(), session.request(&SUBJECT, list(), &soon())];
    for result in others {
        assert!(matches!(result, Err(Error::Disconnected { .. })), "{result:?}");
    }
    drop((session, attachment));
    daemon.join().unwrap();
}

#[test]
fn what_the_daemon_says_while_nobody_calls_is_heeded() {
    let (sender, receiver) = mpsc::channel();
    let (_dir, path, daemon) = serve(move |peer| {
        peer.welcome();
        let _directory = peer.attach();
        let id = peer.request();
        peer.segments(data(5, 2), &Segment::create(1 << 20).unwrap());
        peer.reply(id, Ok(Reply::Done));
        receiver.recv().unwrap();
        peer.send(&retired(data(5, 2)), &[]);
        expect_unmapped(&peer, data(5, 2));
        peer.send(&DaemonMessage::Detached { namespace: ID.namespace }, &[]);
        assert_eq!(peer.recv::<ClientMessage>(), ClientMessage::Detach { namespace: ID.namespace });
    });
    let session = Session::connect(&path, ForkCookie::current().unwrap(), &soon()).unwrap();
    let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
    session.request(&SUBJECT, list(), &soon()).unwrap();
    // From here on nobody calls.
    sender.send(()).unwrap();
    daemon.join().unwrap();
    assert!(attachment.is_closed() && !attachment.is_mapped(SegmentKind::Data, 5));
    // The hang-up is seen as well.
    let started = std::time::Instant::now();
    while session.inner.link.is_open() {
        assert!(started.elapsed() < LONG);
        std::thread::yield_now();
    }
}

/// A daemon that answers in any order, announces, retires, and takes the right to read away.
struct Storm {
    peer: Peer,
    directory: Option<Directory>,
    /// Requests without a reply.
    held: Vec<(u64, String)>,
    live: Option<SegmentId>,
    /// Retired, and not acknowledged.
    retired: Vec<SegmentId>,
    random: u64,
    serial: u64,
    detaches: u32,
}

const LATE: &str = "late";

impl Storm {
    /// Until the client says goodbye; returns how often it has detached.
    fn run(mut self) -> (u32, u64) {
        let mut buf = vec![0; 1 << 16];
        let mut asked = 0_u64;
        loop {
            let limit = Some(Duration::from_millis(1));
            if wire::wait(self.peer.0.as_fd(), PollFlags::POLLIN, limit).unwrap().is_empty() {
                self.answer_one();
                continue;
            }
            let len = recv(&self.peer.0, &mut buf).unwrap().len;
            match decode(&buf[..len]).unwrap() {
                ClientMessage::Request { id, request: Request::Attach { .. }, .. } => {
                    let directory = Directory::new(Segment::create(1 << 20).unwrap(), ID);
                    self.peer.attached(id, &directory, ID);
                    self.directory = Some(directory);
                }
                ClientMessage::Request { id, request: Request::FileMetadata { name, .. }, .. } => {
                    self.held.push((id, name));
                    asked += 1;
                    if asked.is_multiple_of(3) {
                        self.change(asked.is_multiple_of(96));
                    }
                }
                ClientMessage::Unmapped { segments, .. } => {
                    self.retired.retain(|retired| !segments.contains(retired));
                }
                ClientMessage::Detach { .. } => {
                    self.detaches += 1;
                    self.retired.clear();
                }
                ClientMessage::Goodbye => break,
                other => panic!("{other:?}"),
            }
            if self.held.len() > 4 {
                self.answer_one();
            }
        }
        assert_eq!(self.retired, [], "not acknowledged");
        (self.detaches, self.serial)
    }

    /// Announces a segment, retires it, or takes the namespace away.
    fn change(&mut self, is_loss: bool) {
        if self.directory.is_none() {
            return;
        }
        if is_loss {
            self.peer.send(&DaemonMessage::Detached { namespace: ID.namespace }, &[]);
            (self.directory, self.live) = (None, None);
        } else if let Some(live) = self.live.take() {
            self.peer.send(&retired(live), &[]);
            self.retired.push(live);
        } else {
            self.serial += 1;
            let segment = data(5, self.serial);
            self.peer.segments(segment, &Segment::create(1 << 20).unwrap());
            self.live = Some(segment);
        }
    }

    /// Answers any of the requests; of those that are late, every other one never.
    fn answer_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.random = self.random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let random = usize::try_from(self.random >> 40).unwrap();
        let (id, name) = self.held.swap_remove(random % self.held.len());
        if name.starts_with(LATE) && random & 1 << 20 != 0 {
            return;
        }
        let reply = Reply::FileMetadata(Some(Blob::Inline(name.into_bytes())));
        self.peer.reply(id, Ok(reply));
    }
}

/// Asks for something of its own; a late one may miss its reply, and never gets another's.
fn ask_own(session: &Session, name: String, limit: Duration) -> bool {
    let request = Request::FileMetadata { namespace: "ns".to_owned(), name: name.clone() };
    match session.request(&SUBJECT, request, &Deadline::after(limit)) {
        Ok(Reply::FileMetadata(Some(Blob::Inline(bytes)))) => {
            assert_eq!(String::from_utf8(bytes).unwrap(), name);
            true
        }
        Err(Error::Deadline { .. }) if name.starts_with(LATE) => false,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn many_callers_get_their_own_replies_while_others_are_late_and_memory_comes_and_goes() {
    const CALLS: usize = 400;
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        let (held, retired) = (Vec::new(), Vec::new());
        let storm =
            Storm { peer, directory: None, held, live: None, retired, random: 7, serial: 1, detaches: 0 };
        let (detaches, serial) = storm.run();
        assert!(detaches > 2 && serial > 10, "{detaches} detaches, {serial} segments");
    });
    let session = Session::connect(&path, ForkCookie::current().unwrap(), &soon()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let session = &session;
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                scope.spawn(move || (0..CALLS).all(|call| ask_own(session, format!("{caller}.{call}"), LONG)))
            })
            .collect();
        for caller in 0..2 {
            let is_over = &is_over;
            scope.spawn(move || {
                for call in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    ask_own(session, format!("{LATE}.{caller}.{call}"), Duration::from_millis(2));
                }
            });
        }
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let attachment = session.attach(&SUBJECT, ID.namespace, &soon()).unwrap();
                while !attachment.is_closed() && !is_over.load(Ordering::Relaxed) {
                    let next = Deadline::after(Duration::from_millis(1));
                    // It is announced, retired or taken away.
                    let _ = session.wait_mapped(&attachment, (SegmentKind::Data, 5), &next).is_ok();
                    std::thread::yield_now();
                }
            }
        });
        let done: Vec<_> = callers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(done.into_iter().all(|all| all.is_ok_and(|all| all)));
        reader.join().unwrap();
    });
    assert!(session.is_alive());
    // Behind all that the daemon has retired.
    assert!(ask_own(&session, "last".to_owned(), LONG));
    drop(session);
    daemon.join().unwrap();
}
