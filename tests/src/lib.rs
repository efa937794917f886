//! The harness of the cross-process tests: real daemons and real client processes, killed when dropped.
//!
//! Every test has a temporary directory of its own, and so a socket of its own.
//! Nothing here waits without a deadline, and nothing sleeps for a state: it polls.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tierpack_client::{Client, CodecChoice, CodecId, PutOptions, Stats};

pub mod data;
pub mod device;
pub mod faults;
pub mod files;
pub mod http;
pub mod kept;
pub mod leaks;
pub mod memory;
pub mod peer;
pub mod program;
pub mod reports;
pub mod rows;
pub mod tools;

/// How long a test waits for anything.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Whether the long cases run whole: `TIERPACK_CASES=full`.
pub fn full() -> bool {
    std::env::var_os("TIERPACK_CASES").is_some_and(|value| value == "full")
}

/// Options of a put whose bytes are stored as they are, for tests of views, and of how full a pool is.
pub fn raw() -> PutOptions {
    PutOptions::new().codec(CodecChoice::Only(CodecId::Raw))
}

/// Waits until `done` gives something.
///
/// # Panics
/// When it does not within [`DEADLINE`]; the message names `what`.
pub fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Tells threads to stop when it is dropped, in a panic as well: a scope waits for its threads.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The signal, or SIGTERM where this process ignores it: a shell starts what it runs in the background without SIGINT,
/// `nohup` without SIGHUP, and children inherit that on purpose.
///
/// # Panics
/// Without the kernel's list of ignored signals.
pub fn heeded(signal: Signal) -> Signal {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a line of it");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
    if mask >> (signal as i32 - 1) & 1 == 1 { Signal::SIGTERM } else { signal }
}

/// The number behind an option of a benchmark's command line, such as `--tensors 1000`.
///
/// # Panics
/// When it is none.
pub fn option(name: &str, default: usize) -> usize {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1).map_or(default, |number| number.parse().expect("a number behind the option"))
}

/// The value below which `percent` of 100 samples lie.
///
/// # Panics
/// When there are none.
pub fn percentile(samples: &mut [f64], percent: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() * percent / 100]
}

/// A child process that is killed and reaped when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a command.
    ///
    /// # Panics
    /// When the system starts no process.
    pub fn start(command: &mut Command) -> Self {
        Self { child: command.spawn().expect("start a process") }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When the process is gone already.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        kill(pid, signal).expect("the process is alive");
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill().is_ok();
        let _ = self.child.wait().is_ok();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within [`DEADLINE`].
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the end of a process", || self.child.try_wait().expect("wait for a child"))
    }

    /// Whether it is still running.
    ///
    /// # Panics
    /// When the system cannot say.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("look at a child").is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A real daemon in a directory of its own.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    dir: TempDir,
    args: Vec<String>,
    takes_faults: bool,
    process: Option<Process>,
}

impl Daemon {
    /// Starts `PROGRAM serve` with these further arguments, and waits until it listens.
    ///
    /// # Panics
    /// When it does not come up; its log is in the message.
    pub fn start(program: &str, args: &[&str]) -> Self {
        Self::new(program, args, false)
    }

    /// As [`Daemon::start`], for a daemon whose fault points are set while it runs, by [`Daemon::arm`].
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn with_faults(program: &str, args: &[&str]) -> Self {
        Self::new(program, args, true)
    }

    fn new(program: &str, args: &[&str], takes_faults: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("tp-").tempdir().expect("a temporary directory");
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut daemon = Self { program: program::located(program), dir, args, takes_faults, process: None };
        daemon.restart();
        daemon
    }

