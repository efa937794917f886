//! `stats --watch`: looks again and again, outlives the daemon, and ends when nobody wants more.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tierpack_client::{Dtype, Stats};
use tierpack_tests::program::{assert_says, error_line};
use tierpack_tests::{Daemon, eventually};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SERVE: [&str; 4] = ["--pool-size", "32MiB", "--lock", "off"];

/// A watch under way; killed when dropped.
struct Watch {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    errors: PathBuf,
}

impl Watch {
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let errors = daemon.dir().join("watch.log");
        let mut command: Command = daemon.command();
        command.args(["stats", "--watch", "--interval", "0.1"]).args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(File::create(&errors).expect("a log file"));
        let mut child = command.spawn().expect("start a watch");
        let output = child.stdout.take().map(BufReader::new);
        Self { child, output, errors }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let n = self.output.as_mut().expect("an open pipe").read_line(&mut line).expect("text");
        assert!(n > 0, "the watch ended: {}", self.errors());
        line
    }

    fn document(&mut self) -> Stats {
        serde_json::from_str(&self.line()).expect("a document")
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).expect("a log file")
    }

    fn end(&mut self) -> ExitStatus {
        eventually("the end of the watch", || self.child.try_wait().expect("look at a child"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_watch_prints_one_document_a_line_and_ends_by_an_interrupt() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut watch = Watch::start(&daemon, &["--json"]);
        let (first, second) = (watch.document(), watch.document());
        assert!(first.instance == second.instance && first.uptime_s < second.uptime_s);
        kill(Pid::from_raw(i32::try_from(watch.child.id()).unwrap()), signal).unwrap();
        assert!(watch.end().success(), "{}", watch.errors());
        let mut rest = String::new();
        watch.output.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        rest.lines().for_each(|line| drop(serde_json::from_str::<Stats>(line).unwrap()));
        assert_eq!(watch.errors(), "");
    }
}

#[test]
fn a_watch_shows_rates_beside_the_totals() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    client.put("a", Dtype::U8, &[1], &[1]).unwrap();
    let handle = client.open("a").unwrap();
    let mut watch = Watch::start(&daemon, &[]);
    // The first look has nothing to compare with; a later one sees the gets of between.
    while !watch.line().starts_with("gets") {}
    let rate = eventually("a rate", || {
        handle.get().unwrap();
        let line = watch.line();
        let cells: Vec<&str> = line.split_whitespace().collect();
        let [_, total, rate] = cells[..] else { return None };
        let (total, rate): (u64, f64) = (total.parse().ok()?, rate.parse().ok()?);
        (cells[0] == "gets" && total > 0 && rate > 0.0).then_some(rate)
    });
    assert!(rate.is_finite());
    // One block follows the other, without what moves a cursor.
    assert!((0..60).map(|_| watch.line()).all(|line| !line.contains('\u{1b}')));
}

#[test]
fn a_watch_outlives_the_daemon_and_says_so() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let mut watch = Watch::start(&daemon, &["--json"]);
    let before = watch.document();
    daemon.kill();
    eventually("a word about the daemon", || watch.errors().contains("still watching").then_some(()));
    daemon.restart();
    let after = eventually("a document of the next daemon", || {
        let document = watch.document();
        (document.instance != before.instance).then_some(document)
    });
    assert!(watch.document().uptime_s > after.uptime_s, "it goes on");
    let errors = watch.errors();
    assert_says(&errors, &["warning: still watching: no daemon answers", "warning: a new daemon answers"]);
    assert_eq!(errors.lines().count(), 2, "{errors}");
}

#[test]
fn a_watch_ends_with_its_reader_even_while_there_is_no_daemon() {
    for with_daemon in [true, false] {
        let mut daemon = Daemon::start(PROGRAM, &SERVE);
        let mut watch = Watch::start(&daemon, &["--json"]);
        watch.document();
        if !with_daemon {
            daemon.kill();
            eventually("a word about the daemon", || watch.errors().contains("watching").then_some(()));
        }
        drop(watch.output.take());
        assert!(watch.end().success(), "{}", watch.errors());
        assert_eq!(watch.errors().lines().count(), usize::from(!with_daemon));
    }
}

#[test]
fn a_watch_of_nothing_and_a_strange_interval_are_errors() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    daemon.kill();
    let error = error_line(&daemon.run(&["stats", "--watch"]));
    assert_says(&error, &["no daemon answers", "stats.sock", "tierpack serve"]);
    for args in [&["stats", "--watch", "--interval", "0"][..], &["stats", "--interval", "2"]] {
        let output = daemon.run(args);
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
