//! `tierpack`: the daemon and every command of TierPack in one program.
//!
//! This file parses the command line, runs one command and turns its end into an exit code.
//! Results go to standard output, progress and warnings to standard error; an error is printed once, on one line.
//! It is a library so that the tests of the whole system can run the same program, and so that their benchmarks
//! take their time as `bench` does: [`main`] and [`measure`] are public, and nothing else.

#![forbid(unsafe_code)]

mod agreement;
mod commands;
mod device;
mod escape;
mod files;
pub mod measure;
mod output;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use commands::{bench, demo, get, ls, ns, put, refit, rm, serve, stats, update, verify};
use output::Output;
use tierpack_kernels::{CPU_VARIABLE, CPU_VARIABLE_NEEDED, Level};

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an error, printed on one line; for demo and bench soak also a mismatch or a leak
  2  wrong usage of the command line";

/// Keeps tensors in host memory, once per machine, for any number of processes.
#[derive(Debug, Parser)]
#[command(name = "tierpack", version, after_help = EXIT_CODES)]
struct Cli {
    // Not clap's `env`: an empty variable is an unset one, and a message names the variable.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        help = "Control socket of the daemon [env: TIERPACK_SOCKET] [default: the first of the usual places that answers]"
    )]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    Serve(serve::Args),
    /// Store the tensors of a file
    Put(put::Args),
    /// Update rows of a tensor
    Update(update::Args),
    /// Write tensors to a safetensors file
    Get(get::Args),
    /// List tensors
    Ls(ls::Args),
    /// Remove tensors
    Rm(rm::Args),
    /// Check tensors against their checksums and the hash taken when they were put
    Verify(verify::Args),
    /// Make new compression metadata for a tensor that has changed
    Refit(refit::Args),
    /// Measure codecs on files, next to memcpy
    Bench(bench::Args),
    /// Make, list, change and remove namespaces
    Ns(ns::Args),
    /// Show the daemon's counters
    Stats(stats::Args),
    /// Show the whole system at work on this machine, with a daemon and data of its own
    Demo(demo::Args),
    /// One reading process of `demo`
    #[command(hide = true)]
    DemoReader(demo::reader::Args),
    /// One process of `bench soak`
    #[command(hide = true)]
    SoakWorker(bench::SoakWorkerArgs),
}

impl Cli {
    /// Checks what depends on the value of an option.
    fn checked(self) -> Result<Self, clap::Error> {
        let Command::Put(args) = &self.command else { return Ok(self) };
        let Some(conflict) = args.conflict() else { return Ok(self) };
        let mut command = Self::command();
        command.build();
        let error = match command.find_subcommand_mut("put") {
            Some(put) => put.error(ErrorKind::ArgumentConflict, conflict),
            None => command.error(ErrorKind::ArgumentConflict, conflict),
        };
        Err(error)
    }
}

/// The whole program: reads the process's arguments, runs one command, returns the exit code.
pub fn main() -> ExitCode {
    tierpack_daemon::signals::block_file_size_signal();
    let cli = Cli::parse().checked().unwrap_or_else(|error| error.exit());
    let mut out = Output::stdout();
    let end = run(cli, &mut out).and_then(|code| {
        out.finish()?;
        Ok(code)
    });
    match end {
        Ok(code) => code,
        // The reader of the output has seen enough.
        Err(_) if out.is_closed() => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli, out: &mut Output) -> anyhow::Result<ExitCode> {
    if let Err(found) = Level::forced() {
        anyhow::bail!("{CPU_VARIABLE} is {found:?}: {CPU_VARIABLE_NEEDED}");
    }
    let socket = cli.socket.as_deref();
    match cli.command {
        Command::Serve(args) => return serve::run(args, cli.socket),
        Command::Put(args) => put::run(&args, socket, out)?,
        Command::Update(args) => update::run(&args, socket, out)?,
        Command::Get(args) => get::run(&args, socket, out)?,
        Command::Ls(args) => ls::run(&args, socket, out)?,
        Command::Rm(args) => rm::run(&args, socket, out)?,
        Command::Verify(args) => verify::run(&args, socket, out)?,
        Command::Refit(args) => refit::run(&args, socket, out)?,
        Command::Bench(args) => return bench::run(&args, out),
        Command::Ns(args) => ns::run(&args, socket, out)?,
        Command::Stats(args) => stats::run(&args, socket, out)?,
        Command::Demo(args) => return demo::run(&args, out),
        Command::DemoReader(args) => demo::reader::run(&args, socket, out)?,
        Command::SoakWorker(args) => bench::run_soak_worker(&args, socket, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_and_all_exclude_each_other() {
        for command in ["get", "rm"] {
            let parse = |args: &[&str]| {
                let output: &[&str] = if command == "get" { &["-o", "x"] } else { &[] };
                Cli::try_parse_from([&["tierpack", command], output, args].concat()).is_ok()
            };
            assert!(parse(&["a", "b"]) && parse(&["--all"]) && parse(&["--all", "--namespace", "n"]));
            assert!(!parse(&[]) && !parse(&["a", "--all"]));
        }
    }

    #[test]
    fn a_preference_needs_a_choice() {
        let parse = |args: &[&str]| {
            Cli::try_parse_from([&["tierpack", "put", "x.npy"], args].concat()).and_then(Cli::checked)
        };
        for args in
            [&["--prefer", "speed"][..], &["--prefer", "ratio", "--codec", "auto"], &["--codec", "ibp"]]
        {
            assert!(parse(args).is_ok(), "{args:?}");
        }
        let error = parse(&["--prefer", "ratio", "--codec", "ibp:window"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("--codec ibp:window leaves no choice") && text.contains("put"), "{text}");
        assert!(parse(&["--prefer", "size"]).is_err());
    }

    #[test]
    fn the_help_names_every_codec() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("put").unwrap().render_long_help().to_string();
        for codec in tierpack_client::CodecId::ALL {
            assert!(help.contains(codec.name()), "{codec} is not in {help}");
        }
    }

    #[test]
    fn the_socket_option_may_follow_the_command() {
        let cli = Cli::parse_from(["tierpack", "ls", "--socket", "/x"]);
        assert_eq!(cli.socket, Some(PathBuf::from("/x")));
    }
}
