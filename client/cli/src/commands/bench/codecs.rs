//! `tierpack bench codecs`: every codec on the tensors of files, beside memcpy of the same bytes in the same run.
//!
//! In cache: one block, again and again. From DRAM: copies of the tensor's blocks, more than any cache holds.
//! Throughput counts raw bytes; with two threads each works on memory of its own.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tierpack_client::{Access, CodecId, Dtype};
use tierpack_kernels::Coder;
use tierpack_kernels::block::Block;
use tierpack_kernels::codec::{Encoding, decode_block, encode_block};
use tierpack_kernels::fit::{fit, sample_blocks};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::types::{UNIT_BYTES, index};

use super::measure::{DRAM_BYTES, copy, throughput};
use crate::escape;
use crate::files::{SourceFile, npy, safetensors};
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
    /// Measure tensors below 64 KiB as well
    #[arg(long)]
    small: bool,
    /// Print {"results": [...]}
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

#[derive(Debug, Serialize)]
struct Document {
    results: Vec<Row>,
}

/// A tensor in memory.
struct Loaded {
    file: String,
    name: String,
    geometry: Geometry,
    raw: Vec<u8>,
}

/// A tensor encoded by one codec.
struct Coded {
    codec: CodecId,
    coder: Option<Coder>,
    blocks: Vec<Vec<u8>>,
    stored_bytes: u64,
}

/// Measures every codec on every tensor.
///
/// # Errors
/// A file cannot be read, or standard output cannot be written.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let mut results = Vec::new();
    for path in &args.files {
        for tensor in load(path)? {
            if tensor.raw.is_empty() || tensor.geometry.raw_bytes() < LEAST_BYTES && !args.small {
                continue;
            }
            for &codec in CodecId::ALL {
                let coded = encode(&tensor, codec)
                    .with_context(|| format!("encode {} by {codec}", escape::quoted(&tensor.name)))?;
                for place in [Place::Cache, Place::Dram] {
                    for threads in [1, 2] {
                        results.push(measure(&tensor, &coded, place, threads));
                    }
                }
            }
        }
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &Document { results })?;
        writeln!(out)?;
        return Ok(());
    }
    write_table(&results, out)
}

fn load(path: &std::path::Path) -> Result<Vec<Loaded>> {
    let source = SourceFile::open(path)?;
    let is_npy = path.extension().is_some_and(|extension| extension == "npy");
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let tensors =
        if is_npy { vec![npy::read(&source, stem.clone())?] } else { safetensors::read(&source)?.tensors };
    let mut loaded = Vec::new();
    for tensor in tensors {
        let geometry = Geometry::new(tensor.dtype, &tensor.shape, Access::Rows, None)
            .with_context(|| format!("tensor {}", escape::quoted(&tensor.name)))?;
        let mut raw = Vec::new();
        source.range(tensor.range.clone()).read_to_end(&mut raw)?;
        loaded.push(Loaded { file: stem.clone(), name: tensor.name, geometry, raw });
    }
    Ok(loaded)
}

impl Loaded {
    fn block(&self, block_idx: u64) -> &[u8] {
        let shape = self.geometry.block(block_idx);
        &self.raw[index(shape.byte_offset)..][..index(shape.raw_bytes)]
    }
}

fn encode(tensor: &Loaded, codec: CodecId) -> Result<Coded> {
    let geometry = &tensor.geometry;
    let sample: Vec<_> = sample_blocks(geometry).into_iter().map(|idx| (idx, tensor.block(idx))).collect();
    let metadata = fit(codec, geometry, &sample)?.metadata;
    let coder = metadata.as_ref().map(|metadata| Coder::new(metadata, geometry)).transpose()?;
    let encoding = coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
    let rounded = |len: u64| len.next_multiple_of(UNIT_BYTES);
    let mut stored_bytes = metadata.map_or(0, |metadata| rounded(metadata.len_bytes()));
    let mut blocks = Vec::new();
    for block_idx in 0..geometry.n_blocks() {
        let mut block = Vec::new();
        encode_block(encoding, geometry, block_idx, tensor.block(block_idx), &mut block)?;
        stored_bytes += rounded(block.len() as u64);
        blocks.push(block);
    }
    Ok(Coded { codec, coder, blocks, stored_bytes })
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

/// What is timed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Memcpy,
    Decode,
    Encode,
}

/// What one thread works on: blocks of its own, and where they are decoded to.
struct Work<'a> {
    coded: &'a Coded,
    geometry: &'a Geometry,
    /// Block number, raw bytes, encoded bytes.
    blocks: Vec<(u64, Vec<u8>, Vec<u8>)>,
    out: Vec<u8>,
    encoded: Vec<u8>,
}

