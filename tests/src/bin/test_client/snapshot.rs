//! Takes a snapshot of everything, stopping on the way as its test says, and says the first and last word of each tensor.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use tierpack_client::Snapshot;
use tierpack_shm::faults::{Point, set};

use crate::{connect, say, told};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What happens after each word.
    #[arg(long)]
    actions: String,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let client = connect(socket)?;
    // What an attachment maps is mapped from here on.
    ends(&client.snapshot_all()?)?;
    set(Point::SnapshotWordLoaded, &args.actions)?;
    say("ready")?;
    while told()? {
        say(&serde_json::to_string(&ends(&client.snapshot_all()?)?)?)?;
    }
    Ok(())
}

fn ends(snapshot: &Snapshot) -> Result<BTreeMap<String, [u64; 2]>> {
    let all = snapshot.tensors().map(|tensor| {
        let values = tensor.get()?;
        let words: &[u64] = values.as_slice()?;
        let (first, last) = words.first().zip(words.last()).context("a tensor without elements")?;
        Ok((tensor.entry().name.clone(), [*first, *last]))
    });
    all.collect()
}
