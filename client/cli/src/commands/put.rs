//! `tierpack put`: stores the tensors of files.
//!
//! All files are checked before the first tensor is stored, and their tensors become visible in one step, or not at all:
//! whatever ends the command before leaves what was there.

mod import;

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use indicatif::ProgressBar;
use tierpack_client::{Access, Client, CodecChoice, Entry, Prefer, PutOptions};

use self::import::Import;
use super::{DEFAULT_NAMESPACE, byte_bar, connect, n_tensors, saved_cell, totals};
use crate::files::{RangeReader, ReadAs};
use crate::output::Output;
use crate::{escape, table};

/// Arguments of `put`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Safetensors or npy files, or the index of a checkpoint in shards (model.safetensors.index.json)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    read_as: ReadAs,
    /// Namespace to store in; an unknown one is created
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Replace tensors that exist
    #[arg(long)]
    overwrite: bool,
    /// What the tensors are cut for
    #[arg(long, value_enum, default_value = "rows")]
    access: AccessArg,
    // The help is made from the list of codecs.
    #[arg(long, value_name = "CODEC", default_value = "auto", help = codec_help())]
    codec: CodecChoice,
    /// What auto goes by [default: ratio]
    #[arg(long, value_enum)]
    prefer: Option<PreferArg>,
    /// Elements of a row, for tensors with one dimension or none
    #[arg(long, value_name = "N")]
    row_elems: Option<NonZeroU64>,
    /// Name of the tensor, for a file that holds one [default: npy: the file's name without .npy]
    #[arg(long)]
    name: Option<String>,
}

/// What the blocks are cut for, as an option spells it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum AccessArg {
    /// Rows are gathered
    Rows,
    /// The tensor is read whole
    Whole,
}

impl AccessArg {
    /// Its value.
    pub(super) const fn access(self) -> Access {
        match self {
            Self::Rows => Access::Rows,
            Self::Whole => Access::Whole,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PreferArg {
    /// The fewest stored bytes
    Ratio,
    /// The fastest codec within two points of the best
    Speed,
}

fn codec_help() -> String {
    format!("{}; auto measures a sample, and stores raw what saves under 3 %", CodecChoice::names())
}

impl From<PreferArg> for Prefer {
    fn from(arg: PreferArg) -> Self {
        match arg {
            PreferArg::Ratio => Self::Ratio,
            PreferArg::Speed => Self::Speed,
        }
    }
}

impl Args {
    /// What is wrong with options that are right each by itself.
    pub(crate) fn conflict(&self) -> Option<String> {
        match (self.codec, self.prefer) {
            (CodecChoice::Only(codec), Some(_)) => Some(format!(
                "--prefer is for --codec auto, and --codec {codec} leaves no choice: leave one of them out"
            )),
            _ => None,
        }
    }
}

/// Stores the files.
///
/// # Errors
/// A file is malformed or changes meanwhile, a tensor exists, or the daemon refuses one.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let import = Import::open(args)?;
    let client = connect(socket, &args.namespace)?;
    check_existing(&client, &import, args)?;
    let stored = store(args, &import, &client)
        .with_context(|| format!("import {}: nothing of it is stored", import.label))?;
    let (raw, kept) = totals(&stored);
    let saved = saved_cell(raw, kept);
    let (raw, kept) = (table::size(raw), table::size(kept));
    let (tensors, namespace) = (n_tensors(stored.len()), escape::cell(&args.namespace));
    writeln!(out, "put {tensors} into {namespace}: {raw} stored as {kept}, {saved} % saved")?;
    Ok(())
}

/// Refuses names that the namespace has already, with their number.
fn check_existing(client: &Client, import: &Import, args: &Args) -> Result<()> {
    if args.overwrite {
        return Ok(());
    }
    let names: BTreeSet<&str> = import.tensors().map(|tensor| tensor.name.as_str()).collect();
    let entries = client.list()?;
    let existing: BTreeSet<&str> =
        entries.iter().map(|entry| entry.name.as_str()).filter(|name| names.contains(name)).collect();
    if let Some(first) = existing.first() {
        bail!(
            "namespace {} has {} of the {} in {} already, the first is {}: pass --overwrite to replace",
            escape::quoted(&args.namespace),
            existing.len(),
            n_tensors(names.len()),
            import.label,
            escape::quoted(first)
        );
    }
    Ok(())
}

/// Stores all tensors, which become visible in one step.
fn store(args: &Args, import: &Import, client: &Client) -> Result<Vec<Entry>> {
    let access = args.access.access();
    let options = PutOptions::new()
        .codec(args.codec)
        .prefer(args.prefer.map(Prefer::from).unwrap_or_default())
        .access(access);
    let put = client.put_many(import.tensors().map(|tensor| tensor.name.as_str()), args.overwrite)?;
    let (bar, mut before) = (byte_bar("put", import.raw_bytes()), 0);
    let mut stored = Vec::with_capacity(import.n_tensors());
    for part in &import.parts {
        let options = options.clone().file_metadata(part.metadata.clone());
        let flat_options = match args.row_elems {
            Some(row_elems) => options.clone().row_elems(row_elems.get()),
            None => options.clone(),
        };
        for tensor in &part.tensors {
            let options = if tensor.shape.len() < 2 { &flat_options } else { &options };
            let mut source = Shown { reader: part.source.range(tensor.range.clone()), bar: &bar, before };
            let entry = put
                .put_from(&tensor.name, tensor.dtype, &tensor.shape, &mut source, options)
                .with_context(|| format!("put tensor {}", escape::quoted(&tensor.name)))?;
            stored.push(entry);
            before += tensor.raw_bytes();
        }
    }
    import.parts.iter().try_for_each(|part| part.source.check_unchanged())?;
    put.commit()?;
    bar.finish_and_clear();
    Ok(stored)
}

/// The bytes of a tensor, with a bar that shows how far they were read.
struct Shown<'a> {
    reader: RangeReader<'a>,
    bar: &'a ProgressBar,
    /// Bytes of the tensors before.
    before: u64,
}

impl Read for Shown<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buf)?;
        self.bar.set_position(self.before + self.reader.stream_position()?);
        Ok(n)
    }
}

impl Seek for Shown<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}
