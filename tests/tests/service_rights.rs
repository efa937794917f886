//! Rights that are taken away are gone: a user who may not read a namespace any more gets nothing of it, and finds
//! nothing new in what it keeps.
//!
//! The other user is a connection by hand that keeps every descriptor that it was ever sent.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::thread;

use nix::unistd::{Gid, Uid, geteuid, getgroups, setegid, seteuid, setgroups};
use parking_lot::{Mutex, MutexGuard};
use tierpack_client::{Client, Dtype, Error, NamespaceChange, Tensors};
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::faults::Point;
use tierpack_shm::layout::{SEGMENT_SPAN_UNITS, page};
use tierpack_shm::message::{
    Blob, ClientMessage, DaemonMessage, ErrorCode, Refusal, Reply, Request, SegmentId, Update, encode,
};
use tierpack_shm::segment::SegmentKind;
use tierpack_tests::peer::{Peer, begin, chunk};
use tierpack_tests::{Daemon, eventually, raw, tools};

/// What came of a request.
type Answer = Result<Reply, Refusal>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const OTHER: u32 = 1234;
const MIB: u64 = 1 << 20;

/// Held by each test: the other user is this process for a moment.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A daemon that admits everyone; `None`, said aloud, where this process may not become another user.
fn start(pool_size: &str) -> Option<(MutexGuard<'static, ()>, Daemon)> {
    if !geteuid().is_root() {
        tools::skip("becoming another user needs root");
        return None;
    }
    let guard = ONE_AT_A_TIME.lock();
    let daemon = Daemon::start(PROGRAM, &["--pool-size", pool_size, "--lock", "off", "--admit", "everyone"]);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(daemon.dir(), open).expect("a directory of the test");
    Some((guard, daemon))
}

/// The namespace of this name as root sees it, with this mode.
fn with_mode(client: &Client, name: &str, mode: u16) -> Client {
    let namespace = client.namespace(name).expect("a short name");
    let change = NamespaceChange { mode: Some(mode), ..NamespaceChange::default() };
    match namespace.change_namespace(&change) {
        Err(Error::NoNamespace { .. }) => namespace.create_namespace(&change).expect("it is root's to make"),
        changed => changed.expect("it is root's to change"),
    }
    namespace
}

fn put(client: &Client, name: &str, word: u64, bytes: u64) -> Result<(), Error> {
    let rows = bytes / 512;
    let data = word.to_le_bytes().repeat(usize::try_from(rows * 64).expect("a small tensor"));
    client.put_with(name, Dtype::U64, &[rows, 64], &mut &data[..], &raw()).map(drop)
}

/// Another user, who keeps what it is sent, and says that it does not.
struct Other {
    peer: Peer,
    kept: Vec<(u32, SegmentId, File)>,
    pages: Vec<(u32, File)>,
    detached: Vec<u32>,
}

impl Other {
    fn connect(daemon: &Daemon) -> Self {
        let (groups, gid) = (getgroups().expect("groups"), nix::unistd::getegid());
        setgroups(&[]).expect("root may");
        setegid(Gid::from_raw(OTHER)).expect("root may");
        seteuid(Uid::from_raw(OTHER)).expect("root may");
        let peer = Peer::greeted(&daemon.socket());
        seteuid(Uid::from_raw(0)).expect("it was root");
        setegid(gid).expect("it was root");
        setgroups(&groups).expect("it was root");
        Self { peer, kept: Vec::new(), pages: Vec::new(), detached: Vec::new() }
    }

    fn say(&self, message: &ClientMessage) {
        self.peer.send_bytes(&encode(message).expect("a short message"), &[]).expect("the daemon reads");
    }

    /// Takes one message; returns the reply that it is.
    fn take(&mut self) -> Result<Option<(u64, Answer)>, ShmError> {
        let (message, descriptors) = self.peer.receive()?;
        let files = descriptors.into_iter().map(File::from);
        match message {
            DaemonMessage::Segments { namespace, segments } => {
                let named = segments.into_iter().zip(files);
                self.kept.extend(named.map(|((id, _), file)| (namespace, id, file)));
            }
            DaemonMessage::Retired { namespace, segments } => {
                self.say(&ClientMessage::Unmapped { namespace, segments });
            }
            DaemonMessage::Detached { namespace } => self.detached.push(namespace),
            DaemonMessage::Reply { id, result } => {
                let mut files = files;
                if let Ok(Reply::Attached { id, header, .. }) = &result {
                    self.pages.push((id.namespace, files.next().expect("a page")));
                    self.kept.push((id.namespace, *header, files.next().expect("a header")));
                }
                return Ok(Some((id, result)));
            }
        }
        Ok(None)
    }

    /// Asks, and takes all that comes before the reply.
    fn ask(&mut self, request: Request) -> Result<Reply, Refusal> {
        self.ask_with(request, None)
    }