impl<'a> Work<'a> {
    fn new(tensor: &'a Loaded, coded: &'a Coded, place: Place) -> Self {
        let wanted = if place == Place::Cache { 1 } else { DRAM_BYTES };
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        for block_idx in (0..tensor.geometry.n_blocks()).cycle() {
            let raw = tensor.block(block_idx).to_vec();
            bytes += raw.len();
            blocks.push((block_idx, raw, coded.blocks[index(block_idx)].clone()));
            if bytes >= wanted {
                break;
            }
        }
        Self { coded, geometry: &tensor.geometry, blocks, out: vec![0; bytes], encoded: Vec::new() }
    }

    fn raw_bytes(&self) -> u64 {
        self.out.len() as u64
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Memcpy => self.memcpy(),
            Step::Decode => self.decode(),
            Step::Encode => self.encode(),
        }
    }

    fn decode(&mut self) {
        let mut rest = &mut self.out[..];
        for (_, raw, encoded) in &self.blocks {
            let (target, left) = rest.split_at_mut(raw.len());
            let block = Block::parse(std::hint::black_box(encoded)).expect("encoded above");
            decode_block(&block, self.coded.coder.as_ref(), target).expect("encoded above");
            rest = left;
        }
        std::hint::black_box(&mut self.out);
    }

    fn encode(&mut self) {
        let encoding = self.coded.coder.as_ref().map_or(Encoding::Raw, Encoding::Coded);
        for (block_idx, raw, _) in &self.blocks {
            let raw = std::hint::black_box(raw);
            encode_block(encoding, self.geometry, *block_idx, raw, &mut self.encoded).expect("encoded above");
        }
        std::hint::black_box(&mut self.encoded);
    }

    fn memcpy(&mut self) {
        let mut rest = &mut self.out[..];
        for (_, raw, _) in &self.blocks {
            let (target, left) = rest.split_at_mut(raw.len());
            copy(raw, target);
            rest = left;
        }
    }
}

fn measure(tensor: &Loaded, coded: &Coded, place: Place, threads: usize) -> Row {
    let mut works: Vec<_> = (0..threads).map(|_| Work::new(tensor, coded, place)).collect();
    let bytes = works[0].raw_bytes();
    let mut rate =
        |step: Step| throughput(bytes, works.iter_mut().map(|work| move || work.run(step)).collect());
    let memcpy_gib_per_s = rate(Step::Memcpy);
    let decode_gib_per_s = rate(Step::Decode);
    let encode_gib_per_s = rate(Step::Encode);
    Row {
        file: tensor.file.clone(),
        tensor: tensor.name.clone(),
        dtype: tensor.geometry.dtype().name(),
        codec: coded.codec.name(),
        r#where: place.name(),
        threads,
        raw_bytes: tensor.geometry.raw_bytes(),
        stored_bytes: coded.stored_bytes,
        saved_percent: table::saved_percent(tensor.geometry.raw_bytes(), coded.stored_bytes),
        bound_percent: bound_percent(tensor.geometry.dtype(), &tensor.raw),
        encode_gib_per_s,
        decode_gib_per_s,
        memcpy_gib_per_s,
    }
}

/// Percent that coding the exponent alone at its order-0 entropy would save; `None` for dtypes without one.
#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn bound_percent(dtype: Dtype, raw: &[u8]) -> Option<f64> {
    let (exponent_bits, mantissa_bits) = match dtype {
        Dtype::F64 => (11, 52),
        Dtype::F32 => (8, 23),
        Dtype::F16 => (5, 10),
        Dtype::Bf16 => (8, 7),
        Dtype::F8E5m2 => (5, 2),
        Dtype::F8E4m3 => (4, 3),
        _ => return None,
    };
    let bytes = index(u64::from(dtype.bits() / 8));
    let mut counts = vec![0_u64; 1 << exponent_bits];
    for element in raw.chunks_exact(bytes) {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(element);
        let exponent = u64::from_le_bytes(word) >> mantissa_bits & ((1 << exponent_bits) - 1);
        counts[index(exponent)] += 1;
    }
    let total = (raw.len() / bytes) as f64;
    let shares = counts.iter().filter(|count| **count > 0).map(|count| *count as f64 / total);
    let entropy: f64 = shares.map(|share| -share * share.log2()).sum();
    Some(100.0 * (f64::from(exponent_bits) - entropy) / f64::from(dtype.bits()))
}

fn write_table(results: &[Row], out: &mut Output) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_one_exponent_is_all_of_its_bits() {
        let ones: Vec<u8> = [1.0_f32; 64].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bound_percent(Dtype::F32, &ones), Some(25.0));
        let two: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bound_percent(Dtype::F32, &two), Some(100.0 * 7.0 / 32.0));
        assert_eq!(bound_percent(Dtype::U8, &ones), None);
    }
}
