//! What a peer of the stats socket asks for: nothing, which means the JSON document, or HTTP.
//!
//! A peer may send anything: what is kept of it is bounded, and what is no HTTP gets one error.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

/// The longest request line.
const MAX_LINE_BYTES: usize = 1 << 10;
/// The longest request: its line, its headers and the empty line after them.
const MAX_BYTES: usize = 8 << 10;
/// How long a peer that has sent nothing is waited for before it gets the JSON document.
pub(super) const QUIET: Duration = Duration::from_millis(100);

/// What a peer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The JSON document as it is.
    Plain,
    /// The JSON document over HTTP.
    Json,
    /// The metrics over HTTP.
    Metrics,
    /// HTTP, and an error.
    Fault(Fault),
}

/// Errors of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    BadRequest,
    NotFound,
    MethodNotAllowed,
}

/// A request that is on its way in.
#[derive(Debug)]
pub(super) struct Request {
    received: Vec<u8>,
    /// When a peer that has sent nothing gets the document; `None` where it never does.
    quiet_until: Option<Instant>,
}

impl Request {
    pub(super) fn new(now: Instant) -> Self {
        Self { received: Vec::new(), quiet_until: Some(now + QUIET) }
    }

    /// One that is HTTP, or an error.
    pub(super) fn http() -> Self {
        Self { received: Vec::new(), quiet_until: None }
    }

    /// When to look again although nothing came; `None` once something has.
    pub(super) fn looks_again(&self) -> Option<Instant> {
        self.quiet_until.filter(|_| self.received.is_empty())
    }

    /// Takes what has come; returns the wish once it is known.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) fn go_on(&mut self, peer: &mut impl Read, now: Instant) -> std::io::Result<Option<Wish>> {
        let mut buf = [0; 1 << 10];
        loop {
            match peer.read(&mut buf) {
                Ok(0) => return Ok(Some(self.at_end())),
                Ok(n) => self.received.extend_from_slice(&buf[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(self.looks_again().filter(|until| now >= *until).map(|_| Wish::Plain));
                }
                Err(error) => return Err(error),
            }
            if let Some(wish) = self.wish() {
                return Ok(Some(wish));
            }
        }
    }

    /// The wish of a peer that sends no more.
    fn at_end(&self) -> Wish {
        match self.line() {
            _ if self.received.is_empty() && self.quiet_until.is_some() => Wish::Plain,
            Some(line) => wish(line),
            None => Wish::Fault(Fault::BadRequest),
        }
    }

    /// The wish, once the request is whole or cannot become one.
    fn wish(&self) -> Option<Wish> {
        let bad = Some(Wish::Fault(Fault::BadRequest));
        let Some(line) = self.line() else {
            return if self.received.len() > MAX_LINE_BYTES { bad } else { None };
        };
        let wish = wish(line);
        let ends = |blank: &[u8]| self.received.windows(blank.len()).any(|bytes| bytes == blank);
        let is_whole = ends(b"\n\n") || ends(b"\n\r\n");
        if line.len() > MAX_LINE_BYTES || wish == Wish::Fault(Fault::BadRequest) {
            bad
        } else if is_whole {
            Some(wish)
        } else {
            // Headers mean nothing here, but a socket that is closed over unread bytes takes the answer with it.
            bad.filter(|_| self.received.len() > MAX_BYTES)
        }
    }

    /// The request line without its end.
    fn line(&self) -> Option<&[u8]> {
        let line = &self.received[..self.received.iter().position(|byte| *byte == b'\n')?];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// What a request line asks for.
fn wish(line: &[u8]) -> Wish {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else { return Wish::Fault(Fault::BadRequest) };
    let is_http = version.strip_prefix(b"HTTP/1.").is_some_and(|minor| matches!(minor, [b'0'..=b'9']));
    if !is_http || method.is_empty() || !target.starts_with(b"/") {
        return Wish::Fault(Fault::BadRequest);
    }
    // Some scrapers add a query, which means nothing here.
    let path = target.split(|byte| *byte == b'?').next().unwrap_or(target);
    match (method, path) {
        (b"GET", b"/metrics") => Wish::Metrics,
        (b"GET", b"/stats" | b"/") => Wish::Json,
        (_, b"/metrics" | b"/stats" | b"/") => Wish::Fault(Fault::MethodNotAllowed),
        _ => Wish::Fault(Fault::NotFound),
    }
}

#[cfg(test)]
mod tests;
