//! The daemon as a command: what `tierpackd` and `tierpack serve` do.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::config::{Args, Config};
use crate::error::Error;
use crate::log::Log;
use crate::server::Server;
use crate::shutdown::Shutdown;
use crate::signals::Signals;

/// Runs the daemon until SIGTERM or SIGINT; `socket` is the global `--socket`.
///
/// # Errors
/// What is in the way of serving, to be printed once by the caller, with [`crate::print_last`]: standard error
/// may be a pipe that nobody reads.
pub fn run_command(args: &Args, socket: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let signals = Signals::block()?;
    let config = Config::load(args, socket.as_deref())?;
    if args.print_config {
        std::io::stdout().write_all(config.to_toml()?.as_bytes()).context("print the configuration")?;
        return Ok(ExitCode::SUCCESS);
    }
    let log = Log::install(config.log())?;
    let shutdown = Shutdown::new()?;
    let watcher = signals.watch(shutdown.clone())?;
    let serve = || Server::bind(&config).and_then(|server| server.run(&shutdown));
    // A panic is logged by the hook; caught, it ends the daemon in order.
    let outcome = catch_unwind(AssertUnwindSafe(serve))
        .unwrap_or_else(|_| Err(Error::Panicked { text: "the main thread panicked".to_owned() }));
    shutdown.trigger();
    let _ = watcher.join().is_ok();
    log.flush();
    outcome?;
    Ok(ExitCode::SUCCESS)
}
