//! `tierpack ns`: namespaces as wholes: who may read and write them, and how much they may hold.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tierpack_client::{NamespaceChange, NamespaceEntry, Tensors};
use tierpack_daemon::size::ByteSize;

use super::{DEFAULT_NAMESPACE, connect};
use crate::escape;
use crate::output::Output;
use crate::table::{Align, Table, size};

/// Arguments of `ns`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a namespace of your own
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        rights: Rights,
    },
    /// List the namespaces that you may read
    Ls {
        /// Print a JSON array of objects
        #[arg(long)]
        json: bool,
    },
    /// Change owner, group, mode or quota of a namespace
    Chmod {
        /// Its name
        name: String,
        #[command(flatten)]
        rights: Rights,
    },
    /// Remove a namespace
    Rm {
        /// Its name
        name: String,
        /// Remove its tensors with it
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Rights {
    /// Read and write bits for owner, group and others, in octal: 0640
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u16>,
    /// Owner, as a user id; for root and the daemon's user
    #[arg(long, value_name = "UID")]
    owner: Option<u32>,
    /// Group, as a group id
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Stored bytes that its tensors may take together, or `none`
    #[arg(long, value_name = "SIZE", value_parser = parse_quota)]
    quota: Option<Quota>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quota(Option<u64>);

fn parse_mode(text: &str) -> std::result::Result<u16, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u16::from_str_radix(digits, 8).map_err(|_| format!("{text:?} is not an octal number such as 0640"))
}

fn parse_quota(text: &str) -> std::result::Result<Quota, String> {
    if text == "none" {
        return Ok(Quota(None));
    }
    let size: ByteSize = text.parse().map_err(|error: tierpack_daemon::Error| error.to_string())?;
    Ok(Quota(Some(size.bytes())))
}

impl Rights {
    fn change(&self) -> NamespaceChange {
        NamespaceChange {
            uid: self.owner,
            gid: self.group,
            mode: self.mode,
            quota_bytes: self.quota.map(|quota| quota.0),
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    namespace: &'a str,
    uid: u32,
    gid: u32,
    mode: String,
    quota_bytes: Option<u64>,
    tensors: u64,
    stored_bytes: u64,
}

/// Runs one command on namespaces.
///
/// # Errors
/// The daemon refuses, or cannot be asked.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let shown = escape::quoted;
    match &args.command {
        Command::Create { name, rights } => {
            let made = connect(socket, name)?.create_namespace(&rights.change());
            made.with_context(|| format!("create namespace {}", shown(name)))?;
            writeln!(out, "created namespace {}", escape::cell(name))?;
        }
        Command::Chmod { name, rights } => {
            let changed = connect(socket, name)?.change_namespace(&rights.change());
            changed.with_context(|| format!("change namespace {}", shown(name)))?;
            writeln!(out, "changed namespace {}", escape::cell(name))?;
        }
        Command::Rm { name, force } => {
            let tensors = if *force { Tensors::Remove } else { Tensors::Keep };
            let removed = connect(socket, name)?.remove_namespace(tensors);
            removed.with_context(|| {
                format!("remove namespace {} (--force takes its tensors along)", shown(name))
            })?;
            writeln!(out, "removed namespace {}", escape::cell(name))?;
        }
        Command::Ls { json } => {
            let entries = connect(socket, DEFAULT_NAMESPACE)?.namespaces()?;
            if *json { write_json(&entries, out)? } else { write_table(&entries, out)? }
        }
    }
    Ok(())
}

fn write_json(entries: &[NamespaceEntry], out: &mut Output) -> Result<()> {
    let lines: Vec<Line<'_>> = entries
        .iter()
        .map(|entry| Line {
            namespace: &entry.name,
            uid: entry.uid,
            gid: entry.gid,
            mode: format!("{:04o}", entry.mode),
            quota_bytes: entry.quota_bytes,
            tensors: entry.tensors,
            stored_bytes: entry.stored_bytes,
        })
        .collect();
    out.json(&lines)
}

fn write_table(entries: &[NamespaceEntry], out: &mut Output) -> Result<()> {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("namespace", Align::Left),
        ("owner", right),
        ("group", right),
        ("mode", right),
        ("tensors", right),
        ("stored", right),
        ("quota", right),
    ]);
    for entry in entries {
        table.row(vec![
            escape::cell(&entry.name),
            entry.uid.to_string(),
            entry.gid.to_string(),
            format!("{:04o}", entry.mode),
            entry.tensors.to_string(),
            size(entry.stored_bytes),
            entry.quota_bytes.map_or("-".to_owned(), size),
        ]);
    }
    table.write(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_quotas_are_sizes() {
        assert_eq!(parse_mode("0640"), Ok(0o640));
        assert_eq!(parse_mode("0o666"), Ok(0o666));
        assert!(parse_mode("rw").is_err() && parse_mode("9").is_err());
        assert_eq!(parse_quota("none"), Ok(Quota(None)));
        assert_eq!(parse_quota("2MiB"), Ok(Quota(Some(2 << 20))));
        assert!(parse_quota("lots").is_err());
    }
}
