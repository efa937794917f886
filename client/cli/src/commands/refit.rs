//! `tierpack refit`: new compression metadata for a tensor that has changed since it was put.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tierpack_client::{CodecId, Drift, RefitMode, RefitState};

use super::{DEFAULT_NAMESPACE, block_bar, connect};
use crate::output::Output;
use crate::table::{Align, Table};
use crate::{escape, table};

/// Arguments of `refit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the tensor
    name: String,
    /// Only report what a refit would save
    #[arg(long, conflicts_with = "force")]
    dry_run: bool,
    /// Refit even where it promises nothing
    #[arg(long)]
    force: bool,
    /// Namespace of the tensor
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    const fn mode(&self) -> RefitMode {
        match (self.dry_run, self.force) {
            (true, _) => RefitMode::DryRun,
            (false, true) => RefitMode::Force,
            (false, false) => RefitMode::IfBetter,
        }
    }
}

/// What came of it, as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    namespace: &'a str,
    name: &'a str,
    stored_bytes_before: u64,
    predicted_bytes: u64,
    stored_bytes: u64,
    codec: Option<&'static str>,
    predicted_codec: Option<&'static str>,
    generation: u32,
    generations_alive: u32,
    overlay_bytes: u64,
    state: RefitState,
    refits: u64,
    reencoded_bytes: u64,
    last_refit_ms: Option<u64>,
    last_failure: Option<&'a str>,
}

/// Refits a tensor and shows what that saved.
///
/// # Errors
/// The tensor does not exist, the daemon refuses, or the refit failed.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let client = connect(socket, &args.namespace)?;
    let named = || format!("refit tensor {}", escape::quoted(&args.name));
    let before = client.drift(&args.name).with_context(named)?;
    let bar = block_bar(&args.name);
    let after = client.refit(&args.name, args.mode(), |left, all| {
        bar.set_length(all);
        bar.set_position(all.saturating_sub(left));
    });
    bar.finish_and_clear();
    let after = after.with_context(named)?;
    if let Some(failure) = failure(args.mode(), &before, &after) {
        return Err(anyhow::anyhow!("{failure}")).with_context(named);
    }
    if args.json {
        serde_json::to_writer(&mut *out, &document(args, &before, &after))?;
        writeln!(out)?;
        return Ok(());
    }
    write_table(args, &before, &after, out)
}

/// Why a refit that was to be made was not.
fn failure<'a>(mode: RefitMode, before: &Drift, after: &'a Drift) -> Option<&'a str> {
    let is_wanted = match mode {
        RefitMode::Force => true,
        RefitMode::IfBetter => after.predicted_bytes < before.stored_bytes,
        RefitMode::Look | RefitMode::DryRun => false,
    };
    after.last_failure.as_deref().filter(|_| is_wanted && after.refits == before.refits)
}

fn document<'a>(args: &'a Args, before: &Drift, after: &'a Drift) -> Document<'a> {
    Document {
        namespace: &args.namespace,
        name: &args.name,
        stored_bytes_before: before.stored_bytes,
        predicted_bytes: after.predicted_bytes,
        stored_bytes: after.stored_bytes,
        codec: after.codec.map(CodecId::name),
        predicted_codec: after.predicted_codec.map(CodecId::name),
        generation: after.generation,
        generations_alive: after.generations_alive,
        overlay_bytes: after.overlay_bytes,
        state: after.state,
        refits: after.refits,
        reencoded_bytes: after.reencoded_bytes,
        last_refit_ms: after.last_refit_ms,
        last_failure: after.last_failure.as_deref(),
    }
}

fn write_table(args: &Args, before: &Drift, after: &Drift, out: &mut Output) -> Result<()> {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("before", Align::Right),
        ("predicted", Align::Right),
        ("after", Align::Right),
        ("codec", Align::Left),
        ("generation", Align::Right),
    ]);
    let codec = |codec: Option<CodecId>| codec.map_or("-", CodecId::name);
    let codec = match (after.codec, after.predicted_codec) {
        (now, Some(_)) if now == after.predicted_codec => codec(now).to_owned(),
        (now, predicted @ Some(_)) => format!("{} ({} predicted)", codec(now), codec(predicted)),
        (now, None) => codec(now).to_owned(),
    };
    table.row(vec![
        escape::cell(&args.name),
        table::size(before.stored_bytes),
        table::size(after.predicted_bytes),
        if args.dry_run { "-".to_owned() } else { table::size(after.stored_bytes) },
        codec,
        after.generation.to_string(),
    ]);
    table.write(out)?;
    if !args.dry_run && after.refits == before.refits {
        writeln!(out, "not refitted: it promises nothing; --force refits all the same")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_failure_is_none_of_a_refit_that_was_not_made() {
        let mut before = Drift::default();
        before.stored_bytes = 100;
        let mut after = before.clone();
        after.last_failure = Some("pool is full".to_owned());
        (after.predicted_bytes, after.refits) = (100, 0);
        assert_eq!(failure(RefitMode::IfBetter, &before, &after), None);
        assert_eq!(failure(RefitMode::DryRun, &before, &after), None);
        assert_eq!(failure(RefitMode::Force, &before, &after), Some("pool is full"));
        after.predicted_bytes = 90;
        assert_eq!(failure(RefitMode::IfBetter, &before, &after), Some("pool is full"));
        after.refits = 1;
        assert_eq!(failure(RefitMode::Force, &before, &after), None);
    }
}
