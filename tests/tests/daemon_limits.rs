//! Limits of the system: locked memory, and the memory of a container, which kills instead of refusing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::geteuid;
use tierpack_client::{Client, Dtype, Stats, stats_socket};
use tierpack_tests::program::{Served, assert_says, child_of};
use tierpack_tests::{DEADLINE, Process, data, eventually, raw, tools};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");
const MIB: u64 = 1 << 20;

fn stats(socket: &Path) -> Stats {
    let text = stats_socket::read(&stats_socket::path_beside(socket), DEADLINE).expect("stats");
    serde_json::from_str(&text).expect("stats are JSON")
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("connect")
}

/// Stores a tensor of so many MiB in a form that describes itself.
fn put(socket: &Path, name: &str, mib: u64) -> tierpack_client::Result<()> {
    let mut source = data::Source::new(1, 1);
    let shape = [mib * 2048, 64];
    connect(socket).put_with(name, Dtype::U64, &shape, &mut source, &raw()).map(drop)
}

/// What the kernel says that a process has locked.
fn locked_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon is alive");
    let line =
        text.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("the kernel counts locked memory");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

/// A daemon without the right to lock memory beyond `limit` bytes.
fn limited(limit: u64, mode: &str, socket: &Path, log: &str) -> Served {
    let [program, args @ ..] = &limit_memory_lock(limit)[..] else { unreachable!("it names a program") };
    let mut command = Command::new(program);
    command.args(args).args([PROGRAM, "serve"]);
    command.args(["--pool-size", "64MiB", "--lock", mode, "--socket"]).arg(socket);
    Served::start(&mut command, &socket.with_file_name(log))
}

/// What runs a program under a limit on locked memory that counts: root's right to pass it is dropped.
fn limit_memory_lock(limit: u64) -> Vec<String> {
    let limit = format!("--memlock={limit}:{limit}");
    let args = match geteuid().is_root() {
        true => vec!["capsh", "--drop=cap_ipc_lock", "--", "-c", "exec prlimit \"$@\"", "sh", &limit],
        false => vec!["prlimit", &limit],
    };
    args.into_iter().map(str::to_owned).collect()
}

fn can_limit() -> bool {
    let command = [limit_memory_lock(0), vec!["true".to_owned()]].concat();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    tools::can("a limit on locked memory", &command)
}

#[test]
fn require_refuses_to_start_below_the_limit_of_locked_memory() {
    if !can_limit() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    for (limit, shown) in [(0, "0 bytes"), (64 << 10, "64 KiB"), (8 << 20, "8 MiB")] {
        let error = limited(limit, "require", &socket, "log").refusal();
        assert_says(&error, &["page-lock 64 MiB", shown, "ulimit -l", "CAP_IPC_LOCK", "--lock try"]);
        assert!(!socket.exists());
    }
}

#[test]
fn try_locks_what_it_may_and_says_how_much() {
    if !can_limit() {
        return;
    }
    for (limit, shown) in [(0, "0 bytes"), (64 << 10, "64 KiB"), (8 << 20, "8 MiB")] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let mut daemon = limited(limit, "try", &socket, "log");
        daemon.ready();
        put(&socket, "a", 24).unwrap();
        assert_eq!(connect(&socket).get("a").unwrap().as_bytes().len() as u64, 24 * MIB);
        let pool = stats(&socket).pool;
        assert_eq!(pool.lock, "try");
        assert_eq!(pool.locked_bytes, locked_bytes(daemon.process.pid()));
        assert!(pool.locked_bytes <= limit && pool.locked_bytes < pool.segment_bytes, "{pool:?}");
        assert!(limit < 8 * MIB || pool.locked_bytes > 0, "{pool:?}");
        let log = daemon.log();
        assert_says(&log, &["not page-locked", "limit of locked memory is", shown]);
        assert_eq!(log.matches("not page-locked").count(), 1, "{log}");
        // What is locked is counted until it returns.
        connect(&socket).remove("a").unwrap();
        eventually("the return of segments", || {
            let pool = stats(&socket).pool;
            let is_counted = pool.locked_bytes == locked_bytes(daemon.process.pid());
            (is_counted && pool.segment_bytes < 24 * MIB).then_some(())
        });
    }
}

#[test]
fn off_locks_nothing_and_says_nothing() {
    if !can_limit() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let mut daemon = limited(0, "off", &socket, "log");
    daemon.ready();
    put(&socket, "a", 4).unwrap();
    assert_eq!((stats(&socket).pool.locked_bytes, locked_bytes(daemon.process.pid())), (0, 0));
    assert!(!daemon.log().contains("lock"), "{}", daemon.log());
}

