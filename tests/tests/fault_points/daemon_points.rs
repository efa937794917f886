//! A daemon that dies, panics or stops at a point: readers keep what they lease, callers hear of it, and the next daemon
//! starts clean.

use std::os::unix::process::ExitStatusExt;
use std::thread;

use nix::sys::signal::Signal;
use tierpack_client::{Client, CodecId, Error, Handle, Tensors, View};
use tierpack_shm::faults::Point;
use tierpack_tests::faults::is_stopped;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::{Daemon, eventually};

use super::{
    BIG_ROWS, PROGRAM, Plan, RAW, ROWS, Request, Runs, SERVE, drain, fill, is_version, plan, put, rounds,
};

const TARGET: u16 = 1;
const KEPT: u16 = 2;
const BIG: u16 = 3;
const NEW: u16 = 4;
const OTHER: u16 = 5;

pub(super) const PANIC: &str = "a test asked for this";

impl Request {
    fn codec(self) -> CodecId {
        match self {
            Self::Put(codec) | Self::Overwrite(codec) => codec,
            _ => RAW,
        }
    }

    fn run(self, client: &Client) -> Result<(), Error> {
        match self {
            Self::Put(codec) => put(client, "new", (NEW, 1), codec, ROWS),
            Self::Overwrite(codec) => put(client, "target", (TARGET, 2), codec, ROWS),
            Self::Remove => client.remove("target"),
            Self::PutBig => put(client, "big", (BIG, 1), RAW, BIG_ROWS),
            Self::RemoveBig => client.remove("big"),
            Self::Attach => client.get("kept").map(drop),
            Self::List => client.list().map(drop),
            Self::RemoveNamespace => client.namespace("doomed")?.remove_namespace(Tensors::Remove),
        }
    }

    /// What it left is there, whole.
    fn check_done(self, client: &Client, what: &str) {
        let expect = |name: &str, words: (u16, u16)| {
            let tensor = client.get(name).expect("it was put");
            assert!(is_version(tensor.as_bytes(), words, self.codec()), "{what}: {name}");
        };
        let is_gone = |name: &str| matches!(client.get(name), Err(Error::NotFound { .. }));
        match self {
            Self::Put(_) => expect("new", (NEW, 1)),
            Self::Overwrite(_) => expect("target", (TARGET, 2)),
            Self::Remove => assert!(is_gone("target"), "{what}"),
            Self::PutBig => expect("big", (BIG, 1)),
            Self::RemoveBig => assert!(is_gone("big"), "{what}"),
            Self::Attach | Self::List => expect("target", (TARGET, 1)),
            Self::RemoveNamespace => {
                let doomed = client.namespace("doomed").expect("a short name");
                assert!(matches!(doomed.get("target"), Err(Error::NotFound { .. })), "{what}");
            }
        }
    }
}

/// A daemon with a point, and somebody who has read, reads, and holds views of two tensors.
struct Stage {
    daemon: Daemon,
    client: Client,
    before: Baseline,
    target: Handle,
    kept: Handle,
    kept_view: View,
    /// Of a tensor that was removed since.
    removed_view: View,
    codec: CodecId,
    what: String,
}

impl Stage {
    fn new(point: Point, request: Request) -> Self {
        let daemon = Daemon::with_faults(PROGRAM, &SERVE);
        let client = daemon.client();
        let codec = request.codec();
        put(&client, "kept", (KEPT, 1), RAW, ROWS).expect("room");
        let kept = client.open("kept").expect("it is there");
        kept.get().expect("it is there");
        let before = Baseline::take(&daemon, 1);
        put(&client, "target", (TARGET, 1), codec, ROWS).expect("room");
        let target = client.open("target").expect("it is there");
        assert!(is_version(target.get().expect("it is there").as_bytes(), (TARGET, 1), codec));
        put(&client, "other", (OTHER, 1), RAW, ROWS).expect("room");
        let removed_view = client.open("other").and_then(|handle| handle.view()).expect("it is there");
        client.remove("other").expect("it is there");
        let kept_view = kept.view().expect("it is there");
        // Last, so that it has whole segments of its own.
        if request == Request::RemoveBig {
            put(&client, "big", (BIG, 1), RAW, BIG_ROWS).expect("room");
        }
        if request == Request::RemoveNamespace {
            put(&client.namespace("doomed").expect("a short name"), "target", (TARGET, 1), RAW, ROWS)
                .expect("room");
        }
        let what = format!("{} by {request:?}", point.name());
        Self { daemon, client, before, target, kept, kept_view, removed_view, codec, what }
    }

