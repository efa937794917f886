//! Gathers of rows by a power law: through a cache that holds them encoded, next to the same kernel over raw rows.

use anyhow::Result;
use tierpack_shm::types::CodecId;

use crate::device::Bench;
use crate::host::Way;
use crate::numbers::{PowerLaw, Rng};
use crate::report::Report;
use crate::table::{Gathers, Table};
use crate::timing::{Effort, gib_per_s};
use crate::work::Work;

/// Elements of a row: rows of 512 bytes, which a quarter of a warp gathers, and of 2 KiB.
const WIDTHS: [u64; 2] = [256, 1024];
const CODECS: [CodecId; 2] = [CodecId::Planes3, CodecId::Ibp];

/// Raw bytes of the table, of what is different of them, and of what a launch gathers.
const TABLE_BYTES: u64 = 1 << 30;
const DISTINCT_BYTES: u64 = 8 << 20;
const BATCH_BYTES: u64 = 128 << 20;
/// Batches that take turns, so that the cache is not that of one.
const BATCHES: usize = 6;

/// How often a row is asked for falls with its rank to this power.
const EXPONENT: f64 = 1.05;

/// Shares of rows that the cache is to have, in percent.
const HIT_RATES: [u32; 4] = [0, 10, 50, 100];

/// A hit rate this near is the one that was asked for; so often a size is tried for it.
const NEAR: f64 = 0.01;
const TRIES: u32 = 7;

pub(crate) fn run(bench: &Bench, effort: Effort, report: &mut Report) -> Result<()> {
    let way = Way::find(bench)?;
    for columns in WIDTHS {
        let rows = format!("{} B rows", 2 * columns);
        let work = work(CodecId::Raw, columns, effort)?;
        let batches =
            batches(work.geometry.n_rows(), effort.of(1 << 16, BATCH_BYTES) / (2 * columns), effort);
        let table = Table::new(bench, way, &work)?;
        let speed = measure(bench, effort, &mut cached(bench, effort, &table, &batches, 0)?)?.0;
        report.row(&format!("raw zero-copy gather, {rows}"), speed, "GiB/s", way.note())?;
        drop(table);
        for codec in CODECS {
            let work = self::work(codec, columns, effort)?;
            let table = Table::new(bench, way, &work)?;
            for percent in HIT_RATES {
                let mut gathers = cached(bench, effort, &table, &batches, percent)?;
                let (speed, hit_rate) = measure(bench, effort, &mut gathers)?;
                let name = format!("gather {codec}, {rows}, {percent} % hits");
                let note = format!("ratio {:.3}, {:.1} % hits", work.ratio(), 100.0 * hit_rate);
                report.row(&name, speed, "GiB/s", &note)?;
            }
        }
    }
    Ok(())
}

fn work(codec: CodecId, columns: u64, effort: Effort) -> Result<Work> {
    Work::new(codec, columns, effort.of(0, TABLE_BYTES), effort.of(0, DISTINCT_BYTES))
}

/// Batches of rows by the power law; rows that are asked for as often lie far apart.
fn batches(n_rows: u64, n_ids: u64, effort: Effort) -> Vec<Vec<u64>> {
    /// A prime: ranks become rows one to one, unless it divides their number.
    const STEP: u64 = 2_654_435_761;
    let law = PowerLaw::new(u32::try_from(n_rows).unwrap_or(u32::MAX), EXPONENT);
    let mut random = Rng::new(5);
    let mut batch = || (0..n_ids).map(|_| u64::from(law.draw(random.draw())) * STEP % n_rows).collect();
    (0..effort.of(2, BATCHES)).map(|_| batch()).collect()
}

/// Gathers through a cache that has about so many percent of the rows, filled, and checked.
fn cached<'a>(
    bench: &Bench,
    effort: Effort,
    table: &'a Table<'_>,
    batches: &[Vec<u64>],
    percent: u32,
) -> Result<Gathers<'a>> {
    let n_rows = table.n_rows();
    let filled = |lines: u64| -> Result<(Gathers<'a>, f64)> {
        let mut gathers = table.gathers(bench, table.layout(lines), batches)?;
        gathers.check(bench, &batches[0])?;
        // Three times: the policy counts how often a row is asked for.
        (0..3).try_for_each(|_| gathers.queue_all(bench))?;
        gathers.hit_rate(bench)?;
        gathers.queue_all(bench)?;
        let hit_rate = gathers.hit_rate(bench)?;
        gathers.check(bench, &batches[0])?;
        gathers.hit_rate(bench)?;
        Ok((gathers, hit_rate))
    };
    match percent {
        0 => return Ok(filled(0)?.0),
        // So many lines that hardly a set is asked for a ninth row.
        100 => return Ok(filled(4 * n_rows)?.0),
        _ => {}
    }
    // The number of lines by bisection of its logarithm, since the hit rate grows about as that does.
    let wanted = f64::from(percent) / 100.0;
    let (mut least, mut most) = (8, n_rows.max(16));
    let mut lines = (least * most).isqrt();
    let mut found = filled(lines)?;
    for _ in 0..effort.of(3, TRIES) {
        if (found.1 - wanted).abs() < NEAR {
            break;
        }
        let bound = if found.1 < wanted { &mut least } else { &mut most };
        *bound = lines;
        lines = (least * most).isqrt();
        found = filled(lines)?;
    }
    Ok(found.0)
}

/// GiB/s of raw bytes, and the hit rate meanwhile.
fn measure(bench: &Bench, effort: Effort, gathers: &mut Gathers<'_>) -> Result<(f64, f64)> {
    let bytes = gathers.bytes();
    let seconds = effort.seconds(|| gathers.queue(bench), || bench.wait())?;
    Ok((gib_per_s(bytes, seconds), gathers.hit_rate(bench)?))
}
