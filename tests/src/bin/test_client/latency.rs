//! Times gathers of one row, in groups, so that reading the clock costs little.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use tierpack_client::Handle;
use tierpack_tests::data::Random;
use tierpack_tests::reports::LatencyReport;

use crate::{connect, median, say};

/// Gathers between two looks at the clock.
const GROUP: usize = 64;
const GROUPS: usize = 2000;
/// Rows that are read again and again: 8 KiB of 512-byte rows, well inside the first-level cache.
const HOT_ROWS: u64 = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tensor to gather from.
    #[arg(long)]
    tensor: String,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let handle = connect(socket)?.open(&args.tensor)?;
    let hot_ns = time(&handle, HOT_ROWS)?;
    let random_ns = time(&handle, handle.n_rows())?;
    say(&serde_json::to_string(&LatencyReport { hot_ns, random_ns })?)
}

/// Median nanoseconds of one gather of one row below `limit`.
fn time(handle: &Handle, limit: u64) -> Result<u64> {
    let mut out = vec![0; usize::try_from(handle.row_bytes())?];
    let mut random = Random::new(1);
    let mut samples = Vec::with_capacity(GROUPS);
    // The first groups bring the caches and page tables to their usual state.
    for n in 0..GROUPS + GROUPS / 10 {
        let rows: [u64; GROUP] = std::array::from_fn(|_| random.below(limit));
        let start = Instant::now();
        for row in rows {
            handle.gather_into(&[row], &mut out)?;
        }
        if n >= GROUPS / 10 {
            samples.push(u64::try_from(start.elapsed().as_nanos())? / GROUP as u64);
        }
    }
    Ok(median(samples))
}
