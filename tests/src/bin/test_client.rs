//! One client process of a test: connects, does what its role says, writes lines.
//!
//! It waits for its test by reading lines, and ends at the end of its input.
//! A watchdog ends it when its test is stuck.

#![deny(unsafe_code)]

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tierpack_client::Client;

#[path = "test_client/abandon.rs"]
mod abandon;
#[path = "test_client/ask.rs"]
mod ask;
#[path = "test_client/churn.rs"]
mod churn;
#[path = "test_client/demand.rs"]
mod demand;
#[path = "test_client/fault.rs"]
mod fault;
#[path = "test_client/fork.rs"]
mod fork;
#[path = "test_client/gather.rs"]
mod gather;
#[path = "test_client/hold.rs"]
mod hold;
#[path = "test_client/latency.rs"]
mod latency;
#[path = "test_client/put_loop.rs"]
mod put_loop;
#[path = "test_client/snapshot.rs"]
mod snapshot;
#[path = "test_client/take.rs"]
mod take;
#[path = "test_client/update.rs"]
mod update;

/// Seconds until the watchdog bites.
const WATCHDOG_S: u32 = 180;
const FULL_WATCHDOG_S: u32 = 1800;

#[derive(Debug, Parser)]
struct Args {
    /// The daemon's control socket.
    #[arg(long)]
    socket: PathBuf,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Gathers random rows and checks them.
    Gather(gather::Args),
    /// Times gathers of one row.
    Latency(latency::Args),
    /// Puts and removes tensors until it is killed.
    PutLoop(put_loop::Args),
    /// Holds a tensor: by a view, or in the middle of reads.
    Hold(hold::Args),
    /// Reads all tensors, puts and removes its own.
    Churn(churn::Args),
    /// Updates rows of its own and rows of everybody, reads and checks them.
    Update(update::Args),
    /// Asks for everything of one namespace.
    Demand(demand::Args),
    /// Leases everything, closes its connection without a goodbye, and waits.
    Abandon,
    /// Takes what all users share until it is refused.
    Take(take::Args),
    /// Reaches fault points.
    Fault(fault::Args),
    /// Takes snapshots.
    Snapshot(snapshot::Args),
    /// Reads a row of each tensor that a line names.
    Ask,
    /// Forks.
    Fork(fork::Args),
}

fn main() -> Result<()> {
    let args = Args::parse();
    tierpack_shm::faults::setup()?;
    nix::unistd::alarm::set(if tierpack_tests::full() { FULL_WATCHDOG_S } else { WATCHDOG_S });
    let socket = &args.socket;
    match &args.role {
        Role::Gather(args) => gather::run(socket, args),
        Role::Latency(args) => latency::run(socket, args),
        Role::PutLoop(args) => put_loop::run(socket, args),
        Role::Hold(args) => hold::run(socket, args),
        Role::Churn(args) => churn::run(socket, args),
        Role::Update(args) => update::run(socket, args),
        Role::Demand(args) => demand::run(socket, args),
        Role::Abandon => abandon::run(socket),
        Role::Take(args) => take::run(socket, args),
        Role::Fault(args) => fault::run(socket, args),
        Role::Snapshot(args) => snapshot::run(socket, args),
        Role::Ask => ask::run(socket),
        Role::Fork(args) => fork::run(socket, args),
    }
}

fn connect(socket: &Path) -> Result<Client> {
    Client::builder().socket(socket).connect().context("connect")
}

/// Writes one line for the test.
fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().context("write a line")
}

/// Waits for a line from the test; says whether one came.
fn told() -> Result<bool> {
    let mut line = String::new();
    Ok(io::stdin().read_line(&mut line).context("read a line")? > 0)
}

/// Waits until the test closes our input.
fn until_closed() -> Result<()> {
    while told()? {}
    Ok(())
}

/// The middle one.
fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or(0)
}
