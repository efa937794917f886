//! `tierpack stats`: the daemon's counters, through its stats socket; once, or again and again.
//!
//! No session is opened, so this works while every worker is busy or every session is taken.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tierpack_client::{Stats, address, stats_socket};

use crate::output::{self, Output};

mod rates;
mod tables;
mod watch;

/// How long the daemon may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the daemon's JSON document; with --watch one line per interval
    #[arg(long)]
    json: bool,
    /// Show the counters again and again, with rates, until interrupted
    #[arg(long)]
    watch: bool,
    /// Time between two looks of --watch
    #[arg(long, value_name = "SECONDS", default_value = "1", requires = "watch", value_parser = seconds)]
    interval: Duration,
}

/// Prints every counter.
///
/// # Errors
/// No daemon answers, or its answer is not a stats document.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    if args.watch {
        return watch::run(args.json, args.interval, socket, out);
    }
    let text = read(socket)?;
    let stats = parse(&text)?;
    if args.json {
        writeln!(out, "{}", text.trim_end())?;
    } else {
        tables::write(&stats, None, out)?;
    }
    Ok(())
}

/// The value of `--interval`.
fn seconds(text: &str) -> Result<Duration, String> {
    let interval = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let range = Duration::from_millis(100)..=Duration::from_secs(86_400);
    interval
        .filter(|interval| range.contains(interval))
        .ok_or_else(|| "a number of seconds is needed, from 0.1 to 86400".to_owned())
}

fn parse(text: &str) -> Result<Stats> {
    serde_json::from_str(text).with_context(|| {
        format!(
            "parse the {} bytes that the daemon sent as stats: do its version and this one differ?",
            text.len()
        )
    })
}

/// The stats document of the daemon behind `socket`, or of the first of the usual places that answers.
fn read(socket: Option<&Path>) -> Result<String> {
    let candidates = socket.map_or_else(address::candidates, |socket| vec![socket.to_owned()]);
    let mut failures: Vec<String> = Vec::new();
    for control in &candidates {
        match stats_socket::read(&stats_socket::path_beside(control), DEADLINE) {
            Ok(text) => return Ok(text),
            Err(error) => failures.push(output::chain(&error.into())),
        }
    }
    bail!("no daemon answers: {}; start one with `tierpack serve` or pass --socket", failures.join("; "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_within_reason() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds("86400"), Ok(Duration::from_secs(86_400)));
        for text in ["", "0", "0.09", "-1", "inf", "nan", "86401", "1e300", "1 s"] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
    }
}
