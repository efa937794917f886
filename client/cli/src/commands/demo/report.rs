//! What the demo found, as tables for people or one JSON object.

use std::io::Write as _;

use anyhow::Result;
use serde::Serialize;
use tierpack_client::Entry;

use super::super::{ENTRY_COLUMNS, Line, add_total, entry_cells, totals};
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
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    reads: u64,
    gib_per_s: f64,
    mismatches: u64,
    bytes: u64,
    seconds: f64,
    pss_bytes: u64,
}

impl Report<'_> {
    /// Whether every word of every read was right.
    pub(super) fn all_matched(&self) -> bool {
        self.tallies.iter().all(|tally| tally.mismatches == 0)
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
        });
        let document = Document {
            raw_bytes,
            stored_bytes,
            host_bytes: self.host_bytes,
            tensors: self.entries.iter().map(Line::from).collect(),
            processes: processes.collect(),
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
        if !self.all_matched() {
            writeln!(out, "DAMAGED: words differ from what was stored.")?;
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
