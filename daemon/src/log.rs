//! The log of the daemon as a command: a thread of its own writes it to standard error, and nobody waits for that.
//!
//! Who reads standard error may have stopped (a pager, a terminal after Ctrl-S, a stalled collector), and then a write
//! waits for ever. So lines pass through a bounded queue; one that finds no room is dropped and counted, and the count
//! is written when lines get through again. Nothing joins the thread: the end of the process waits [`FLUSH_LIMIT`].

use std::io::{self, IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use tierpack_shm::faults::{Point, reach};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::error::{Error, Result};

mod places;

use places::{Limit, Places};

/// Lines that may wait for the writer.
const QUEUE: usize = 512;
/// How often what was left out is reported.
const TICK: Duration = Duration::from_secs(1);
/// How long the end of the process waits for lines to be written.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);
/// For how long dropped lines count as a present fault.
const LATELY: Duration = Duration::from_secs(60);

/// Lines of this process that nobody will read.
static LOST: Lost = Lost { lines: AtomicU64::new(0), last: Mutex::new(None) };

/// Dropped lines: how many, and when the last one was.
#[derive(Debug)]
struct Lost {
    lines: AtomicU64,
    last: Mutex<Option<Instant>>,
}

impl Lost {
    fn add(&self) {
        self.lines.fetch_add(1, Ordering::Relaxed);
        *self.last.lock() = Some(Instant::now());
    }
}

/// Lines that were dropped since the start.
pub(crate) fn dropped() -> u64 {
    LOST.lines.load(Ordering::Relaxed)
}

/// Whether lines were dropped in the last minute.
pub(crate) fn is_dropping() -> bool {
    LOST.last.lock().is_some_and(|last| last.elapsed() < LATELY)
}

enum Item {
    Line(Vec<u8>),
    /// Answered when all lines before it are written.
    Flush(Sender<()>),
}

/// The sending end; cloned into the subscriber.
#[derive(Clone)]
pub(crate) struct Log {
    queue: Sender<Item>,
    lost: &'static Lost,
}

impl Log {
    /// Makes standard error the log of this process, with what `filter` lets through.
    pub(crate) fn install(filter: &str) -> Result<Self> {
        let places = Arc::new(Places::default());
        let reported = Arc::clone(&places);
        let log = Self::start(io::stderr(), &LOST, move || reported.report())?;
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(log.clone())
            .with_ansi(io::stderr().is_terminal())
            .finish()
            .with(Limit(places))
            .init();
        // The usual hook writes to standard error itself, and would keep the thread that panics there.
        std::panic::set_hook(Box::new(|info| tracing::error!(panic = %info, "a thread panicked")));
        Ok(log)
    }

    /// Starts a writer; `tick` runs on it about once a second.
    fn start(
        mut out: impl Write + Send + 'static,
        lost: &'static Lost,
        tick: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let (name, (queue, items)) = ("log", bounded(QUEUE));
        let run = move || {
            let mut reported = 0;
            // The hook has counted the panic as a line; the next line is written all the same.
            while catch_unwind(AssertUnwindSafe(|| write_items(&items, &mut out, lost, &mut reported, &tick)))
                .is_err()
            {}
        };
        let started = thread::Builder::new().name(name.to_owned()).spawn(run);
        started.map_err(|source| Error::Thread { name, source })?;
        Ok(Self { queue, lost })
    }

    fn push(&self, line: Vec<u8>) {
        if self.queue.try_send(Item::Line(line)).is_err() {
            self.lost.add();
        }
    }

    /// Waits a short time for the lines so far to be written.
    pub(crate) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_LIMIT;
        let (done, written) = bounded(1);
        if self.queue.send_deadline(Item::Flush(done), deadline).is_ok() {
            let _ = written.recv_deadline(deadline).is_ok();
        }
    }
}

/// Prints the last line of a program to standard error, and waits only a short time for its reader.
pub fn print_last(line: &str) {
    if let Ok(log) = Log::start(io::stderr(), &LOST, || {}) {
        log.push(format!("{line}\n").into_bytes());
        log.flush();
    }
}

/// Writes until every sender is gone; `reported` of the lost lines are reported already.
fn write_items(
    items: &Receiver<Item>,
    out: &mut impl Write,
    lost: &Lost,
    reported: &mut u64,
    tick: &impl Fn(),
) {
    let mut next_tick = Instant::now() + TICK;
    loop {
        let item = items.recv_deadline(next_tick);
        if matches!(item, Ok(Item::Line(_))) {
            reach(Point::LogTurn);
        }
        match item {
            // A full disk, a closed reader: the next line may get through.
            Ok(Item::Line(line)) if out.write_all(&line).is_err() => lost.add(),
            Ok(Item::Line(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Item::Flush(done)) => drop(done.send(())),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let is_late = Instant::now() >= next_tick;
        let lines = lost.lines.load(Ordering::Relaxed);
        if (is_late || items.is_empty()) && lines > *reported {
            let text = format!("tierpack: {} lines of the log were dropped\n", lines - *reported);
            if out.write_all(text.as_bytes()).is_ok() {
                *reported = lines;
            }
        }
        if is_late {
            next_tick = Instant::now() + TICK;
            tick();
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// The subscriber writes each line in one piece.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
