//! A daemon of another version, or one that does not keep to the protocol, meets the real client and the real program:
//! a clear error, never a panic, a hang or a quiet way around.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use tempfile::TempDir;
use tierpack_client::{Client, Error};
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, ErrorCode, HelloReply, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Refusal, Reply,
    SegmentId, decode, encode,
};
use tierpack_shm::page::NamespaceId;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::socket::{recv, send};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");

/// Answers one connection by `serve` and is gone.
struct Fake {
    folder: TempDir,
    thread: JoinHandle<()>,
}

impl Fake {
    fn start(serve: impl FnOnce(OwnedFd) + Send + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let listener =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        let address = UnixAddr::new(&path(folder.path())).expect("a short path");
        bind(listener.as_raw_fd(), &address).expect("a free path");
        listen(&listener, Backlog::MAXCONN).expect("a bound socket");
        let thread = thread::spawn(move || serve(accept(&listener)));
        Self { folder, thread }
    }

    fn path(&self) -> PathBuf {
        path(self.folder.path())
    }

    fn connect(&self) -> Result<Client, Error> {
        Client::builder().socket(self.path()).deadline(Duration::from_secs(5)).connect()
    }

    fn end(self) {
        self.thread.join().expect("the fake daemon has not panicked");
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

fn accept(listener: &OwnedFd) -> OwnedFd {
    nix::sys::socket::accept4(listener, SockFlag::SOCK_CLOEXEC).expect("a client connects")
}

fn welcome(protocol: u16, layout: u16) -> HelloReply {
    let software = "a fake daemon".to_owned();
    HelloReply::Welcome { protocol, layout, instance: 42, features: 0, software }
}

fn refused(protocol: u16, layout: u16) -> HelloReply {
    HelloReply::Refused { protocol, layout, refusal: Refusal::new(ErrorCode::Version, "other words") }
}

/// Reads one message and gives its bytes; `None` when the client is gone.
fn read(conn: &OwnedFd) -> Option<Vec<u8>> {
    let mut buf = vec![0; MAX_MESSAGE_BYTES];
    let received = recv(conn, &mut buf).ok()?;
    buf.truncate(received.len);
    Some(buf)
}

#[test]
fn every_other_version_is_an_error_that_names_both() {
    for (protocol, layout) in [
        (PROTOCOL_VERSION - 1, LAYOUT_VERSION),
        (PROTOCOL_VERSION + 1, LAYOUT_VERSION),
        (PROTOCOL_VERSION, LAYOUT_VERSION - 1),
        (PROTOCOL_VERSION, LAYOUT_VERSION + 1),
        (PROTOCOL_VERSION + 1, LAYOUT_VERSION - 1),
    ] {
        for reply in [welcome(protocol, layout), refused(protocol, layout)] {
            let shown = format!("{reply:?}");
            let fake = Fake::start(move |conn| {
                read(&conn).expect("a greeting");
                send(&conn, &encode(&reply).expect("a reply"), &[]).expect("the client reads");
                // Nothing else is asked of a daemon of another version.
                assert_eq!(read(&conn), None);
            });
            let error = fake.connect().expect_err("another version");
            assert!(matches!(error, Error::Version { .. }), "{shown}: {error:?}");
            let text = error.to_string();
            for words in [
                format!("this client speaks protocol {PROTOCOL_VERSION} and reads layout {LAYOUT_VERSION}"),
                format!("has protocol {protocol} and layout {layout}"),
            ] {
                assert!(text.contains(&words), "{words}: {text}");
            }
            assert!(text.contains("restart the daemon") || text.contains("upgrade the client"), "{text}");
            fake.end();
        }
    }
}

#[test]
fn the_program_fails_with_one_line_at_a_daemon_of_another_version() {
    let fake = Fake::start(|conn| {
        read(&conn).expect("a greeting");
        let reply = welcome(PROTOCOL_VERSION + 1, LAYOUT_VERSION);
        send(&conn, &encode(&reply).expect("a reply"), &[]).expect("the client reads");
        assert_eq!(read(&conn), None);
    });
    let mut command = Command::new(PROGRAM);
    command.arg("--socket").arg(fake.path()).arg("ls").stdin(Stdio::null());
    let output = command.output().expect("the program runs");
    fake.end();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    assert!(text.contains("upgrade the client"), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn a_greeting_that_is_nonsense_is_an_error() {
    let nonsense: [Vec<u8>; 4] =
        [vec![0], vec![0xFF; 100], vec![0; MAX_MESSAGE_BYTES], encode(&"hello").expect("a text")];
    for bytes in nonsense {
        let len = bytes.len();
        let fake = Fake::start(move |conn| {
            read(&conn).expect("a greeting");
            let _ = send(&conn, &bytes, &[]).is_ok();
            assert_eq!(read(&conn), None);
        });
        let error = fake.connect().expect_err("nonsense");
        assert!(matches!(error, Error::Protocol { .. }), "{len} bytes: {error:?}");
        fake.end();
    }
    let fake = Fake::start(|conn| {
        read(&conn).expect("a greeting");
        let bytes = encode(&welcome(PROTOCOL_VERSION, LAYOUT_VERSION)).expect("a reply");
        send(&conn, &bytes, &[conn.as_fd()]).expect("the client reads");
    });
    assert!(matches!(fake.connect(), Err(Error::Protocol { .. })), "a greeting with a descriptor");
    fake.end();
}

#[test]
fn a_daemon_that_hangs_up_or_stays_silent_is_an_error() {
    let fake = Fake::start(drop);
    let error = fake.connect().expect_err("nobody answers");
    assert!(matches!(error, Error::Disconnected { .. }), "{error:?}");
    fake.end();
    let fake = Fake::start(|conn| while read(&conn).is_some() {});
    let connect = || Client::builder().socket(fake.path()).deadline(Duration::from_millis(200)).connect();
    let error = connect().expect_err("nobody answers");
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    fake.end();
}

/// Serves one client: a greeting, then `answer` to its first request.
fn answering(answer: impl FnOnce(u64) -> Vec<Vec<u8>> + Send + 'static) -> Fake {
    Fake::start(move |conn| {
        read(&conn).expect("a greeting");
        let bytes = encode(&welcome(PROTOCOL_VERSION, LAYOUT_VERSION)).expect("a reply");
        send(&conn, &bytes, &[]).expect("the client reads");
        let request = read(&conn).expect("a request");
        let Ok(ClientMessage::Request { id, .. }) = decode(&request) else { unreachable!("no request") };
        for bytes in answer(id) {
            let _ = send(&conn, &bytes, &[]).is_ok();
        }
        while read(&conn).is_some() {}
    })
}

fn reply(id: u64, result: Result<Reply, Refusal>) -> Vec<u8> {
    encode(&DaemonMessage::Reply { id, result }).expect("a reply")
}

#[test]
fn a_reply_to_another_request_is_passed_over() {
    let listed = || Ok(Reply::Listed { entries: Vec::new(), more: false });
    let fake = answering(move |id| {
        vec![reply(id + 1, Ok(Reply::Done)), reply(u64::MAX, listed()), reply(id, listed())]
    });
    let client = fake.connect().expect("welcome");
    assert_eq!(client.list().expect("the third reply is ours"), []);
    drop(client);
    fake.end();
}

#[test]
fn an_answer_that_cannot_be_is_an_error() {
    let page = |id| vec![reply(id, Ok(Reply::Listed { entries: Vec::new(), more: true }))];
    let namespace = NamespaceId { instance: 42, namespace: 0 };
    let header = SegmentId { kind: SegmentKind::Directory, index: 0, serial: 1 };
    let attached = move || Ok(Reply::Attached { id: namespace, header_len: 1 << 20, header });
    let segments = DaemonMessage::Segments { namespace: 0, segments: Vec::new() };
    let retired = DaemonMessage::Retired { namespace: 0, segments: vec![header] };
    type Answer = Box<dyn FnOnce(u64) -> Vec<Vec<u8>> + Send>;
    let answers: [(&str, Answer); 8] = [
        ("the reply to something else", Box::new(|id| vec![reply(id, Ok(Reply::Done))])),
        ("a list without end", Box::new(page)),
        ("descriptors that do not come", Box::new(move |id| vec![reply(id, attached())])),
        ("a namespace that nobody asked for", Box::new(move |id| vec![reply(id + 7, attached())])),
        ("segments of no namespace", Box::new(move |_| vec![encode(&segments).expect("a message")])),
        ("no segments of no namespace", Box::new(move |_| vec![encode(&retired).expect("a message")])),
        ("noise", Box::new(|_| vec![vec![0xAA; 1000]])),
        ("a cut reply", Box::new(|id| vec![reply(id, Ok(Reply::Done))[..5].to_vec()])),
    ];
    for (what, answer) in answers {
        let fake = answering(answer);
        let client = fake.connect().expect("welcome");
        let error = client.list().expect_err("an answer that cannot be");
        assert!(matches!(error, Error::Protocol { .. }), "{what}: {error:?}");
        drop(client);
        fake.end();
    }
}

#[test]
fn an_unknown_refusal_keeps_its_code_and_text() {
    let refusal = Refusal { code: 999, text: "a reason of a later release".to_owned() };
    let fake = answering(move |id| vec![reply(id, Err(refusal))]);
    let client = fake.connect().expect("welcome");
    let error = client.list().expect_err("refused");
    assert!(matches!(error, Error::Refused { code: 999, .. }), "{error:?}");
    assert!(error.to_string().contains("a reason of a later release"), "{error}");
    drop(client);
    fake.end();
}
