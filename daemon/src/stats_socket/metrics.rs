//! The stats document as Prometheus text, computed when it is asked for.
//!
//! A metric is one line here and one of docs/operations.md, whose table `tests/tests/metrics.rs` holds equal to this.
//! Labels are literals: no name that a client chose can become one.

use std::fmt::{Display, Write as _};

use tierpack_shm::page::Counts;
use tierpack_shm::stats::{NamespaceStats, Stats};

/// Content-Type of [`text`].
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The label of `tierpack_build_info`.
const VERSION: &str = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");

#[derive(Debug, Default)]
struct Text(String);

/// Every metric.
pub(super) fn text(stats: &Stats) -> String {
    let mut text = Text::default();
    text.family("gauge", "tierpack_build_info", "the daemon's version; the value is 1", &[(VERSION, 1)]);
    text.gauge("tierpack_uptime_seconds", "time since the daemon started", stats.uptime_s);
    state(stats, &mut text);
    requests(stats, &mut text);
    reads(stats, &mut text);
    drift(stats, &mut text);
    text.0
}

fn state(stats: &Stats, text: &mut Text) {
    let pool = &stats.pool;
    let states = [
        ("state=\"size\"", pool.size_bytes),
        ("state=\"segments\"", pool.segment_bytes),
        ("state=\"used\"", pool.used_bytes),
        ("state=\"stored\"", pool.stored_bytes),
        ("state=\"raw\"", pool.raw_bytes),
        ("state=\"reserved\"", pool.reserved_bytes),
        ("state=\"held\"", pool.held_bytes),
        ("state=\"heap\"", pool.heap_bytes),
        ("state=\"max_held\"", pool.max_held_bytes),
        ("state=\"locked\"", pool.locked_bytes),
        ("state=\"returning\"", pool.returning_bytes),
    ];
    let tensors: u64 = stats.namespaces.iter().map(|namespace| namespace.tensors).sum();
    let leases: u64 = stats.sessions.iter().map(|session| session.leases).sum();
    text.family("gauge", "tierpack_pool_bytes", "memory of the pool, by states that overlap", &states);
    text.gauge("tierpack_namespaces", "namespaces", stats.namespaces.len());
    text.gauge("tierpack_tensors", "visible tensors", tensors);
    text.gauge("tierpack_sessions", "clients that are connected", stats.sessions.len());
    text.gauge("tierpack_leases", "leases that are taken", leases);
    text.gauge("tierpack_transfers", "puts under way", stats.transfers);
}

fn requests(stats: &Stats, text: &mut Text) {
    let requests = &stats.requests;
    let results = [("result=\"done\"", requests.done), ("result=\"refused\"", requests.refused)];
    text.family("counter", "tierpack_requests_total", "requests to the daemon, by outcome", &results);
    text.counter("tierpack_sessions_ended_total", "sessions ended by the daemon", requests.sessions_ended);
    text.counter("tierpack_log_dropped_total", "lines of the log that were dropped", stats.log.dropped);
}

/// What clients count; the sessions that are gone stay in the sums.
fn reads(stats: &Stats, text: &mut Text) {
    let reads = &stats.reads;
    let gets = [("tier=\"pool\",result=\"hit\"", reads.gets)];
    text.family("counter", "tierpack_get_total", "calls of `get` and `get_into`", &gets);
    text.counter("tierpack_gather_total", "calls of `gather` and `gather_into`", reads.gathers);
    text.counter("tierpack_view_total", "views taken", reads.views);
    text.counter("tierpack_device_get_total", "whole tensors that were decoded on a GPU", reads.device_gets);
    text.counter("tierpack_device_bytes_total", "raw bytes sent to GPUs", reads.device_bytes);
    device_rows(reads, text);
    text.counter("tierpack_rows_total", "rows returned by gathers", reads.rows);
    text.counter("tierpack_read_bytes_total", "raw bytes returned by gets and gathers", reads.bytes);
    text.counter("tierpack_misses_total", "blocks not found in the pool", reads.misses);
    text.counter("tierpack_read_retries_total", "reads that were retried", reads.retries);
}

