//! A client that dies or stops at a point: nothing of it is left, and nobody reads a wrong byte, itself included.

use nix::sys::signal::Signal;
use tierpack_client::{Client, CodecId};
use tierpack_shm::faults::Point;
use tierpack_tests::faults::is_stopped;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::reports::FaultReport;
use tierpack_tests::{Daemon, TestClient, full};

use super::{
    BIG_ROWS, CLIENT, CODED, PROGRAM, Plan, RAW, ROWS, Request, Runs, SERVE, drain, fill, is_version, plan,
    put, rounds, words,
};

/// The tensor that the client with the point works on, and the one that nobody touches.
const TARGET: u16 = 1;
const KEPT: u16 = 2;
const BIG: u16 = 3;
/// The version that the client's updates bring.
const UPDATED: u16 = 9;

/// How a client is brought to its point.
#[derive(Clone, Copy, Debug)]
struct Way {
    point: Point,
    operation: &'static str,
    codec: CodecId,
    /// By what somebody else does, in its session thread.
    by_other: Option<Request>,
}

impl Way {
    fn is_put(self) -> bool {
        self.operation == "put"
    }

    fn is_update(self) -> bool {
        self.operation == "update"
    }
}

fn ways(point: Point) -> Vec<Way> {
    match plan(point) {
        Plan::Caller(operations) => operations
            .iter()
            .map(|&(operation, codec)| Way { point, operation, codec, by_other: None })
            .collect(),
        Plan::Session(request) => {
            let both = [("get", RAW), ("gather", CODED)].into_iter();
            both.map(|(operation, codec)| Way { point, operation, codec, by_other: Some(request) }).collect()
        }
        Plan::Start | Plan::Daemon(_) | Plan::Store(_) | Plan::Thread | Plan::Errno => Vec::new(),
    }
}

fn is_of_client(point: Point) -> bool {
    matches!(plan(point), Plan::Caller(_) | Plan::Session(_))
}

/// One daemon, somebody who uses it, and a client with a point.
struct Stage {
    daemon: Daemon,
    client: Client,
    before: Baseline,
    actor: TestClient,
    way: Way,
}

impl Stage {
    fn new(way: Way, action: &str) -> Self {
        let daemon = Daemon::with_faults(PROGRAM, &SERVE);
        let client = daemon.client();
        put(&client, "kept", (KEPT, 1), way.codec, ROWS).expect("room");
        // Attached, so that it holds the same segments before and after.
        client.get("kept").expect("it is there");
        let before = Baseline::take(&daemon, 1);
        if !way.is_put() {
            put(&client, "target", (TARGET, 1), way.codec, ROWS).expect("room");
        }
        if way.point == Point::OverlayFound {
            // Nobody puts the overlays into their blocks before the client is there.
            daemon.arm(Point::RewriteEncoded, "pause");
            cover(&client, way.codec);
        }
        if way.by_other == Some(Request::RemoveBig) {
            put(&client, "big", (BIG, 1), RAW, BIG_ROWS).expect("room");
        }
        let (point, codec, tensor_id) = (way.point.name(), way.codec.name(), TARGET.to_string());
        let args = ["fault", "--point", point, "--actions", action, "--operation", way.operation];
        let args = [&args[..], &["--tensor", "target", "--tensor-id", &tensor_id, "--codec", codec]].concat();
        let mut actor = TestClient::start(CLIENT, &daemon, &args);
        assert!(actor.line().expect("a line").starts_with("ready"), "{way:?}");
        actor.tell("arm");
        assert_eq!(actor.line().as_deref(), Some("armed"), "{way:?}");
        Self { daemon, client, before, actor, way }
    }

    /// Does what brings the client to its point.
    fn provoke(&mut self) {
        match self.way.by_other {
            None => self.actor.tell("go"),
            Some(Request::RemoveBig) => self.client.remove("big").expect("it is there"),
            Some(_) => put(&self.client, "big", (BIG, 1), RAW, BIG_ROWS).expect("room"),
        }
    }

