//! Fault points of processes under test: set while they run, and what becomes of a process that reaches one.
//!
//! A point that is set by `FAILPOINTS` acts from the start; a daemon that is to be prepared first listens on a socket of
//! its test instead.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::{SigSet, Signal};
use tierpack_shm::faults::{Point, set};

use crate::{Daemon, Process, eventually};

/// Names the socket on which a program under test takes its points.
pub(crate) const VARIABLE: &str = "TIERPACK_TEST_FAULTS";

/// In a program under test: sets the points that its test asks for, if it asks for any.
///
/// # Errors
/// The socket cannot be bound, or the thread not be started.
pub fn listen() -> io::Result<()> {
    let Some(path) = std::env::var_os(VARIABLE) else { return Ok(()) };
    // The process before this one may have been killed.
    let _ = std::fs::remove_file(&path).is_ok();
    let listener = UnixListener::bind(&path)?;
    let answer_all = move || {
        // Signals of the process are for the program.
        let _ = SigSet::all().thread_block().is_ok();
        for stream in listener.incoming().flatten() {
            // A test that waits for the answer notices that none came.
            let _ = answer(stream).is_ok();
        }
    };
    std::thread::Builder::new().name("faults".to_owned()).spawn(answer_all).map(drop)
}

fn answer(mut stream: UnixStream) -> io::Result<()> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let point = text.split_once('=').and_then(|(name, actions)| Some((point_of(name)?, actions)));
    let reply = match point.map(|(point, actions)| set(point, actions)) {
        Some(Ok(())) => "set".to_owned(),
        Some(Err(error)) => error.to_string(),
        None => format!("{text:?} is no point"),
    };
    stream.write_all(reply.as_bytes())
}

/// The point of this name.
pub fn point_of(name: &str) -> Option<Point> {
    Point::ALL.iter().copied().find(|point| point.name() == name)
}

impl Daemon {
    /// Sets a point of the running daemon, which was started by [`Daemon::with_faults`].
    ///
    /// # Panics
    /// When it does not take it.
    pub fn arm(&self, point: Point, actions: &str) {
        let mut stream = UnixStream::connect(self.faults_path()).expect("the daemon listens");
        stream.write_all(format!("{}={actions}", point.name()).as_bytes()).expect("the daemon reads");
        stream.shutdown(Shutdown::Write).expect("a connected socket");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("the daemon answers");
        assert_eq!(reply, "set", "{}={actions}", point.name());
    }
}

/// Whether a process is stopped by a signal.
///
/// # Panics
/// When it is gone.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is alive");
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

impl Process {
    /// Waits until it is stopped by a signal.
    ///
    /// # Panics
    /// When it is not, or ends.
    pub fn wait_stopped(&mut self, what: &str) {
        eventually(what, || {
            assert!(self.is_running(), "a process ended that was to stop: {what}");
            is_stopped(self.pid()).then_some(())
        });
    }

    /// Waits for its end, which must be by SIGKILL.
    ///
    /// # Panics
    /// When it ends in another way, or not at all.
    pub fn wait_killed(&mut self, what: &str) {
        let status = self.wait();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{what}: {status}");
    }
}
