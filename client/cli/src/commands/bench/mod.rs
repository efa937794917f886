//! `tierpack bench`: measures, never asserts.

use anyhow::Result;

use crate::output::Output;

mod codecs;
mod measure;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Saved %, and encode and decode throughput of every codec, beside memcpy in the same run
    Codecs(codecs::Args),
}

/// Runs one benchmark.
///
/// # Errors
/// A file cannot be read, or standard output cannot be written.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    match &args.command {
        Command::Codecs(args) => codecs::run(args, out),
    }
}
