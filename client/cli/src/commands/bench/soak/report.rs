//! What the soak found, as a table for people or one JSON object.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::state::Left;
use super::tally::{Tally, Times};
use crate::output::Output;
use crate::table::{self, Align, Table};

/// Everything that is reported.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) minutes: f64,
    pub(super) processes: usize,
    #[serde(flatten)]
    pub(super) tally: Tally,
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) daemon_kills: u64,
    /// The first mismatches.
    pub(super) findings: Vec<String>,
    /// What ended the soak early.
    pub(super) failures: Vec<String>,
    #[serde(flatten)]
    pub(super) left: Left,
    pub(super) daemon: DaemonReport,
    pub(super) get_quiet: Times,
    pub(super) get_under_load: Times,
}

/// The daemon during the soak.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct DaemonReport {
    /// Resident memory but for the pool: with the first tensors, after a quarter of the time, at the end.
    pub(super) private_bytes_start: u64,
    pub(super) private_bytes_quarter: u64,
    pub(super) private_bytes_end: u64,
    pub(super) pool_bytes: u64,
    pub(super) pool_used_bytes: u64,
    pub(super) pool_segment_bytes: u64,
    pub(super) most_segment_bytes: u64,
    pub(super) least_segment_bytes: u64,
    pub(super) most_held_bytes: u64,
    /// Of the background thread.
    pub(super) folds: u64,
    pub(super) refits: u64,
    pub(super) rewritten_bytes: u64,
    pub(super) background_failures: u64,
    pub(super) last_failure: Option<String>,
}

impl Report {
    /// Whether nothing was found.
    pub(super) fn is_clean(&self) -> bool {
        self.tally.mismatches == 0
            && self.findings.is_empty()
            && self.failures.is_empty()
            && self.left.is_nothing()
    }

    /// Writes one JSON object.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(super) fn write_json(&self, out: &mut Output) -> Result<()> {
        out.json(self)
    }

    /// Writes a table.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(super) fn write_table(&self, out: &mut Output) -> Result<()> {
        let mut table = Table::new(&[("soak", Align::Left), ("", Align::Left)]);
        for (name, cell) in self.counts().into_iter().chain(self.conditions()) {
            table.row(vec![name.to_owned(), cell]);
        }
        table.write(out)?;
        for text in self.findings.iter().chain(&self.failures) {
            writeln!(out, "{text}")?;
        }
        if self.tally.mismatches > 0 {
            writeln!(out, "DAMAGED: words are not what was written.")?;
        }
        if !self.left.is_nothing() {
            writeln!(out, "LEAKED: {:?}.", self.left)?;
        }
        Ok(())
    }

    fn counts(&self) -> Vec<(&'static str, String)> {
        let tally = &self.tally;
        vec![
            ("minutes", format!("{:.2}", self.minutes)),
            ("seed", self.seed.to_string()),
            ("processes", self.processes.to_string()),
            ("words checked", tally.words_checked.to_string()),
            ("mismatches", tally.mismatches.to_string()),
            ("reads", format!("{} ({} views)", tally.reads, tally.views)),
            ("updates", format!("{} of {} rows", tally.updates, tally.rows_updated)),
            ("refits", format!("{} forced, {} finished", tally.refits, self.daemon.refits)),
            ("folds", self.daemon.folds.to_string()),
            ("puts, removals", format!("{}, {}", tally.puts, tally.removals)),
            ("verified tensors", tally.verifies.to_string()),
            (
                "kills, stops",
                format!("{} and {} of the daemon, {}", self.kills, self.daemon_kills, self.stops),
            ),
            ("excused errors", excused(&tally.errors)),
        ]
    }

    fn conditions(&self) -> Vec<(&'static str, String)> {
        let (left, daemon) = (&self.left, &self.daemon);
        let sizes =
            |sizes: &[u64]| sizes.iter().map(|bytes| table::size(*bytes)).collect::<Vec<_>>().join(", ");
        let private = [daemon.private_bytes_start, daemon.private_bytes_quarter, daemon.private_bytes_end];
        vec![
            ("leaked bytes", left.leaked_bytes.to_string()),
            (
                "leases, sessions, transfers, descriptors left",
                format!("{}, {}, {}, {}", left.leases, left.sessions, left.transfers, left.descriptors),
            ),
            ("daemon without pool: start, quarter, end", sizes(&private)),
            (
                "pool: size, segments, used at the end",
                sizes(&[daemon.pool_bytes, daemon.pool_segment_bytes, daemon.pool_used_bytes]),
            ),
            (
                "segments: least, most, after all",
                sizes(&[daemon.least_segment_bytes, daemon.most_segment_bytes, left.segment_bytes]),
            ),
            ("held by readers, most", table::size(daemon.most_held_bytes)),
            (
                "background failures",
                match &daemon.last_failure {
                    Some(text) => format!("{}, the last: {text}", daemon.background_failures),
                    None => daemon.background_failures.to_string(),
                },
            ),
            ("get of one row, quiet: p50, p99, p99.9", times(&self.get_quiet)),
            ("get of one row, under load", times(&self.get_under_load)),
        ]
    }
}

fn excused(errors: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> = errors.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

fn times(times: &Times) -> String {
    let us = |ns: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let us = ns as f64 / 1000.0;
        format!("{us:.2} us")
    };
    format!("{}, {}, {}", us(times.p50_ns), us(times.p99_ns), us(times.p999_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Report {
        Report {
            seed: 1,
            minutes: 0.5,
            processes: 8,
            tally: Tally::default(),
            kills: 30,
            stops: 3,
            daemon_kills: 0,
            findings: Vec::new(),
            failures: Vec::new(),
            left: Left::default(),
            daemon: DaemonReport::default(),
            get_quiet: Times::default(),
            get_under_load: Times::default(),
        }
    }

    #[test]
    fn mismatches_failures_and_leaks_are_not_clean() {
        assert!(clean().is_clean());
        let tally = Tally { mismatches: 1, ..Tally::default() };
        assert!(!Report { tally, ..clean() }.is_clean());
        assert!(!Report { failures: vec![String::new()], ..clean() }.is_clean());
        assert!(!Report { left: Left { leases: 1, ..Left::default() }, ..clean() }.is_clean());
    }

    #[test]
    fn the_json_is_one_flat_object() {
        let value = serde_json::to_value(clean()).unwrap();
        for key in ["seed", "words_checked", "mismatches", "kills", "leaked_bytes", "daemon", "get_quiet"] {
            assert!(!value[key].is_null(), "{key}");
        }
    }
}
