//! Holds a tensor while its test does something to it: by a view, or in the middle of reads.

use std::path::Path;

use anyhow::Result;
use tierpack_client::{Error, Handle, View};
use tierpack_tests::data::mismatches;
use tierpack_tests::reports::ReadReport;

use crate::{connect, say, told};

/// How the tensor is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// One view, checked when a line comes.
    View,
    /// Gets, until one fails.
    Get,
    /// Gathers of every row, until one fails.
    Gather,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tensor.
    #[arg(long)]
    tensor: String,
    /// The id in its words.
    #[arg(long)]
    tensor_id: u16,
    /// The version in its words.
    #[arg(long)]
    version: u16,
    /// How it is read.
    #[arg(long, value_enum, default_value = "view")]
    how: How,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let client = connect(socket)?;
    let handle = client.open(&args.tensor)?;
    let mut report = ReadReport::default();
    if args.how == How::View {
        let view = handle.view()?;
        say(&format!("holding {}", std::process::id()))?;
        told()?;
        report.reads = 1;
        report.mismatches = check_view(&view, args)?;
    } else {
        let mut out = vec![0; usize::try_from(handle.raw_bytes())?];
        say(&format!("holding {}", std::process::id()))?;
        let error = read_until_error(&handle, args, &mut out, &mut report);
        // The end that the test waits for: the tensor is gone.
        report.errors = u64::from(!matches!(error, Error::NotFound { .. }));
        report.error = Some(error.to_string());
    }
    say(&serde_json::to_string(&report)?)
}

fn read_until_error(handle: &Handle, args: &Args, out: &mut [u8], report: &mut ReadReport) -> Error {
    let rows: Vec<u64> = (0..handle.n_rows()).collect();
    loop {
        let read = match args.how {
            How::Gather => handle.gather_into(&rows, out),
            How::Get | How::View => handle.get_into(out),
        };
        if let Err(error) = read {
            return error;
        }
        report.reads += 1;
        report.mismatches += mismatches(out, args.tensor_id, args.version, 0);
        // What is right must not be right by being left over from the last call.
        out.fill(0);
    }
}

fn check_view(view: &View, args: &Args) -> Result<u64> {
    let (mut first_word, mut wrong) = (0, 0);
    for block_idx in 0..view.n_blocks() {
        let block = view.block(block_idx)?;
        wrong += mismatches(block, args.tensor_id, args.version, first_word);
        first_word += block.len() as u64 / 8;
    }
    Ok(wrong)
}
