//! A limit on how often one place in the code may log: peers decide how often many of them are reached.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one place in each [`WINDOW`].
const MAX_LINES: u32 = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// The places that have logged.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<Identifier, Place>>);

#[derive(Debug)]
struct Place {
    level: Level,
    since: Instant,
    lines: u32,
    /// Lines that were left out and not reported yet.
    more: u64,
    message: String,
}

impl Places {
    /// Whether a place may log a line now; if not, the line is counted.
    fn admits(&self, metadata: &Metadata<'_>, now: Instant, message: impl FnOnce() -> String) -> bool {
        let mut places = self.0.lock();
        let empty = Place { level: *metadata.level(), since: now, lines: 0, more: 0, message: String::new() };
        let place = places.entry(metadata.callsite()).or_insert(empty);
        if now.duration_since(place.since) >= WINDOW {
            (place.since, place.lines) = (now, 0);
        }
        let admits = place.lines < MAX_LINES;
        if admits {
            place.lines += 1;
        } else {
            if place.more == 0 {
                place.message = message();
            }
            place.more += 1;
        }
        admits
    }

    /// The levels and messages of which lines were left out since the last call, and how many.
    fn take(&self) -> Vec<(Level, u64, String)> {
        let mut places = self.0.lock();
        let left_out = places.values_mut().filter(|place| place.more > 0);
        left_out
            .map(|place| (place.level, std::mem::take(&mut place.more), std::mem::take(&mut place.message)))
            .collect()
    }

    /// Logs how many lines were left out, at the level of their place.
    pub(super) fn report(&self) {
        for (level, more, message) in self.take() {
            match level {
                Level::ERROR => tracing::error!("{more} more: {message}"),
                Level::WARN => tracing::warn!("{more} more: {message}"),
                _ => tracing::info!("{more} more: {message}"),
            }
        }
    }
}

/// Lets [`MAX_LINES`] of each place through; finer levels than info are for those who asked for them.
pub(super) struct Limit(pub(super) Arc<Places>);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == module_path!() {
            return true;
        }
        let message = || {
            let mut message = Message(String::new());
            event.record(&mut message);
            message.0
        };
        self.0.admits(metadata, Instant::now(), message)
    }
}

/// The fixed text of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}").is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::tests::{Lines, log_to};
    use super::*;

    #[test]
    fn one_place_logs_a_few_lines_a_second_and_the_rest_are_counted() {
        let (lines, places) = (Lines::default(), Arc::new(Places::default()));
        let subscriber =
            tracing_subscriber::fmt().with_writer(log_to(lines.clone())).with_ansi(false).finish();
        let started = Instant::now();
        tracing::subscriber::with_default(subscriber.with(Limit(Arc::clone(&places))), || {
            (0..100).for_each(|n| tracing::warn!(n, "refused"));
            tracing::info!("another place");
            (0..100).for_each(|_| tracing::info!("as usual"));
            (0..100).for_each(|_| tracing::error!("failed"));
            places.report();
            places.report();
            tracing::info!("the end");
        });
        let text = lines.until("the end");
        let windows = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
        let passed = text.lines().filter(|line| line.contains(": refused n=")).count();
        assert!((5..=5 * windows).contains(&passed), "{text}");
        assert!(text.contains("another place"), "{text}");
        let reports: Vec<_> = text.lines().filter(|line| line.contains("more: refused")).collect();
        assert_eq!(reports.len(), 1, "{text}");
        for (level, message) in [("WARN", "refused"), ("INFO", "as usual"), ("ERROR", "failed")] {
            let report = text.lines().find(|line| line.contains(&format!("more: {message}")));
            assert!(report.is_some_and(|line| line.contains(level)), "{level} {message}: {text}");
        }
        assert!(reports[0].ends_with(&format!("{} more: refused", 100 - passed)), "{text}");
    }
}
