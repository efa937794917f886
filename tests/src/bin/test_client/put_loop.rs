//! Puts and removes tensors until it is killed; it checks nothing else.

use std::path::Path;

use anyhow::Result;
use tierpack_client::{CodecChoice, CodecId, Dtype, Error, PutOptions};
use tierpack_tests::data::Words;

use crate::{connect, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of each tensor.
    #[arg(long, default_value_t = 8 << 20)]
    bytes: u64,
    /// How they are encoded; words that a codec shortens unless that is `raw`.
    #[arg(long, default_value = "raw")]
    codec: CodecChoice,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let client = connect(socket)?;
    let mut bytes = vec![0; usize::try_from(args.bytes)?];
    Words::new(args.codec != CodecChoice::Only(CodecId::Raw)).fill(&mut bytes, 0, 0, 0);
    let options = PutOptions::new().codec(args.codec);
    let shape = [args.bytes / 512, 64];
    say(&format!("connected {}", std::process::id()))?;
    for n in 0_u64.. {
        let name = format!("loop-{}-{n}", std::process::id());
        match client.put_with(&name, Dtype::U64, &shape, &mut &*bytes, &options) {
            Ok(_) => client.remove(&name)?,
            // The tensors of killed ones may fill the pool for a moment.
            Err(Error::PoolFull { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
