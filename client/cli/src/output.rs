//! Standard output that knows when its reader is gone, and one-line messages on standard error.

use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::escape;

/// Buffered standard output.
#[derive(Debug)]
pub(crate) struct Output {
    inner: BufWriter<StdoutLock<'static>>,
    closed: bool,
}

impl Output {
    /// Takes standard output for the rest of the program.
    pub(crate) fn stdout() -> Self {
        Self { inner: BufWriter::with_capacity(1 << 16, io::stdout().lock()), closed: false }
    }

    /// Whether the reader of a pipe has gone: then a failed command ends quietly.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        use anyhow::Context as _;
        self.flush().context("write to standard output")
    }

    /// Looks whether the reader of a pipe has gone, for a command that has nothing to write for a while.
    ///
    /// # Errors
    /// It has.
    pub(crate) fn check_reader(&mut self) -> io::Result<()> {
        let fd = self.inner.get_ref().as_fd();
        let mut fds = [PollFd::new(fd, PollFlags::empty())];
        // A pipe without a reader shows as an error of its writing end.
        let polled = poll(&mut fds, PollTimeout::ZERO);
        let is_gone =
            polled.is_ok() && fds[0].revents().is_some_and(|flags| flags.contains(PollFlags::POLLERR));
        let result = if is_gone { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) };
        self.note(result)
    }

    /// Writes a document as indented JSON.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn json(&mut self, document: &impl serde::Serialize) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(&mut *self, document)?;
        writeln!(self)?;
        Ok(())
    }

    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.closed |= error.kind() == ErrorKind::BrokenPipe;
        }
        result
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let result = self.inner.write(buf);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.note(result)
    }
}

/// Prints `error` with its causes on one line; a cause that its parent's text repeats is left out.
pub(crate) fn error(error: &anyhow::Error) {
    say(&chain(error));
}

/// What [`error`] prints.
pub(crate) fn error_line(error: &anyhow::Error) -> String {
    line(&chain(error))
}

/// Prints a warning on one line.
pub(crate) fn warning(text: &str) {
    say(&format!("warning: {text}"));
}

fn say(text: &str) {
    // With standard error closed there is nobody left to tell.
    drop(writeln!(io::stderr().lock(), "{}", line(text)));
}

fn line(text: &str) -> String {
    format!("tierpack: {}", escape::one_line(text))
}

/// `error` with its causes, colons between.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if last.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
        last = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_says_everything_once() {
        let error = anyhow::anyhow!("no such file").context("open x: no such file").context("put x");
        assert_eq!(chain(&error), "put x: open x: no such file");
    }
}
