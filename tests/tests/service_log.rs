//! The log: nobody waits for who reads it, and peers decide little of what is in it. And what a forked child keeps of
//! an embedded daemon: nothing.

use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use nix::sys::termios::{FlowArg, tcflow};
use tempfile::TempDir;
use tierpack_client::{Client, Dtype, Error, Stats, stats_socket};
use tierpack_daemon::{Config, Embedded, LockMode};
use tierpack_tests::peer::Peer;
use tierpack_tests::{DEADLINE, Process, TestClient, eventually, program, raw};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CLIENT: &str = env!("CARGO_BIN_EXE_tierpack-test-client");

/// A daemon whose standard error is not a file that keeps everything.
struct Serving {
    dir: TempDir,
    process: Process,
}

impl Serving {
    /// Runs `sh -c SCRIPT` with the program and its arguments as `"$@"`.
    fn start(script: &str, stderr: Stdio) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let socket = dir.path().join("control.sock");
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program::located(PROGRAM)).arg("--socket").arg(&socket);
        command.args(["serve", "--pool-size", "64MiB", "--lock", "off"]).stdin(Stdio::null());
        let process = Process::start(command.stdout(Stdio::null()).stderr(stderr));
        let serving = Self { dir, process };
        eventually("a listening daemon", || Client::builder().socket(serving.socket()).connect().ok());
        serving
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn client(&self) -> Client {
        Client::builder().socket(self.socket()).connect().expect("the daemon answers")
    }

    fn stats(&self) -> Stats {
        let text = stats_socket::read(&stats_socket::path_beside(&self.socket()), DEADLINE).expect("stats");
        serde_json::from_str(&text).expect("stats are JSON")
    }

    /// Causes lines of the log as peers can.
    fn flood(&self) {
        for _ in 0..1500 {
            // The daemon may have hung up already.
            let _ = Peer::connect(&self.socket()).send_bytes(b"no greeting", &[]).is_ok();
        }
        // Puts of this size make segments come and go, and each is a line.
        let client = self.client();
        for _ in 0..400 {
            client.put_with("x", Dtype::U8, &[4 << 20], &mut &vec![1; 4 << 20][..], &raw()).expect("room");
            client.remove("x").expect("it is there");
        }
    }

    /// Others are served after a flood, and SIGTERM ends the daemon.
    fn check(mut self) -> Stats {
        self.flood();
        let client = self.client();
        client.put("y", Dtype::U8, &[3], &[1, 2, 3]).expect("a put of another session");
        assert_eq!(client.get("y").expect("it is there").as_bytes(), [1, 2, 3]);
        let stats = self.stats();
        self.process.signal(Signal::SIGTERM);
        assert!(self.process.wait().success());
        stats
    }
}

/// A pipe that holds little.
fn pipe() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("a short pipe");
    (reader, writer.into())
}

#[test]
fn a_pipe_that_nobody_reads_stops_nobody() {
    let (reader, stderr) = pipe();
    let stats = Serving::start("exec \"$@\" --log debug", stderr).check();
    assert!(stats.log.dropped > 0, "{stats:?}");
    drop(reader);
}

#[test]
fn a_terminal_whose_output_is_stopped_stops_nobody() {
    let terminal = openpty(None, None).expect("a pseudo-terminal");
    // As after Ctrl-S.
    tcflow(&terminal.slave, FlowArg::TCOOFF).expect("output stops");
    let stderr = terminal.slave.try_clone().expect("a descriptor");
    let stats = Serving::start("exec \"$@\" --log debug", stderr.into()).check();
    assert!(stats.log.dropped > 0, "{stats:?}");
    drop(terminal);
}

#[test]
fn a_failed_start_ends_although_nobody_reads_its_message() {
    let (reader, stderr) = pipe();
    let mut command = Command::new("sh");
    // Fills the pipe first.
    command.args(["-c", "head -c 4096 /dev/zero >&2; exec \"$0\" serve --workers 0"]);
    let mut process = Process::start(command.arg(program::located(PROGRAM)).stderr(stderr));
    assert_eq!(process.wait().code(), Some(1));
    drop(reader);
}

#[test]
fn a_closed_or_full_standard_error_stops_nobody() {
    Serving::start("exec \"$@\" 2>&-", Stdio::null()).check();
    let full = File::options().write(true).open("/dev/full").expect("a full device");
    let stats = Serving::start("exec \"$@\"", full.into()).check();
    assert!(stats.log.dropped > 0, "{stats:?}");
}

