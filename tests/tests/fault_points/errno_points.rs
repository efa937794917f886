//! A call of the system that fails: its caller hears why, nothing is left, and the next try works.

use tierpack_client::Client;
use tierpack_shm::faults::Point;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::FaultReport;
use tierpack_tests::{Daemon, TestClient, eventually};

use super::{BIG_ROWS, CLIENT, PROGRAM, Plan, RAW, ROWS, Runs, SERVE, is_version, plan, put, rounds};

const KEPT: u16 = 2;

/// What fails: something that a daemon does for a client, or that a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A put for which the pool has to grow.
    Growth,
    /// A put into a namespace that does not exist.
    NewNamespace,
    /// The first read of a session.
    FirstRead,
    /// A client that attaches.
    AttachingClient,
    /// A client that is attached, when the pool grows.
    AttachedClient,
    /// A client that puts.
    PuttingClient,
}

/// Who meets it with which errno, and the words with which the kernel says so.
fn failures(point: Point) -> &'static [(Who, &'static str, &'static str)] {
    const NO_SPACE: &str = "No space left on device";
    const NO_MEMORY: &str = "Out of memory";
    const NO_RIGHT: &str = "Operation not permitted";
    match point {
        Point::SegmentCreate => &[
            (Who::Growth, "ENOSPC", NO_SPACE),
            (Who::Growth, "ENOMEM", NO_MEMORY),
            (Who::NewNamespace, "ENOSPC", NO_SPACE),
            (Who::NewNamespace, "ENOMEM", NO_MEMORY),
        ],
        Point::PageCreate => &[
            (Who::FirstRead, "EMFILE", "Too many open files"),
            (Who::FirstRead, "ENFILE", "File table overflow"),
            (Who::FirstRead, "ENOMEM", NO_MEMORY),
        ],
        Point::Seal => &[
            (Who::Growth, "EPERM", NO_RIGHT),
            (Who::NewNamespace, "EPERM", NO_RIGHT),
            (Who::FirstRead, "EPERM", NO_RIGHT),
            (Who::PuttingClient, "EPERM", NO_RIGHT),
        ],
        Point::SegmentMap => {
            &[(Who::AttachingClient, "ENOMEM", NO_MEMORY), (Who::AttachedClient, "ENOMEM", NO_MEMORY)]
        }
        _ => &[],
    }
}

/// One daemon and somebody who uses it.
struct Stage {
    daemon: Daemon,
    client: Client,
    before: Baseline,
}

impl Stage {
    fn new() -> Self {
        let daemon = Daemon::with_faults(PROGRAM, &SERVE);
        let client = daemon.client();
        put(&client, "kept", (KEPT, 1), RAW, ROWS).expect("room");
        client.get("kept").expect("it is there");
        let before = Baseline::take(&daemon, 1);
        Self { daemon, client, before }
    }

    fn check_kept(&self) {
        assert!(is_version(self.client.get("kept").expect("it is there").as_bytes(), (KEPT, 1), RAW));
    }

    /// Does it by way of the daemon.
    fn attempt(&self, who: Who, asking: &Client) -> Result<(), tierpack_client::Error> {
        match who {
            Who::Growth => {
                put(asking, "big", (3, 1), RAW, BIG_ROWS)?;
                asking.remove("big")
            }
            Who::NewNamespace => {
                let other = asking.namespace("other")?;
                put(&other, "a", (4, 1), RAW, ROWS)?;
                other.remove_namespace(tierpack_client::Tensors::Remove)
            }
            _ => asking.get("kept").map(drop),
        }
    }

    fn end(mut self, what: &str) {
        self.check_kept();
        self.before.returns(&mut self.daemon);
        assert!(self.daemon.process().is_running(), "{what}");
    }
}

fn by_daemon(point: Point, (who, errno, says): (Who, &str, &str)) -> String {
    let stage = Stage::new();
    let what = format!("{} {who:?} {errno}", point.name());
    let asking = stage.daemon.client();
    stage.daemon.arm(point, &format!("1*return({errno})"));
    let error = stage.attempt(who, &asking).expect_err(&what).to_string();
    assert!(error.contains(says), "{what}: {error}");
    stage.check_kept();
    stage.attempt(who, &asking).expect("the next try works");
    drop(asking);
    stage.end(&what);
    format!("{errno} {who:?}: {error}")
}

