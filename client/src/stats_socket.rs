//! The daemon's stats socket: one JSON document per connection, even while every worker is busy.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::SockType;
use nix::sys::stat::Mode;

pub use tierpack_shm::address::stats_path as path_beside;

use crate::address::MAX_PATH_BYTES;
use crate::deadline::Deadline;
use crate::error::{Error, Result, Tried};
use crate::wire;

/// The longest document that is read.
const MAX_BYTES: usize = 64 << 20;
const OPERATION: &str = "read the stats";

/// Reads the JSON document of the daemon behind the stats socket `path`.
///
/// # Errors
/// [`Error::NoDaemon`] when none answers, [`Error::Deadline`], [`Error::Socket`], and [`Error::StatsText`] for more
/// than 64 MiB or what is no text.
pub fn read(path: &Path, deadline: Duration) -> Result<String> {
    read_until(path, &Deadline::after(deadline))
}

pub(crate) fn read_until(path: &Path, deadline: &Deadline) -> Result<String> {
    let mut stream = connect(path, deadline).map_err(|errno| match errno {
        Errno::ETIMEDOUT => deadline.passed(OPERATION),
        errno if wire::is_own_limit(errno) => {
            Error::Socket { operation: OPERATION, path: path.to_owned(), source: errno.into() }
        }
        errno => Error::NoDaemon { tried: vec![Tried { path: path.to_owned(), cause: errno.into() }] },
    })?;
    let failed = |source| Error::Socket { operation: OPERATION, path: path.to_owned(), source };
    stream.set_nonblocking(false).map_err(failed)?;
    // Nothing is asked: the end of what we send asks for the document.
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut buf = vec![0; 64 << 10];
    loop {
        let left = deadline.left();
        if left.is_zero() {
            return Err(deadline.passed(OPERATION));
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match stream.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&buf[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(failed(error)),
        }
        if bytes.len() > MAX_BYTES {
            return Err(Error::StatsText { path: path.to_owned(), len: bytes.len(), limit: MAX_BYTES });
        }
    }
    String::from_utf8(bytes).map_err(|error| Error::StatsText {
        path: path.to_owned(),
        len: error.as_bytes().len(),
        limit: MAX_BYTES,
    })
}

/// A path that is too long for an address, as that next to a control socket of 107 bytes is, is reached through a
/// descriptor of the socket's file.
fn connect(path: &Path, deadline: &Deadline) -> core::result::Result<UnixStream, Errno> {
    if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES {
        return wire::connect(path, SockType::Stream, deadline).map(UnixStream::from);
    }
    let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
    wire::connect(&short, SockType::Stream, deadline).map(UnixStream::from)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn serve(path: &Path, bytes: &'static [u8]) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut conn, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            conn.read_to_end(&mut asked).unwrap();
            assert!(asked.is_empty());
            conn.write_all(bytes).unwrap();
        })
    }

    #[test]
    fn a_document_is_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats.sock");
        let server = serve(&path, b"{\"a\": 1}");
        assert_eq!(read(&path, LIMIT).unwrap(), "{\"a\": 1}");
        server.join().unwrap();
    }

    #[test]
    fn what_is_no_text_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats.sock");
        let server = serve(&path, b"\xff\xfe");
        assert!(matches!(read(&path, LIMIT), Err(Error::StatsText { len: 2, .. })));
        server.join().unwrap();
    }

    #[test]
    fn a_silent_daemon_meets_the_deadline_and_no_daemon_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats.sock");
        let error = read(&path, LIMIT).unwrap_err().to_string();
        assert!(error.contains("stats.sock") && error.contains("tierpack serve"), "{error}");
        let _listener = UnixListener::bind(&path).unwrap();
        let silent = read(&path, Duration::from_millis(50));
        assert!(matches!(silent, Err(Error::Deadline { .. })), "{silent:?}");
    }

    #[test]
    fn a_path_of_113_bytes_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("d".repeat(113 - "/stats".len() - dir.path().as_os_str().len() - 1));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("stats");
        assert_eq!(path.as_os_str().len(), 113);
        let here = open(&directory, OFlag::O_PATH, Mode::empty()).unwrap();
        let server =
            serve(&Path::new("/proc/self/fd").join(here.as_raw_fd().to_string()).join("stats"), b"{}");
        assert_eq!(read(&path, LIMIT).unwrap(), "{}");
        server.join().unwrap();
    }
}
