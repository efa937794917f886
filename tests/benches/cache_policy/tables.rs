//! The results as tables in Markdown, and as rows of a document.

use std::io;

use anyhow::Result;
use serde::Serialize;

use crate::cache::Counts;

/// One simulation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Empty for the main tables, else what is varied.
    pub(crate) table: &'static str,
    pub(crate) trace: &'static str,
    pub(crate) policy: &'static str,
    pub(crate) size_percent: usize,
    pub(crate) hit_percent: f64,
    /// What became of misses, in percent of all requests; absent for bounds.
    pub(crate) inserted_percent: Option<f64>,
    pub(crate) lost_percent: Option<f64>,
    pub(crate) bypassed_percent: Option<f64>,
}

/// All of them.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) results: Vec<Row>,
}

impl Row {
    pub(crate) fn new(
        table: &'static str,
        trace: &'static str,
        policy: &'static str,
        size_percent: usize,
    ) -> Self {
        let (inserted_percent, lost_percent, bypassed_percent) = (None, None, None);
        let hit_percent = 0.0;
        Self {
            table,
            trace,
            policy,
            size_percent,
            hit_percent,
            inserted_percent,
            lost_percent,
            bypassed_percent,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "percentages for people")]
    pub(crate) fn with_counts(self, counts: &Counts) -> Self {
        let percent = |count: u64| 100.0 * count as f64 / counts.requests as f64;
        Self {
            hit_percent: percent(counts.hits),
            inserted_percent: Some(percent(counts.inserts)),
            lost_percent: Some(percent(counts.conflicts)),
            bypassed_percent: Some(percent(counts.bypasses)),
            ..self
        }
    }
}

/// What a cell shows.
type Value = fn(&Row) -> Option<f64>;

/// Distinct values in the order in which they come.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Writes all tables.
pub(crate) fn write(results: &[Row], out: &mut dyn io::Write) -> Result<()> {
    let of = |table: &str| results.iter().filter(|row| row.table == table).cloned().collect::<Vec<_>>();
    let main = of("");
    for trace in distinct(main.iter().map(|row| row.trace)) {
        let rows: Vec<_> = main.iter().filter(|row| row.trace == trace).cloned().collect();
        writeln!(out, "\n### {trace}\n")?;
        grid(&rows, |row| format!("{} %", row.size_percent), |row| Some(row.hit_percent), out)?;
    }
    let at_10: Vec<_> = main.into_iter().filter(|row| row.size_percent == 10).collect();
    let fates: [(&str, Value); 3] = [
        ("Inserted, in percent of requests, at 10 %", |row| row.inserted_percent),
        ("Claims lost, in percent of requests, at 10 %", |row| row.lost_percent),
        ("Bypassed, in percent of requests, at 10 %", |row| row.bypassed_percent),
    ];
    for (title, value) in fates {
        writeln!(out, "\n### {title}\n")?;
        grid(&at_10, |row| row.trace.to_owned(), value, out)?;
    }
    for table in distinct(results.iter().map(|row| row.table)).into_iter().filter(|table| !table.is_empty()) {
        writeln!(out, "\n### {table}\n")?;
        let column = |row: &Row| format!("{} {} %", row.trace, row.size_percent);
        grid(&of(table), column, |row| Some(row.hit_percent), out)?;
    }
    Ok(())
}

/// Policies down, columns across; a policy without values has no line.
fn grid(
    rows: &[Row],
    column: impl Fn(&Row) -> String,
    value: impl Fn(&Row) -> Option<f64>,
    out: &mut dyn io::Write,
) -> Result<()> {
    let columns = distinct(rows.iter().map(&column));
    let policies = distinct(rows.iter().filter(|row| value(row).is_some()).map(|row| row.policy));
    let first = policies.iter().map(|name| name.len()).max().unwrap_or(0);
    let heads: String = columns.iter().map(|name| format!(" {name:>5} |")).collect();
    writeln!(out, "| {:first$} |{heads}", "")?;
    writeln!(
        out,
        "|{}|{}",
        "-".repeat(first + 2),
        columns.iter().map(|name| format!("{}:|", "-".repeat(name.len().max(5) + 1))).collect::<String>()
    )?;
    for policy in policies {
        let cells: String = columns
            .iter()
            .map(|name| {
                let found = rows.iter().find(|row| row.policy == policy && column(row) == *name);
                let text = found.and_then(&value).map_or("-".to_owned(), |value| format!("{value:.1}"));
                format!(" {text:>width$} |", width = name.len().max(5))
            })
            .collect();
        writeln!(out, "| {policy:first$} |{cells}")?;
    }
    Ok(())
}