    fn ask_with(&mut self, request: Request, file: Option<&std::os::fd::OwnedFd>) -> Result<Reply, Refusal> {
        let file: Vec<_> = file.map(std::os::fd::AsFd::as_fd).into_iter().collect();
        let id = self.peer.ask(request, &file).expect("the daemon reads");
        loop {
            if let Some((found, result)) = self.take().expect("the daemon answers")
                && found == id
            {
                return result;
            }
        }
    }

    fn attach(&mut self, namespace: &str) -> u32 {
        match self.ask(Request::Attach { namespace: namespace.to_owned() }) {
            Ok(Reply::Attached { id, .. }) => id.namespace,
            other => unreachable!("attach: {other:?}"),
        }
    }

    fn is_denied(&mut self, request: Request) {
        let answer = self.ask(request);
        assert_eq!(answer.as_ref().err().and_then(Refusal::code), Some(ErrorCode::Denied), "{answer:?}");
    }

    /// How often a word is found in all that it was ever sent.
    fn finds(&self, word: u64) -> usize {
        let count = |file: &File| {
            let len = usize::try_from(file.metadata().expect("a file").len()).expect("a segment");
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, 0).expect("a descriptor that it keeps");
            bytes.as_chunks().0.iter().filter(|found| u64::from_le_bytes(**found) == word).count()
        };
        self.kept.iter().map(|(_, _, file)| count(file)).sum()
    }

    /// Goes on until the daemon hangs up.
    fn until_hang_up(mut self) -> Self {
        loop {
            match self.take() {
                Ok(_) | Err(ShmError::WouldBlock) => {}
                Err(ShmError::Closed) => return self,
                Err(error) => unreachable!("the daemon ended the session: {error}"),
            }
        }
    }
}

fn open(namespace: &str, name: &str) -> Request {
    Request::Open { namespace: namespace.to_owned(), name: name.to_owned() }
}

#[test]
fn a_user_who_lost_the_right_gets_nothing_new_and_its_put_ends() {
    let Some((_one, daemon)) = start("64MiB") else { return };
    let client = daemon.client();
    let shared = with_mode(&client, "shared", 0o666);
    put(&shared, "t", 1, MIB).expect("room");
    put(&shared, "room", 2, 4 * MIB).expect("room");
    let mut other = Other::connect(&daemon);
    let number = other.attach("shared");
    shared.remove("room").expect("it is there");
    let Ok(Reply::Opened { slot, .. }) = other.ask(open("shared", "t")) else { unreachable!("it may read") };
    let mut started = begin("old", 1024);
    started.namespace = "shared".to_owned();
    let Ok(Reply::Transfer { transfer }) = other.ask(Request::PutBegin(started)) else {
        unreachable!("it may")
    };
    let (request, file) = chunk(transfer, 0, 512);
    assert_eq!(other.ask_with(request, Some(&file)), Ok(Reply::Done));

    with_mode(&client, "shared", 0o600);
    let kept = other.kept.len();
    put(&shared, "secret", 0x5EC2_E7AA_0000_0001, 8 * MIB).expect("room");
    other.is_denied(open("shared", "secret"));
    assert_eq!(other.detached, [number]);
    let (request, file) = chunk(transfer, 1, 512);
    let refused = other.ask_with(request, Some(&file));
    assert_eq!(refused.as_ref().err().and_then(Refusal::code), Some(ErrorCode::Denied), "{refused:?}");
    other.is_denied(Request::PutCommit { transfer });
    let (namespace, name) = ("shared".to_owned(), "t".to_owned());
    let data = Blob::Inline(vec![0; 520]);
    other.is_denied(Request::Update(Update { namespace, name, slot, n_pieces: 1, data }));
    assert_eq!(other.kept.len(), kept, "no further descriptor");
    assert_eq!(other.finds(0x5EC2_E7AA_0000_0001), 0, "a tensor put after the change, in an old mapping");
    assert!(other.finds(1) > 0 || other.finds(2) > 0, "old tensors are in what it keeps");
    // Nor do its slot and its words lie where the other user sees them.
    let mut root = Peer::greeted(&daemon.socket());
    let Ok(Reply::Opened { slot, .. }) = root.request(open("shared", "secret"), &[]) else { unreachable!() };
    let segment = u32::try_from(slot.address / SEGMENT_SPAN_UNITS).expect("an index");
    let mut sent = other.kept.iter().filter(|(_, id, _)| id.kind == SegmentKind::Directory);
    assert!(sent.all(|(_, id, _)| id.index != segment), "slot in directory segment {segment}");
    assert_eq!(daemon.stats().transfers, 0, "the put that was refused has ended");
}

