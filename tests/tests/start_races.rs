//! Daemons and clients that start together, with the steps of a start stretched so that they meet in the middle.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use tierpack_client::{Client, Dtype, Error};
use tierpack_tests::program::{Served, assert_says, child_of};
use tierpack_tests::{DEADLINE, eventually, full, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
/// The system calls between which another daemon or a client may come.
const STEPS: [&str; 6] = ["flock", "ftruncate", "bind", "listen", "rename", "fallocate"];

/// A daemon whose call of `step` returns 0.3 s late.
fn slow_daemon(socket: &Path, step: &str, n: usize) -> Served {
    let mut command = tools::traced(&format!("inject={step}:delay_exit=300000"), PROGRAM);
    command.args(["serve", "--pool-size", "8MiB", "--lock", "off", "--socket"]).arg(socket);
    Served::start(&mut command, &socket.with_file_name(format!("{step}.{n}.log")))
}

/// Connects and puts as soon as a daemon is there; every error before that is "there is none yet".
fn client(socket: &Path, name: &str) {
    let deadline = Instant::now() + DEADLINE;
    let done = || {
        let client = Client::builder().socket(socket).connect()?;
        client.put(name, Dtype::U8, &[2], &[1, 2])?;
        client.get(name)
    };
    loop {
        match done() {
            Err(Error::NoDaemon { .. }) => assert!(Instant::now() < deadline, "no daemon comes"),
            done => return assert_eq!(done.expect("a daemon that serves").as_bytes(), [1, 2]),
        }
        thread::yield_now();
    }
}

#[test]
fn of_two_daemons_that_start_slowly_one_serves_all_clients() {
    if !tools::can_trace("stretching a start") {
        return;
    }
    let rounds = if full() { 30 } else { 1 };
    for step in STEPS.iter().cycle().take(STEPS.len() * rounds) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let mut daemons: Vec<Served> = (0..2).map(|n| slow_daemon(&socket, step, n)).collect();
        thread::scope(|scope| {
            for n in 0..8 {
                let socket = &socket;
                scope.spawn(move || client(socket, &n.to_string()));
            }
        });
        let loser = eventually("the end of one daemon", || {
            daemons.iter_mut().position(|daemon| !daemon.process.is_running())
        });
        assert_says(&daemons[loser].refusal(), &["owned by another daemon"]);
        let client = Client::builder().socket(&socket).connect().unwrap();
        assert_eq!(client.list().unwrap().len(), 8, "{step}: one pool");
    }
}

/// A daemon that is killed in the middle of its start poisons no later start.
#[test]
fn a_start_that_is_killed_half_way_leaves_nothing_in_the_way() {
    if !tools::can_trace("a kill in the middle of a start") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    for step in STEPS {
        for nth in 1..=2 {
            let mut command = tools::traced(&format!("inject={step}:signal=SIGKILL:when={nth}"), PROGRAM);
            command.args(["serve", "--pool-size", "8MiB", "--lock", "off", "--socket"]).arg(&socket);
            let mut killed = Served::start(&mut command, &folder.path().join(format!("{step}.{nth}.log")));
            // Steps that a start does not take as often leave a daemon that serves.
            eventually("a death or a daemon", || {
                (!killed.process.is_running() || killed.log().contains("serving")).then_some(())
            });
            if killed.process.is_running() {
                // Not the tracer, whose end does not wait for the daemon's.
                kill(child_of(&killed.process), Signal::SIGKILL).unwrap();
            }
            killed.process.wait();
            let mut next = Command::new(PROGRAM);
            next.args(["serve", "--pool-size", "8MiB", "--lock", "off", "--socket"]).arg(&socket);
            let mut next = Served::start(&mut next, &folder.path().join("next.log"));
            next.ready();
            client(&socket, "b");
            next.process.kill();
        }
    }
}
