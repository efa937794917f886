//! A peer that asks for everything of one namespace, and counts what it is given.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use tierpack_shm::message::Request;
use tierpack_tests::peer::Peer;
use tierpack_tests::reports::DemandReport;

use crate::{say, until_closed};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The namespace.
    #[arg(long)]
    namespace: String,
    /// A tensor of it.
    #[arg(long)]
    tensor: String,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let mut peer = Peer::greeted(socket);
    let (namespace, name) = (args.namespace.clone(), args.tensor.clone());
    let requests = [
        Request::Attach { namespace: namespace.clone() },
        Request::Open { namespace: namespace.clone(), name: name.clone() },
        Request::FileMetadata { namespace: namespace.clone(), name: name.clone() },
        Request::Verify { namespace: namespace.clone(), name, first_block: 0 },
        Request::List { namespace: Some(namespace), after: None },
    ];
    let mut report = DemandReport::default();
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for request in requests {
        let what = format!("{request:?}");
        let id = peer.ask(request, &[])?;
        let (answer, came) = peer.reply(id)?;
        descriptors.extend(came);
        match answer {
            Ok(_) => report.granted.push(what),
            Err(refusal) => report.refusals.push(refusal.text),
        }
    }
    report.descriptors = descriptors.len();
    report.segments = segments()?;
    say(&serde_json::to_string(&report)?)?;
    until_closed()
}

/// Descriptors and mappings of this process that are memory of a daemon.
fn segments() -> Result<usize> {
    let links = std::fs::read_dir("/proc/self/fd").context("look at the own descriptors")?;
    let links = links.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let is_segment = |text: &str| text.contains("memfd:tierpack");
    let open = links.filter(|link| is_segment(&link.to_string_lossy())).count();
    let maps = std::fs::read_to_string("/proc/self/maps").context("look at the own mappings")?;
    Ok(open + maps.lines().filter(|line| is_segment(line)).count())
}
