//! `tierpack stats --watch`: the counters again and again, with rates.
//!
//! A terminal is redrawn in place; elsewhere one block, or with `--json` one line, follows the other.
//! A daemon that goes away is waited for, and the watch ends by an interrupt or with the reader of its output.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use console::Term;
use nix::sys::signal::{SigSet, Signal};
use tierpack_client::Stats;

use super::rates::Rates;
use super::{parse, read, tables};
use crate::escape;
use crate::output::{self, Output};

enum Event {
    /// An interval is over: what the daemon said.
    Look(Result<String>),
    Interrupt,
}

/// What is shown, and where.
struct Watch<'a> {
    out: &'a mut Output,
    json: bool,
    /// The terminal to redraw, if standard output is one.
    screen: Option<Term>,
    last: Option<Stats>,
    /// Since when no daemon answers.
    lost: Option<Instant>,
}

/// Shows every counter once per `interval`, until interrupted.
///
/// # Errors
/// No daemon answers at first, an answer is not a stats document, or standard output cannot be written.
pub(super) fn run(json: bool, interval: Duration, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let screen = Some(Term::stdout()).filter(|term| !json && term.is_term());
    let mut watch = Watch { out, json, screen, last: None, lost: None };
    for event in events(socket.map(Path::to_owned), interval)? {
        match event {
            Event::Look(Ok(text)) => watch.show(&text)?,
            // A wrong path should not be waited for.
            Event::Look(Err(error)) if watch.last.is_none() => return Err(error),
            Event::Look(Err(error)) => watch.miss(&error)?,
            Event::Interrupt => break,
        }
    }
    Ok(())
}

/// Starts to look at the daemon, and to wait for an interrupt.
fn events(socket: Option<PathBuf>, interval: Duration) -> Result<Receiver<Event>> {
    // One place: a reader that does not read keeps documents from piling up.
    let (sender, events) = mpsc::sync_channel(1);
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block().context("block signals")?;
    let looks = sender.clone();
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        thread::Builder::new().name(name.to_owned()).spawn(work).context("start a thread")
    };
    start("signals", Box::new(move || wait(&signals, &sender)))?;
    start("looks", Box::new(move || look(socket.as_deref(), interval, &looks)))?;
    Ok(events)
}

fn wait(signals: &SigSet, events: &SyncSender<Event>) {
    if signals.wait().is_ok() {
        // Where the output is stuck, a second interrupt ends the program as if nobody waited for it.
        let unblocked = signals.thread_unblock().is_ok();
        while unblocked && events.send(Event::Interrupt).is_ok() {}
    }
}

/// Looks once per interval, and not again before the last look is shown.
fn look(socket: Option<&Path>, interval: Duration, events: &SyncSender<Event>) {
    let mut next = Instant::now();
    while events.send(Event::Look(read(socket))).is_ok() {
        let now = Instant::now();
        next += interval;
        if next < now {
            next = now;
        }
        thread::sleep(next - now);
    }
}

impl Watch<'_> {
    fn show(&mut self, text: &str) -> Result<()> {
        let stats = parse(text)?;
        let same = self.last.as_ref().is_some_and(|last| last.instance == stats.instance);
        if self.lost.take().is_some() && self.screen.is_none() {
            let which = if same { "the daemon answers again" } else { "a new daemon answers" };
            output::warning(which);
        }
        if self.json {
            writeln!(self.out, "{}", text.trim_end())?;
        } else {
            let rates = Rates::between(self.last.as_ref(), &stats);
            let mut block = Vec::new();
            if self.last.is_some() && self.screen.is_none() {
                writeln!(block)?;
            }
            tables::write(&stats, Some(&rates), &mut block)?;
            self.draw(&block)?;
        }
        self.last = Some(stats);
        Ok(self.out.flush()?)
    }

    /// No daemon answers: says so, on a terminal each time, elsewhere once.
    fn miss(&mut self, error: &anyhow::Error) -> Result<()> {
        let is_first = self.lost.is_none();
        let since = *self.lost.get_or_insert_with(Instant::now);
        let cause = escape::one_line(&output::chain(error));
        if self.screen.is_some() {
            let seconds = since.elapsed().as_secs();
            self.draw(format!("no answer for {seconds} s, still watching\n\n{cause}\n").as_bytes())?;
            self.out.flush()?;
        } else if is_first {
            output::warning(&format!("still watching: {cause}"));
        }
        self.out.check_reader()?;
        Ok(())
    }

    fn draw(&mut self, block: &[u8]) -> io::Result<()> {
        match &self.screen {
            None => self.out.write_all(block),
            Some(screen) => {
                let (rows, columns) = screen.size();
                let text = String::from_utf8_lossy(block);
                self.out.write_all(frame(&text, rows.into(), columns.into()).as_bytes())
            }
        }
    }
}

/// `text` as a picture that replaces what a terminal of this size shows.
///
/// Lines are cut to the width, and what does not fit below is counted, so that nothing scrolls.
fn frame(text: &str, rows: usize, columns: usize) -> String {
    // The last row is for the cursor.
    let (room, lines) = (rows.saturating_sub(1), text.lines().count());
    let shown = if lines <= room { lines } else { room.saturating_sub(1) };
    let mut frame = "\x1b[H".to_owned();
    let mut line = |text: &str| {
        frame.push_str(&console::truncate_str(text, columns, ""));
        frame.push_str("\x1b[K\n");
    };
    text.lines().take(shown).for_each(&mut line);
    if shown < lines {
        line(&format!("... {} more lines: enlarge the terminal", lines - shown));
    }
    frame.push_str("\x1b[J");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_its_terminal() {
        let text = "one\ntwo two\n\nfour\n";
        assert_eq!(frame(text, 24, 80), "\x1b[Hone\x1b[K\ntwo two\x1b[K\n\x1b[K\nfour\x1b[K\n\x1b[J");
        let small = frame(text, 4, 5);
        assert_eq!(small, "\x1b[Hone\x1b[K\ntwo t\x1b[K\n... 2\x1b[K\n\x1b[J");
        // Two columns for each of these characters.
        assert!(frame("日本語\n", 24, 5).starts_with("\x1b[H日本\x1b[K"));
        assert_eq!(frame("", 24, 80), "\x1b[H\x1b[J");
        assert!(frame(text, 1, 80).lines().count() <= 2 && frame(text, 0, 0).lines().count() <= 2);
    }
}
