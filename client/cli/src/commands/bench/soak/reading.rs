//! Threads that read: random rows, whole tensors, views that are kept for a while.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use tierpack_client::{CodecChoice, CodecId, Error, RefitMode, View};

use super::super::weights::Random;
use super::check::{Care, Floor, Process};
use super::ledger::Entry;
use super::spec::{MEASURED, Spec};

/// Rows of one gather, at most.
const MAX_ROWS: u64 = 64;
/// Tensors above this are got whole more rarely.
const SMALL_BYTES: usize = 4 << 20;
/// The longest pause after a read: readers alone would take all of the machine.
const MAX_PAUSE_US: u64 = 600;
/// How often a kept view looks whether the end has come.
const NAP: Duration = Duration::from_millis(20);

/// One reading thread.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    process: &'a Process,
    random: Random,
    rows: Vec<u64>,
    units: Vec<usize>,
    bytes: Vec<u8>,
    floors: Vec<Floor>,
    entries: Vec<Entry>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(process: &'a Process, random: Random) -> Self {
        let (rows, units, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self { process, random, rows, units, bytes, floors: Vec::new(), entries: Vec::new() }
    }

    /// Reads in every way until the end.
    ///
    /// # Errors
    /// A call fails for a reason that it must not have.
    pub(super) fn read(mut self) -> Result<()> {
        while !self.process.is_over() {
            let spec = self.any();
            let is_large = spec.raw_bytes() > SMALL_BYTES;
            match self.random.below(16) {
                0 if !is_large || self.random.below(8) == 0 => self.get(spec)?,
                1 => self.glance(spec)?,
                _ => self.gather(spec)?,
            }
            sleep(Duration::from_micros(self.random.below(MAX_PAUSE_US)));
        }
        Ok(())
    }

    /// Keeps views, so that retired memory is held, until the end.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub(super) fn hold(mut self) -> Result<()> {
        while !self.process.is_over() {
            let spec = self.raw();
            match self.look(spec) {
                Ok(seen) => self.keep(spec, &seen?)?,
                Err(error) => self.pause(error)?,
            }
            let spec = self.any();
            self.gather(spec)?;
        }
        Ok(())
    }

    /// Refits, verifies and lists until the end.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub(super) fn refit(mut self) -> Result<()> {
        // The first is the one whose gets are timed: it is always there.
        let mut is_first = true;
        while !self.process.is_over() {
            let is_measured = std::mem::take(&mut is_first) || self.random.below(4) == 0;
            let spec = if is_measured { &self.process.specs[MEASURED] } else { self.any() };
            let (client, counts) = (&self.process.client, &self.process.counts);
            let done = match self.random.below(8) {
                0 => client.verify(&spec.name, |_, _| {}).map(|_| counts.verifies.add(1)),
                1 => client.list().map(drop),
                2 => client.drift(&spec.name).map(drop),
                3 => client.refit(&spec.name, RefitMode::IfBetter, |_, _| {}).map(drop),
                _ => client.refit(&spec.name, RefitMode::Force, |_, _| {}).map(|_| counts.refits.add(1)),
            };
            match done {
                Ok(()) => {}
                Err(error @ Error::Damaged { .. }) => self.process.mismatch(spec, 0, &error.to_string()),
                Err(error) => self.pause(error)?,
            }
            self.gather(spec)?;
        }
        Ok(())
    }

    fn any(&mut self) -> &'a Spec {
        let specs = &self.process.specs;
        &specs[tierpack_shm::types::index(self.random.below(specs.len() as u64))]
    }

    /// One that can be viewed.
    fn raw(&mut self) -> &'a Spec {
        loop {
            let spec = self.any();
            if spec.codec == CodecChoice::Only(CodecId::Raw) {
                return spec;
            }
        }
    }

    /// Excuses an error, and leaves whoever can help it some time.
    fn pause(&self, error: Error) -> Result<()> {
        self.process.excuse(error)?;
        sleep(Duration::from_millis(1));
        Ok(())
    }

    fn gather(&mut self, spec: &'a Spec) -> Result<()> {
        let limit = (MAX_ROWS * 4096 / spec.row_bytes() as u64).clamp(1, MAX_ROWS);
        let n = 1 + self.random.below(limit);
        self.rows.clear();
        self.units.clear();
        for _ in 0..n {
            let row = self.random.below(spec.n_rows());
            self.rows.push(row);
            self.units.extend(spec.units_of(row));
        }
        let care = if self.random.below(8) == 0 { Care::Done } else { Care::Seen };
        self.process.floors(spec, self.units.iter().copied(), care, &mut self.floors)?;
        let allocates = self.random.below(4) == 0;
        self.bytes.resize(self.rows.len() * spec.row_bytes(), 0);
        let gathered = self.process.handle(spec).and_then(|handle| {
            if allocates {
                handle.gather(&self.rows).map(|tensor| self.bytes.copy_from_slice(tensor.as_bytes()))
            } else {
                handle.gather_into(&self.rows, &mut self.bytes)
            }
        });
        if let Err(error) = gathered {
            return self.pause(error);
        }
        self.process.counts.reads.add(1);
        let mut rest = &self.bytes[..];
        for (unit, floor) in self.units.iter().zip(&self.floors) {
            let (bytes, after) = rest.split_at(spec.bytes_of(*unit).len());
            self.process.check(spec, *unit, bytes, *floor)?;
            rest = after;
        }
        Ok(())
    }

    fn get(&mut self, spec: &'a Spec) -> Result<()> {
        self.process.all_floors(spec, &mut self.entries, &mut self.floors)?;
        let allocates = self.random.below(2) == 0;
        self.bytes.resize(spec.raw_bytes(), 0);
        let got = self.process.handle(spec).and_then(|handle| {
            if allocates { handle.get().map(Some) } else { handle.get_into(&mut self.bytes).map(|()| None) }
        });
        let tensor = match got {
            Ok(tensor) => tensor,
            Err(error) => return self.pause(error),
        };
        self.process.counts.reads.add(1);
        let bytes = tensor.as_ref().map_or(&self.bytes[..], |tensor| tensor.as_bytes());
        for (unit, floor) in self.floors.iter().enumerate() {
            self.process.check(spec, unit, &bytes[spec.bytes_of(unit)], *floor)?;
        }
        Ok(())
    }

    /// Takes a view and checks it; the revisions that it shows come with it.
    fn look(&mut self, spec: &Spec) -> Result<Result<Seen>, Error> {
        if let Err(error) = self.process.all_floors(spec, &mut self.entries, &mut self.floors) {
            return Ok(Err(error));
        }
        let view = self.process.handle(spec)?.view()?;
        self.process.counts.reads.add(1);
        self.process.counts.views.add(1);
        Ok(self.revisions(spec, &view).map(|revisions| Seen { view, revisions }))
    }

    fn revisions(&self, spec: &Spec, view: &View) -> Result<Vec<Option<u32>>> {
        let mut revisions = Vec::with_capacity(spec.n_units());
        for block_idx in 0..view.n_blocks() {
            let (mut rest, units) = (view.block(block_idx)?, spec.units_in_block(block_idx));
            for unit in units {
                let (bytes, after) = rest.split_at(spec.bytes_of(unit).len());
                revisions.push(self.process.check(spec, unit, bytes, self.floors[unit])?);
                rest = after;
            }
        }
        Ok(revisions)
    }

    fn glance(&mut self, spec: &'a Spec) -> Result<()> {
        match self.look(spec) {
            Ok(seen) => seen.map(drop),
            Err(error) => self.pause(error),
        }
    }

    /// Keeps a view for a while, which must then show what it showed at first.
    fn keep(&mut self, spec: &Spec, seen: &Seen) -> Result<()> {
        let end = Instant::now() + Duration::from_millis(100 + self.random.below(1500));
        while Instant::now() < end && !self.process.is_over() {
            sleep(NAP);
        }
        self.floors.iter_mut().for_each(|floor| *floor = Floor::default());
        let again = self.revisions(spec, &seen.view)?;
        let mut both = seen.revisions.iter().zip(&again).enumerate();
        if let Some((unit, (first, now))) = both.find(|(_, (first, now))| first != now) {
            let text = format!("a view showed revision {first:?} and later {now:?}");
            self.process.mismatch(spec, unit, &text);
        }
        Ok(())
    }
}

/// A view and what it showed.
#[derive(Debug)]
struct Seen {
    view: View,
    revisions: Vec<Option<u32>>,
}
