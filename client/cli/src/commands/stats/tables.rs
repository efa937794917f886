//! The counters as tables.

use std::io::{self, Write};
use std::time::Duration;

use tierpack_client::Stats;

use super::rates::{self, Rates};
use crate::commands::size_cells;
use crate::escape;
use crate::table::{Align, Table, size};

/// Writes every table; the one of reads shows `rates` when it is watched.
pub(super) fn write(stats: &Stats, rates: Option<&Rates>, out: &mut dyn Write) -> io::Result<()> {
    let mut daemon = Table::new(&[("daemon", Align::Left), ("", Align::Right)]);
    for (what, value) in daemon_rows(stats) {
        daemon.row(vec![what.to_owned(), value]);
    }
    let mut tables = [daemon, rates::table(stats, rates), namespaces(stats)];
    if rates.is_some() {
        // What changes comes first, where a small terminal shows it.
        tables.swap(0, 1);
    }
    for table in tables {
        table.write(out)?;
        writeln!(out)?;
    }
    sessions(stats).write(out)
}

fn daemon_rows(stats: &Stats) -> Vec<(&'static str, String)> {
    let (pool, requests, done) = (&stats.pool, &stats.requests, &stats.background);
    vec![
        ("software", escape::cell(&stats.software)),
        ("instance", escape::cell(&stats.instance)),
        ("health", health(stats)),
        ("codecs use", escape::cell(&stats.cpu_level)),
        ("uptime, s", format!("{:.0}", stats.uptime_s)),
        ("pool size", size(pool.size_bytes)),
        ("in segments", size(pool.segment_bytes)),
        ("  of that returning", size(pool.returning_bytes)),
        (
            "  of that page-locked",
            format!("{} (--lock {})", size(pool.locked_bytes), escape::cell(&pool.lock)),
        ),
        ("in use by extents", size(pool.used_bytes)),
        ("  of that puts under way", size(pool.reserved_bytes)),
        ("  of that held by leases", size(pool.held_bytes)),
        ("  at most held", size(pool.max_held_bytes)),
        ("names and tables (heap)", size(pool.heap_bytes)),
        ("tensors, raw", size(pool.raw_bytes)),
        ("tensors, stored", size(pool.stored_bytes)),
        ("  of that overlays", size(stats.namespaces.iter().map(|found| found.overlay_bytes).sum())),
        ("  after refits of all", size(stats.namespaces.iter().map(|found| found.predicted_bytes).sum())),
        (
            "background thread",
            format!("{} (--refit {})", escape::cell(&done.state), escape::cell(&done.refit)),
        ),
        ("refits done", done.refits.to_string()),
        ("background steps failed", done.failures.to_string()),
        ("raw bytes stored anew", size(done.rewritten_bytes)),
        ("puts under way", stats.transfers.to_string()),
        ("requests done", requests.done.to_string()),
        ("requests refused", requests.refused.to_string()),
        ("sessions ended", requests.sessions_ended.to_string()),
        ("log lines dropped", stats.log.dropped.to_string()),
    ]
}

/// The state, and what is wrong.
fn health(stats: &Stats) -> String {
    let health = &stats.health;
    let reasons = health.reasons.iter().map(|reason| format!(": {reason}"));
    escape::cell(&format!("{}{}", health.state, reasons.collect::<String>()))
}

fn namespaces(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        ("namespace", Align::Left),
        ("tensors", Align::Right),
        ("raw", Align::Right),
        ("stored", Align::Right),
        ("saved %", Align::Right),
        ("overlays", Align::Right),
        ("generations", Align::Right),
        ("refits", Align::Right),
        ("held", Align::Right),
        ("directory", Align::Right),
        ("segments", Align::Right),
    ]);
    for namespace in &stats.namespaces {
        let mut cells = vec![escape::cell(&namespace.name), namespace.tensors.to_string()];
        cells.extend(size_cells(namespace.raw_bytes, namespace.stored_bytes));
        cells.push(size(namespace.overlay_bytes));
        cells.extend([namespace.generations, namespace.refits].map(|n| n.to_string()));
        cells.extend([namespace.held_bytes, namespace.directory_bytes, namespace.segment_bytes].map(size));
        table.row(cells);
    }
    table
}

fn sessions(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        ("session", Align::Right),
        ("pid", Align::Right),
        ("uid", Align::Right),
        ("leases", Align::Right),
        ("holds", Align::Right),
        ("since, s", Align::Right),
        ("gets", Align::Right),
        ("gathers", Align::Right),
        ("read", Align::Right),
        ("to GPUs", Align::Right),
        ("namespaces", Align::Left),
        ("software", Align::Left),
    ]);
    for session in &stats.sessions {
        let namespaces: Vec<String> = session.namespaces.iter().map(|name| escape::cell(name)).collect();
        let to_device = match session.device_access.as_slice() {
            [] => String::new(),
            ways => {
                format!("{} ({})", size(session.counts.device_bytes), escape::cell(&ways.join(",")))
            }
        };
        let ended = if session.ended { " (ended)" } else { "" };
        table.row(vec![
            session.session.to_string(),
            session.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            session.uid.to_string(),
            session.leases.to_string(),
            size(session.held_bytes),
            format!("{:.1}", Duration::from_millis(session.held_ms).as_secs_f64()),
            session.counts.gets.to_string(),
            session.counts.gathers.to_string(),
            size(session.counts.bytes),
            to_device,
            namespaces.join(","),
            format!("{}{ended}", escape::cell(&session.software)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use tierpack_shm::stats::{NamespaceStats, SessionStats};

    use super::*;

    #[test]
    fn tables_show_every_part_and_escape_names() {
        let mut stats = Stats::new("tierpackd 0.1.0".to_owned(), 0xAB);
        stats.pool.size_bytes = 64 << 20;
        let mut namespace = NamespaceStats::default();
        namespace.name = "a\u{1b}".to_owned();
        (namespace.tensors, namespace.raw_bytes, namespace.stored_bytes) = (3, 1000, 750);
        stats.namespaces.push(namespace);
        let mut session = SessionStats::default();
        (session.session, session.ended) = (7, true);
        (session.device_access, session.counts.device_bytes) = (vec!["staged".to_owned()], 3 << 20);
        stats.sessions.push(session);
        let mut out = Vec::new();
        write(&stats, None, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains('\u{1b}'));
        for part in
            ["00000000000000ab", "64.00 MiB", r"a\u{1b}", "25.00", "unknown", "(ended)", "3.00 MiB (staged)"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
