//! Registration of segments with the driver, which a client does once per segment that it reads.

use std::time::Instant;

use crate::device::Bench;
use crate::host::{Registered, SEGMENT_BYTES, Way};
use crate::report::Report;
use crate::timing::Effort;
use anyhow::Result;

/// Segments that are registered: 4 GiB.
const SEGMENTS: usize = 64;

pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    let way = Way::find(bench)?;
    let (count, len) = effort.of((2, 1 << 20), (SEGMENTS, SEGMENT_BYTES));
    let maps = (0..count).map(|_| way.map_zeros(len)).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let registered = maps.into_iter().map(|map| way.register(bench, map)).collect::<Result<Vec<_>>>()?;
    let registering = start.elapsed().as_secs_f64();
    let bytes: u64 = registered.iter().map(Registered::len).sum();
    let start = Instant::now();
    drop(registered);
    let unregistering = start.elapsed().as_secs_f64();
    let note = format!("{count} segments of {} MiB in pages of 4 KiB, {}", len >> 20, way.note());
    report.row("registration", registering / gib(bytes), "s/GiB", &note)?;
    report.row("registration taken back", unregistering / gib(bytes), "s/GiB", "with the mapping's end")
}

#[expect(clippy::cast_precision_loss, reason = "a figure has three digits")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
