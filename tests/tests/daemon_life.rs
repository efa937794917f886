//! The life of a daemon: one per path, gone without a trace, and back with another pool under the same names.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use tierpack_client::{Client, Dtype};
use tierpack_tests::program::{Served, assert_says};
use tierpack_tests::{Daemon, data, eventually, full, heeded, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const SERVE: [&str; 4] = ["--pool-size", "64MiB", "--lock", "off"];

/// A daemon at `socket` with a log of that number.
fn serve(socket: &Path, n: usize) -> Served {
    let mut command = Command::new(PROGRAM);
    command.arg("serve").arg("--socket").arg(socket).args(SERVE);
    Served::start(&mut command, &socket.with_file_name(format!("{n}.log")))
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("connect to the test's daemon")
}

/// Names in the directory of a socket, those of logs aside.
fn names(socket: &Path) -> Vec<String> {
    let folder = fs::read_dir(socket.parent().expect("a directory")).expect("the test's directory");
    let names = folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.ends_with(".log")).collect();
    names.sort();
    names
}

#[test]
fn a_second_daemon_is_refused_with_the_identity_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let mut first = serve(&socket, 0);
    first.ready();
    connect(&socket).put("a", Dtype::U8, &[1], &[7]).unwrap();
    let pid = format!("pid {}", first.process.pid());
    for (n, signal) in [Signal::SIGCONT, Signal::SIGSTOP].into_iter().enumerate() {
        first.process.signal(signal);
        let error = serve(&socket, n + 1).refusal();
        assert_says(&error, &["owned by another daemon", &pid, "control.sock", "--socket"]);
    }
    first.process.signal(Signal::SIGCONT);
    assert_eq!(connect(&socket).get("a").unwrap().as_bytes(), [7]);

    first.process.kill();
    let mut second = serve(&socket, 9);
    second.ready();
    let left = connect(&socket).list().unwrap();
    assert!(left.is_empty(), "a pool starts empty: {left:?}");
    assert_says(&serve(&socket, 10).refusal(), &[&format!("pid {}", second.process.pid())]);
}

#[test]
fn of_twenty_daemons_at_once_one_serves() {
    for _ in 0..if full() { 50 } else { 3 } {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let mut all: Vec<Served> = (0..20).map(|n| serve(&socket, n)).collect();
        eventually("the end of all but one", || {
            let running = all.iter_mut().filter_map(|one| one.process.is_running().then_some(())).count();
            assert!(running > 0, "none is left");
            (running == 1).then_some(())
        });
        let at = all.iter_mut().position(|one| one.process.is_running()).expect("one is left");
        let mut winner = all.remove(at);
        winner.ready();
        for loser in &mut all {
            assert_says(&loser.refusal(), &["owned by another daemon"]);
        }
        connect(&socket).put("a", Dtype::U8, &[1], &[7]).unwrap();
        assert_eq!(names(&socket), ["control.sock", "control.sock.lock", "metrics.sock", "stats.sock"]);
    }
}

#[test]
fn a_daemon_never_removes_what_it_did_not_bind() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    // A file and a live socket of somebody else, put in the place of ours.
    let mut daemon = serve(&socket, 0);
    daemon.ready();
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "somebody's").unwrap();
    daemon.process.signal(Signal::SIGTERM);
    assert!(daemon.process.wait().success(), "{}", daemon.log());
    assert_eq!(fs::read_to_string(&socket).unwrap(), "somebody's");
    // And a daemon that starts there leaves it alone.
    assert_says(&serve(&socket, 1).refusal(), &["control.sock", "is not a socket", "left alone"]);
    assert_eq!(fs::read_to_string(&socket).unwrap(), "somebody's");
    fs::remove_file(&socket).unwrap();

    let mut daemon = serve(&socket, 2);
    daemon.ready();
    fs::remove_file(&socket).unwrap();
    let other = UnixListener::bind(&socket).unwrap();
    daemon.process.signal(Signal::SIGINT);
    assert!(daemon.process.wait().success(), "{}", daemon.log());
    assert!(socket.exists(), "the other's socket");
    assert_says(&serve(&socket, 3).refusal(), &["has a live listener"]);
    drop(other);
    // A process that another test is just starting has a copy of the listener until it runs its program.
    eventually("the end of the listener", || UnixStream::connect(&socket).is_err().then_some(()));
    // Now it is a leftover, and is replaced.
    serve(&socket, 4).ready();
}