    /// What is leased is as it was.
    fn check_views(&self) {
        for (view, id) in [(&self.kept_view, KEPT), (&self.removed_view, OTHER)] {
            let blocks = (0..view.n_blocks()).map(|n| view.block(n).expect("a view outlives its daemon"));
            let bytes = blocks.collect::<Vec<_>>().concat();
            assert!(is_version(&bytes, (id, 1), RAW), "{}: tensor {id}", self.what);
        }
    }

    /// One whole version of the target, or the news that it or the daemon is gone.
    fn check_target(&self) {
        match self.target.get() {
            Ok(tensor) => {
                let fits = |version| is_version(tensor.as_bytes(), (TARGET, version), self.codec);
                assert!(fits(1) || fits(2), "{}: a mixture", self.what);
            }
            Err(error) => {
                let is_clear = is_of_end(&error) || matches!(error, Error::NotFound { .. });
                assert!(is_clear, "{}: {error}", self.what);
            }
        }
    }

    /// The pool can be used whole.
    fn check_room(&self) -> u64 {
        let fillers = fill(&self.client);
        drain(&self.client, fillers);
        self.check_views();
        fillers
    }
}

/// Whether this is how a client learns that its daemon has ended.
pub(super) fn is_of_end(error: &Error) -> bool {
    matches!(error, Error::Disconnected { .. } | Error::NoDaemon { .. })
}

/// Whether the client may have been answered before the daemon came to this point.
fn may_be_answered(point: Point) -> bool {
    matches!(point, Point::BeforeFree | Point::SegmentRetired)
}

/// The daemon has ended as the action says; returns what its client heard of it.
pub(super) fn check_end(
    daemon: &mut Daemon,
    action: &str,
    (answer, may_be_answered): (Result<(), Error>, bool),
    what: &str,
) -> String {
    let status = daemon.process().wait();
    if action == "return(kill)" {
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{what}: {status}");
    } else {
        assert!(status.code().is_some_and(|code| code > 0), "{what}: {status}");
        assert!(daemon.log().contains(PANIC), "{what}: {}", daemon.log());
    }
    match answer {
        Ok(()) if may_be_answered => "answered before".to_owned(),
        Err(error) if is_of_end(&error) => {
            error.to_string().split(" at ").next().unwrap_or_default().to_owned()
        }
        answer => unreachable!("{what}: {answer:?}"),
    }
}

/// Starts the next daemon, which has nothing yet.
pub(super) fn restart_empty(daemon: &mut Daemon, what: &str) {
    daemon.kill();
    daemon.restart();
    let stats = daemon.stats();
    let pool = &stats.pool;
    assert_eq!((pool.used_bytes, pool.reserved_bytes, stats.transfers), (0, 0, 0), "{what}");
}

