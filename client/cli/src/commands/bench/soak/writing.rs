//! Threads that write: a few rows, many rows, all of a tensor, puts and removals; and they read what they wrote.
//!
//! Rows are divided among all writers: row `r` belongs to writer `r % writers`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use tierpack_client::{CodecChoice, CodecId, Error, Prefer, RefitMode, Tensor};

use super::super::weights::Random;
use super::check::{Care, Floor, Process};
use super::ledger::{Entry, Mode};
use super::spec::{Life, Spec};
use super::tally::is_answer;

/// How long the last request of a killed writer may take: its session is gone when the next writer starts, so that
/// its requests have reached the workers at least.
const GRACE: Duration = Duration::from_millis(1500);
/// How often a waiting writer looks whether the end has come.
const NAP: Duration = Duration::from_millis(20);
/// Rows of an update that makes overlays, at most.
const FEW_ROWS: u64 = 6;
/// Rows of an update that encodes blocks again, at most, and their bytes.
const MANY_ROWS: u64 = 512;
const MANY_BYTES: u64 = 4 << 20;
/// Tensors above this are written whole more rarely.
const SMALL_BYTES: usize = 4 << 20;

/// How all of a tensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    Update,
    Put,
}

/// One writing thread.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    process: &'a Process,
    random: Random,
    number: u64,
    writers: u64,
    /// By which pattern it writes, per tensor.
    drifts: Vec<u8>,
    rows: Vec<u64>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    floors: Vec<Floor>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(process: &'a Process, random: Random, number: u64, writers: u64) -> Self {
        let drifts = vec![0; process.specs.len()];
        let (rows, bytes, entries, floors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { process, random, number, writers, drifts, rows, bytes, entries, floors }
    }

    /// Writes in every way until the end.
    ///
    /// # Errors
    /// A call fails for a reason that it must not have.
    pub(super) fn write(mut self) -> Result<()> {
        while !self.process.is_over() {
            let specs = &self.process.specs;
            let spec = &specs[tierpack_shm::types::index(self.random.below(specs.len() as u64))];
            let is_turn = spec.raw_bytes() <= SMALL_BYTES || self.random.below(4) == 0;
            match self.random.below(100) {
                0..60 => self.some(spec, FEW_ROWS)?,
                60..80 => self.some(spec, MANY_ROWS)?,
                80..86 if is_turn => self.whole(spec, Whole::Update)?,
                86..94 if is_turn && spec.life != Life::Stays => self.whole(spec, Whole::Put)?,
                94..96 if spec.life == Life::Comes || spec.life == Life::Changes && is_turn => {
                    self.remove(spec)?;
                }
                96 => self.refit(spec)?,
                _ => {}
            }
            sleep(Duration::from_micros(self.random.below(4000)));
        }
        Ok(())
    }

    /// Updates some rows of its own and reads them.
    fn some(&mut self, spec: &'a Spec, most: u64) -> Result<()> {
        let own = (spec.n_rows() + self.writers - 1 - self.number) / self.writers;
        if own == 0 {
            return Ok(());
        }
        let most = most.min(own).min((MANY_BYTES / spec.row_bytes() as u64).max(1));
        let (n, first) = (1 + self.random.below(most), self.random.below(own));
        // Neighbors for many, so that blocks are encoded again; anywhere for a few.
        let spread = if n > FEW_ROWS { 1 } else { 1 + self.random.below(own) };
        self.rows.clear();
        self.rows.extend((0..n).map(|k| (first + k * spread) % own * self.writers + self.number));
        self.rows.sort_unstable();
        self.rows.dedup();
        let is_missing = self.update_rows(spec)?;
        if is_missing && (spec.life != Life::Comes || self.random.below(8) == 0) {
            self.whole(spec, Whole::Put)?;
        }
        Ok(())
    }

    /// Says whether the tensor is not there.
    fn update_rows(&mut self, spec: &'a Spec) -> Result<bool> {
        let process = self.process;
        let Some(_lock) = process.ledger.try_lock(spec, Mode::Shared)? else { return Ok(false) };
        let units: Vec<usize> = self.rows.iter().flat_map(|row| spec.units_of(*row)).collect();
        self.entries.clear();
        for unit in &units {
            self.entries.push(process.ledger.entry(spec, *unit)?);
        }
        if self.entries.iter().any(|entry| entry.is_open()) {
            self.settle(spec)?;
            return Ok(false);
        }
        self.bytes.resize(self.rows.len() * spec.row_bytes(), 0);
        let (drift, mut rest) = (self.drifts[usize::from(spec.id)], &mut self.bytes[..]);
        for (unit, entry) in units.iter().zip(&mut self.entries) {
            *entry = entry.next();
            process.ledger.begin(spec, *unit, entry.begun)?;
            let (bytes, after) = rest.split_at_mut(spec.bytes_of(*unit).len());
            spec.fill(*unit, bytes, entry.begun, drift);
            rest = after;
        }
        match process.handle(spec).and_then(|handle| handle.update(&self.rows, &self.bytes)) {
            Ok(_) => {
                for (unit, entry) in units.iter().zip(&self.entries) {
                    process.ledger.finish(spec, *unit, entry.begun)?;
                }
                process.counts.updates.add(1);
                process.counts.rows_updated.add(self.rows.len() as u64);
                self.read_own(spec, &units)?;
                Ok(false)
            }
            Err(error) => {
                if is_answer(&error) {
                    for (unit, entry) in units.iter().zip(&self.entries) {
                        process.ledger.settle(spec, *unit, entry.begun)?;
                    }
                }
                let is_missing = matches!(error, Error::NotFound { .. } | Error::Lost { .. });
                process.excuse(error)?;
                Ok(is_missing)
            }
        }
    }

    /// Reads the rows that it has just written, and expects just that.
    fn read_own(&mut self, spec: &Spec, units: &[usize]) -> Result<()> {
        let process = self.process;
        process.floors(spec, units.iter().copied(), Care::Done, &mut self.floors)?;
        let gathered =
            process.handle(spec).and_then(|handle| handle.gather_into(&self.rows, &mut self.bytes));
        if let Err(error) = gathered {
            return process.excuse(error);
        }
        process.counts.reads.add(1);
        let mut rest = &self.bytes[..];
        for ((unit, entry), floor) in units.iter().zip(&self.entries).zip(&self.floors) {
            let (bytes, after) = rest.split_at(spec.bytes_of(*unit).len());
            expect_own(process, spec, *unit, process.check(spec, *unit, bytes, *floor)?, entry.begun);
            rest = after;
        }
        Ok(())
    }

    /// Writes all of a tensor, and reads it.
    fn whole(&mut self, spec: &'a Spec, how: Whole) -> Result<()> {
        let process = self.process;
        let Some(_lock) = process.ledger.try_lock(spec, Mode::Alone)? else { return Ok(()) };
        let mut entries = std::mem::take(&mut self.entries);
        process.ledger.read(spec, 0..spec.n_units(), &mut entries)?;
        if entries.iter().any(|entry| entry.is_open()) && !self.wait_out() {
            return Ok(());
        }
        if self.random.below(4) == 0 {
            self.drifts[usize::from(spec.id)] = u8::try_from(self.random.below(256)).unwrap_or_default();
        }
        entries.iter_mut().for_each(|entry| *entry = entry.next());
        process.ledger.write_all(spec, &entries)?;
        self.bytes.resize(spec.raw_bytes(), 0);
        let drift = self.drifts[usize::from(spec.id)];
        for (unit, entry) in entries.iter().enumerate() {
            spec.fill(unit, &mut self.bytes[spec.bytes_of(unit)], entry.begun, drift);
        }
        let written = match how {
            Whole::Update => self.update_all(spec),
            Whole::Put => self.put(spec),
        };
        match written {
            Ok(()) => {
                entries.iter_mut().for_each(|entry| entry.done = entry.begun);
                process.ledger.write_all(spec, &entries)?;
                self.get_own(spec, &entries)?;
            }
            Err(error) => {
                if is_answer(&error) {
                    entries.iter_mut().for_each(|entry| entry.is_settled = true);
                    process.ledger.write_all(spec, &entries)?;
                }
                process.excuse(error)?;
            }
        }
        self.entries = entries;
        Ok(())
    }

    fn update_all(&mut self, spec: &Spec) -> Result<(), Error> {
        self.rows.clear();
        self.rows.extend(0..spec.n_rows());
        self.process.handle(spec)?.update(&self.rows, &self.bytes)?;
        self.process.counts.updates.add(1);
        self.process.counts.rows_updated.add(spec.n_rows());
        Ok(())
    }

    fn put(&mut self, spec: &Spec) -> Result<(), Error> {
        let options = match self.random.below(8) {
            0 => spec.options().codec(CodecChoice::Auto(Prefer::Ratio)),
            1 => spec.options().codec(CodecChoice::Only(CodecId::Raw)),
            _ => spec.options(),
        };
        let (client, mut bytes) = (&self.process.client, &self.bytes[..]);
        client.put_with(&spec.name, spec.dtype, &spec.shape(), &mut bytes, &options.overwrite(true))?;
        self.process.counts.puts.add(1);
        Ok(())
    }

    fn get_own(&mut self, spec: &Spec, entries: &[Entry]) -> Result<()> {
        let process = self.process;
        process.floors(spec, 0..spec.n_units(), Care::Seen, &mut self.floors)?;
        let got: Result<Tensor, Error> = process.handle(spec).and_then(|handle| handle.get());
        let tensor = match got {
            Ok(tensor) => tensor,
            Err(error) => return process.excuse(error),
        };
        process.counts.reads.add(1);
        for ((unit, entry), floor) in entries.iter().enumerate().zip(&self.floors) {
            let found = process.check(spec, unit, &tensor.as_bytes()[spec.bytes_of(unit)], *floor)?;
            expect_own(process, spec, unit, found, entry.begun);
        }
        Ok(())
    }

    fn remove(&mut self, spec: &Spec) -> Result<()> {
        let process = self.process;
        let Some(_lock) = process.ledger.try_lock(spec, Mode::Alone)? else { return Ok(()) };
        match process.client.remove(&spec.name) {
            Ok(()) => process.counts.removals.add(1),
            Err(error) => process.excuse(error)?,
        }
        Ok(())
    }

    fn refit(&mut self, spec: &Spec) -> Result<()> {
        match self.process.client.refit(&spec.name, RefitMode::IfBetter, |_, _| {}) {
            Ok(_) => Ok(()),
            Err(error) => self.process.excuse(error),
        }
    }

    /// Lets the last request of a killed writer of its rows end, and notes that it has.
    fn settle(&mut self, spec: &Spec) -> Result<()> {
        if !self.wait_out() {
            return Ok(());
        }
        let ledger = &self.process.ledger;
        ledger.read(spec, 0..spec.n_units(), &mut self.entries)?;
        for row in (self.number..spec.n_rows()).step_by(tierpack_shm::types::index(self.writers)) {
            for unit in spec.units_of(row) {
                let entry = self.entries[unit];
                if entry.is_open() {
                    ledger.settle(spec, unit, entry.begun)?;
                }
            }
        }
        Ok(())
    }

    /// Says whether it has waited to the end.
    fn wait_out(&self) -> bool {
        let end = Instant::now() + GRACE;
        while Instant::now() < end && !self.process.is_over() {
            sleep(NAP);
        }
        !self.process.is_over()
    }
}

fn expect_own(process: &Process, spec: &Spec, unit: usize, found: Option<u32>, own: u32) {
    if found.is_some_and(|found| found != own) {
        process.mismatch(spec, unit, &format!("revision {own} was written and then {found:?} read"));
    }
}
