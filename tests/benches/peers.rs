//! `cargo bench -p tierpack-tests [-- FILE... --json OUT]`: TierPack's codecs next to other compressors, in one run.
//!
//! TierPack's rows are those of `tierpack bench codecs`, which this starts as a process of its own.
//! The peers get the same tensors in pieces of 256 KiB, the size of a TierPack block, or of 1 MiB, and are timed alike:
//! pco (level 8; 16-bit floats as integers), zstd (level 1) and lz4 here, zipnn and blosc2 in `peers.py`.
//! Their stored bytes are what they wrote; TierPack's also count headers, metadata and rounding to 64 bytes.
//!
//! `TIERPACK_PYTHON` names the interpreter for `peers.py` (default: python3); packages that it lacks are skipped.

#![forbid(unsafe_code)]

#[path = "peers/native.rs"]
mod native;
#[path = "peers/python.rs"]
mod python;
#[path = "peers/rows.rs"]
mod rows;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use tierpack_cli::measure::{DRAM_BYTES, STEP_BYTES, memcpy_throughput};
use tierpack_tests::files;

use rows::{Document, Row};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tierpack-under-test");
const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/minilm_layer0_bf16.safetensors");

/// What a peer compresses at a time: a TierPack block.
const PIECE_BYTES: usize = STEP_BYTES;
/// The same for peers in Python: zipnn decodes such pieces a quarter faster, and larger ones not faster still.
const PYTHON_PIECE_BYTES: usize = 1 << 20;
/// As `tierpack bench codecs` leaves tensors out.
const LEAST_BYTES: usize = 64 << 10;
/// Where a figure is measured, and how many bytes one pass works on at least.
const PLACES: [(&str, usize); 2] = [("cache", 1), ("dram", DRAM_BYTES)];

/// Measures TierPack's codecs and their peers on the tensors of files.
#[derive(Debug, Parser)]
struct Args {
    /// .safetensors files [default: the slice of a checkpoint in tests/data]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write {"results": [...]} to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// A tensor, and the bound of its rows.
#[derive(Debug)]
struct Tensor {
    file: String,
    name: String,
    dtype: String,
    bytes: Vec<u8>,
    bound_percent: Option<f64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut paths: Vec<_> = args.files.iter().map(|path| from_shell(path)).collect();
    if paths.is_empty() {
        paths.push(CHECKPOINT.into());
    }
    let ours = bench_codecs(&paths)?;
    let tensors = load(&paths, &ours);
    let mut peers = Vec::new();
    let mut memcpy = Vec::new();
    for tensor in &tensors {
        peers.extend(native::measure(tensor)?);
        let copy = |(_, least_bytes)| memcpy_gib_per_s(&tensor.pieces(PYTHON_PIECE_BYTES, least_bytes), 1);
        memcpy.push(PLACES.map(copy));
    }
    peers.extend(python::measure(&tensors, &memcpy)?);
    let mut results = Vec::new();
    for tensor in &tensors {
        let is_of = |row: &&Row| (&row.file, &row.tensor) == (&tensor.file, &tensor.name);
        results.extend(ours.iter().chain(&peers).filter(is_of).cloned());
    }
    rows::write_table(&results, &mut std::io::stdout().lock())?;
    if let Some(path) = args.json {
        let text = serde_json::to_string_pretty(&Document { results })?;
        let path = from_shell(&path);
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The path as the user meant it: cargo starts a benchmark in the folder of its package, and leaves `PWD` alone.
fn from_shell(path: &Path) -> PathBuf {
    std::env::var_os("PWD").map_or_else(|| path.to_owned(), |folder| Path::new(&folder).join(path))
}

/// The rows of `tierpack bench codecs`.
fn bench_codecs(paths: &[PathBuf]) -> Result<Vec<Row>> {
    writeln!(std::io::stderr(), "TierPack's codecs ...")?;
    let output = Command::new(PROGRAM)
        .args(["bench", "codecs", "--json", "--"])
        .args(paths)
        .stderr(Stdio::inherit())
        .output()
        .context("start tierpack bench codecs")?;
    ensure!(output.status.success(), "tierpack bench codecs ended with {}", output.status);
    let document: Document = serde_json::from_slice(&output.stdout).context("parse its output")?;
    Ok(document.results)
}

/// The tensors that have rows already.
fn load(paths: &[PathBuf], ours: &[Row]) -> Vec<Tensor> {
    let mut loaded = Vec::new();
    for path in paths {
        let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for (name, tensor) in files::read(path).0 {
            let row = ours.iter().find(|row| row.file == file && row.tensor == name);
            if let Some(bound_percent) = row.map(|row| row.bound_percent)
                && tensor.bytes.len() >= LEAST_BYTES
            {
                let (file, dtype, bytes) = (file.clone(), tensor.dtype, tensor.bytes);
                loaded.push(Tensor { file, name, dtype, bytes, bound_percent });
            }
        }
    }
    loaded
}

impl Tensor {
    /// Its pieces, again and again until they make `least_bytes`; once at least.
    fn pieces(&self, piece_bytes: usize, least_bytes: usize) -> Vec<&[u8]> {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for piece in self.bytes.chunks(piece_bytes).cycle() {
            pieces.push(piece);
            bytes += piece.len();
            if bytes >= least_bytes {
                break;
            }
        }
        pieces
    }

    /// A row of a peer: `stored_bytes` are those of the whole tensor.
    fn row(&self, codec: &str, place: &str, threads: usize, stored_bytes: u64) -> Row {
        let raw_bytes = self.bytes.len() as u64;
        Row {
            file: self.file.clone(),
            tensor: self.name.clone(),
            dtype: self.dtype.clone(),
            codec: codec.to_owned(),
            r#where: place.to_owned(),
            threads,
            raw_bytes,
            stored_bytes,
            saved_percent: rows::saved_percent(raw_bytes, stored_bytes),
            bound_percent: self.bound_percent,
            encode_gib_per_s: 0.0,
            decode_gib_per_s: 0.0,
            memcpy_gib_per_s: 0.0,
        }
    }
}

/// Memcpy of what a peer works on.
fn memcpy_gib_per_s(pieces: &[&[u8]], threads: usize) -> f64 {
    let mut works: Vec<_> = (0..threads)
        .map(|_| {
            let source = pieces.concat();
            let target = vec![0; source.len()];
            (source, target)
        })
        .collect();
    let pairs = works.iter_mut().map(|(source, target)| (&source[..], &mut target[..]));
    memcpy_throughput(pairs.collect())
}
