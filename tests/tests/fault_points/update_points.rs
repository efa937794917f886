//! A daemon that dies, panics or stops while it updates, folds, refits or compacts: every row is old or new, whole, and
//! never goes back.

use std::thread;

use tierpack_client::{Client, CodecId, Error, Handle, RefitMode, View};
use tierpack_shm::faults::Point;
use tierpack_tests::faults::is_stopped;
use tierpack_tests::leaks::Baseline;
use tierpack_tests::{Daemon, eventually};

use super::daemon_points::{PANIC, check_end, continue_daemon, restart_empty};
use super::{
    CODED, PROGRAM, Plan, RAW, ROWS, Runs, SERVE, drain, fill, is_version, plan, put, rounds, words,
};

const TARGET: u16 = 1;
const KEPT: u16 = 2;
const SMALL: u16 = 6;
const FIRST: u16 = 7;
const ROOM: u16 = 8;

const ROW_WORDS: u64 = 64;
const ROW_BYTES: usize = 512;
/// A row of every block.
const FEW: [u64; 4] = [3, 700, 1100, 2047];
/// Tensors that are put for a compaction; one in [`STAYING`] stays.
const SMALLS: usize = 16;
const STAYING: usize = 4;

/// What makes a daemon reach a point of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A row of each block, which become overlays.
    UpdateFew(CodecId),
    /// All rows, which become blocks.
    UpdateAll(CodecId),
    /// A row of each block, and the background thread puts them into their blocks.
    Fold(CodecId),
    Refit(CodecId),
    /// Most of what fills the segments goes.
    Compact,
}

impl Work {
    const fn codec(self) -> CodecId {
        match self {
            Self::UpdateFew(codec) | Self::UpdateAll(codec) | Self::Fold(codec) | Self::Refit(codec) => codec,
            Self::Compact => CODED,
        }
    }

    /// The rows that have version 2 after it.
    fn rows(self) -> Vec<u64> {
        match self {
            Self::UpdateFew(_) | Self::Fold(_) => FEW.to_vec(),
            Self::UpdateAll(_) => (0..ROWS).collect(),
            Self::Refit(_) | Self::Compact => Vec::new(),
        }
    }

    fn prepare(self, client: &Client) {
        if self == Self::Compact {
            // Fills most of a segment: metadata of others find room behind it.
            put(client, "first", (FIRST, 1), RAW, 1536).expect("room");
        }
        put(client, "target", (TARGET, 1), self.codec(), ROWS).expect("room");
        if self == Self::Compact {
            for n in 0..SMALLS {
                put(client, &format!("small-{n}"), (SMALL, 1), CODED, ROWS).expect("room");
            }
        }
    }

    fn run(self, client: &Client) -> Result<(), Error> {
        match self {
            Self::UpdateFew(_) | Self::UpdateAll(_) | Self::Fold(_) => {
                let rows = self.rows();
                let mut values = vec![0; rows.len() * ROW_BYTES];
                for (row, value) in rows.iter().zip(values.chunks_exact_mut(ROW_BYTES)) {
                    words(self.codec()).fill(value, TARGET, 2, row * ROW_WORDS);
                }
                client.update("target", &rows, &values).map(drop)
            }
            Self::Refit(_) => {
                let drift = client.refit("target", RefitMode::Force, |_, _| ())?;
                assert_eq!(drift.last_failure, None);
                Ok(())
            }
            Self::Compact => {
                client.remove("first")?;
                let mut going = (0..SMALLS).filter(|n| n % STAYING != 0);
                going.try_for_each(|n| client.remove(&format!("small-{n}")))
            }
        }
    }

    /// Whether it is answered before the point is reached.
    const fn is_answered_before(self) -> bool {
        matches!(self, Self::Fold(_) | Self::Compact)
    }

    /// What it left is there, and what it replaced has gone.
    fn check_done(self, client: &Client, what: &str) {
        let handle = client.open("target").expect("it is there");
        let mut seen = Seen::new(self.codec());
        seen.read(&handle, what);
        let mut expected = vec![1; seen.0.len()];
        for row in self.rows() {
            expected[usize::try_from(row).expect("a row of the test")] = 2;
        }
        assert!(seen.0 == expected, "{what}: read your own writes");
        if self == Self::Compact {
            for n in (0..SMALLS).filter(|n| n % STAYING == 0) {
                let small = client.get(&format!("small-{n}")).expect("it is there");
                assert!(is_version(small.as_bytes(), (SMALL, 1), CODED), "{what}: small-{n}");
            }
        }
        let alive = || {
            let drift = client.drift("target").expect("it is there");
            let has_folded = !matches!(self, Self::Fold(_)) || drift.overlay_bytes == 0;
            let expected = u32::from(self.codec() != RAW);
            (has_folded && drift.generations_alive == expected).then_some(())
        };
        eventually(&format!("{what}: one generation"), alive);
    }
}

