//! Nobody waits without an end: a daemon that is stopped, that is not there yet, or that was killed.

use std::io::Read;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use tierpack_client::{Client, Dtype, Error};
use tierpack_tests::program::{assert_says, error_line, has_open};
use tierpack_tests::{Daemon, Process, eventually, heeded, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SERVE: [&str; 4] = ["--pool-size", "32MiB", "--lock", "off"];
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn every_call_meets_its_deadline_while_the_daemon_is_stopped() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let builder = || Client::builder().socket(daemon.socket()).deadline(SHORT);
    let (client, connect) = (builder().connect().unwrap(), builder());
    let bytes: Vec<u8> = (0..=255).collect();
    client.put_with("a", Dtype::U8, &[16, 16], &mut &bytes[..], &raw()).unwrap();
    let handle = client.open("a").unwrap();
    daemon.process().signal(Signal::SIGSTOP);

    let check = |what: &str, error: Error| {
        assert!(matches!(error, Error::Deadline { .. }), "{what}: {error}");
        assert_says(&error.to_string(), &["0.2 s", "deadline"]);
    };
    check("open", client.open("a").unwrap_err());
    check("get by name", client.get("a").unwrap_err());
    check("put", client.put("b", Dtype::U8, &[1], &[1]).unwrap_err());
    check("remove", client.remove("a").unwrap_err());
    check("list", client.list().unwrap_err());
    check("list all", client.list_all().unwrap_err());
    check("file metadata", client.file_metadata("a").unwrap_err());
    check("attach", client.namespace("other").unwrap().open("a").unwrap_err());
    check("stats", client.stats().unwrap_err());
    check("connect", connect.connect().unwrap_err());

    // What was opened needs no daemon.
    assert_eq!(handle.get().unwrap().as_bytes(), bytes);
    assert_eq!(handle.gather(&[15, 0]).unwrap().as_bytes()[..16], bytes[240..]);
    assert_eq!(handle.view().unwrap().block(0).unwrap(), bytes);

    // It goes on, carries out nothing that came too late or all of it, and the same client works.
    daemon.process().signal(Signal::SIGCONT);
    let patient = daemon.client();
    patient.put("c", Dtype::U8, &[1], &[1]).unwrap();
    let stats = eventually("the end of what was asked for", || {
        let stats = daemon.stats();
        (stats.transfers == 0 && stats.pool.reserved_bytes == 0).then_some(stats)
    });
    assert_eq!(stats.pool.stored_bytes, stats.pool.used_bytes - stats.pool.held_bytes);
    assert_eq!(eventually("the same client", || client.get("c").ok()).as_bytes(), [1]);
}

#[test]
fn a_waiting_program_ends_by_an_interrupt() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    daemon.process().signal(Signal::SIGSTOP);
    let mut command = daemon.command();
    let mut waiting = Process::start(command.arg("ls").stdout(Stdio::null()).stderr(Stdio::null()));
    let pid = waiting.pid();
    eventually("a program that waits for the daemon", || has_open(pid, "socket:").then_some(()));
    let signal = heeded(Signal::SIGINT);
    waiting.signal(signal);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&waiting.wait()), Some(signal as i32));
    daemon.process().signal(Signal::SIGCONT);
    daemon.run_ok(&["ls"]);
}

#[test]
fn without_a_daemon_the_error_names_the_places_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let error = Client::builder().socket(&socket).connect().unwrap_err();
    assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
    assert_says(&error.to_string(), &["control.sock", "No such file", "tierpack serve", "TIERPACK_SOCKET"]);

    // A leftover of a killed daemon, and a program's view of it.
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    daemon.kill();
    for args in [&["ls"][..], &["rm", "--all"], &["get", "--all", "-o", "x"], &["stats"]] {
        let error = error_line(&daemon.run(args));
        assert_says(&error, &[".sock", "Connection refused", "tierpack serve"]);
    }
    // One that comes later is found by the next call.
    daemon.restart();
    daemon.run_ok(&["ls"]);
}

/// Peers that say nothing, half of something, or close at once, on the stats socket too.
#[test]
fn peers_that_come_and_go_disturb_nobody() {
    let daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    client.put("a", Dtype::U8, &[1], &[1]).unwrap();
    let stats_path = tierpack_client::stats_socket::path_beside(&daemon.socket());
    let n = if tierpack_tests::full() { 10_000 } else { 1000 };
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..n {
                drop(std::os::unix::net::UnixStream::connect(&stats_path));
            }
        });
        for _ in 0..n {
            let peer = tierpack_tests::peer::Peer::connect(&daemon.socket());
            drop(peer.send_bytes(b"half a", &[]));
        }
    });
    // A full set of readers that never read does not keep a patient one out for ever.
    let silent: Vec<_> =
        (0..100).map(|_| std::os::unix::net::UnixStream::connect(&stats_path).unwrap()).collect();
    assert_eq!(client.get("a").unwrap().as_bytes(), [1]);
    eventually("stats", || {
        let mut text = String::new();
        let mut stream = std::os::unix::net::UnixStream::connect(&stats_path).ok()?;
        stream.read_to_string(&mut text).ok()?;
        text.starts_with('{').then_some(())
    });
    drop(silent);
    eventually("the end of all sessions but one", || (daemon.stats().sessions.len() == 1).then_some(()));
}