/// The daemon ends at the point, by SIGKILL or by a panic of ours.
fn end(point: Point, request: Request, action: &str) -> String {
    let mut stage = Stage::new(point, request);
    stage.daemon.arm(point, action);
    let answer = request.run(&stage.daemon.client());
    let heard = check_end(&mut stage.daemon, action, (answer, may_be_answered(point)), &stage.what);
    stage.check_views();
    stage.check_target();

    restart_empty(&mut stage.daemon, &stage.what);
    // The same client and handles go on with the next daemon, and the old views with the old bytes.
    for (name, id, codec) in [("kept", KEPT, RAW), ("target", TARGET, stage.codec)] {
        put(&stage.client, name, (id, 3), codec, ROWS).expect("the next daemon has room");
    }
    for (handle, id, codec) in [(&stage.kept, KEPT, RAW), (&stage.target, TARGET, stage.codec)] {
        let tensor = handle.get().expect("the next daemon has it");
        assert!(is_version(tensor.as_bytes(), (id, 3), codec), "{}", stage.what);
    }
    request.run(&stage.client).map_or_else(
        |error| {
            let is_gone = matches!(error, Error::NotFound { .. } | Error::NoNamespace { .. });
            assert!(is_gone, "{}: {error}", stage.what);
        },
        |()| (),
    );
    let fillers = stage.check_room();
    let action = action.split('(').next().unwrap_or_default();
    let action = if action == "return" { "kill" } else { action };
    format!("{action:5} {request:?}: {heard}; {fillers} MiB found room in the next one")
}

/// The daemon stops at the point, while everybody asks for more.
fn stop(point: Point, request: Request) -> String {
    let mut stage = Stage::new(point, request);
    let (actor, other) = (stage.daemon.client(), stage.daemon.client());
    let pid = stage.daemon.process().pid();
    stage.daemon.arm(point, "1*return(stop)");
    thread::scope(|scope| {
        let acting = scope.spawn(|| request.run(&actor));
        eventually(&stage.what, || is_stopped(pid).then_some(()));
        // What is there is read without the daemon.
        stage.check_views();
        let kept = stage.kept.get().expect("it is read in place");
        assert!(is_version(kept.as_bytes(), (KEPT, 1), RAW), "{}", stage.what);
        let reading = scope.spawn(|| stage.check_target());
        let putting = scope.spawn(|| {
            for version in 1..5 {
                put(&other, "other", (OTHER, version), RAW, ROWS)?;
                let tensor = other.get("other")?;
                assert!(is_version(tensor.as_bytes(), (OTHER, version), RAW), "version {version}");
            }
            other.remove("other")
        });
        continue_daemon(pid);
        acting.join().expect("no panic").expect("a daemon that was stopped goes on");
        putting.join().expect("no panic").expect("a daemon that was stopped goes on");
        reading.join().expect("no panic");
    });
    request.check_done(&stage.client, &stage.what);
    stage.check_views();
    let fillers = stage.check_room();
    let Stage { mut daemon, client, before, target, kept, kept_view, removed_view, what, .. } = stage;
    drop((kept_view, removed_view, target, kept, actor, other));
    for entry in client.list().expect("a list").iter().filter(|entry| entry.name != "kept") {
        client.remove(&entry.name).expect("it is there");
    }
    before.returns(&mut daemon);
    assert_eq!(daemon.stats().requests.sessions_ended, 0, "{what}: {}", daemon.log());
    format!("stop  {request:?}: done as asked; {fillers} MiB found room")
}

pub(super) fn continue_daemon(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"));
    nix::sys::signal::kill(pid, Signal::SIGCONT).expect("the daemon is alive");
}

fn run_all(run: impl Fn(Point, Request) -> String) {
    let mut runs = Runs::default();
    for _ in 0..rounds() {
        for &point in Point::ALL {
            let Plan::Daemon(requests) = plan(point) else { continue };
            requests.iter().for_each(|&request| runs.add(point, run(point, request)));
        }
    }
    runs.finish(|point| matches!(plan(point), Plan::Daemon(_)));
}

#[test]
fn a_daemon_that_is_killed_at_any_point_leaves_its_readers_and_the_next_one_starts_clean() {
    run_all(|point, request| end(point, request, "return(kill)"));
}

#[test]
fn a_daemon_that_panics_at_any_point_ends_with_a_message() {
    run_all(|point, request| end(point, request, &format!("panic({PANIC})")));
}

#[test]
fn a_daemon_that_is_stopped_at_any_point_does_everything_when_it_goes_on() {
    run_all(stop);
}
