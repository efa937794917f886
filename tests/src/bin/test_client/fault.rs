//! Reaches fault points: each line from the test sets the point, or asks for the operation and is answered by a report.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tierpack_client::{Client, CodecChoice, CodecId, Dtype, Handle, PutOptions, View};
use tierpack_shm::faults::set;
use tierpack_tests::data::{Source, Words};
use tierpack_tests::faults::point_of;
use tierpack_tests::reports::FaultReport;

use crate::{connect, say};

/// What is done with the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    /// The whole tensor by a handle that was read before.
    Get,
    /// Every row, the last first, by such a handle.
    Gather,
    /// A view by such a handle.
    View,
    /// A snapshot of the tensor.
    Snapshot,
    /// The whole tensor by its name: the first one attaches.
    Attach,
    /// A put over the tensor, which is then read.
    Put,
    /// An update of every row by a handle that was read before; it is then read.
    Update,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The point.
    #[arg(long)]
    point: String,
    /// What happens there.
    #[arg(long)]
    actions: String,
    /// What is done.
    #[arg(long, value_enum)]
    operation: Operation,
    /// The tensor.
    #[arg(long)]
    tensor: String,
    /// The id in its words.
    #[arg(long)]
    tensor_id: u16,
    /// How it is encoded; words that a codec shortens unless that is `raw`.
    #[arg(long)]
    codec: CodecChoice,
    /// Rows of what is put.
    #[arg(long, default_value_t = 2048)]
    rows: u64,
}

/// Versions that a test puts.
const VERSIONS: std::ops::RangeInclusive<u16> = 1..=9;

struct Actor<'a> {
    args: &'a Args,
    words: Words,
    client: Client,
    handle: Option<Handle>,
    out: Vec<u8>,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let client = connect(socket)?;
    let is_raw = args.codec == CodecChoice::Only(CodecId::Raw);
    let mut actor = Actor { args, words: Words::new(!is_raw), client, handle: None, out: Vec::new() };
    if !matches!(args.operation, Operation::Attach | Operation::Put) {
        let handle = actor.client.open(&args.tensor)?;
        actor.out = vec![0; usize::try_from(handle.raw_bytes())?];
        // What an attachment maps is mapped from here on.
        handle.get_into(&mut actor.out)?;
        actor.handle = Some(handle);
    }
    say(&format!("ready {}", std::process::id()))?;
    for line in io::stdin().lines() {
        match line.context("read a line")?.as_str() {
            "arm" => {
                set(point_of(&args.point).context("no such point")?, &args.actions)?;
                say("armed")?;
            }
            "go" => {
                let report = match actor.go() {
                    Ok(version) => FaultReport { version, error: None },
                    Err(error) => FaultReport { version: None, error: Some(format!("{error:#}")) },
                };
                say(&serde_json::to_string(&report)?)?;
            }
            line => bail!("{line:?} is no command"),
        }
    }
    Ok(())
}

impl Actor<'_> {
    /// Does it once; returns the version of what was read.
    fn go(&mut self) -> Result<Option<u16>> {
        // What is right must not be right by being left over from the last call.
        self.out.fill(0);
        match (self.args.operation, &self.handle) {
            (Operation::Get, Some(handle)) => {
                handle.get_into(&mut self.out)?;
                self.check_rows(self.out.chunks_exact(usize::try_from(handle.row_bytes())?).zip(0..))?;
                Ok(self.version(|version| self.is_of(version, 0, &self.out)))
            }
            (Operation::Gather, Some(handle)) => {
                let rows: Vec<u64> = (0..handle.n_rows()).rev().collect();
                handle.gather_into(&rows, &mut self.out)?;
                let row_bytes = usize::try_from(handle.row_bytes())?;
                let found: Vec<_> = rows.into_iter().zip(self.out.chunks_exact(row_bytes)).collect();
                self.check_rows(found.iter().map(|(row, bytes)| (*bytes, *row)))?;
                Ok(self
                    .version(|version| found.iter().all(|(row, bytes)| self.is_of(version, row * 64, bytes))))
            }
            (Operation::View, Some(handle)) => self.view(&handle.view()?),
            (Operation::Snapshot, _) => {
                let snapshot = self.client.snapshot(&[&self.args.tensor])?;
                let tensor = snapshot.tensor(&self.args.tensor).context("it is in the snapshot")?.get()?;
                Ok(self.version(|version| self.is_of(version, 0, tensor.as_bytes())))
            }
            (Operation::Attach, _) => self.read(),
            (Operation::Put, _) => {
                let args = self.args;
                let mut source = Source::of(self.words, args.tensor_id, 1);
                let options = PutOptions::new().codec(args.codec).overwrite(true);
                self.client.put_with(&args.tensor, Dtype::U64, &[args.rows, 64], &mut source, &options)?;
                self.read()
            }
            (Operation::Update, Some(handle)) => {
                let rows: Vec<u64> = (0..handle.n_rows()).collect();
                self.words.fill(&mut self.out, self.args.tensor_id, *VERSIONS.end(), 0);
                handle.update(&rows, &self.out)?;
                self.read()
            }
            (operation, None) => bail!("{operation:?} needs a handle"),
        }
    }

    fn read(&self) -> Result<Option<u16>> {
        let tensor = self.client.get(&self.args.tensor)?;
        Ok(self.version(|version| self.is_of(version, 0, tensor.as_bytes())))
    }

    fn view(&self, view: &View) -> Result<Option<u16>> {
        let (mut blocks, mut first_word) = (Vec::new(), 0);
        for block_idx in 0..view.n_blocks() {
            let block = view.block(block_idx)?;
            blocks.push((first_word, block));
            first_word += block.len() as u64 / 8;
        }
        Ok(self.version(|version| blocks.iter().all(|(first, bytes)| self.is_of(version, *first, bytes))))
    }

    fn version(&self, fits: impl Fn(u16) -> bool) -> Option<u16> {
        VERSIONS.into_iter().find(|version| fits(*version))
    }

    /// Each row is of one version: which rows are of which is up to the test.
    fn check_rows<'b>(&self, rows: impl IntoIterator<Item = (&'b [u8], u64)>) -> Result<()> {
        for (bytes, row) in rows {
            let version = self.version(|version| self.is_of(version, row * 64, bytes));
            version.with_context(|| format!("row {row} is of no version"))?;
        }
        Ok(())
    }

    fn is_of(&self, version: u16, first_word: u64, bytes: &[u8]) -> bool {
        self.words.mismatches(bytes, self.args.tensor_id, version, first_word) == 0
    }
}
