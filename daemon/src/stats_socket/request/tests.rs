use std::collections::VecDeque;

use super::*;

const BAD: Wish = Wish::Fault(Fault::BadRequest);

/// A peer whose bytes come piece by piece; an empty piece means that nothing is there yet.
struct Peer(VecDeque<Vec<u8>>);

impl Peer {
    fn new(pieces: &[&[u8]]) -> Self {
        Self(pieces.iter().map(|piece| piece.to_vec()).collect())
    }
}

impl Read for Peer {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.0.front_mut() else { return Ok(0) };
        let n = piece.len().min(buf.len());
        buf[..n].copy_from_slice(&piece[..n]);
        piece.drain(..n);
        if piece.is_empty() {
            self.0.pop_front();
        }
        if n == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(n) }
    }
}

/// What a peer gets that sends these bytes at once and then waits.
fn sent(bytes: &[u8]) -> Option<Wish> {
    let now = Instant::now();
    Request::new(now).go_on(&mut Peer::new(&[bytes, b""]), now).unwrap()
}

#[test]
fn a_request_is_answered_when_its_empty_line_has_come() {
    let cases: [(&[u8], Option<Wish>); 12] = [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(Wish::Metrics)),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
        (b"GET /metrics HTTP/1.0\n\n", Some(Wish::Metrics)),
        (b"GET /metrics?a=b HTTP/1.1\r\n\r\n", Some(Wish::Metrics)),
        (b"GET /stats HTTP/1.1\r\n\r\n", Some(Wish::Json)),
        (b"GET / HTTP/1.1\r\n\r\nmore", Some(Wish::Json)),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", Some(Wish::Fault(Fault::NotFound))),
        (b"POST /x HTTP/1.1\r\n\r\n", Some(Wish::Fault(Fault::NotFound))),
        (b"POST /metrics HTTP/1.1\r\n\r\n", Some(Wish::Fault(Fault::MethodNotAllowed))),
        (b"HEAD / HTTP/1.1\r\n\r\n", Some(Wish::Fault(Fault::MethodNotAllowed))),
        (b"GET /met", None),
        (b"GET /metrics HTTP/1.1", None),
    ];
    for (bytes, wish) in cases {
        assert_eq!(sent(bytes), wish, "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn what_is_no_http_is_refused_as_soon_as_its_line_ends() {
    let lines: [&[u8]; 9] = [
        b"\n",
        b"GET /metrics\r\n",
        b"GET  /metrics HTTP/1.1\r\n",
        b"GET metrics HTTP/1.1\r\n",
        b"GET /metrics HTTP/2.0\r\n",
        b"GET /metrics HTTP/1.12\r\n",
        b" / HTTP/1.1\r\n",
        b"GET / HTTP/1.1 \r\n",
        b"\xff\0\x16\x03\x01\n",
    ];
    for line in lines {
        assert_eq!(sent(line), Some(BAD), "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn lengths_have_limits() {
    let line = |len: usize| format!("GET /{} HTTP/1.1", "x".repeat(len - "GET / HTTP/1.1".len()));
    let not_found = Some(Wish::Fault(Fault::NotFound));
    assert_eq!(sent(format!("{}\r\n\r\n", line(1024)).as_bytes()), not_found);
    assert_eq!(sent(format!("{}\r\n\r\n", line(1025)).as_bytes()), Some(BAD));
    assert_eq!(sent(&[b'x'; 1024]), None);
    assert_eq!(sent(&[b'x'; 2000]), Some(BAD));
    let headers = |len: usize| [b"GET / HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(len / 6)].concat();
    assert_eq!(sent(&headers(8000)), None);
    assert_eq!(sent(&headers(9000)), Some(BAD));
    // Of a peer that never stops, no more is kept than of one that does.
    let now = Instant::now();
    let mut request = Request::new(now);
    assert_eq!(request.go_on(&mut Peer::new(&[&[b'x'; 1 << 20]]), now).unwrap(), Some(BAD));
    assert!(request.received.len() <= MAX_LINE_BYTES + 1024);
}

#[test]
fn silence_and_the_end_ask_for_the_document() {
    let now = Instant::now();
    let mut request = Request::new(now);
    assert_eq!(request.looks_again(), Some(now + QUIET));
    assert_eq!(request.go_on(&mut Peer::new(&[b""]), now).unwrap(), None);
    assert_eq!(request.go_on(&mut Peer::new(&[b""]), now + QUIET).unwrap(), Some(Wish::Plain));
    assert_eq!(Request::new(now).go_on(&mut Peer::new(&[]), now).unwrap(), Some(Wish::Plain));

    // Who has begun to ask is waited for, byte by byte, and is done when it ends.
    let mut request = Request::new(now);
    let pieces: Vec<&[u8]> = b"GET / HTTP/1.0\n".chunks(1).flat_map(|byte| [byte, &b""[..]]).collect();
    let mut peer = Peer::new(&pieces);
    for _ in 0..pieces.len() / 2 {
        assert_eq!(request.go_on(&mut peer, now + 2 * QUIET).unwrap(), None);
    }
    assert_eq!(request.looks_again(), None);
    assert_eq!(request.go_on(&mut peer, now).unwrap(), Some(Wish::Json));
    assert_eq!(Request::new(now).go_on(&mut Peer::new(&[b"GET /"]), now).unwrap(), Some(BAD));
}
