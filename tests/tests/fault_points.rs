//! Every fault point: what happens to everybody else when a process dies, stops or fails there.
//!
//! [`plan`] says how each point is reached; it is a `match` without a rest, so that a new point needs a run.
//! The runs are in files of their own: the start of a daemon, other points of a daemon, those of its updates, refits and
//! compaction, of its other threads, points of a client, points that fail by an errno, and many clients at once.

use std::io::Read;

use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Error, PutOptions};
use tierpack_shm::faults::Point;
use tierpack_tests::data::{Source, Words};
use tierpack_tests::{Daemon, full};

#[path = "fault_points/client_points.rs"]
mod client_points;
#[path = "fault_points/daemon_points.rs"]
mod daemon_points;
#[path = "fault_points/errno_points.rs"]
mod errno_points;
#[path = "fault_points/start_points.rs"]
mod start_points;
#[path = "fault_points/storm.rs"]
mod storm;
#[path = "fault_points/thread_points.rs"]
mod thread_points;
#[path = "fault_points/update_points.rs"]
mod update_points;

use update_points::Work;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
const SERVE: [&str; 4] = ["--pool-size", "24MiB", "--lock", "off"];

/// Rows of 512 bytes of a usual tensor: four blocks.
const ROWS: u64 = 2048;
/// Rows of one that needs segments of its own.
const BIG_ROWS: u64 = 16 << 10;
/// Rows of one of those that fill the pool.
const FILLER_ROWS: u64 = 2048;

const RAW: CodecId = CodecId::Raw;
const CODED: CodecId = CodecId::Ibp;

/// What makes a daemon reach a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Put(CodecId),
    Overwrite(CodecId),
    Remove,
    PutBig,
    RemoveBig,
    Attach,
    List,
    RemoveNamespace,
}

/// What a client does with the tensor `target` to reach a point, as `tierpack-test-client fault` calls it.
type Operation = &'static str;

/// How a point is reached.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// By a daemon that starts.
    Start,
    /// By the daemon, which carries out one of these.
    Daemon(&'static [Request]),
    /// By the daemon, which stores blocks of a visible tensor for one of these.
    Store(&'static [Work]),
    /// By the thread of a client that calls one of these.
    Caller(&'static [(Operation, CodecId)]),
    /// By the session thread of a client, when somebody else does this.
    Session(Request),
    /// By a thread of the daemon whose work is the same whatever is asked.
    Thread,
    /// By an errno; see `errno_points.rs`.
    Errno,
}

fn plan(point: Point) -> Plan {
    const READS: &[(Operation, CodecId)] =
        &[("get", RAW), ("get", CODED), ("gather", RAW), ("gather", CODED), ("view", RAW), ("attach", RAW)];
    const PUTS: &[Request] = &[Request::Put(RAW), Request::Put(CODED), Request::Overwrite(CODED)];
    match point {
        Point::UpdatePrepared => {
            Plan::Store(&[Work::UpdateFew(RAW), Work::UpdateFew(CODED), Work::UpdateAll(CODED)])
        }
        Point::WordSwapped => {
            Plan::Store(&[Work::UpdateFew(CODED), Work::UpdateAll(RAW), Work::Refit(CODED), Work::Compact])
        }
        Point::BetweenWords | Point::WordsStored => {
            Plan::Store(&[Work::UpdateFew(CODED), Work::UpdateAll(RAW)])
        }
        Point::RewriteEncoded => Plan::Store(&[Work::Fold(RAW), Work::Fold(CODED), Work::Refit(CODED)]),
        Point::Fitting | Point::RefitPlanned | Point::RefitBegun | Point::RefitBetweenBlocks => {
            Plan::Store(&[Work::Refit(CODED)])
        }
        Point::IndexRetired => Plan::Store(&[Work::Refit(CODED)]),
        Point::SegmentClosed | Point::BlockCopied | Point::MetadataCopied => Plan::Store(&[Work::Compact]),
        Point::StartLocked | Point::StartBound => Plan::Start,
        Point::PutBegun | Point::PutEncoded | Point::PutBeforePublish => Plan::Daemon(PUTS),
        Point::PutPublished => Plan::Daemon(PUTS),
        Point::EpochStepped => {
            Plan::Daemon(&[Request::Overwrite(RAW), Request::Overwrite(CODED), Request::Remove])
        }
        Point::BatchRetired => Plan::Daemon(&[Request::RemoveNamespace]),
        Point::BeforeFree => Plan::Daemon(&[Request::Overwrite(RAW), Request::Remove]),
        Point::SegmentMade => Plan::Daemon(&[Request::PutBig]),
        Point::SegmentRetired => Plan::Daemon(&[Request::RemoveBig]),
        Point::AttachPage => Plan::Daemon(&[Request::Attach]),
        Point::ReplyUnsent => Plan::Daemon(&[Request::List, Request::Put(RAW), Request::Remove]),
        Point::LeaseTaken | Point::LeaseEnding => Plan::Caller(READS),
        Point::CopyWordLoaded | Point::CopyBetweenBlocks => {
            Plan::Caller(&[("get", RAW), ("get", CODED), ("attach", CODED)])
        }
        Point::GatherWordLoaded | Point::GatherBetweenRows => {
            Plan::Caller(&[("gather", RAW), ("gather", CODED)])
        }
        Point::SnapshotWordLoaded => Plan::Caller(&[("snapshot", RAW), ("snapshot", CODED)]),
        Point::ViewWordsLoaded => Plan::Caller(&[("view", RAW)]),
        Point::OverlayFound => {
            Plan::Caller(&[("get", RAW), ("get", CODED), ("gather", RAW), ("gather", CODED)])
        }
        Point::UpdateSent => Plan::Caller(&[("update", RAW), ("update", CODED)]),
        Point::SegmentReceived => Plan::Session(Request::PutBig),
        Point::SegmentUnmapping => Plan::Session(Request::RemoveBig),
        Point::ChunkSent | Point::BeforeCommit => Plan::Caller(&[("put", RAW), ("put", CODED)]),
        Point::StatsTurn | Point::CloserTurn | Point::FreerTurn | Point::LogTurn => Plan::Thread,
        Point::Accept | Point::SegmentCreate | Point::PageCreate | Point::Seal | Point::SegmentMap => {
            Plan::Errno
        }
    }
}

fn words(codec: CodecId) -> Words {
    Words::new(codec != RAW)
}

/// Puts version `version` of a tensor, over whatever has its name.
fn put(
    client: &Client,
    name: &str,
    (id, version): (u16, u16),
    codec: CodecId,
    rows: u64,
) -> Result<(), Error> {
    let mut source = Source::of(words(codec), id, version);
    let options = PutOptions::new().codec(CodecChoice::Only(codec)).overwrite(true);
    client.put_with(name, Dtype::U64, &[rows, 64], &mut source as &mut dyn Read, &options).map(drop)
}

/// Whether `bytes` are the whole of this version.
fn is_version(bytes: &[u8], (id, version): (u16, u16), codec: CodecId) -> bool {
    words(codec).mismatches(bytes, id, version, 0) == 0
}

/// Puts raw tensors until the pool is full; returns their number.
fn fill(client: &Client) -> u64 {
    for n in 0.. {
        match put(client, &format!("filler-{n}"), (90, 1), RAW, FILLER_ROWS) {
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error, Error::PoolFull { .. }), "{error}");
                return n;
            }
        }
    }
    unreachable!("a pool has an end")
}