#[test]
fn what_is_in_the_lock_file_decides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let lock = folder.path().join("control.sock.lock");
    let own = std::process::id().to_string();
    let contents: [&[u8]; 6] =
        [b"", b"\xff\0\x1b[31mgarbage", b"1\n", own.as_bytes(), b"pid 1, tierpack", &[b'x'; 70_000]];
    for (n, content) in contents.into_iter().enumerate() {
        fs::write(&lock, content).unwrap();
        let mut daemon = serve(&socket, n);
        daemon.ready();
        assert_says(&serve(&socket, 100 + n).refusal(), &[&format!("pid {}", daemon.process.pid())]);
        daemon.process.kill();
    }
    // A file of 4 GB is neither read nor kept.
    fs::File::create(&lock).unwrap().set_len(4 << 30).unwrap();
    let mut daemon = serve(&socket, 50);
    daemon.ready();
    assert!(fs::metadata(&lock).unwrap().len() < 256);
    daemon.process.signal(Signal::SIGTERM);
    assert!(daemon.process.wait().success(), "{}", daemon.log());
    assert_eq!(names(&socket), ["control.sock.lock"]);
}

/// Bytes of shared memory of the whole machine.
fn shmem() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("the kernel tells");
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).expect("it counts shared memory");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
fn killed_daemons_leave_no_memory_and_no_files() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let (before, mut files) = (shmem(), Vec::new());
    for round in 0..30 {
        let client = daemon.client();
        client.put_with("a", Dtype::U8, &[40, 1 << 20], &mut std::io::repeat(1), &raw()).unwrap();
        let found = names(&daemon.socket());
        assert!(round == 0 || found == files, "{found:?}");
        files = found;
        // Three of them end in order, the others do not.
        match [Signal::SIGTERM, Signal::SIGINT, heeded(Signal::SIGHUP)]
            .get(round / 4)
            .filter(|_| round % 4 == 3)
        {
            Some(&signal) => {
                daemon.process().signal(signal);
                assert!(daemon.process().wait().success(), "{signal}: {}", daemon.log());
                assert_eq!(names(&daemon.socket()), ["control.sock.lock"], "{signal}");
                daemon.kill();
            }
            None => daemon.kill(),
        }
        drop(client);
        daemon.restart();
    }
    // Other programs use shared memory too; 30 pools would be 1.2 GB.
    eventually("the return of all memory", || (shmem() < before + (256 << 20)).then_some(()));
}

#[test]
fn removed_socket_files_are_made_again_and_disturb_nobody() {
    let mut daemon = Daemon::start(PROGRAM, &SERVE);
    let client = daemon.client();
    let mut bytes = vec![0; 1 << 20];
    data::fill(&mut bytes, 1, 1, 0);
    client.put("a", Dtype::U64, &[1 << 14, 8], &bytes).unwrap();
    let (handle, instance) = (client.open("a").unwrap(), daemon.stats().instance);
    for names in [
        &["control.sock"][..],
        &["stats.sock"],
        &["metrics.sock"],
        &["control.sock", "stats.sock", "control.sock.lock"],
    ] {
        for name in names {
            fs::remove_file(daemon.dir().join(name)).unwrap();
        }
        // Who is attached goes on, and the pool grows.
        assert!(handle.get().unwrap().as_bytes() == bytes);
        client
            .put_with(&format!("{names:?}"), Dtype::U8, &[8, 1 << 20], &mut std::io::repeat(2), &raw())
            .unwrap();
        eventually("the files", || names.iter().all(|name| daemon.dir().join(name).exists()).then_some(()));
        assert_eq!(
            eventually("new clients", || {
                Client::builder()
                    .socket(daemon.socket())
                    .connect()
                    .ok()?
                    .get("a")
                    .ok()
                    .map(|found| found.to_vec())
            }),
            bytes
        );
        assert_eq!(daemon.stats().instance, instance, "never two regions");
    }
    assert_says(&daemon.log(), &["socket files were removed: made again"]);
    let error = serve(&daemon.socket(), 0).refusal();
    assert_says(&error, &[&format!("pid {}", daemon.process().pid())]);
    assert!(daemon.stop().success());
    assert_eq!(names(&daemon.socket()), ["control.sock.lock"]);
}
