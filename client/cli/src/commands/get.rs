//! `tierpack get`: writes tensors to a safetensors file.
//!
//! A few blocks are in memory at a time, and the file has its name only when it is complete.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use tierpack_client::{Client, Entry, Error};

use super::{DEFAULT_NAMESPACE, Selection, byte_bar, connect, n_tensors};
use crate::agreement::Agreement;
use crate::files::safetensors::{self, Plan};
use crate::output::{self, Output};
use crate::{escape, table};

/// Bytes that are fetched at a time: a few blocks.
const PART_BYTES: usize = 8 << 20;
/// How often a tensor that is put again and again is begun again.
const MOST_TRIES: u32 = 16;

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Namespace of the tensors
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// File to write; an existing one is replaced when the new one is complete, a pipe or device is written as it is
    #[arg(short, long, value_name = "OUT.safetensors")]
    output: PathBuf,
}

/// Writes the chosen tensors with the metadata on which they agree.
///
/// # Errors
/// A name is unknown, a tensor changes meanwhile, or the file cannot be written.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let client = connect(socket, &args.namespace)?;
    let entries = args.selection.choose(client.list()?, &args.namespace)?;
    let plan = Plan::new(entries)?;
    let mut agreement = Agreement::default();
    for entry in plan.entries() {
        let metadata = client
            .file_metadata(&entry.name)
            .with_context(|| format!("read the metadata of tensor {}", escape::quoted(&entry.name)))?;
        agreement.add(metadata);
    }
    if let Some(text) = agreement.warning() {
        output::warning(&text);
    }
    let mut file = safetensors::Output::create(&args.output, &plan, agreement.agreed())?;
    let (bar, mut buf) = (byte_bar("get", plan.data_len()), vec![0; PART_BYTES]);
    for entry in plan.entries() {
        write_tensor(&client, entry, &mut file, &mut buf)
            .with_context(|| format!("get tensor {}", escape::quoted(&entry.name)))?;
        bar.inc(entry.raw_bytes);
    }
    let is_stdout = file.is_stdout();
    file.finish()?;
    bar.finish_and_clear();
    if is_stdout {
        return Ok(());
    }
    let (tensors, size) = (n_tensors(plan.entries().len()), table::size(plan.data_len()));
    writeln!(out, "wrote {tensors}, {size}, to {}", escape::one_line(&args.output.display().to_string()))?;
    Ok(())
}

/// Appends the bytes of a tensor, if it is still what the header says.
///
/// When it is put again meanwhile, its bytes are written again from the first on: they are all of one put.
fn write_tensor(
    client: &Client,
    entry: &Entry,
    file: &mut safetensors::Output,
    buf: &mut [u8],
) -> Result<()> {
    let tensor = client.open(&entry.name)?;
    ensure!(
        tensor.dtype() == entry.dtype && tensor.shape() == entry.shape,
        "it was {} {} when the export began and is {} {} now: export again",
        entry.dtype,
        table::shape(&entry.shape),
        tensor.dtype(),
        table::shape(&tensor.shape())
    );
    let (mut parts, mut written, mut tries) = (tensor.parts()?, 0, 0);
    loop {
        match parts.read(buf) {
            Ok(0) => return Ok(()),
            Ok(len) => {
                file.write(&buf[..len])?;
                written += len as u64;
            }
            Err(Error::Superseded { .. }) if tries < MOST_TRIES && file.take_back(written)? => {
                (parts, written, tries) = (tensor.parts()?, 0, tries + 1);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
