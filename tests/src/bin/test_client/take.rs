//! A peer that takes as much as it is given of what all users share, and keeps it.

use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Result;
use tierpack_shm::chunk::ChunkWriter;
use tierpack_shm::message::{Blob, NamespaceChange, PutBegin, Refusal, Reply, Request};
use tierpack_tests::peer::{Peer, begin, chunk};
use tierpack_tests::reports::TakeReport;

use crate::{say, until_closed};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to take, again and again until it is refused.
    #[arg(value_enum)]
    what: What,
    /// The namespace, or how the names of namespaces start.
    #[arg(long)]
    namespace: String,
    /// At most so many.
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
    /// Rows of 512 bytes of each put.
    #[arg(long, default_value_t = 0)]
    rows: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Puts under way.
    Puts,
    /// Namespaces.
    Namespaces,
    /// Namespaces that are removed while this peer maps them.
    Ghosts,
    /// Committed puts with file metadata of 16 MiB each.
    Texts,
    /// Committed puts of one chunk each.
    Bytes,
}

/// File metadata of nearly 16 MiB, another one for every number.
fn text(number: u64) -> Vec<u8> {
    let start = format!(r#"{{"{number}":""#);
    let filler = (16 << 20) - start.len() - 2;
    [start.as_bytes(), &vec![b'x'; filler], br#""}"#].concat()
}

fn take(peer: &mut Peer, args: &Args, number: u64) -> Result<Result<Reply, Refusal>> {
    let name = number.to_string();
    let put = PutBegin { namespace: args.namespace.clone(), ..begin(&name, args.rows) };
    Ok(match args.what {
        What::Puts => peer.request(Request::PutBegin(put), &[]),
        What::Namespaces => {
            let namespace = format!("{}{number}", args.namespace);
            peer.request(Request::NamespaceCreate { namespace, change: NamespaceChange::default() }, &[])
        }
        What::Ghosts => {
            let namespace = format!("{}{number}", args.namespace);
            let create =
                Request::NamespaceCreate { namespace: namespace.clone(), change: NamespaceChange::default() };
            if let Err(refusal) = peer.request(create, &[]) {
                return Ok(Err(refusal));
            }
            drop(peer.attach(&namespace));
            peer.request(Request::NamespaceRemove { namespace, with_tensors: false }, &[])
        }
        What::Bytes => match peer.request(Request::PutBegin(put), &[]) {
            Ok(Reply::Transfer { transfer }) => {
                let (request, fd) = chunk(transfer, 0, args.rows);
                let stored = peer.request(request, &[fd.as_fd()]);
                stored.and_then(|_| peer.request(Request::PutCommit { transfer }, &[]))
            }
            other => other,
        },
        What::Texts => {
            let text = text(number);
            let len = text.len() as u64;
            let mut file = ChunkWriter::new(len)?;
            file.as_mut_bytes().copy_from_slice(&text);
            let fd = file.seal()?;
            let put = PutBegin { file_metadata: Some(Blob::Descriptor { len }), ..put };
            match peer.request(Request::PutBegin(put), &[fd.as_fd()]) {
                Ok(Reply::Transfer { transfer }) => peer.request(Request::PutCommit { transfer }, &[]),
                other => other,
            }
        }
    })
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let mut peer = Peer::greeted(socket);
    let mut report = TakeReport::default();
    while report.taken < args.count {
        match take(&mut peer, args, report.taken)? {
            Ok(_) => report.taken += 1,
            Err(refusal) => {
                report.refusal = Some(refusal.text);
                break;
            }
        }
    }
    say(&serde_json::to_string(&report)?)?;
    until_closed()
}
