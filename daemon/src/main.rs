//! `tierpackd`: the daemon as a binary of its own, for service managers.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tierpack_daemon::{Args, print_last, run_command};

/// Keeps tensors compressed in shared memory for every process of this machine.
#[derive(Debug, Parser)]
#[command(version, after_help = "Exit codes: 0 stopped as asked, 1 an error, 2 wrong usage.")]
struct Command {
    // Not clap's `env`: an empty variable is an unset one, and a message names the variable.
    #[arg(
        long,
        value_name = "PATH",
        help = "Control socket; the default is in the run-time directory [env: TIERPACK_SOCKET]"
    )]
    socket: Option<PathBuf>,
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let command = Command::parse();
    run_command(&command.args, command.socket).unwrap_or_else(|error| {
        print_last(&format!("tierpackd: {error:#}"));
        ExitCode::FAILURE
    })
}
