//! Figure sets: the fields of `tierpack bench codecs --json`.

use std::io;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// One figure set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) file: String,
    pub(crate) tensor: String,
    pub(crate) dtype: String,
    pub(crate) codec: String,
    pub(crate) r#where: String,
    pub(crate) threads: usize,
    pub(crate) raw_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) saved_percent: f64,
    pub(crate) bound_percent: Option<f64>,
    pub(crate) encode_gib_per_s: f64,
    pub(crate) decode_gib_per_s: f64,
    pub(crate) memcpy_gib_per_s: f64,
}

/// All of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) results: Vec<Row>,
}

/// Saved percent of the raw size, which is not 0.
#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
pub(crate) fn saved_percent(raw_bytes: u64, stored_bytes: u64) -> f64 {
    100.0 * (1.0 - stored_bytes as f64 / raw_bytes as f64)
}

/// Writes a table for people.
pub(crate) fn write_table(results: &[Row], out: &mut dyn io::Write) -> Result<()> {
    let width =
        |text: fn(&Row) -> &str| results.iter().map(|row| text(row).chars().count()).max().unwrap_or(0);
    let (file, tensor) = (width(|row| &row.file).max(4), width(|row| &row.tensor).max(6));
    let codec = width(|row| &row.codec).max(5);
    writeln!(
        out,
        "{:file$}  {:tensor$}  dtype  {:codec$}  where  threads  saved %  bound %  \
         encode GiB/s  decode GiB/s  memcpy GiB/s  decode/memcpy",
        "file", "tensor", "codec"
    )?;
    for row in results {
        let bound = row.bound_percent.map_or("-".to_owned(), |bound| format!("{bound:.2}"));
        writeln!(
            out,
            "{:file$}  {:tensor$}  {:5}  {:codec$}  {:5}  {:7}  {:7.2}  {bound:>7}  \
             {:12.2}  {:12.2}  {:12.2}  {:13.2}",
            row.file,
            row.tensor,
            row.dtype,
            row.codec,
            row.r#where,
            row.threads,
            row.saved_percent,
            row.encode_gib_per_s,
            row.decode_gib_per_s,
            row.memcpy_gib_per_s,
            row.decode_gib_per_s / row.memcpy_gib_per_s,
        )?;
    }
    Ok(())
}
