//! What clients read: totals, and what was added per second between two documents.

use tierpack_client::Stats;
use tierpack_shm::page::Counts;

use crate::table::{Align, Table, size};

const GIB: f64 = (1_u64 << 30) as f64;

/// A row: its name, its counter, and whether that counts bytes.
type Row = (&'static str, fn(&Counts) -> u64, bool);

const ROWS: [Row; 10] = [
    ("gets", |counts| counts.gets, false),
    ("gathers", |counts| counts.gathers, false),
    ("rows gathered", |counts| counts.rows, false),
    ("views", |counts| counts.views, false),
    ("begun anew", |counts| counts.retries, false),
    ("bytes read", |counts| counts.bytes, true),
    ("bytes to GPUs", |counts| counts.device_bytes, true),
    ("gathers on GPUs", |counts| counts.device_gathers, false),
    ("  rows, cached there", |counts| counts.device_hits, false),
    ("  rows, from the pool", |counts| counts.device_misses, false),
];

/// The way from one document to the next; `None` where there is none to compare with.
#[derive(Debug)]
pub(super) struct Rates(Option<(Counts, f64)>);

impl Rates {
    /// From `before`, if that is of the same daemon, to `now`.
    pub(super) fn between(before: Option<&Stats>, now: &Stats) -> Self {
        let before = before.filter(|before| before.instance == now.instance);
        // The daemon's own clock: how long a document was on its way does not matter.
        let elapsed = before.map(|before| (before.reads, now.uptime_s - before.uptime_s));
        Self(elapsed.filter(|(_, seconds)| *seconds > 0.0))
    }

    /// What was added per second. A client may have set its counters back: then nobody can say.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn of(&self, counter: fn(&Counts) -> u64, now: &Counts) -> Option<f64> {
        let (before, seconds) = self.0.as_ref()?;
        Some(counter(now).checked_sub(counter(before))? as f64 / seconds)
    }
}

/// The table of reads, with a column of rates when they are watched.
pub(super) fn table(stats: &Stats, rates: Option<&Rates>) -> Table {
    let columns = [("reads", Align::Left), ("total", Align::Right), ("per s", Align::Right)];
    let mut table = Table::new(&columns[..if rates.is_some() { 3 } else { 2 }]);
    for (what, counter, is_bytes) in ROWS {
        let total = counter(&stats.reads);
        let mut cells = vec![what.to_owned(), if is_bytes { size(total) } else { total.to_string() }];
        cells.extend(rates.map(|rates| match rates.of(counter, &stats.reads) {
            None => "-".to_owned(),
            Some(rate) if is_bytes => format!("{:.3} GiB", rate / GIB),
            Some(rate) => format!("{rate:.1}"),
        }));
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(instance: u64, uptime_s: f64, gets: u64, bytes: u64) -> Stats {
        let mut stats = Stats::new("x".to_owned(), instance);
        stats.uptime_s = uptime_s;
        (stats.reads.gets, stats.reads.bytes) = (gets, bytes);
        stats
    }

    /// The cells of a row of the table between two documents.
    fn row(before: Option<&Stats>, now: &Stats, what: &str) -> Vec<String> {
        let mut out = Vec::new();
        table(now, Some(&Rates::between(before, now))).write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = text.lines().find(|line| line.starts_with(what)).unwrap();
        line[what.len()..]
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn rates_are_what_was_added_by_the_clock_of_the_daemon() {
        let (before, now) = (stats(1, 10.0, 5, 1 << 30), stats(1, 12.0, 30, 2 << 30));
        assert_eq!(row(Some(&before), &now, "gets"), ["30", "12.5"]);
        assert_eq!(row(Some(&before), &now, "bytes read"), ["2.00 GiB", "0.500 GiB"]);
    }

    #[test]
    fn without_an_earlier_document_of_the_same_daemon_there_is_no_rate() {
        let now = stats(1, 12.0, 30, 0);
        let others = [stats(2, 10.0, 5, 0), stats(1, 12.0, 5, 0), stats(1, 10.0, 31, 0)];
        for before in others.iter().map(Some).chain([None]) {
            assert_eq!(row(before, &now, "gets"), ["30", "-"], "{before:?}");
        }
        let mut out = Vec::new();
        table(&now, None).write(&mut out).unwrap();
        assert!(!String::from_utf8(out).unwrap().contains("per s"));
    }
}
