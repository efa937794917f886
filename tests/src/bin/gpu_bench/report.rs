//! Rows: one figure each, as a line for a person and as a line of JSON for a program.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::device::Access;

/// Where rows go.
#[derive(Debug)]
pub(crate) struct Report {
    json: Option<File>,
    /// What makes every figure of this run worthless as one of a GPU.
    caveat: Option<&'static str>,
    /// The access mode that all rows are of, if they are of one.
    access: Option<Access>,
}

impl Report {
    /// Rows go to standard output, and as JSON to the end of this file.
    pub(crate) fn new(
        json: Option<&Path>,
        caveat: Option<&'static str>,
        access: Option<Access>,
    ) -> Result<Self> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("open {}", path.display()))
        };
        Ok(Self { json: json.map(open).transpose()?, caveat, access })
    }

    /// A figure, and what is to be known about it.
    pub(crate) fn row(&mut self, name: &str, value: f64, unit: &str, note: &str) -> Result<()> {
        let note = self.with_caveat(note);
        self.write(name, &shown(value), &json!(value), unit, &note)
    }

    /// Whether something is so, and what is to be known about it.
    pub(crate) fn fact(&mut self, name: &str, is_so: bool, note: &str) -> Result<()> {
        let note = self.with_caveat(note);
        self.write(name, if is_so { "yes" } else { "no" }, &json!(is_so), "", &note)
    }

    /// A figure that there is not, and why.
    pub(crate) fn missing(&mut self, name: &str, unit: &str, why: &str) -> Result<()> {
        self.write(name, "-", &Value::Null, unit, &format!("not measured: {why}"))
    }

    fn with_caveat(&self, note: &str) -> String {
        let access = self.access.map(|access| format!("access {}", access.name()));
        let parts = [self.caveat, access.as_deref(), Some(note)];
        let parts: Vec<_> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    }

    fn write(&mut self, name: &str, figure: &str, value: &Value, unit: &str, note: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{name:<58} {figure:>10} {unit:<9} {note}").context("write to standard output")?;
        if let Some(file) = &mut self.json {
            let access = self.access.map(Access::name);
            let row = json!({ "name": name, "unit": unit, "value": value, "access": access, "note": note });
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