fn by_client(point: Point, (who, errno, says): (Who, &str, &str)) -> String {
    let stage = Stage::new();
    let what = format!("{} {who:?} {errno}", point.name());
    let (operation, tensor, id) = match who {
        Who::PuttingClient => ("put", "mine", "9"),
        Who::AttachingClient => ("attach", "kept", "2"),
        _ => ("get", "kept", "2"),
    };
    let actions = format!("1*return({errno})");
    let args = ["fault", "--point", point.name(), "--actions", &actions, "--operation", operation];
    let args = [&args[..], &["--tensor", tensor, "--tensor-id", id, "--codec", "raw"]].concat();
    let mut actor = TestClient::start(CLIENT, &stage.daemon, &args);
    assert!(actor.line().expect("a line").starts_with("ready"), "{what}");
    let (descriptors, pid) = (descriptors_of(&mut actor), actor.process().pid());
    actor.tell("arm");
    assert_eq!(actor.line().as_deref(), Some("armed"), "{what}");
    let go = |actor: &mut TestClient| -> FaultReport {
        actor.tell("go");
        serde_json::from_str(&actor.line().expect("the client reports")).expect("a report")
    };
    let right = FaultReport { version: Some(1), error: None };
    let heard = if who == Who::AttachedClient {
        // What it has is read on, in the same session.
        let first = session_of(&stage.daemon, pid);
        put(&stage.client, "big", (3, 1), RAW, BIG_ROWS).expect("room");
        for _ in 0..100 {
            assert_eq!(go(&mut actor), right, "{what}");
        }
        assert_eq!(session_of(&stage.daemon, pid), first, "{what}");
        assert_eq!(stage.daemon.stats().requests.sessions_ended, 0, "{what}");
        stage.client.remove("big").expect("it is there");
        "it reads on".to_owned()
    } else {
        let report = go(&mut actor);
        let error = report.error.unwrap_or_default();
        assert!(report.version.is_none() && error.contains(says), "{what}: {error}");
        assert!(!error.contains("broke the protocol"), "{what}: {error}");
        error
    };
    assert_eq!(go(&mut actor), right, "{what}: the next try works");
    eventually(&format!("{what}: the end of what the client opened"), || {
        // A block may have moved into what could not be mapped: a read maps it then.
        assert_eq!(go(&mut actor), right, "{what}");
        (descriptors_of(&mut actor) <= descriptors).then_some(())
    });
    drop(actor);
    if who == Who::PuttingClient {
        stage.client.remove("mine").expect("it was put");
    }
    stage.end(&what);
    format!("{errno} {who:?}: {heard}")
}

/// A peer that could not be taken in is taken in later.
fn by_listener() -> String {
    let stage = Stage::new();
    stage.daemon.arm(Point::Accept, "3*return(ENOBUFS)");
    let asking = stage.daemon.client();
    stage.attempt(Who::FirstRead, &asking).expect("it is taken in later");
    drop(asking);
    stage.end("accept");
    "ENOBUFS: the peer is taken in later".to_owned()
}

/// The number of the last session of a process.
fn session_of(daemon: &Daemon, pid: u32) -> u64 {
    let sessions = daemon.stats().sessions;
    let own = sessions.iter().filter(|session| session.pid == i32::try_from(pid).ok());
    own.map(|session| session.session).max().expect("it is connected")
}

/// Descriptors that a client has open.
fn descriptors_of(client: &mut TestClient) -> usize {
    let pid = client.process().pid();
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the client is alive").count()
}

#[test]
fn a_call_that_fails_is_told_and_leaves_nothing() {
    let mut runs = Runs::default();
    for _ in 0..rounds() {
        for &point in Point::ALL {
            for &failure in failures(point) {
                let is_of_daemon = matches!(failure.0, Who::Growth | Who::NewNamespace | Who::FirstRead);
                let run = if is_of_daemon { by_daemon } else { by_client };
                runs.add(point, run(point, failure));
            }
        }
    }
    runs.add(Point::Accept, by_listener());
    runs.finish(|point| matches!(plan(point), Plan::Errno));
}

/// The kernel itself may hold a page for a moment: a seal is tried again.
#[test]
fn a_seal_that_is_busy_is_tried_again() {
    let stage = Stage::new();
    let asking = stage.daemon.client();
    for who in [Who::FirstRead, Who::Growth, Who::NewNamespace] {
        stage.daemon.arm(Point::Seal, "3*return(EBUSY)");
        stage.attempt(who, &asking).expect("the fourth try works");
    }
    stage.daemon.arm(Point::Seal, "50%return(EBUSY)");
    for _ in 0..3 {
        stage.attempt(Who::Growth, &asking).expect("one of twenty tries works");
    }
    stage.daemon.arm(Point::Seal, "return(EBUSY)");
    let error = stage.attempt(Who::Growth, &asking).expect_err("it stays busy").to_string();
    assert!(error.contains("Device or resource busy"), "{error}");
    stage.daemon.arm(Point::Seal, "off");
    drop(asking);
    stage.end("a busy seal");
}
