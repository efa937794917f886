//! `tierpack verify`: whether every stored block still is what was put.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{DEFAULT_NAMESPACE, block_bar, connect, n_tensors};
use crate::output::Output;
use crate::{escape, table};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of tensors; all of the namespace without names
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Namespace of the tensors
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
}

/// Verifies the chosen tensors; the first damaged block is an error.
///
/// # Errors
/// A block is damaged, a name does not exist, or the daemon cannot be asked.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let client = connect(socket, &args.namespace)?;
    let names = match args.names.as_slice() {
        [] => client.list()?.into_iter().map(|entry| entry.name).collect(),
        names => names.to_vec(),
    };
    ensure!(!names.is_empty(), "namespace {} holds no tensor", escape::quoted(&args.namespace));
    let mut verified = 0;
    for name in &names {
        let bar = block_bar(name);
        let checked = client.verify(name, |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        verified += checked.with_context(|| format!("verify {}", escape::quoted(name)))?;
    }
    writeln!(
        out,
        "verified {}, {}: every block is what was put",
        n_tensors(names.len()),
        table::size(verified)
    )?;
    Ok(())
}
