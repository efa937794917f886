//! What one process knows, and the check of what it reads.
//!
//! Per unit it keeps the newest revision that any of its threads has read, and the newest that it knows to have begun.
//! Before a read a thread notes what it must not fall behind; after it every word is checked.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result};
use tierpack_client::{Client, Error, Handle};

use super::ledger::{Entry, Ledger};
use super::spec::Spec;
use super::tally::{Counts, DaemonFate, Line};
use super::word::{self, WORD_BYTES};
use crate::escape;

/// Findings that a process describes; more are only counted.
const DESCRIBED: u64 = 5;

/// What the threads of a worker share.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) client: Client,
    pub(super) specs: Vec<Spec>,
    pub(super) ledger: Ledger,
    pub(super) counts: Counts,
    pub(super) stop: AtomicBool,
    /// Whether other processes work, too.
    pub(super) under_load: AtomicBool,
    pub(super) fate: DaemonFate,
    pub(super) lines: Sender<Line>,
    handles: Vec<OnceLock<Handle>>,
    /// The newest revision that was read, by unit of all tensors.
    floors: Vec<AtomicU32>,
    /// The newest revision that is known to have begun.
    ceilings: Vec<AtomicU32>,
}

/// What must not be read of a unit again: anything older.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    /// By what this process has read.
    seen: u32,
    /// By what was done before the read.
    done: u32,
}

/// How much a read looks up before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    /// What this process has read.
    Seen,
    /// What any process was told to be done, too.
    Done,
}

impl Process {
    pub(super) fn new(
        client: Client,
        specs: Vec<Spec>,
        ledger: Ledger,
        fate: DaemonFate,
        lines: Sender<Line>,
    ) -> Self {
        let units = specs.iter().map(Spec::n_units).sum();
        let zeros = || (0..units).map(|_| AtomicU32::new(0)).collect();
        Self {
            handles: specs.iter().map(|_| OnceLock::new()).collect(),
            floors: zeros(),
            ceilings: zeros(),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            under_load: AtomicBool::new(false),
            client,
            specs,
            ledger,
            fate,
            lines,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The process's one handle of a tensor, which all threads share.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub(super) fn handle(&self, spec: &Spec) -> Result<&Handle, Error> {
        let cell = &self.handles[usize::from(spec.id)];
        if let Some(handle) = cell.get() {
            return Ok(handle);
        }
        let handle = self.client.open(&spec.name)?;
        Ok(cell.get_or_init(|| handle))
    }

    /// Counts an error that is to be expected.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn excuse(&self, error: Error) -> Result<()> {
        self.counts.excuse(error, self.fate).context("a call failed for a reason that it must not have")
    }

