//! `tierpack rm`: removes tensors.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{DEFAULT_NAMESPACE, Selection, connect, n_tensors};
use crate::escape;
use crate::output::Output;

/// Arguments of `rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Namespace of the tensors; --all means all of this one only
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
}

/// Removes the chosen tensors; a name that does not exist is an error before any is removed.
///
/// # Errors
/// A name is unknown, or the daemon refuses.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let client = connect(socket, &args.namespace)?;
    let entries = args.selection.choose(client.list()?, &args.namespace)?;
    for (idx, entry) in entries.iter().enumerate() {
        client.remove(&entry.name).with_context(|| {
            format!("remove tensor {} ({idx} of {} are removed)", escape::quoted(&entry.name), entries.len())
        })?;
    }
    writeln!(out, "removed {} from {}", n_tensors(entries.len()), escape::cell(&args.namespace))?;
    Ok(())
}