/// The newest version that was seen of each row.
struct Seen(Vec<u16>, CodecId);

impl Seen {
    fn new(codec: CodecId) -> Self {
        Self(vec![1; usize::try_from(ROWS).expect("a size of the test")], codec)
    }

    /// Reads the tensor both ways: each row is whole, and none is older than it was.
    fn read(&mut self, handle: &Handle, what: &str) {
        let whole = handle.get().expect("it is read in place");
        let rows: Vec<u64> = (0..ROWS).rev().collect();
        let gathered = handle.gather(&rows).expect("it is read in place");
        for (rows, bytes) in [((0..ROWS).collect(), whole), (rows, gathered)] {
            for (row, bytes) in rows.into_iter().zip(bytes.as_bytes().chunks_exact(ROW_BYTES)) {
                let is_of = |version| words(self.1).mismatches(bytes, TARGET, version, row * ROW_WORDS) == 0;
                let version = [1, 2].into_iter().find(|version| is_of(*version));
                let version = version.unwrap_or_else(|| unreachable!("{what}: row {row} is a mixture"));
                let seen = &mut self.0[usize::try_from(row).expect("a row of the test")];
                assert!(version >= *seen, "{what}: row {row} went back to version {version}");
                *seen = version;
            }
        }
    }
}

/// A daemon with a point, and somebody who has read, and holds views.
struct Stage {
    daemon: Daemon,
    client: Client,
    before: Baseline,
    target: Handle,
    views: Vec<(View, u16)>,
    seen: Seen,
    what: String,
}

impl Stage {
    fn new(point: Point, work: Work) -> Self {
        let daemon = Daemon::with_faults(PROGRAM, &[&SERVE[..], &["--refit", "manual"]].concat());
        let client = daemon.client();
        put(&client, "kept", (KEPT, 1), RAW, ROWS).expect("room");
        // Attached, and as empty as it is in the end.
        client.get("kept").expect("it is there");
        client.remove("kept").expect("it is there");
        let before = Baseline::take(&daemon, 1);
        work.prepare(&client);
        put(&client, "kept", (KEPT, 1), RAW, ROWS).expect("room");
        if work != Work::Compact {
            // What the work stores finds room where readers have mapped it: a stopped daemon sends no segment.
            put(&client, "room", (ROOM, 1), RAW, ROWS).expect("room");
            client.remove("room").expect("it is there");
            eventually("free room", || {
                let pool = daemon.stats().pool;
                (pool.used_bytes == pool.stored_bytes).then_some(())
            });
        }
        let kept = client.open("kept").and_then(|kept| kept.view()).expect("it is there");
        let what = format!("{} by {work:?}", point.name());
        let target = client.open("target").expect("it is there");
        let mut seen = Seen::new(work.codec());
        seen.read(&target, &what);
        let mut views = vec![(kept, KEPT)];
        if work.codec() == RAW {
            views.push((target.view().expect("it is raw"), TARGET));
        }
        Self { daemon, client, before, target, views, seen, what }
    }

    /// What is leased is as it was.
    fn check_views(&self) {
        for (view, id) in &self.views {
            let blocks = (0..view.n_blocks()).map(|n| view.block(n).expect("a view outlives its daemon"));
            let bytes = blocks.collect::<Vec<_>>().concat();
            assert!(is_version(&bytes, (*id, 1), RAW), "{}: tensor {id}", self.what);
        }
    }
}

/// The daemon ends at the point, by SIGKILL or by a panic of ours.
fn end(point: Point, work: Work, action: &str) -> String {
    let mut stage = Stage::new(point, work);
    stage.daemon.arm(point, action);
    let answer = work.run(&stage.daemon.client());
    let heard = check_end(&mut stage.daemon, action, (answer, work.is_answered_before()), &stage.what);
    stage.check_views();

    restart_empty(&mut stage.daemon, &stage.what);
    work.prepare(&stage.client);
    stage.seen = Seen::new(work.codec());
    stage.seen.read(&stage.target, &stage.what);
    work.run(&stage.client).expect("the next daemon does it");
    work.check_done(&stage.client, &stage.what);
    stage.check_views();
    let action = if action == "return(kill)" { "kill" } else { "panic" };
    format!("{action:5} {work:?}: {heard}; the next daemon does it")
}