    /// The client is where its point is: the daemon may do everything again.
    fn arrived(&self) {
        if self.way.point == Point::OverlayFound {
            self.daemon.arm(Point::RewriteEncoded, "off");
        }
    }

    fn report(&mut self) -> FaultReport {
        let line = self.actor.line().expect("the client reports");
        serde_json::from_str(&line).expect("a report")
    }

    fn check_kept(&self) {
        let kept = self.client.get("kept").expect("nobody touches it");
        assert!(is_version(kept.as_bytes(), (KEPT, 1), self.way.codec), "{:?}", self.way);
    }

    /// Everything that the test has put goes, and nothing else is there.
    fn end(self) {
        let Self { mut daemon, client, before, actor, way } = self;
        drop(actor);
        for entry in client.list().expect("a list") {
            match entry.name.as_str() {
                "kept" => {}
                "target" | "big" => client.remove(&entry.name).expect("it is there"),
                name => unreachable!("{way:?} left {name:?}"),
            }
        }
        before.returns(&mut daemon);
        assert_eq!(daemon.stats().requests.sessions_ended, 0, "{way:?}: {}", daemon.log());
    }
}

/// Updates a row of every block of the target with the value that it has: an overlay of each.
fn cover(client: &Client, codec: CodecId) {
    let (rows, mut values) = ([3, 700, 1100, 2047_u64], [0; 4 * 512]);
    for (row, value) in rows.iter().zip(values.chunks_exact_mut(512)) {
        words(codec).fill(value, TARGET, 1, row * 64);
    }
    client.update("target", &rows, &values).expect("room");
    assert!(client.drift("target").expect("it is there").overlay_bytes > 0);
}

/// What a killed client had asked for: of each row all or nothing.
fn check_updated(client: &Client, way: Way) {
    let target = client.get("target").expect("it is there");
    for (row, bytes) in (0..).zip(target.as_bytes().chunks_exact(512)) {
        let is_of = |version| words(way.codec).mismatches(bytes, TARGET, version, row * 64) == 0;
        assert!(is_of(1) || is_of(UPDATED), "{way:?}: row {row} is a mixture");
    }
}

fn kill(way: Way) -> String {
    let mut stage = Stage::new(way, "return(kill)");
    stage.provoke();
    stage.actor.process().wait_killed(&format!("{way:?}"));
    stage.arrived();
    stage.check_kept();
    if way.is_update() {
        check_updated(&stage.client, way);
    }
    if way.is_put() {
        let names: Vec<_> =
            stage.client.list().expect("a list").into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["kept"], "{way:?}: a put without a commit");
    }
    // Whatever it held can be replaced, and the whole pool be used.
    put(&stage.client, "target", (TARGET, 2), way.codec, ROWS).expect("room");
    let target = stage.client.get("target").expect("it was just put");
    assert!(is_version(target.as_bytes(), (TARGET, 2), way.codec), "{way:?}");
    let fillers = fill(&stage.client);
    drain(&stage.client, fillers);
    stage.check_kept();
    stage.end();
    format!("kill  {:6} {:5} killed; nothing left, {fillers} MiB found room", way.operation, way.codec)
}

/// What happens while a client is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    /// Others fill the pool; so they do in the other two as well.
    Filled,
    /// Its tensor is replaced.
    Replaced,
    /// Its tensor is replaced and removed.
    Removed,
}