fn device_rows(reads: &Counts, text: &mut Text) {
    text.counter("tierpack_device_gather_total", "gathers on a GPU", reads.device_gathers);
    let rows = [("result=\"hit\"", reads.device_hits), ("result=\"miss\"", reads.device_misses)];
    text.family("counter", "tierpack_device_rows_total", "rows that GPUs looked for in their caches", &rows);
    let outcomes = [
        ("outcome=\"insert\"", reads.device_inserts),
        ("outcome=\"conflict\"", reads.device_conflicts),
        ("outcome=\"bypass\"", reads.device_bypasses),
    ];
    text.family(
        "counter",
        "tierpack_device_cache_total",
        "what became of rows and lines of caches",
        &outcomes,
    );
}

/// How compression follows the data, and who is in the way of it.
fn drift(stats: &Stats, text: &mut Text) {
    let sum = |field: fn(&NamespaceStats) -> u64| stats.namespaces.iter().map(field).sum::<u64>();
    text.gauge(
        "tierpack_overlay_bytes",
        "overlays that are not folded yet",
        sum(|found| found.overlay_bytes),
    );
    text.gauge("tierpack_generations", "generations of metadata alive", sum(|found| found.generations));
    text.gauge("tierpack_refitting_tensors", "tensors in a refit", sum(|found| found.refitting));
    let predicted = sum(|found| found.predicted_bytes);
    text.gauge("tierpack_predicted_bytes", "stored bytes if every tensor were refitted", predicted);
    let background = &stats.background;
    let states = ["idle", "working", "held"].map(|state| u64::from(background.state == state));
    let states =
        [("state=\"idle\"", states[0]), ("state=\"working\"", states[1]), ("state=\"held\"", states[2])];
    text.family("gauge", "tierpack_background_state", "1 for what the background thread does", &states);
    let refits = [("result=\"done\"", background.refits), ("result=\"failed\"", background.failures)];
    text.family("counter", "tierpack_refit_total", "refits, and background steps that failed", &refits);
    text.counter("tierpack_fold_total", "blocks that the background thread has folded", background.folds);
    text.counter(
        "tierpack_rewritten_bytes_total",
        "raw bytes that were stored again",
        background.rewritten_bytes,
    );
    let held_ms = stats.sessions.iter().map(|session| session.held_ms).max().unwrap_or(0);
    let held = std::time::Duration::from_millis(held_ms).as_secs_f64();
    text.gauge("tierpack_held_seconds", "age of the oldest retired bytes that a lease holds", held);
}

impl Text {
    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("gauge", name, help, &[("", value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family("counter", name, help, &[("", value)]);
    }

    /// A metric and its samples, each with the labels between its braces.
    fn family<V: Display>(&mut self, kind: &str, name: &str, help: &str, samples: &[(&'static str, V)]) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        for (labels, value) in samples {
            match *labels {
                "" => self.line(format_args!("{name} {value}")),
                labels => self.line(format_args!("{name}{{{labels}}} {value}")),
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}").is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_under_their_names() {
        let mut stats = Stats::new("x".to_owned(), 1);
        stats.uptime_s = 1.5;
        stats.pool.held_bytes = 7;
        (stats.requests.refused, stats.reads.gets) = (3, u64::MAX);
        let text = text(&stats);
        for line in [
            "# HELP tierpack_uptime_seconds time since the daemon started",
            "# TYPE tierpack_uptime_seconds gauge",
            "tierpack_uptime_seconds 1.5",
            "tierpack_pool_bytes{state=\"held\"} 7",
            "# TYPE tierpack_requests_total counter",
            "tierpack_requests_total{result=\"refused\"} 3",
            "tierpack_get_total{tier=\"pool\",result=\"hit\"} 18446744073709551615",
            concat!("tierpack_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
