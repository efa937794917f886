//! `tierpack bench codecs`: every codec on the tensors of files, next to memcpy of the same bytes in the same run.
//!
//! In cache: one block, again and again. From DRAM: copies of the tensor's blocks, more than any cache holds.
//! Throughput counts raw bytes; with two threads each works on memory of its own.

use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tierpack_client::CodecId;
use tierpack_kernels::block::Block;
use tierpack_kernels::codec::{decode_block, encode_block};
use tierpack_shm::types::index;

use super::super::put::AccessArg;
use super::Codecs;
use super::tensor::{Coded, Loaded, load};
use crate::escape;
use crate::measure::{DRAM_BYTES, STEP_BYTES, memcpy_throughput, throughput};
use crate::output::Output;
use crate::table;
use crate::table::{Align, Table};

/// Tensors below this size are left out unless asked for: their figures are those of a function call.
const LEAST_BYTES: u64 = 64 << 10;

/// Arguments of `bench codecs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// .safetensors or .npy files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    codecs: Codecs,
    /// What the tensors are cut for
    #[arg(long, value_enum, default_value = "rows")]
    access: AccessArg,
    /// Measure tensors below 64 KiB as well
    #[arg(long)]
    small: bool,
    /// Print {"results": [...], "files": [...]}
    #[arg(long)]
    json: bool,
}

/// One figure set.
#[derive(Debug, Serialize)]
struct Row {
    file: String,
    tensor: String,
    dtype: &'static str,
    codec: &'static str,
    r#where: &'static str,
    threads: usize,
    raw_bytes: u64,
    stored_bytes: u64,
    saved_percent: f64,
    bound_percent: Option<f64>,
    encode_gib_per_s: f64,
    decode_gib_per_s: f64,
    memcpy_gib_per_s: f64,
}

/// What one codec makes of all tensors of a file, small ones included.
#[derive(Debug, Serialize)]
struct Total {
    file: String,
    codec: &'static str,
    raw_bytes: u64,
    stored_bytes: u64,
    saved_percent: f64,
}

#[derive(Debug, Default, Serialize)]
struct Document {
    results: Vec<Row>,
    files: Vec<Total>,
}

/// Measures every codec on every tensor.
///
/// # Errors
/// A file cannot be read, or standard output cannot be written.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let mut document = Document::default();
    for path in &args.files {
        measure_file(args, path, &mut document)?;
    }
    if args.json {
        return out.json(&document);
    }
    write_rows(&document.results, out)?;
    writeln!(out)?;
    write_totals(&document.files, out)
}

fn measure_file(args: &Args, path: &Path, document: &mut Document) -> Result<()> {
    let codecs: Vec<_> = CodecId::ALL.iter().copied().filter(|codec| args.codecs.contains(*codec)).collect();
    let (mut raw_bytes, mut stored_bytes) = (0, vec![0; codecs.len()]);
    for tensor in load(path, args.access.access())? {
        raw_bytes += tensor.geometry.raw_bytes();
        for (codec, stored_bytes) in codecs.iter().zip(&mut stored_bytes) {
            let coded = tensor
                .encode(*codec)
                .with_context(|| format!("encode {} by {codec}", escape::quoted(&tensor.name)))?;
            *stored_bytes += coded.stored_bytes;
            if tensor.raw.is_empty() || tensor.geometry.raw_bytes() < LEAST_BYTES && !args.small {
                continue;
            }
            for place in [Place::Cache, Place::Dram] {
                document.results.extend([1, 2].map(|threads| measure(&tensor, &coded, place, threads)));
            }
        }
    }
    for (codec, stored_bytes) in codecs.iter().zip(stored_bytes) {
        document.files.push(Total {
            file: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            codec: codec.name(),
            raw_bytes,
            stored_bytes,
            saved_percent: table::saved_percent(raw_bytes, stored_bytes),
        });
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Cache,
    Dram,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Dram => "dram",
        }
    }
}

/// What one thread works on: blocks of its own, and where they are decoded to.
struct Work<'a> {
    tensor: &'a Loaded,
    coded: &'a Coded,
    /// Block number, where it lies in `raw` and `out`, encoded bytes.
    blocks: Vec<(u64, Range<usize>, Vec<u8>)>,
    /// Blocks that are timed together.
    steps: Vec<Range<usize>>,
    raw: Vec<u8>,
    out: Vec<u8>,
    encoded: Vec<u8>,
}

