//! The daemon as a command: what `tierpackd` and `tierpack serve` do.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{Args, Config};
use crate::server::Server;
use crate::shutdown::Shutdown;
use crate::signals::Signals;

/// Runs the daemon until SIGTERM or SIGINT; `socket` is the global `--socket`.
///
/// # Errors
/// What stands in the way of serving, to be printed once by the caller.
pub fn run_command(args: &Args, socket: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let signals = Signals::block()?;
    let config = Config::load(args, socket.as_deref())?;
    if args.print_config {
        std::io::stdout().write_all(config.to_toml()?.as_bytes()).context("print the configuration")?;
        return Ok(ExitCode::SUCCESS);
    }
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(config.log()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let shutdown = Shutdown::new()?;
    let watcher = signals.watch(shutdown.clone())?;
    let outcome = Server::bind(&config).and_then(|server| server.run(&shutdown));
    shutdown.trigger();
    let _ = watcher.join().is_ok();
    outcome?;
    Ok(ExitCode::SUCCESS)
}
