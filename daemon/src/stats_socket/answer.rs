//! Answers of the stats socket: made once for all who ask for the same in one turn, whole, and then only sent.

use std::sync::Arc;

use tierpack_shm::stats::Stats;

use super::metrics;
use super::request::{Fault, Wish};
use crate::error::chain;
use crate::stats::Board;

/// The answers of one turn.
pub(super) struct Answers<'a> {
    board: &'a Board,
    stats: Option<Stats>,
    made: Vec<(Wish, Arc<[u8]>)>,
}

impl<'a> Answers<'a> {
    pub(super) fn new(board: &'a Board) -> Self {
        Self { board, stats: None, made: Vec::new() }
    }

    /// What `wish` gets; `None` when there is nothing to send.
    pub(super) fn get(&mut self, wish: Wish) -> Option<Arc<[u8]>> {
        if let Some((_, answer)) = self.made.iter().find(|(made, _)| *made == wish) {
            return Some(Arc::clone(answer));
        }
        let answer: Arc<[u8]> = match wish {
            Wish::Plain => self.json()?,
            Wish::Json => http("200 OK", "application/json", &self.json()?),
            Wish::Metrics => http("200 OK", metrics::CONTENT_TYPE, metrics::text(self.stats()).as_bytes()),
            Wish::Fault(fault) => refusal(fault),
        }
        .into();
        self.made.push((wish, Arc::clone(&answer)));
        Some(answer)
    }

    fn stats(&mut self) -> &Stats {
        self.stats.get_or_insert_with(|| self.board.snapshot())
    }

    fn json(&mut self) -> Option<Vec<u8>> {
        match serde_json::to_vec(self.stats()) {
            Ok(mut text) => {
                text.push(b'\n');
                Some(text)
            }
            Err(error) => {
                tracing::error!(error = chain(&error), "no stats");
                None
            }
        }
    }
}

fn refusal(fault: Fault) -> Vec<u8> {
    let (status, text) = match fault {
        Fault::BadRequest => ("400 Bad Request", "no HTTP request of at most 8 KiB, its first line 1 KiB\n"),
        Fault::NotFound => ("404 Not Found", "ask for /metrics or /stats\n"),
        Fault::MethodNotAllowed => ("405 Method Not Allowed\r\nAllow: GET", "ask with GET\n"),
    };
    http(status, "text/plain; charset=utf-8", text.as_bytes())
}

/// A response; `status` may hold further header lines.
fn http(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}
