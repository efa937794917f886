//! Puts and removes tensors until it is killed; it checks nothing else.

use std::path::Path;

use anyhow::Result;
use tierpack_client::{Dtype, Error};
use tierpack_tests::data::fill;

use crate::{connect, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of each tensor.
    #[arg(long, default_value_t = 8 << 20)]
    bytes: u64,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let client = connect(socket)?;
    let mut bytes = vec![0; usize::try_from(args.bytes)?];
    fill(&mut bytes, 0, 0, 0);
    let shape = [args.bytes / 512, 64];
    say(&format!("connected {}", std::process::id()))?;
    for n in 0_u64.. {
        let name = format!("loop-{}-{n}", std::process::id());
        match client.put(&name, Dtype::U64, &shape, &bytes) {
            Ok(_) => client.remove(&name)?,
            // The tensors of killed ones may fill the pool for a moment.
            Err(Error::PoolFull { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