/// Removes what [`fill`] has put; every byte of it is what was put.
fn drain(client: &Client, fillers: u64) {
    for n in 0..fillers {
        let name = format!("filler-{n}");
        let tensor = client.get(&name).expect("a filler is there");
        assert!(is_version(tensor.as_bytes(), (90, 1), RAW), "{name}");
        client.remove(&name).expect("a filler is there");
    }
}

/// Rounds over every run.
fn rounds() -> usize {
    if full() { 10 } else { 1 }
}

/// The runs of one test, to be told at its end.
#[derive(Debug, Default)]
struct Runs(Vec<(Point, String)>);

impl Runs {
    fn add(&mut self, point: Point, text: String) {
        self.0.push((point, text));
    }

    /// Prints all; each point that `belongs` must have one.
    #[expect(clippy::print_stdout, reason = "the list of a test run")]
    fn finish(self, belongs: impl Fn(Point) -> bool) {
        for (point, text) in &self.0 {
            println!("{:28} {text}", point.name());
        }
        let ours = Point::ALL.iter().copied().filter(|point| belongs(*point));
        let without: Vec<_> = ours.filter(|point| self.0.iter().all(|(ran, _)| ran != point)).collect();
        assert!(without.is_empty(), "points without a run: {without:?}");
        println!("{} runs", self.0.len());
    }
}

/// Points by the way in which they are reached: each has one, and those that can fail are failed.
#[test]
fn every_point_has_a_run() {
    for &point in Point::ALL {
        let by_errno = matches!(plan(point), Plan::Errno);
        assert_eq!(by_errno, point.can_fail(), "{point:?}");
    }
}

/// A point that is set by the environment acts from the start of its process.
#[test]
fn a_point_of_the_environment_acts_in_a_process_of_any_kind() {
    use std::process::{Command, Stdio};

    use tierpack_tests::Process;

    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    put(&daemon.client(), "a", (1, 1), RAW, ROWS).expect("room");
    let mut get = daemon.command();
    let out = daemon.dir().join("a.safetensors");
    get.args(["get", "a", "--output"]).arg(&out).stdout(Stdio::null()).stderr(Stdio::null());
    get.env("FAILPOINTS", "client.get.between_blocks=2*off->return(kill)");
    Process::start(&mut get).wait_killed("a program that reads");
    assert!(!out.exists(), "the file of a program that was killed while it read");

    daemon.stop();
    let mut serve = Command::new(PROGRAM);
    serve.arg("--socket").arg(daemon.socket()).args(["serve", "--pool-size", "8MiB", "--lock", "off"]);
    serve.stderr(Stdio::null()).env("FAILPOINTS", "daemon.reply.unsent=return(kill)");
    let mut process = Process::start(&mut serve);
    let client = tierpack_tests::eventually("a listening daemon", || {
        Client::builder().socket(daemon.socket()).connect().ok()
    });
    let error = client.list().expect_err("nobody answers");
    assert!(matches!(error, Error::Disconnected { .. } | Error::NoDaemon { .. }), "{error}");
    process.wait_killed("a daemon that was about to answer");
    serve.env("FAILPOINTS", "daemon.reply.sent=return(kill)");
    assert_eq!(Process::start(&mut serve).wait().code(), Some(101), "a name that no point has");
}