    /// What the units must not fall behind, by what is known now: to be asked before a read.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub(super) fn floors(
        &self,
        spec: &Spec,
        units: impl Iterator<Item = usize>,
        care: Care,
        out: &mut Vec<Floor>,
    ) -> Result<()> {
        out.clear();
        for unit in units {
            // Acquire: pairs with the Release in `note`, so that a read by this thread comes after that one's.
            let seen = self.floors[spec.first_unit + unit].load(Ordering::Acquire);
            let done = if care == Care::Done { self.ledger.entry(spec, unit)?.done } else { 0 };
            out.push(Floor { seen, done });
        }
        Ok(())
    }

    /// As [`Process::floors`] with [`Care::Done`], for all units of a tensor.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub(super) fn all_floors(
        &self,
        spec: &Spec,
        entries: &mut Vec<Entry>,
        out: &mut Vec<Floor>,
    ) -> Result<()> {
        self.ledger.read(spec, 0..spec.n_units(), entries)?;
        self.floors(spec, 0..spec.n_units(), Care::Seen, out)?;
        out.iter_mut().zip(entries).for_each(|(floor, entry)| floor.done = entry.done);
        Ok(())
    }

    /// Checks every word of one unit that was read after `floor` was asked for; returns its revision if all is right.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub(super) fn check(&self, spec: &Spec, unit: usize, bytes: &[u8], floor: Floor) -> Result<Option<u32>> {
        self.counts.words_checked.add(bytes.len() as u64 / WORD_BYTES);
        let revision = match word::check(bytes, spec.id, spec.first_word(unit)) {
            Ok(revision) => revision,
            Err(wrong) => {
                self.mismatch(spec, unit, &wrong.to_string());
                return Ok(None);
            }
        };
        if revision < floor.seen {
            let text = format!("revision {revision} was read after this process had read {}", floor.seen);
            self.mismatch(spec, unit, &text);
            return Ok(None);
        }
        // The ledger only counts up: a second look rules out that the first met a number half written.
        if revision < floor.done && self.ledger.entry(spec, unit)?.done >= floor.done {
            let text = format!("revision {revision} was read after {} was done", floor.done);
            self.mismatch(spec, unit, &text);
            return Ok(None);
        }
        if !self.has_begun(spec, unit, revision)? {
            self.mismatch(spec, unit, &format!("revision {revision} was never written"));
            return Ok(None);
        }
        // Release: pairs with the Acquire in `floors`.
        self.floors[spec.first_unit + unit].fetch_max(revision, Ordering::Release);
        Ok(Some(revision))
    }

    fn has_begun(&self, spec: &Spec, unit: usize, revision: u32) -> Result<bool> {
        let ceiling = &self.ceilings[spec.first_unit + unit];
        if revision <= ceiling.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let mut begun = self.ledger.entry(spec, unit)?.begun;
        if revision > begun {
            begun = self.ledger.entry(spec, unit)?.begun;
        }
        if revision <= begun {
            ceiling.fetch_max(begun, Ordering::Relaxed);
        }
        Ok(revision <= begun)
    }

    /// Tells of a finding.
    pub(super) fn mismatch(&self, spec: &Spec, unit: usize, text: &str) {
        self.counts.mismatches.add(1);
        if self.counts.tally().mismatches <= DESCRIBED {
            let (name, pieces) = (escape::quoted(&spec.name), spec.pieces());
            let text = format!("tensor {name}, row {}, piece {}: {text}", unit / pieces, unit % pieces);
            // Nobody listens only when the process is at its end.
            drop(self.lines.send(Line::Mismatch(text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use tempfile::TempDir;
    use tierpack_daemon::{Config, Embedded};

    use super::super::spec;
    use super::*;

    struct Fixture {
        process: Process,
        lines: Receiver<Line>,
        _daemon: Embedded,
        _folder: TempDir,
    }

    impl Fixture {
        fn start() -> Self {
            let (folder, specs) = (tempfile::tempdir().unwrap(), spec::all().unwrap());
            Ledger::create(folder.path(), &specs).unwrap();
            let config = Config::embedded(folder.path().join("control.sock"), 8 << 20).unwrap();
            let daemon = Embedded::start(&config).unwrap();
            let client = Client::builder().socket(daemon.socket()).connect().unwrap();
            let (sender, lines) = mpsc::channel();
            let ledger = Ledger::open(folder.path()).unwrap();
            let process = Process::new(client, specs, ledger, DaemonFate::Lives, sender);
            Self { process, lines, _daemon: daemon, _folder: folder }
        }

        /// Checks row 3 of the first tensor as if it had been read with that revision.
        fn check(&self, revision: u32, floor: Floor) -> Option<u32> {
            let spec = &self.process.specs[0];
            let mut bytes = vec![0; spec.row_bytes()];
            spec.fill(3, &mut bytes, revision, 5);
            self.process.check(spec, 3, &bytes, floor).unwrap()
        }

        fn finding(&self) -> String {
            match self.lines.try_recv() {
                Ok(Line::Mismatch(text)) => text,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_is_too_old_or_too_new_is_found() {
        let fixture = Fixture::start();
        let (process, none) = (&fixture.process, Floor::default());
        let (spec, mut floors) = (&process.specs[0], Vec::new());
        process.ledger.begin(spec, 3, 7).unwrap();
        process.ledger.finish(spec, 3, 6).unwrap();
        assert_eq!(fixture.check(8, none), None);
        assert!(fixture.finding().contains("revision 8 was never written"));
        assert_eq!(fixture.check(7, none), Some(7));
        process.floors(spec, [3].into_iter(), Care::Done, &mut floors).unwrap();
        assert_eq!((floors[0].seen, floors[0].done), (7, 6));
        assert_eq!(fixture.check(6, floors[0]), None);
        assert!(fixture.finding().contains("after this process had read 7"));
        assert_eq!(fixture.check(5, Floor { seen: 0, done: 6 }), None);
        let text = fixture.finding();
        assert!(text.contains("after 6 was done") && text.contains("row 3, piece 0"), "{text}");
        let tally = process.counts.tally();
        assert_eq!((tally.mismatches, tally.words_checked), (3, 4 * spec.row_bytes() as u64 / WORD_BYTES));
    }

    #[test]
    fn words_of_another_row_are_found() {
        let fixture = Fixture::start();
        let spec = &fixture.process.specs[0];
        let mut bytes = vec![0; spec.row_bytes()];
        spec.fill(4, &mut bytes, 0, 0);
        assert_eq!(fixture.process.check(spec, 3, &bytes, Floor::default()).unwrap(), None);
        let text = fixture.finding();
        assert!(text.contains("word 192: expected") && text.contains("word 256,"), "{text}");
    }
}
