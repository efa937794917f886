//! `tierpack get`: writes tensors to a safetensors file.
//!
//! All tensors are of one moment. A few blocks are in memory at a time, and the file has its name only when it is
//! complete.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tierpack_client::SnapshotTensor;

use super::{DEFAULT_NAMESPACE, Selection, byte_bar, connect, n_tensors};
use crate::agreement::Agreement;
use crate::files::safetensors::{self, Plan};
use crate::output::{self, Output};
use crate::{escape, table};

/// Bytes that are fetched at a time: a few blocks.
const PART_BYTES: usize = 8 << 20;

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
/// A name is unknown, or the file cannot be written.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let client = connect(socket, &args.namespace)?;
    let snapshot = args.selection.snapshot(&client)?;
    let plan = Plan::new(snapshot.tensors().map(|tensor| tensor.entry().clone()).collect())?;
    let mut agreement = Agreement::default();
    for tensor in snapshot.tensors() {
        agreement.add(tensor.file_metadata().cloned().unwrap_or_default());
    }
    if let Some(text) = agreement.warning() {
        output::warning(&text);
    }
    let mut file = safetensors::Output::create(&args.output, &plan, agreement.agreed())?;
    let (bar, mut buf) = (byte_bar("get", plan.data_len()), vec![0; PART_BYTES]);
    for entry in plan.entries() {
        let tensor = snapshot.tensor(&entry.name).context("the plan is made from the snapshot")?;
        write_tensor(tensor, &mut file, &mut buf)
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

/// Appends the bytes of a tensor.
fn write_tensor(tensor: SnapshotTensor<'_>, file: &mut safetensors::Output, buf: &mut [u8]) -> Result<()> {
    let mut parts = tensor.parts()?;
    loop {
        match parts.read(buf)? {
            0 => return Ok(()),
            len => file.write(&buf[..len])?,
        }
    }
}
