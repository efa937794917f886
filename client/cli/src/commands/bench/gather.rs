//! `tierpack bench gather`: random rows of one tensor, read by a real client from a real daemon, per codec.
//!
//! Next to each codec is what could be done without it: on the CPU the same gather from a plain array by memcpy
//! (`on_cpu.rs`), on a GPU the same gather of the raw tensor (`on_gpu.rs`).
//! Both take turns in slices of time, and of each the best slice counts, so that what else the machine does hits both.

mod on_cpu;
mod on_gpu;

use anyhow::{Context as _, Result, ensure};
use tierpack_client::{Client, CodecChoice, CodecId, Entry, PutOptions};
use tierpack_daemon::{Config, Embedded};

use super::Codecs;
use super::weights::{FloatArg, weights};
use crate::commands::demo;
use crate::device::{self, DeviceArg};
use crate::output::Output;

/// Bytes of the tensor when nobody says how many rows.
const DEFAULT_BYTES: usize = 256 << 20;
/// Turns of a codec and of what is next to it.
const SLICES: u32 = 4;
/// Batches that a slice times, at least.
const LEAST_BATCHES: usize = 8;
/// Bytes of one gather, at most.
const MAX_GATHER_BYTES: usize = 1 << 30;
const NAME: &str = "weights";

/// Arguments of `bench gather`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows of the tensor [default: as many as make 256 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Option<u32>,
    /// Elements of a row
    #[arg(long, value_name = "C", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    width: u32,
    /// Rows of one gather [default: 1024, on a GPU 65536]
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: Option<u32>,
    /// Element type of the generated weights
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: FloatArg,
    #[command(flatten)]
    codecs: Codecs,
    /// Where rows are gathered: on a GPU by the Device tier, at several rates of hits in its cache
    #[arg(long, value_name = "cpu|cuda[:N]", default_value = "cpu", value_parser = device::parse)]
    device: DeviceArg,
    /// Seconds per codec and number of threads, half of them for memcpy; on a GPU per codec and cache, half of them
    /// for the raw gather
    #[arg(long, value_name = "S", default_value = "2", value_parser = demo::parse_seconds)]
    seconds: f64,
    /// Print {"results": [...]}
    #[arg(long)]
    json: bool,
}

impl Args {
    fn batch(&self) -> u32 {
        self.batch.unwrap_or(match self.device {
            DeviceArg::Cpu => 1024,
            DeviceArg::Cuda(_) => 1 << 16,
        })
    }

    /// The codecs that are measured; `raw` is always among them.
    fn codecs(&self) -> impl Iterator<Item = CodecId> {
        let is_wanted = |codec: &CodecId| *codec == CodecId::Raw || self.codecs.contains(*codec);
        CodecId::ALL.iter().copied().filter(is_wanted)
    }
}

/// The tensor in this process.
#[derive(Debug)]
struct Source {
    raw: Vec<u8>,
    n_rows: usize,
    row_bytes: usize,
}

/// Stores one tensor by each codec in turn and gathers from it.
///
/// # Errors
/// There is no GPU where one is asked for, no daemon can be started, the tensor does not fit, or it comes back other
/// than it was.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let (n_rows, row_bytes, len) = sizes(args)?;
    let gpu = args.device.open()?;
    let folder = demo::folder()?;
    // Next to a codec is the raw tensor, which a GPU gathers from as well.
    let n_tensors = if gpu.is_some() { 2 } else { 1 };
    // An eighth for headers, metadata and what the pool rounds up.
    let pool_bytes = (n_tensors * (len + len / 8) + (64 << 20)) as u64;
    let config = Config::embedded(folder.path().join("control.sock"), pool_bytes)?;
    // First of all, since it refuses a pool that memory has no room for.
    let daemon = Embedded::start(&config)?;
    let source = Source { raw: weights(args.dtype, len), n_rows, row_bytes };
    let client = Client::builder().socket(daemon.socket()).connect()?;
    if let Some(gpu) = gpu {
        let document = on_gpu::measure(args, &source, &client, &gpu)?;
        drop((gpu, client));
        daemon.stop()?;
        return if args.json { out.json(&document) } else { document.write_table(out) };
    }
    let document = on_cpu::measure(args, &source, &client)?;
    drop(client);
    daemon.stop()?;
    if args.json { out.json(&document) } else { document.write_table(out) }
}

/// Rows, bytes of a row, bytes of all rows.
///
/// # Errors
/// They are too many to count, or a gather is more than a process should ask for.
fn sizes(args: &Args) -> Result<(usize, usize, usize)> {
    let row_bytes = args.width as usize * args.dtype.bytes();
    let n_rows = args.rows.map_or((DEFAULT_BYTES / row_bytes).max(1), |rows| rows as usize);
    let gathered = args.batch() as usize * row_bytes;
    ensure!(
        gathered <= MAX_GATHER_BYTES,
        "a gather of {gathered} bytes is above the limit of {MAX_GATHER_BYTES}: choose a smaller --batch or --width"
    );
    let len = n_rows.checked_mul(row_bytes).filter(|len| *len <= isize::MAX.unsigned_abs() / 2);
    let len = len.with_context(|| format!("{n_rows} rows of {row_bytes} bytes: choose fewer --rows"))?;
    Ok((n_rows, row_bytes, len))
}

impl Source {
    fn put(&self, args: &Args, client: &Client, name: &str, codec: CodecId) -> Result<Entry> {
        let shape = [self.n_rows as u64, args.width.into()];
        let options = PutOptions::new().codec(CodecChoice::Only(codec));
        let put = client.put_with(name, args.dtype.dtype(), &shape, &mut &self.raw[..], &options);
        put.with_context(|| format!("put by codec {codec}"))
    }

    #[inline]
    fn row(&self, id: u32) -> &[u8] {
        &self.raw[id as usize * self.row_bytes..][..self.row_bytes]
    }
}

/// GiB of that many rows.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn gib(source: &Source, rows: f64) -> f64 {
    rows * source.row_bytes as f64 / f64::from(1 << 30)
}
