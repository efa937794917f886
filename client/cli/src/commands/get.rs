//! `tierpack get`: writes tensors to a safetensors file.
//!
//! One tensor is in memory at a time, and the file has its name only when it is complete.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use tierpack_client::{Client, Entry};

use super::{DEFAULT_NAMESPACE, Selection, byte_bar, connect, n_tensors};
use crate::agreement::Agreement;
use crate::files::safetensors::{self, Plan};
use crate::output::{self, Output};
use crate::{escape, table};

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Namespace of the tensors
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// File to write; an existing one is replaced when the new one is complete
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
    let bar = byte_bar("get", plan.data_len());
    for entry in plan.entries() {
        write_tensor(&client, entry, &mut file)
            .with_context(|| format!("get tensor {}", escape::quoted(&entry.name)))?;
        bar.inc(entry.raw_bytes);
    }
    file.finish()?;
    bar.finish_and_clear();
    let (tensors, size) = (n_tensors(plan.entries().len()), table::size(plan.data_len()));
    writeln!(out, "wrote {tensors}, {size}, to {}", escape::one_line(&args.output.display().to_string()))?;
    Ok(())
}

/// Fetches a tensor and appends its bytes, if it is still what the header says.
fn write_tensor(client: &Client, entry: &Entry, file: &mut safetensors::Output) -> Result<()> {
    let tensor = client.get(&entry.name)?;
    ensure!(
        tensor.dtype() == entry.dtype && tensor.shape() == entry.shape,
        "it was {} {} when the export began and is {} {} now: export again",
        entry.dtype,
        table::shape(&entry.shape),
        tensor.dtype(),
        table::shape(tensor.shape())
    );
    file.write(tensor.as_bytes())
}