/// The limit is blamed only when the numbers say so: here it is far away.
#[test]
fn another_reason_for_not_locking_is_not_blamed_on_the_limit() {
    if !tools::can_trace("a failing mlock") {
        return;
    }
    for errno in ["EPERM", "EAGAIN"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let start = |mode: &str, log: &str| {
            let mut command = tools::traced(&format!("inject=mlock:error={errno}"), PROGRAM);
            command.args(["serve", "--pool-size", "4MiB", "--lock", mode]);
            Served::start(command.arg("--socket").arg(&socket), &folder.path().join(log))
        };
        let refusal = start("require", "1.log").refusal();
        assert_says(&refusal, &["page-lock", "is not the reason", "--lock try", errno]);
        assert!(!socket.exists());
        let mut daemon = start("try", "2.log");
        daemon.ready();
        put(&socket, "a", 1).unwrap();
        assert_eq!(stats(&socket).pool.locked_bytes, 0);
        assert_says(&daemon.log(), &["not page-locked", "is not the reason", errno]);
        kill(child_of(&daemon.process), Signal::SIGKILL).unwrap();
        daemon.process.wait();
    }
}

/// A memory group of the test, removed when dropped; `None` where the machine lets nobody make one.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit_bytes: u64) -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/memory/tierpack-{}-{name}", std::process::id()));
        if std::fs::create_dir(&path).is_err() {
            // Not a tool that could be installed: a container may have none, whoever runs the tests.
            tools::tell("skipped: no group below /sys/fs/cgroup/memory can be made here");
            return None;
        }
        let group = Self(path);
        std::fs::write(group.0.join("memory.limit_in_bytes"), limit_bytes.to_string()).expect("set a limit");
        Some(group)
    }

    /// A command that joins the group and becomes `program`.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        let procs = self.0.join("cgroup.procs");
        command.args(["-c", &format!("echo $$ >{} && exec \"$@\"", procs.display()), "sh"]).arg(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended, and may still be on their way out.
        let removed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            std::fs::remove_dir(&self.0).is_ok()
        });
        if !removed {
            tools::tell(&format!("{} is left", self.0.display()));
        }
    }
}

#[test]
fn a_container_with_too_little_memory_is_refused_and_one_with_enough_is_not_killed() {
    let Some(group) = Group::new("daemon", 64 * MIB) else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let start = |size: &str, log: &str| {
        let mut command = group.command(PROGRAM);
        command.args(["serve", "--lock", "off", "--pool-size", size, "--socket"]).arg(&socket);
        Served::start(&mut command, &folder.path().join(log))
    };
    let error = start("256MiB", "1.log").refusal();
    assert_says(&error, &["256 MiB", "64 MiB", "memory.limit_in_bytes", "--pool-size"]);

    // Within the limit it fills its whole pool, and again after a kill; several share one limit.
    for round in 0..3 {
        let mut daemon = start("32MiB", &format!("{round}.log"));
        daemon.ready();
        put(&socket, "a", 12).unwrap();
        put(&socket, "b", 12).unwrap();
        let error = put(&socket, "c", 12).unwrap_err().to_string();
        assert_says(&error, &["pool is full", "32 MiB"]);
        assert!(daemon.process.is_running());
        let other = folder.path().join("other.sock");
        let mut command = group.command(PROGRAM);
        command.args(["serve", "--lock", "off", "--pool-size", "48MiB", "--socket"]).arg(other);
        let refusal = Served::start(&mut command, &folder.path().join("other.log")).refusal();
        assert_says(&refusal, &["48 MiB", "memory.limit_in_bytes"]);
        daemon.process.kill();
    }
}

/// Pages are charged to who touches them first, and that is the daemon.
#[test]
fn a_client_in_a_small_container_reads_a_large_pool() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let Some(group) = Group::new("client", 32 * MIB) else { return };
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--lock", "off", "--pool-size", "256MiB", "--socket"]).arg(&socket);
    let mut daemon = Served::start(&mut command, &folder.path().join("log"));
    daemon.ready();
    put(&socket, "a", 200).unwrap();
    let mut command = group.command(CLIENT);
    command.arg("--socket").arg(&socket).args([
        "hold",
        "--tensor",
        "a",
        "--tensor-id",
        "1",
        "--version",
        "1",
    ]);
    // It checks every word of the view when its input ends.
    let mut client = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let status = client.wait();
    assert!(status.success(), "{status}");
}
