//! What the demo found, as tables for people or one JSON object.

use std::io::Write as _;

use anyhow::Result;
use serde::Serialize;
use tierpack_client::Entry;

use super::super::{ENTRY_COLUMNS, Line, add_total, entry_cells, totals};
use super::on_gpu::DeviceTally;
use super::reader::Tally;
use crate::output::Output;
use crate::table::{self, Align, Table};

/// Everything that the demo measured.
#[derive(Debug)]
pub(super) struct Report<'a> {
    /// What the pool holds.
    pub(super) entries: &'a [Entry],
    /// What each process read.
    pub(super) tallies: &'a [Tally],
    /// Host memory of daemon and readers together.
    pub(super) host_bytes: u64,
}

#[derive(Serialize)]
struct Document<'a> {
    raw_bytes: u64,
    stored_bytes: u64,
    host_bytes: u64,
    tensors: Vec<Line<'a>>,
    processes: Vec<Process<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    reads: u64,
    gib_per_s: f64,
    mismatches: u64,
    bytes: u64,
    seconds: f64,
    pss_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<&'a DeviceTally>,
}

impl Report<'_> {
    /// Whether every word of every read was right.
    pub(super) fn all_matched(&self) -> bool {
        let on_gpus = self.on_gpus().all(|(_, tally)| tally.mismatches == 0);
        on_gpus && self.tallies.iter().all(|tally| tally.mismatches == 0)
    }

    /// Writes one JSON object.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(super) fn write_json(&self, out: &mut Output) -> Result<()> {
        let (raw_bytes, stored_bytes) = totals(self.entries);
        let processes = self.tallies.iter().map(|tally| Process {
            pid: tally.pid,
            reads: tally.reads,
            gib_per_s: gib_per_s(tally),
            mismatches: tally.mismatches,
            bytes: tally.bytes,
            seconds: tally.seconds,
            pss_bytes: tally.pss_bytes,
            gpu: tally.gpu.as_ref(),
        });
        let document = Document {
            raw_bytes,
            stored_bytes,
            host_bytes: self.host_bytes,
            tensors: self.entries.iter().map(Line::from).collect(),
            processes: processes.collect(),
            note: self.note(),
        };
        out.json(&document)
    }

    /// Writes a table of tensors, a table of processes, and the memory of all.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(super) fn write_tables(&self, out: &mut Output) -> Result<()> {
        let mut tensors = Table::new(&ENTRY_COLUMNS);
        self.entries.iter().for_each(|entry| tensors.row(entry_cells(entry)));
        add_total(&mut tensors, self.entries, 4);
        tensors.write(out)?;
        writeln!(out)?;
        let mut processes = Table::new(&[
            ("process", Align::Left),
            ("reads/s", Align::Right),
            ("GiB/s", Align::Right),
            ("mismatches", Align::Right),
        ]);
        for tally in self.tallies {
            processes.row(vec![
                tally.pid.to_string(),
                format!("{:.0}", per_second(tally.reads, tally.seconds)),
                format!("{:.2}", gib_per_s(tally)),
                tally.mismatches.to_string(),
            ]);
        }
        processes.write(out)?;
        let (n, memory) = (self.tallies.len(), table::size(self.host_bytes));
        writeln!(out)?;
        writeln!(out, "Rates count the time in get and gather; every word was compared apart from that.")?;
        writeln!(out, "Host memory of the daemon and {n} readers together (PSS): {memory}.")?;
        self.write_gpus(out)?;
        if !self.all_matched() {
            writeln!(out, "DAMAGED: words differ from what was stored.")?;
        }
        Ok(())
    }

    /// What processes gathered on GPUs, and which process.
    fn on_gpus(&self) -> impl Iterator<Item = (u32, &DeviceTally)> {
        self.tallies.iter().filter_map(|tally| tally.gpu.as_ref().map(|gpu| (tally.pid, gpu)))
    }

    /// What must be said of the figures of the GPUs.
    fn note(&self) -> Option<&str> {
        self.on_gpus().find_map(|(_, tally)| tally.note.as_deref())
    }

    /// Writes a table of what was gathered on GPUs, if anything was.
    fn write_gpus(&self, out: &mut Output) -> Result<()> {
        let Some((_, first)) = self.on_gpus().next() else { return Ok(()) };
        let right = Align::Right;
        let mut gpus = Table::new(&[
            ("process", Align::Left),
            ("rows/s", right),
            ("hits", right),
            ("misses", right),
            ("rows, raw", right),
            ("over the bus, about", right),
            ("cached rows", right),
            ("in the cache", right),
            ("the same, raw", right),
            ("mismatches", right),
        ]);
        for (pid, tally) in self.on_gpus() {
            gpus.row(vec![
                pid.to_string(),
                format!("{:.0}", per_second(tally.rows, tally.seconds)),
                tally.hits.to_string(),
                tally.misses.to_string(),
                table::size(tally.raw_bytes),
                table::size(tally.bus_bytes),
                tally.cached_rows.to_string(),
                table::size(tally.cached_bytes),
                table::size(tally.cached_raw_bytes),
                tally.mismatches.to_string(),
            ]);
        }
        writeln!(out)?;
        gpus.write(out)?;
        writeln!(out, "Hot rows, gathered on {}, access {}.", first.device, first.access)?;
        if let Some(note) = self.note() {
            writeln!(out, "Note: {note}.")?;
        }
        Ok(())
    }
}

fn gib_per_s(tally: &Tally) -> f64 {
    per_second(tally.bytes, tally.seconds) / f64::from(1 << 30)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
