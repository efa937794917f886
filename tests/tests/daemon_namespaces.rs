//! Daemons in containers: pid 1 every time, peers that have no pid, strangers' user ids, a small /dev/shm.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use tierpack_client::{Client, Dtype, Stats, stats_socket};
use tierpack_tests::program::{Served, assert_says, child_of};
use tierpack_tests::{DEADLINE, Process, data, eventually, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

/// `unshare ARGS PROGRAM serve`, killed with its daemon.
fn serve(args: &[&str], socket: &Path, log: &str) -> Served {
    let mut command = Command::new("unshare");
    command
        .args(args)
        .args([PROGRAM, "serve", "--pool-size", "32MiB", "--lock", "off", "--socket"])
        .arg(socket);
    Served::start(&mut command, &socket.with_file_name(log))
}

const PID_NAMESPACE: [&str; 3] = ["-pf", "--mount-proc", "--kill-child"];

fn stats(socket: &Path) -> Stats {
    let text = stats_socket::read(&stats_socket::path_beside(socket), DEADLINE).expect("stats");
    serde_json::from_str(&text).expect("stats are JSON")
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("connect")
}

fn put(socket: &Path, name: &str) {
    let mut bytes = vec![0; 1 << 20];
    data::fill(&mut bytes, 1, 1, 0);
    connect(socket).put(name, Dtype::U64, &[1 << 11, 64], &bytes).expect("put");
}

#[test]
fn a_daemon_that_is_pid_1_every_time_starts_every_time() {
    let probe = [&["unshare"][..], &PID_NAMESPACE, &["true"]].concat();
    if !tools::can("a pid namespace", &probe) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    for round in 0..5 {
        let mut daemon = serve(&PID_NAMESPACE, &socket, &format!("{round}.log"));
        daemon.ready();
        put(&socket, "a");
        let lock = std::fs::read_to_string(folder.path().join("control.sock.lock")).unwrap();
        assert_says(&lock, &["pid 1,"]);
        // Another pid 1 next to it, and one outside.
        assert_says(&serve(&PID_NAMESPACE, &socket, "x.log").refusal(), &["another daemon (pid 1,"]);
        kill(child_of(&daemon.process), Signal::SIGKILL).unwrap();
        daemon.process.wait();
    }
}

/// A client in a process of its own that holds a view.
fn hold(socket: &Path) -> Process {
    let mut command = Command::new(CLIENT);
    command.arg("--socket").arg(socket).args(["hold", "--tensor", "a", "--tensor-id", "1", "--version", "1"]);
    Process::start(command.stdin(Stdio::piped()).stdout(Stdio::null()))
}

/// A client from outside reads, holds, is killed, and is gone.
fn serves_from_outside(daemon: &mut Served, socket: &Path, has_pid: bool) {
    daemon.ready();
    put(socket, "a");
    let client = connect(socket);
    let got = client.open("a").expect("the tensor is there").gather(&[5, 0, 2047]).expect("rows in range");
    assert_eq!(data::mismatches(&got.as_bytes()[..512], 1, 1, 5 * 64), 0);
    let mut holder = hold(socket);
    let leased = eventually("a lease", || {
        let stats = stats(socket);
        stats.sessions.iter().any(|session| session.leases == 1).then_some(stats)
    });
    for session in &leased.sessions {
        assert_eq!(session.pid.is_some(), has_pid, "{session:?}");
    }
    // Its end is known by its socket alone.
    client.remove("a").expect("the tensor is there");
    assert!(stats(socket).pool.held_bytes > 0);
    holder.kill();
    eventually("the end of the killed client", || {
        let stats = stats(socket);
        (stats.sessions.len() == 1 && stats.pool.used_bytes == 0).then_some(())
    });
}

#[test]
fn clients_without_a_pid_are_served_and_their_death_is_noticed() {
    let probe = [&["unshare"][..], &PID_NAMESPACE, &["true"]].concat();
    if !tools::can("a pid namespace", &probe) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let mut daemon = serve(&PID_NAMESPACE, &socket, "log");
    serves_from_outside(&mut daemon, &socket, false);
    put(&socket, "b");
    let mut command = Command::new(PROGRAM);
    let table = command.args(["stats", "--socket"]).arg(&socket).output().unwrap();
    assert!(table.status.success());
    let _client = connect(&socket);
    let table = command.output().unwrap();
    assert_says(&String::from_utf8_lossy(&table.stdout), &["unknown"]);
}

#[test]
fn a_daemon_in_a_user_namespace_serves_the_user_outside() {
    // As nobody that the namespace knows, and as its root.
    for args in [&["-U"][..], &["-U", "-r"]] {
        if !tools::can("a user namespace", &[&["unshare"], args, &["true"]].concat()) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let mut daemon = serve(args, &socket, "log");
        serves_from_outside(&mut daemon, &socket, true);
    }
}

/// C41: a memory file is not in /dev/shm.
#[test]
fn a_pool_may_be_larger_than_dev_shm() {
    let mount = "mount -t tmpfs -o size=1m t /dev/shm";
    if !tools::can("a small /dev/shm", &["unshare", "-m", "sh", "-c", mount]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    // Filled up as well, so that nothing at all could be put there.
    let script = format!(
        "{mount} && head -c 900k /dev/zero >/dev/shm/x && exec {PROGRAM} serve --pool-size 32MiB --lock off --socket {}",
        socket.display()
    );
    let mut command = Command::new("unshare");
    let mut daemon = Served::start(command.args(["-m", "sh", "-c", &script]), &folder.path().join("log"));
    daemon.ready();
    let client = connect(&socket);
    let bytes = vec![9; 8 << 20];
    let put = |name| client.put_with(name, Dtype::U8, &[8, 1 << 20], &mut &bytes[..], &raw());
    for name in ["a", "b", "c"] {
        put(name).unwrap();
    }
    assert!(client.get("b").unwrap().as_bytes() == bytes);
    // Until it is full: then the numbers and the remedy, from a daemon that goes on.
    let error = put("d").unwrap_err();
    assert_says(&error.to_string(), &["pool is full", "32 MiB", "--pool-size"]);
    client.remove("a").unwrap();
    put("d").unwrap();
    assert!(daemon.process.is_running());
}