#[test]
fn a_session_loses_one_namespace_and_what_it_leases_there_counts_until_it_detaches() {
    let Some((_one, daemon)) = start("64MiB") else { return };
    let client = daemon.client();
    let shared = with_mode(&client, "shared", 0o664);
    let public = with_mode(&client, "public", 0o664);
    put(&shared, "t", 1, MIB).expect("room");
    let mut other = Other::connect(&daemon);
    let (lost, stays) = (other.attach("shared"), other.attach("public"));
    let (_, file) = other.pages.iter().find(|(of, _)| *of == lost).expect("a page");
    // A lease on every tensor, from the first epoch.
    file.write_all_at(&(1_u64 << 24 | 0xFF_FFFF).to_le_bytes(), page::LEASES_AT)
        .expect("a page is its client's");
    shared.remove("t").expect("it is there");
    with_mode(&client, "shared", 0o660);
    let kept = other.kept.len();
    put(&public, "new", 2, 8 * MIB).expect("room");
    assert!(other.ask(open("public", "new")).is_ok());
    assert_eq!(other.detached, [lost]);
    assert!(other.kept.len() > kept && other.kept[kept..].iter().all(|(of, ..)| *of == stays));
    let held = || daemon.stats().pool.held_bytes;
    assert!(held() >= MIB, "{} are held", held());
    other.say(&ClientMessage::Detach { namespace: lost });
    eventually("the end of what it leased", || (held() == 0).then_some(()));
    with_mode(&client, "shared", 0o664);
    assert_eq!(other.attach("shared"), lost, "a right that is given again");
}

#[test]
fn a_pool_that_is_nearly_full_has_room_again_after_a_right_was_taken_away() {
    let Some((_one, daemon)) = start("64MiB") else { return };
    let client = daemon.client();
    let shared = with_mode(&client, "shared", 0o666);
    let mut other = Other::connect(&daemon);
    other.attach("shared");
    let other = thread::spawn(move || other.until_hang_up());
    let mut n = 0_u64;
    while !n.is_multiple_of(16) || daemon.stats().pool.segment_bytes < 64 * MIB * 9 / 10 {
        put(&shared, &format!("old-{n}"), n, MIB / 16).expect("room");
        n += 1;
    }
    assert!(n >= 800, "{n} tensors fill the pool");
    with_mode(&client, "shared", 0o600);
    let stats = || daemon.stats().namespaces.remove(0);
    assert!(stats().closed_bytes > 0, "{:?}", stats());
    let mut refusals = Vec::new();
    eventually("a put of a twentieth of the pool", || {
        match put(&shared, "new", 0x5EC2_E7AA_0000_0002, 64 * MIB / 20) {
            Ok(()) => Some(()),
            Err(Error::PoolFull { text, .. }) => {
                refusals.push(text);
                None
            }
            Err(error) => unreachable!("{error}"),
        }
    });
    assert!(refusals.iter().all(|text| text.contains("users who lost the right")), "{refusals:?}");
    eventually("the end of the data segments that take nothing new", || {
        let stats = stats();
        (stats.closed_bytes <= stats.segment_bytes - stats.data_segment_bytes).then_some(())
    });
    eventually("sums that agree", || {
        let stats = daemon.stats();
        let all: u64 = stats.namespaces.iter().map(|namespace| namespace.segment_bytes).sum();
        (all + stats.pool.returning_bytes == stats.pool.segment_bytes).then_some(())
    });
    for n in 0..n {
        let tensor = shared.get(&format!("old-{n}")).expect("it was moved, not lost");
        assert!(tensor.as_bytes().as_chunks().0.iter().all(|word| u64::from_le_bytes(*word) == n), "old-{n}");
    }
    let mut daemon = daemon;
    daemon.stop();
    let other = other.join().expect("it goes on until the end");
    assert!(!other.kept.is_empty());
    assert_eq!(other.finds(0x5EC2_E7AA_0000_0002), 0, "a tensor put after the change, in an old mapping");
}

#[test]
fn others_open_tensors_while_a_removed_namespace_is_emptied() {
    let _one = ONE_AT_A_TIME.lock();
    let daemon = Daemon::with_faults(PROGRAM, &["--pool-size", "64MiB", "--lock", "off", "--workers", "2"]);
    let client = daemon.client();
    put(&client, "t", 1, MIB).expect("room");
    let doomed = client.namespace("doomed").expect("a short name");
    for n in 0..600 {
        put(&doomed, &n.to_string(), 2, 512).expect("room");
    }
    let attacker = Client::builder().socket(daemon.socket()).connect().expect("a daemon");
    daemon.arm(Point::BatchRetired, "pause");
    thread::scope(|scope| {
        let removing = scope.spawn(|| attacker.namespace("doomed")?.remove_namespace(Tensors::Remove));
        // The worker that removes it stops after its first batch, and with it nobody else.
        eventually("a namespace that is found no more", || doomed.open("7").is_err().then_some(()));
        assert!(client.open("t").is_ok() && !removing.is_finished());
        put(&doomed, "7", 3, 512).expect("a namespace of the same name");
        daemon.arm(Point::BatchRetired, "off");
        removing.join().expect("no panic").expect("it is the owner's to remove");
    });
    assert!(doomed.open("8").is_err() && doomed.open("7").is_ok());
}
