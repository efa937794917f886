//! `tierpack serve`: the daemon, in this process.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use crate::output;

/// Arguments of `serve`.
// The flattened arguments bring a group called `Args` already.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: tierpack_daemon::Args,
    /// End when this parent process ends
    #[arg(long, hide = true, value_name = "PID")]
    exit_with_parent: Option<i32>,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// The daemon cannot start, or its own state is broken.
pub(crate) fn run(args: Args, socket: Option<PathBuf>) -> Result<ExitCode> {
    if let Some(parent) = args.exit_with_parent {
        // Not SIGTERM: a demo blocks that one, and its daemon has nothing to save.
        prctl::set_pdeathsig(Signal::SIGKILL).context("ask for a signal when the parent ends")?;
        // The parent may have ended before the kernel was asked.
        ensure!(getppid().as_raw() == parent, "the parent process {parent} has ended");
    }
    tierpack_daemon::run_command(&args.daemon, socket).or_else(|error| {
        tierpack_daemon::print_last(&output::error_line(&error));
        Ok(ExitCode::FAILURE)
    })
}
