//! Rows: one figure each, as a line for a person and as a line of JSON for a program.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

/// Where rows go.
#[derive(Debug)]
pub(crate) struct Report {
    json: Option<File>,
    /// What makes every figure of this run worthless as one of a GPU.
    caveat: Option<&'static str>,
}

impl Report {
    /// Rows go to standard output, and as JSON to the end of this file.
    pub(crate) fn new(json: Option<&Path>, caveat: Option<&'static str>) -> Result<Self> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("open {}", path.display()))
        };
        Ok(Self { json: json.map(open).transpose()?, caveat })
    }

    /// A figure, and what is to be known about it.
    pub(crate) fn row(&mut self, name: &str, value: f64, unit: &str, note: &str) -> Result<()> {
        let note = match self.caveat {
            Some(caveat) if note.is_empty() => caveat.to_owned(),
            Some(caveat) => format!("{caveat}; {note}"),
            None => note.to_owned(),
        };
        self.write(name, Some(value), unit, &note)
    }

    /// A figure that there is not, and why.
    pub(crate) fn missing(&mut self, name: &str, unit: &str, why: &str) -> Result<()> {
        self.write(name, None, unit, &format!("not measured: {why}"))
    }

    fn write(&mut self, name: &str, value: Option<f64>, unit: &str, note: &str) -> Result<()> {
        let figure = value.map_or_else(|| "-".to_owned(), shown);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{name:<58} {figure:>10} {unit:<9} {note}").context("write to standard output")?;
        if let Some(file) = &mut self.json {
            let row = json!({ "name": name, "unit": unit, "value": value, "note": note });
            writeln!(file, "{row}").context("write the file of --json")?;
        }
        Ok(())
    }
}

/// Three digits that count.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.3e}"),
    }
}