/// The daemon stops at the point while others read.
fn stop(point: Point, work: Work) -> String {
    let mut stage = Stage::new(point, work);
    let actor = stage.daemon.client();
    let pid = stage.daemon.process().pid();
    stage.daemon.arm(point, "1*return(stop)");
    thread::scope(|scope| {
        let acting = scope.spawn(|| work.run(&actor));
        eventually(&stage.what, || is_stopped(pid).then_some(()));
        for _ in 0..3 {
            stage.seen.read(&stage.target, &stage.what);
        }
        stage.check_views();
        assert!(is_stopped(pid), "{}: somebody else has continued it", stage.what);
        continue_daemon(pid);
        acting.join().expect("no panic").expect("a daemon that was stopped goes on");
    });
    stage.seen.read(&stage.target, &stage.what);
    work.check_done(&stage.client, &stage.what);
    let Stage { mut daemon, client, before, views, target, what, .. } = stage;
    drop((views, target, actor));
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes, "{what}");
    daemon.run_ok(&["verify"]);
    let fillers = fill(&client);
    drain(&client, fillers);
    for entry in client.list().expect("a list") {
        client.remove(&entry.name).expect("it is there");
    }
    before.returns(&mut daemon);
    assert_eq!(daemon.stats().requests.sessions_ended, 0, "{what}: {}", daemon.log());
    format!("stop  {work:?}: done as asked; {fillers} MiB found room")
}

fn run_all(skipped: Option<Point>, run: impl Fn(Point, Work) -> String) {
    let mut runs = Runs::default();
    let is_ours = |point| matches!(plan(point), Plan::Store(_)) && Some(point) != skipped;
    for _ in 0..rounds() {
        for &point in Point::ALL.iter().filter(|point| is_ours(**point)) {
            let Plan::Store(all) = plan(point) else { continue };
            all.iter().for_each(|&work| runs.add(point, run(point, work)));
        }
    }
    runs.finish(is_ours);
}

#[test]
fn a_daemon_that_is_killed_while_it_stores_leaves_its_readers_and_the_next_one_starts_clean() {
    run_all(None, |point, work| end(point, work, "return(kill)"));
}

/// A panic of a fit is caught: see below.
#[test]
fn a_daemon_that_panics_while_it_stores_ends_with_a_message() {
    run_all(Some(Point::Fitting), |point, work| end(point, work, &format!("panic({PANIC})")));
}

#[test]
fn a_daemon_that_is_stopped_while_it_stores_shows_every_row_old_or_new() {
    run_all(None, stop);
}

#[test]
fn a_fit_that_panics_is_a_failure_and_the_daemon_goes_on() {
    let mut daemon = Daemon::with_faults(PROGRAM, &SERVE);
    let client = daemon.client();
    let work = Work::UpdateAll(CODED);
    work.prepare(&client);
    daemon.arm(Point::Fitting, &format!("1*panic({PANIC})"));
    let error = client.refit("target", RefitMode::Force, |_, _| ()).expect_err("the fit panics").to_string();
    assert!(error.contains("\"target\"") && error.contains("the fit panicked"), "{error}");
    let drift = client.refit("target", RefitMode::Force, |_, _| ()).expect("the next one does not");
    assert_eq!((drift.refits, drift.last_failure), (1, None));

    // The background thread looks at a tensor that has changed.
    daemon.arm(Point::Fitting, &format!("1*panic({PANIC})"));
    work.run(&client).expect("room");
    let stats = eventually("a failure of the background thread", || {
        let stats = daemon.stats();
        (stats.background.failures > 0).then_some(stats)
    });
    assert_eq!(stats.background.failures, 1);
    assert!(stats.background.last_failure.is_some_and(|text| text.contains("the fit panicked")));
    let failure = client.drift("target").expect("it is there").last_failure;
    assert!(failure.is_some_and(|text| text.contains("the fit panicked")));
    work.check_done(&client, "after a fit that panicked");
    let drift = client.refit("target", RefitMode::Force, |_, _| ()).expect("the next one does not");
    assert_eq!(drift.last_failure, None);
    assert!(drift.refits > 1, "{drift:?}");
    work.check_done(&client, "after the next fit");
    assert!(daemon.process().is_running() && daemon.log().contains(PANIC), "{}", daemon.log());
    let stats = daemon.quiet();
    assert_eq!(stats.pool.used_bytes, stats.pool.stored_bytes);
}