    /// Starts it again on the same socket, after [`Daemon::kill`] or [`Daemon::stop`].
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "one daemon at a time");
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log file");
        let mut command = self.command();
        command.arg("serve").args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if self.takes_faults {
            command.env(faults::VARIABLE, self.faults_path());
        }
        let mut process = Process::start(&mut command);
        eventually("a listening daemon", || {
            assert!(process.is_running(), "the daemon ended: {}", self.log());
            Client::builder().socket(self.socket()).connect().ok()
        });
        self.process = Some(process);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        drop(self.process.take());
    }

    /// Stops it with SIGTERM; returns its exit status.
    ///
    /// # Panics
    /// When it does not end.
    pub fn stop(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("a running daemon");
        process.signal(Signal::SIGTERM);
        process.wait()
    }

    /// The process.
    ///
    /// # Panics
    /// When it is not running.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a running daemon")
    }

    /// Descriptors that it has open.
    ///
    /// # Panics
    /// When it is not running.
    pub fn descriptors(&self) -> usize {
        let pid = self.process.as_ref().expect("a running daemon").pid();
        std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon is alive").count()
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    /// Its directory, for other files of the test.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("daemon.log")
    }

    fn faults_path(&self) -> PathBuf {
        self.dir.path().join("faults.sock")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A client of the namespace `default`.
    ///
    /// # Panics
    /// When it cannot connect.
    pub fn client(&self) -> Client {
        Client::builder().socket(self.socket()).connect().expect("connect to the test's daemon")
    }

    /// Its stats.
    ///
    /// # Panics
    /// When it gives none.
    pub fn stats(&self) -> Stats {
        let socket = tierpack_client::stats_socket::path_beside(&self.socket());
        let text = tierpack_client::stats_socket::read(&socket, DEADLINE).expect("stats");
        serde_json::from_str(&text).expect("stats are JSON")
    }

    /// Waits until no lease is taken and nothing is held; returns the stats then.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn quiet(&self) -> Stats {
        eventually("the end of all leases", || {
            let stats = self.stats();
            let leases: u64 = stats.sessions.iter().map(|session| session.leases).sum();
            (leases == 0 && stats.pool.held_bytes == 0).then_some(stats)
        })
    }

    /// The program with `--socket` set.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(self.socket()).env_remove("TIERPACK_SOCKET");
        command
    }

    /// Runs one command of the program to its end.
    ///
    /// # Panics
    /// When the system starts no process.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Output {
        self.command().args(args).stdin(Stdio::null()).output().expect("run the program")
    }

    /// As [`Daemon::run`], for a command that must succeed; returns its standard output.
    ///
    /// # Panics
    /// When it fails; its errors are in the message.
    pub fn run_ok<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }
}

/// A client process of a test: reads commands from its input, writes lines.
#[derive(Debug)]
pub struct TestClient {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl TestClient {
    /// Starts `PROGRAM --socket … ARGS`, a `tierpack-test-client`.
    ///
    /// # Panics
    /// When the system starts no process.
    pub fn start(program: &str, daemon: &Daemon, args: &[&str]) -> Self {
        let mut command = Command::new(program::located(program));
        Self::run(command.arg("--socket").arg(daemon.socket()).args(args))
    }

    /// Starts a command that is a `tierpack-test-client` in the end.
    ///
    /// # Panics
    /// When the system starts no process.
    pub fn run(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command);
        let input = process.child.stdin.take().expect("a pipe was asked for");
        let output = BufReader::new(process.child.stdout.take().expect("a pipe was asked for"));
        Self { process, input, output }
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The next line that it writes; `None` at its end.
    ///
    /// # Panics
    /// When what it writes is not text.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let len = self.output.read_line(&mut line).expect("a line of text");
        (len > 0).then(|| line.trim_end().to_owned())
    }

    /// Tells it to go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the client reads");
    }

    /// Closes its input, lets it end, and gives the rest of what it wrote.
    ///
    /// # Panics
    /// When it fails.
    pub fn finish(self) -> String {
        let Self { mut process, input, mut output } = self;
        drop(input);
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("text");
        let status = process.wait();
        assert!(status.success(), "a test client ended with {status}: {rest}");
        rest
    }
}
