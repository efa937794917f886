//! The program as a user meets it: exit codes, one line of error, JSON; and daemons at any path.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::Pid;
use serde_json::Value;

use crate::{Daemon, Process, eventually};

/// The folder of the programs that tests start, where they are not where cargo has built them: of a pack for GPUs.
pub const PROGRAMS_VARIABLE: &str = "TIERPACK_BIN_DIR";

/// Where a program is that cargo has built at this path: there, unless the variable names another folder.
pub fn located(built: &str) -> PathBuf {
    let built = Path::new(built);
    match (std::env::var_os(PROGRAMS_VARIABLE), built.file_name()) {
        (Some(folder), Some(name)) => Path::new(&folder).join(name),
        _ => built.to_owned(),
    }
}

/// The one line that a failed command writes to standard error; its exit code is 1, and its standard output empty.
///
/// # Panics
/// When it did anything else.
pub fn error_line(output: &Output) -> String {
    let errors = String::from_utf8(output.stderr.clone()).expect("errors are UTF-8");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{errors}");
    let line = errors.strip_suffix('\n').expect("an error ends its line");
    let is_plain = !line.contains(char::is_control) && line.starts_with("tierpack: ");
    assert!(is_plain && !line.ends_with('.'), "{errors:?}");
    line.to_owned()
}

/// Asserts that `text` contains each of `parts`.
///
/// # Panics
/// When it does not.
pub fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Whether a process has a descriptor whose link contains `what`: a path, or `socket:`.
pub fn has_open(pid: u32, what: &str) -> bool {
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let links = folder.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).any(|link| link.contains(what))
}

/// The one child of a process: what `strace` or `unshare -f` runs.
///
/// # Panics
/// When there is another number of them.
pub fn child_of(process: &Process) -> Pid {
    let pid = process.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("the process is alive");
    Pid::from_raw(children.trim().parse().expect("the process has one child"))
}

impl Daemon {
    /// What `ls --json` prints.
    ///
    /// # Panics
    /// When that is no JSON array.
    pub fn ls(&self, args: &[&str]) -> Vec<Value> {
        let text = self.run_ok(&[&["ls", "--json"], args].concat());
        serde_json::from_str(&text).expect("a JSON array")
    }

    /// Writes a file of the test and gives its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.dir().join(name);
        std::fs::write(&path, bytes).expect("write a file of the test");
        path.into_os_string().into_string().expect("a path of the test is UTF-8")
    }
}

/// A daemon that is started by any command, at any socket, and that may refuse to start.
#[derive(Debug)]
pub struct Served {
    /// The process that was started: the daemon, or what runs it.
    pub process: Process,
    log: PathBuf,
}

impl Served {
    /// Runs `command`, which is a daemon in the end; `log` gets its standard error.
    ///
    /// # Panics
    /// When the system starts no process.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::create(log).expect("a log file");
        command.env_remove("TIERPACK_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { process: Process::start(command), log: log.to_owned() }
    }

    /// What it has written to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it serves.
    ///
    /// # Panics
    /// When it ends instead.
    pub fn ready(&mut self) {
        eventually("a serving daemon", || {
            let log = self.log();
            assert!(self.process.is_running(), "the daemon ended: {log}");
            log.contains("serving").then_some(())
        });
    }

    /// Waits until it has refused to start; returns its one line of error.
    ///
    /// # Panics
    /// When it ends in another way, or has served.
    pub fn refusal(&mut self) -> String {
        let status = self.process.wait();
        let log = self.log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(!log.contains("serving"), "{log}");
        let lines: Vec<&str> = log.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("tierpack: "), "{log}");
        lines[0].to_owned()
    }
}
