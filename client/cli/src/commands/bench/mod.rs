//! `tierpack bench`: measures, and never asserts how fast; `soak` asserts that everything is right.

use std::process::ExitCode;

use anyhow::Result;
use tierpack_client::CodecId;

use crate::output::Output;

mod codecs;
mod gather;
mod pool;
mod refit;
mod soak;
mod tensor;
mod weights;

pub(crate) use soak::worker::{Args as SoakWorkerArgs, run as run_soak_worker};
#[cfg(test)]
pub(super) use weights::Random;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Saved %, and encode and decode throughput of every codec, next to memcpy in the same run
    Codecs(codecs::Args),
    /// Random rows per second through a daemon and a client, next to a memcpy of the same rows
    Gather(gather::Args),
    /// How much of the memory that the daemon takes is in use, under a long trace of puts, updates and removals
    Pool(pool::Args),
    /// How long a get of one row takes while the daemon refits its tensor, next to a copy and next to nothing
    Refit(refit::Args),
    /// Processes that read, write, refit and are killed for a while: every word is checked, and what leaks
    Soak(soak::Args),
}

/// Runs one benchmark.
///
/// # Errors
/// A file cannot be read, a daemon cannot be started, or standard output cannot be written.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<ExitCode> {
    match &args.command {
        Command::Codecs(args) => codecs::run(args, out)?,
        Command::Gather(args) => gather::run(args, out)?,
        Command::Pool(args) => pool::run(args, out)?,
        Command::Refit(args) => refit::run(args, out)?,
        Command::Soak(args) => return soak::run(args, out),
    }
    Ok(ExitCode::SUCCESS)
}

/// Which codecs are measured.
#[derive(Debug, clap::Args)]
struct Codecs {
    /// Measure this codec only; may be given several times [default: all]
    #[arg(long = "codec", value_name = "all|NAME", value_parser = parse_codec)]
    codecs: Vec<Chosen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    All,
    One(CodecId),
}

fn parse_codec(text: &str) -> Result<Chosen, String> {
    if text == "all" {
        return Ok(Chosen::All);
    }
    let names: Vec<&str> = CodecId::ALL.iter().map(|codec| codec.name()).collect();
    let unknown = || format!("unknown codec {text:?}: choose all, or one of {}", names.join(", "));
    CodecId::from_name(text).map(Chosen::One).ok_or_else(unknown)
}

impl Codecs {
    /// Whether `codec` is among them.
    fn contains(&self, codec: CodecId) -> bool {
        self.codecs.is_empty()
            || self.codecs.iter().any(|chosen| *chosen == Chosen::All || *chosen == Chosen::One(codec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_are_chosen_by_name() {
        let chosen = |names: &[&str]| {
            let codecs = Codecs { codecs: names.iter().map(|name| parse_codec(name).unwrap()).collect() };
            CodecId::ALL.iter().filter(|codec| codecs.contains(**codec)).count()
        };
        assert_eq!(chosen(&[]), CodecId::ALL.len());
        assert_eq!(chosen(&["all", "raw"]), CodecId::ALL.len());
        assert_eq!(chosen(&["raw", "ibp", "raw"]), 2);
        let error = parse_codec("zip").unwrap_err();
        assert!(CodecId::ALL.iter().all(|codec| error.contains(codec.name())), "{error}");
    }
}
