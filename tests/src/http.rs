//! A client of HTTP over a Unix socket, as small as what it tests: one request, one response.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::DEADLINE;

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The number of its status.
    pub status: u16,
    /// Its header lines.
    pub headers: Vec<(String, String)>,
    /// Its body, as long as the header says.
    pub body: String,
}

impl Response {
    /// The value of a header.
    ///
    /// # Panics
    /// When it is missing.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(found, _)| found == name);
        assert!(found.is_some(), "no {name} in {:?}", self.headers);
        found.map_or("", |(_, value)| value)
    }
}

/// A connection to a socket whose reads and writes end at the deadline of tests.
///
/// # Panics
/// When nobody listens.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("connect to the stats socket");
    stream.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
    stream.set_write_timeout(Some(DEADLINE)).expect("set a deadline");
    stream
}

/// Sends `request` and reads to the end of the connection.
///
/// # Panics
/// When the answer is no whole HTTP/1.0 response that ends with the connection.
pub fn ask(socket: &Path, request: &[u8]) -> Response {
    let mut stream = connect(socket);
    stream.write_all(request).expect("send the request");
    response(&mut stream)
}

/// As [`ask`], of a peer that sends no more.
///
/// # Panics
/// As [`ask`].
pub fn ask_and_end(socket: &Path, request: &[u8]) -> Response {
    let mut stream = connect(socket);
    stream.write_all(request).expect("send the request");
    stream.shutdown(Shutdown::Write).expect("end the request");
    response(&mut stream)
}

fn response(stream: &mut UnixStream) -> Response {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response that ends");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.0 ")).expect("a status line");
    let status = status[..3].parse().expect("a status of three digits");
    let headers = lines.map(|line| line.split_once(": ").expect("a header"));
    let headers: Vec<_> = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let response = Response { status, headers, body: body.to_owned() };
    assert_eq!(response.header("Content-Length"), body.len().to_string(), "{head}");
    assert_eq!(response.header("Connection"), "close");
    response
}

/// The metrics of the daemon behind a stats socket.
///
/// # Panics
/// When it gives none.
pub fn metrics(socket: &Path) -> String {
    let response = ask(socket, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(response.status, 200, "{response:?}");
    response.body
}

/// The value of one sample, named with its labels.
///
/// # Panics
/// When it is missing or no whole number.
pub fn sample(metrics: &str, name: &str) -> u64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    assert!(found.is_some(), "no {name} in {metrics}");
    found.unwrap_or_default().parse().expect("a whole number")
}