#[test]
fn a_log_file_at_the_limit_on_file_sizes_stops_nobody() {
    // Segments are files too, so that the limit is far above theirs and the log starts just below it.
    const LIMIT: u64 = 128 << 20;
    let log = tempfile::NamedTempFile::new().expect("a file");
    log.as_file().set_len(LIMIT - 1000).expect("a file of holes");
    let stderr = File::options().append(true).open(log.path()).expect("a file");
    let script = format!("ulimit -f {}; exec \"$@\" --log debug", LIMIT / 512);
    let stats = Serving::start(&script, stderr.into()).check();
    assert!(stats.log.dropped > 0, "{stats:?}");
    assert_eq!(log.as_file().metadata().expect("a file").len(), LIMIT);
}

#[test]
fn what_peers_cause_is_a_few_lines_and_a_count() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let lines = std::thread::spawn(move || -> Vec<_> {
        BufReader::new(reader).lines().map(|line| line.expect("text")).collect()
    });
    Serving::start("exec \"$@\"", writer.into()).check();
    let lines = lines.join().expect("the reader ends with the daemon");
    let ended = lines.iter().filter(|line| line.contains(": session ended ")).count();
    let more: usize = lines
        .iter()
        .filter_map(|line| {
            line.split_once(" more: session ended")?.0.rsplit(' ').next()?.parse::<usize>().ok()
        })
        .sum();
    assert_eq!(ended + more, 1500, "{lines:?}");
    assert!(ended < 1000, "{ended} lines");
}

#[test]
fn the_child_of_a_killed_embedded_daemon_keeps_nothing_of_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let socket = dir.path().join("control.sock");
    let mut command = Command::new(program::located(CLIENT));
    command.arg("--socket").arg(&socket);
    let mut parent = TestClient::run(command.args([
        "fork",
        "--scenario",
        "daemon",
        "--tensor",
        "x",
        "--tensor-id",
        "1",
        "--version",
        "1",
    ]));
    assert_eq!(parent.line().as_deref(), Some("serving"));
    // More than a table of fixed size would hold.
    let peers: Vec<_> = (0..300).map(|_| Peer::greeted(&socket)).collect();
    let client = Client::builder().socket(&socket).connect().expect("the daemon answers");
    client.open("x").expect("it is there");
    parent.tell("fork");
    assert!(parent.line().expect("a line of the child").starts_with("child "));
    // The parent lives on, whatever its child has dropped.
    client.put("y", Dtype::U8, &[1], &[1]).expect("the daemon answers");
    parent.process().kill();
    for peer in &peers {
        assert!(matches!(peer.receive(), Err(tierpack_shm::error::Error::Closed)));
    }
    assert!(matches!(Client::builder().socket(&socket).connect(), Err(Error::NoDaemon { .. })));
    let config = Config::embedded(socket.clone(), 16 << 20).expect("a configuration");
    let successor = Embedded::start(&config.with_lock(LockMode::Off)).expect("nobody has the lock");
    let client = Client::builder().socket(&socket).connect().expect("the successor answers");
    assert!(matches!(client.open("x"), Err(Error::NotFound { .. })));
    successor.stop().expect("an orderly end");
    // The end of its input ends the child.
    drop(parent);
}

#[test]
fn a_variable_is_empty_or_says_what_it_may_and_a_message_names_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let long = dir.path().join("x".repeat(120));
    let run = |name: &str, value: &std::ffi::OsStr, args: &[&str]| {
        let mut command = Command::new(program::located(PROGRAM));
        command.args(args).env_remove("TIERPACK_SOCKET").env("XDG_RUNTIME_DIR", dir.path());
        command.env(name, value).stdin(Stdio::null()).output().expect("run the program")
    };
    for (args, name) in [(&["serve"][..], "TIERPACK_CPU"), (&["ls"][..], "TIERPACK_CPU")] {
        let line = program::error_line(&run(name, "fast".as_ref(), args));
        program::assert_says(&line, &[name, "\"fast\"", "scalar"]);
    }
    let line = program::error_line(&run("TIERPACK_SOCKET", long.as_os_str(), &["serve"]));
    program::assert_says(&line, &["from TIERPACK_SOCKET", "107"]);
    for name in ["TIERPACK_CPU", "TIERPACK_SOCKET"] {
        let output = run(name, "".as_ref(), &["serve", "--print-config"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let usual = dir.path().join("tierpack/control.sock");
        assert!(text.contains(usual.to_str().expect("UTF-8")), "{name}: {text} {output:?}");
    }
}
