//! `tierpack ls`: what the pool holds.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use tierpack_client::Entry;

use super::{DEFAULT_NAMESPACE, ENTRY_COLUMNS, Line, add_total, connect, entry_cells, saved_cell};
use crate::escape;
use crate::output::Output;
use crate::table::{Align, Table};

/// Arguments of `ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List this namespace only
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
    /// Show what the sample promised, the next best codec, how many chunks the metadata fit, and how many updates there were
    #[arg(long)]
    verbose: bool,
    /// Print a JSON array of objects
    #[arg(long)]
    json: bool,
}

/// Lists one namespace, or all that this user may read.
///
/// # Errors
/// The daemon cannot be asked, or standard output cannot be written.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let client = connect(socket, args.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE))?;
    let entries = if args.namespace.is_some() { client.list()? } else { client.list_all()? };
    if args.json {
        return write_json(&entries, out);
    }
    let mut columns = vec![("namespace", Align::Left)];
    columns.extend(ENTRY_COLUMNS);
    if args.verbose {
        let more = ["predicted %", "runner-up", "its %", "fit %", "generation", "revision"];
        columns.extend(more.map(|heading| (heading, Align::Right)));
    }
    let mut table = Table::new(&columns);
    for entry in &entries {
        let mut cells = vec![escape::cell(&entry.namespace)];
        cells.extend(entry_cells(entry));
        if args.verbose {
            cells.extend(verbose_cells(entry));
        }
        table.row(cells);
    }
    add_total(&mut table, &entries, 5);
    table.write(out)?;
    Ok(())
}

/// Prediction against outcome.
fn verbose_cells(entry: &Entry) -> [String; 6] {
    let (codec, bytes) = entry.runner_up.map_or(("-", None), |(codec, bytes)| (codec.name(), Some(bytes)));
    let chunks = entry.escapes + entry.participating;
    [
        saved_cell(entry.raw_bytes, entry.predicted_bytes),
        codec.to_owned(),
        bytes.map_or("-".to_owned(), |bytes| saved_cell(entry.raw_bytes, bytes)),
        if chunks == 0 { "-".to_owned() } else { saved_cell(chunks, chunks - entry.participating) },
        entry.generation.to_string(),
        entry.revision.to_string(),
    ]
}

/// One object per line: readable, and still one document.
fn write_json(entries: &[Entry], out: &mut Output) -> Result<()> {
    for (idx, entry) in entries.iter().enumerate() {
        out.write_all(if idx == 0 { b"[\n  " } else { b",\n  " })?;
        serde_json::to_writer(&mut *out, &Line::from(entry))?;
    }
    out.write_all(if entries.is_empty() { b"[]\n" } else { b"\n]\n" })?;
    Ok(())
}