impl<'a> Work<'a> {
    fn new(tensor: &'a Loaded, coded: &'a Coded, place: Place) -> Self {
        let wanted = if place == Place::Cache { 1 } else { DRAM_BYTES };
        let (mut blocks, mut steps, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first, mut first_byte) = (0, 0);
        for block_idx in (0..tensor.geometry.n_blocks()).cycle() {
            let start = raw.len();
            raw.extend_from_slice(tensor.block(block_idx));
            blocks.push((block_idx, start..raw.len(), coded.blocks[index(block_idx)].clone()));
            let is_last = raw.len() >= wanted;
            if is_last || raw.len() - first_byte >= STEP_BYTES {
                steps.push(first..blocks.len());
                (first, first_byte) = (blocks.len(), raw.len());
            }
            if is_last {
                break;
            }
        }
        let out = vec![0; raw.len()];
        Self { tensor, coded, blocks, steps, raw, out, encoded: Vec::new() }
    }

    fn decode(&mut self, step: usize) {
        for (_, range, encoded) in &self.blocks[self.steps[step].clone()] {
            let block = Block::parse(std::hint::black_box(encoded)).expect("encoded above");
            let target = &mut self.out[range.clone()];
            decode_block(&block, self.coded.coder(), target).expect("encoded above");
        }
        std::hint::black_box(&mut self.out);
    }

    fn encode(&mut self, step: usize) {
        let encoding = self.coded.encoding();
        for (block_idx, range, _) in &self.blocks[self.steps[step].clone()] {
            let raw = std::hint::black_box(&self.raw[range.clone()]);
            encode_block(encoding, &self.tensor.geometry, *block_idx, raw, &mut self.encoded)
                .expect("encoded above");
        }
        std::hint::black_box(&mut self.encoded);
    }
}

fn measure(tensor: &Loaded, coded: &Coded, place: Place, threads: usize) -> Row {
    let mut works: Vec<_> = (0..threads).map(|_| Work::new(tensor, coded, place)).collect();
    let (bytes, n_steps) = (works[0].raw.len() as u64, works[0].steps.len());
    let pairs = works.iter_mut().map(|work| (&work.raw[..], &mut work.out[..]));
    let memcpy_gib_per_s = memcpy_throughput(pairs.collect());
    let decodes = works.iter_mut().map(|work| move |step| work.decode(step));
    let decode_gib_per_s = throughput(bytes, n_steps, decodes.collect());
    let encodes = works.iter_mut().map(|work| move |step| work.encode(step));
    let encode_gib_per_s = throughput(bytes, n_steps, encodes.collect());
    let raw_bytes = tensor.geometry.raw_bytes();
    Row {
        file: tensor.file.clone(),
        tensor: tensor.name.clone(),
        dtype: tensor.geometry.dtype().name(),
        codec: coded.codec.name(),
        r#where: place.name(),
        threads,
        raw_bytes,
        stored_bytes: coded.stored_bytes,
        saved_percent: table::saved_percent(raw_bytes, coded.stored_bytes),
        bound_percent: tensor.bound_percent(),
        encode_gib_per_s,
        decode_gib_per_s,
        memcpy_gib_per_s,
    }
}

fn write_rows(results: &[Row], out: &mut Output) -> Result<()> {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("file", left),
        ("tensor", left),
        ("dtype", left),
        ("codec", left),
        ("where", left),
        ("threads", right),
        ("saved %", right),
        ("bound %", right),
        ("encode GiB/s", right),
        ("decode GiB/s", right),
        ("memcpy GiB/s", right),
        ("decode/memcpy", right),
    ]);
    for row in results {
        table.row(vec![
            escape::cell(&row.file),
            escape::cell(&row.tensor),
            row.dtype.to_owned(),
            row.codec.to_owned(),
            row.r#where.to_owned(),
            row.threads.to_string(),
            format!("{:.2}", row.saved_percent),
            row.bound_percent.map_or("-".to_owned(), |bound| format!("{bound:.2}")),
            format!("{:.2}", row.encode_gib_per_s),
            format!("{:.2}", row.decode_gib_per_s),
            format!("{:.2}", row.memcpy_gib_per_s),
            format!("{:.2}", row.decode_gib_per_s / row.memcpy_gib_per_s),
        ]);
    }
    table.write(out)?;
    Ok(())
}

fn write_totals(files: &[Total], out: &mut Output) -> Result<()> {
    let (left, right) = (Align::Left, Align::Right);
    let columns =
        [("whole file", left), ("codec", left), ("raw", right), ("stored", right), ("saved %", right)];
    let mut table = Table::new(&columns);
    for total in files {
        table.row(vec![
            escape::cell(&total.file),
            total.codec.to_owned(),
            table::size(total.raw_bytes),
            table::size(total.stored_bytes),
            format!("{:.2}", total.saved_percent),
        ]);
    }
    table.write(out)?;
    Ok(())
}
