//! A daemon that dies or stops in the middle of its start: the next one starts, and nobody takes a half for a whole.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tierpack_client::{Client, Error};
use tierpack_shm::faults::Point;
use tierpack_tests::eventually;
use tierpack_tests::program::{Served, assert_says};

use super::{PROGRAM, Plan, RAW, ROWS, Runs, SERVE, is_version, plan, put, rounds};

/// A short deadline, for a daemon that will not answer.
const SOON: Duration = Duration::from_millis(300);

fn start(socket: &Path, faults: &str, log: &str) -> Served {
    let mut command = Command::new(PROGRAM);
    command.arg("--socket").arg(socket).arg("serve").args(SERVE).env("FAILPOINTS", faults);
    Served::start(&mut command, &socket.with_file_name(log))
}

fn connect(socket: &Path) -> Result<Client, Error> {
    Client::builder().socket(socket).deadline(SOON).connect()
}

/// A daemon serves, and what is put is there.
fn check_serves(socket: &Path) {
    let client = eventually("a daemon that answers", || connect(socket).ok());
    put(&client, "a", (1, 1), RAW, ROWS).expect("room");
    assert!(is_version(client.get("a").expect("it was put").as_bytes(), (1, 1), RAW));
    assert_eq!(client.list().expect("a list").len(), 1, "one pool");
}

fn kill(point: Point, socket: &Path) -> String {
    let mut first = start(socket, &format!("{}=return(kill)", point.name()), "killed.log");
    first.process.wait_killed(point.name());
    let error = connect(socket).expect_err("nobody serves");
    assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
    let mut next = start(socket, "", "next.log");
    next.ready();
    check_serves(socket);
    "kill  start: no daemon answers; the next one serves".to_owned()
}

fn stop(point: Point, socket: &Path) -> String {
    let mut first = start(socket, &format!("{}=1*return(stop)", point.name()), "stopped.log");
    first.process.wait_stopped(point.name());
    let error = connect(socket).expect_err("it does not answer");
    assert!(matches!(error, Error::NoDaemon { .. } | Error::Deadline { .. }), "{error}");
    let refusal = start(socket, "", "second.log").refusal();
    assert_says(&refusal, &["owned by another daemon"]);
    first.process.signal(Signal::SIGCONT);
    check_serves(socket);
    let told = error.to_string();
    let told = told.split(" at ").next().unwrap_or_default();
    format!("stop  start: {told}; a second one is refused; then it serves")
}

#[test]
fn a_daemon_that_dies_or_stops_while_it_starts_is_in_nobodys_way() {
    let mut runs = Runs::default();
    for _ in 0..rounds() {
        for &point in Point::ALL.iter().filter(|point| matches!(plan(**point), Plan::Start)) {
            for run in [kill, stop] {
                let folder = tempfile::tempdir().expect("a temporary directory");
                runs.add(point, run(point, &folder.path().join("control.sock")));
            }
        }
    }
    runs.finish(|point| matches!(plan(point), Plan::Start));
}