fn stop(way: Way, meanwhile: Meanwhile) -> String {
    let mut stage = Stage::new(way, "1*return(stop)");
    stage.provoke();
    stage.actor.process().wait_stopped(&format!("{way:?}"));
    stage.arrived();
    let client = stage.client.clone();
    if meanwhile != Meanwhile::Filled {
        put(&client, "target", (TARGET, 2), way.codec, ROWS).expect("room");
        let target = client.get("target").expect("it was just put");
        assert!(is_version(target.as_bytes(), (TARGET, 2), way.codec), "{way:?}");
        if meanwhile == Meanwhile::Removed {
            client.remove("target").expect("it is there");
        }
    }
    let fillers = fill(&client);
    stage.check_kept();
    // The kernel continues what is stopped in a process group whose shell has just ended: not what is tested here.
    assert!(is_stopped(stage.actor.process().pid()), "{way:?}: somebody else has continued it");
    // What the client still needs has stayed, however full the pool is.
    let pool = stage.daemon.stats().pool;
    let holds = match way.point {
        Point::SegmentUnmapping => pool.returning_bytes,
        Point::ChunkSent | Point::BeforeCommit => pool.reserved_bytes + pool.used_bytes,
        Point::SegmentReceived | Point::UpdateSent => 1,
        _ => pool.held_bytes,
    };
    assert!(holds > 0, "{way:?}: {pool:?}");
    if full() {
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    stage.actor.process().signal(Signal::SIGCONT);
    if way.by_other.is_some() {
        stage.actor.tell("go");
    }
    let report = stage.report();
    check_first(way, meanwhile, &report);
    drain(&client, fillers);
    stage.check_kept();
    // It goes on as if nothing had been.
    put(&client, "target", (TARGET, 3), way.codec, ROWS).expect("room");
    stage.actor.tell("go");
    let again = stage.report();
    let expected = match way.operation {
        "put" => 1,
        "update" => UPDATED,
        _ => 3,
    };
    assert_eq!(again, FaultReport { version: Some(expected), error: None }, "{way:?}");
    stage.end();
    let outcome = match (report.version, report.error) {
        (Some(version), _) => format!("the bytes of version {version}"),
        (None, error) => error.unwrap_or_default(),
    };
    format!("stop  {:6} {:5} {meanwhile:?}: {outcome}", way.operation, way.codec)
}

/// The operation that was stopped: its tensor was replaced or removed meanwhile, and the pool filled.
fn check_first(way: Way, meanwhile: Meanwhile, report: &FaultReport) {
    let says = |text: &str| report.error.as_deref().is_some_and(|error| error.contains(text));
    let begins_again = match meanwhile {
        Meanwhile::Replaced => report.version == Some(2),
        Meanwhile::Removed | Meanwhile::Filled => says("no tensor \"target\""),
    };
    let is_right = match way.point {
        // The next batch of a long gather finds that its tensor is gone, and the call begins again.
        Point::LeaseEnding | Point::GatherWordLoaded | Point::GatherBetweenRows | Point::OverlayFound
            if way.operation == "gather" =>
        {
            begins_again
        }
        // The first lease after an attach ends without a read where a segment is not mapped yet.
        Point::LeaseEnding if way.operation == "attach" => report.version == Some(1) || begins_again,
        // Under its lease the tensor is what it was.
        Point::LeaseEnding
        | Point::CopyWordLoaded
        | Point::CopyBetweenBlocks
        | Point::GatherWordLoaded
        | Point::GatherBetweenRows
        | Point::OverlayFound
        | Point::ViewWordsLoaded => report.version == Some(1),
        // Its room is promised.
        Point::ChunkSent | Point::BeforeCommit => report.version == Some(1),
        // The daemon had it before or after the replacement.
        Point::UpdateSent if meanwhile == Meanwhile::Replaced => {
            matches!(report.version, Some(2 | UPDATED))
        }
        // The lease came before the look at the publication, which is another by now.
        _ => begins_again,
    };
    assert!(is_right, "{way:?}: {report:?}");
}

fn run_all(run: impl Fn(Way) -> Vec<String>) {
    let mut runs = Runs::default();
    for _ in 0..rounds() {
        for &point in Point::ALL {
            for way in ways(point) {
                run(way).into_iter().for_each(|text| runs.add(point, text));
            }
        }
    }
    runs.finish(is_of_client);
}

#[test]
fn a_client_that_is_killed_at_any_point_leaves_nothing() {
    run_all(|way| vec![kill(way)]);
}

#[test]
fn a_client_that_is_stopped_at_any_point_reads_no_wrong_byte() {
    run_all(|way| {
        // A put has nothing that could be replaced.
        let all =
            if way.is_put() { &[Meanwhile::Filled][..] } else { &[Meanwhile::Replaced, Meanwhile::Removed] };
        all.iter().map(|meanwhile| stop(way, *meanwhile)).collect()
    });
}
