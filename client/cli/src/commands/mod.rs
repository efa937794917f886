//! One file per command, and what they share: the connection, the listing, the progress bar.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod get;
mod hot_rows;
pub(crate) mod ls;
pub(crate) mod ns;
pub(crate) mod put;
pub(crate) mod refit;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod update;
pub(crate) mod verify;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tierpack_client::{Client, Entry, Error, Snapshot};

use crate::escape;
use crate::table::{self, Align, Table};

/// The namespace of a command that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// Connects to the daemon behind `socket`, or to the first of the usual places that answers.
///
/// # Errors
/// No daemon answers, or the namespace is not ours to use.
fn connect(socket: Option<&Path>, namespace: &str) -> Result<Client> {
    let mut builder = Client::builder().namespace(namespace);
    if let Some(socket) = socket {
        builder = builder.socket(socket);
    }
    Ok(builder.connect()?)
}

/// Which tensors of a namespace a command is about.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Selection {
    /// Names of tensors
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Every tensor of the namespace
    #[arg(long)]
    all: bool,
}

impl Selection {
    /// The chosen ones of `entries`.
    ///
    /// # Errors
    /// A name is not among them; nothing has been done then.
    fn choose(&self, mut entries: Vec<Entry>, namespace: &str) -> Result<Vec<Entry>> {
        if self.all {
            return Ok(entries);
        }
        let chosen: BTreeSet<&str> = self.names.iter().map(String::as_str).collect();
        let mut missing = chosen.clone();
        entries.retain(|entry| {
            missing.remove(entry.name.as_str());
            chosen.contains(entry.name.as_str())
        });
        let first = missing.first().copied().unwrap_or_default();
        ensure!(
            missing.is_empty(),
            "{} of {} names are not in namespace {}, the first is {}: see `tierpack ls`",
            missing.len(),
            chosen.len(),
            escape::quoted(namespace),
            escape::quoted(first)
        );
        Ok(entries)
    }

    /// The chosen tensors as of one moment.
    ///
    /// # Errors
    /// As [`Selection::choose`]; as [`Client::snapshot`].
    fn snapshot(&self, client: &Client) -> Result<Snapshot> {
        if self.all {
            return Ok(client.snapshot_all()?);
        }
        match client.snapshot(&self.names) {
            // Which of them, and how many.
            Err(Error::NotFound { .. }) => {
                self.choose(client.list()?, client.namespace_name())?;
                Ok(client.snapshot(&self.names)?)
            }
            taken => Ok(taken?),
        }
    }
}

/// One tensor in JSON output.
#[derive(Debug, Serialize)]
struct Line<'a> {
    namespace: &'a str,
    name: &'a str,
    dtype: &'static str,
    shape: &'a [u64],
    codec: &'static str,
    access: &'static str,
    raw_bytes: u64,
    stored_bytes: u64,
    saved_percent: f64,
    revision: u64,
    generation: u32,
    predicted_saved_percent: f64,
    runner_up: Option<&'static str>,
    runner_up_saved_percent: Option<f64>,
    escapes: u64,
    participating: u64,
}

impl<'a> From<&'a Entry> for Line<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self {
            namespace: &entry.namespace,
            name: &entry.name,
            dtype: entry.dtype.name(),
            shape: &entry.shape,
            codec: entry.codec.name(),
            access: entry.access.name(),
            raw_bytes: entry.raw_bytes,
            stored_bytes: entry.stored_bytes,
            saved_percent: table::saved_percent(entry.raw_bytes, entry.stored_bytes),
            revision: entry.revision,
            generation: entry.generation,
            predicted_saved_percent: table::saved_percent(entry.raw_bytes, entry.predicted_bytes),
            runner_up: entry.runner_up.map(|(codec, _)| codec.name()),
            runner_up_saved_percent: entry
                .runner_up
                .map(|(_, bytes)| table::saved_percent(entry.raw_bytes, bytes)),
            escapes: entry.escapes,
            participating: entry.participating,
        }
    }
}

/// Columns that every listing ends with.
const ENTRY_COLUMNS: [(&str, Align); 7] = [
    ("tensor", Align::Left),
    ("dtype", Align::Left),
    ("shape", Align::Left),
    ("codec", Align::Left),
    ("raw", Align::Right),
    ("stored", Align::Right),
    ("saved %", Align::Right),
];

/// The cells of `entry` under [`ENTRY_COLUMNS`].
fn entry_cells(entry: &Entry) -> Vec<String> {
    let mut cells = vec![
        escape::cell(&entry.name),
        entry.dtype.name().to_owned(),
        table::shape(&entry.shape),
        entry.codec.name().to_owned(),
    ];
    cells.extend(size_cells(entry.raw_bytes, entry.stored_bytes));
    cells
}

/// Raw and stored size and what storing saved.
fn size_cells(raw_bytes: u64, stored_bytes: u64) -> [String; 3] {
    [table::size(raw_bytes), table::size(stored_bytes), saved_cell(raw_bytes, stored_bytes)]
}

/// Saved percent with two decimals, never as `-0.00`.
fn saved_cell(raw_bytes: u64, stored_bytes: u64) -> String {
    let saved = table::saved_percent(raw_bytes, stored_bytes);
    if saved.abs() < 0.005 { "0.00".to_owned() } else { format!("{saved:.2}") }
}

/// Raw and stored bytes of all `entries`.
fn totals(entries: &[Entry]) -> (u64, u64) {
    entries.iter().fold((0, 0), |(raw, stored), entry| (raw + entry.raw_bytes, stored + entry.stored_bytes))
}

/// A last row with the sums, where there is more than one tensor.
fn add_total(table: &mut Table, entries: &[Entry], leading_cells: usize) {
    if entries.len() > 1 {
        let (raw, stored) = totals(entries);
        let mut cells = vec![format!("{} tensors", entries.len())];
        cells.resize(leading_cells, String::new());
        cells.extend(size_cells(raw, stored));
        table.row(cells);
    }
}

/// `1 tensor`, `2 tensors`.
fn n_tensors(n: usize) -> String {
    format!("{n} tensor{}", if n == 1 { "" } else { "s" })
}

/// A bar over `total` bytes on standard error; hidden unless that is a terminal.
fn byte_bar(verb: &'static str, total: u64) -> ProgressBar {
    const TEMPLATE: &str =
        "{msg} [{bar:32}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style.progress_chars("=> ")).with_message(verb)
}

/// A bar over blocks that are not counted yet; as [`byte_bar`].
fn block_bar(name: &str) -> ProgressBar {
    const TEMPLATE: &str = "{msg} [{bar:32}] {pos} of {len} blocks";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_message(escape::cell(name))
}

#[cfg(test)]
mod tests;
