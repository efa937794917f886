//! Peers that are Python packages: `peers.py` measures them, with the times and sizes of this run.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use tierpack_cli::measure::{LEAST_PASSES, LONGEST, PER_FIGURE};

use super::rows::Row;
use super::{PLACES, PYTHON_PIECE_BYTES, Tensor};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers.py");
const PACKAGES: &str = "zipnn, blosc2 and numpy";

/// What the script is told.
#[derive(Serialize)]
struct Job<'a> {
    piece_bytes: usize,
    places: [(&'a str, usize); 2],
    per_figure_s: f64,
    least_passes: usize,
    longest_s: f64,
    tensors: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    path: std::path::PathBuf,
    dtype: &'a str,
}

/// What it answers.
#[derive(Deserialize)]
struct Answer {
    missing: Vec<String>,
    results: Vec<Figures>,
}

#[derive(Deserialize)]
struct Figures {
    tensor: usize,
    codec: String,
    r#where: String,
    stored_bytes: u64,
    encode_gib_per_s: f64,
    decode_gib_per_s: f64,
}

/// Rows of one thread; `memcpy` holds a figure per tensor and place.
pub(crate) fn measure(tensors: &[Tensor], memcpy: &[[f64; 2]]) -> Result<Vec<Row>> {
    let python = std::env::var_os("TIERPACK_PYTHON").unwrap_or_else(|| OsString::from("python3"));
    let mut errors = std::io::stderr();
    let shown = python.to_string_lossy();
    let is_there =
        Command::new(&python).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        writeln!(errors, "skipped: {PACKAGES}, since {shown} does not run: set TIERPACK_PYTHON")?;
        return Ok(Vec::new());
    }
    writeln!(errors, "zipnn and blosc2 by {shown} ...")?;
    let answer = ask(&python, tensors)?;
    if !answer.missing.is_empty() {
        let missing = answer.missing.join(" ");
        writeln!(errors, "skipped: {missing}, not installed: {shown} -m pip install {missing}")?;
    }
    let mut rows = Vec::new();
    for figures in answer.results {
        let (tensor, memcpy) =
            tensors.get(figures.tensor).zip(memcpy.get(figures.tensor)).context("a tensor")?;
        let place = PLACES.iter().position(|(name, _)| *name == figures.r#where).context("a place")?;
        let mut row = tensor.row(&figures.codec, &figures.r#where, 1, figures.stored_bytes);
        row.encode_gib_per_s = figures.encode_gib_per_s;
        row.decode_gib_per_s = figures.decode_gib_per_s;
        row.memcpy_gib_per_s = memcpy[place];
        rows.push(row);
    }
    Ok(rows)
}

fn ask(python: &OsString, tensors: &[Tensor]) -> Result<Answer> {
    let folder = tempfile::tempdir()?;
    let mut items = Vec::new();
    for (n, tensor) in tensors.iter().enumerate() {
        let path = folder.path().join(n.to_string());
        std::fs::write(&path, &tensor.bytes)?;
        items.push(Item { path, dtype: &tensor.dtype });
    }
    let job = Job {
        piece_bytes: PYTHON_PIECE_BYTES,
        places: PLACES,
        per_figure_s: PER_FIGURE.as_secs_f64(),
        least_passes: LEAST_PASSES,
        longest_s: LONGEST.as_secs_f64(),
        tensors: items,
    };
    let path = folder.path().join("job.json");
    std::fs::write(&path, serde_json::to_vec(&job)?)?;
    let output = Command::new(python).arg(SCRIPT).arg(&path).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{SCRIPT} ended with {}: {said}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("parse the output of {SCRIPT}"))
}
