//! Reads all tensors, puts and removes its own, and checks that every word belongs to the tensor asked for and to a
//! version that was current during the call.
//!
//! Tensor `k` belongs to process `k % processes`, which alone puts and removes it.
//! Each such step has a number, odd for a put, even for a remove; a put's number is the version in its words.
//! The owner writes the number into a file that all processes share, once before the step and once after it:
//! so a read that starts after step `a` was done and ends before step `b` began may see `a` to `b`, and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use tierpack_client::{Client, Dtype, Error, Handle, PutOptions};
use tierpack_tests::data::{Random, Source, mismatches, parts};
use tierpack_tests::reports::ChurnReport;

use crate::{connect, say, told};

const ROWS: u64 = 128;
const ROW_WORDS: u64 = 64;
const ROW_BYTES: usize = 512;
/// Rows of one gather.
const BATCH: usize = 8;
const MAX_FAULTS: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which process this is.
    #[arg(long)]
    process: u16,
    /// How many there are.
    #[arg(long)]
    processes: u16,
    /// How many tensors there are.
    #[arg(long)]
    tensors: u16,
    /// How long to go on.
    #[arg(long)]
    millis: u64,
    /// The file of step numbers, 16 bytes per tensor.
    #[arg(long)]
    steps: PathBuf,
}

struct Churn<'a> {
    args: &'a Args,
    client: Client,
    steps: File,
    handles: Vec<Option<Handle>>,
    random: Random,
    out: Vec<u8>,
    report: ChurnReport,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let mut churn = Churn {
        client: connect(socket)?,
        steps: File::options().read(true).write(true).open(&args.steps)?,
        handles: vec![None; usize::from(args.tensors)],
        random: Random::new(u64::from(std::process::id())),
        out: vec![0; usize::try_from(ROWS)? * ROW_BYTES],
        report: ChurnReport::default(),
        args,
    };
    say(&format!("connected {}", std::process::id()))?;
    told()?;
    let end = Instant::now() + Duration::from_millis(args.millis);
    while Instant::now() < end && churn.report.faults.len() < MAX_FAULTS {
        churn.step()?;
    }
    say(&serde_json::to_string(&churn.report)?)
}

fn name_of(tensor: u16) -> String {
    format!("churn-{tensor}")
}

impl Churn<'_> {
    fn step(&mut self) -> Result<()> {
        let tensor = u16::try_from(self.random.below(u64::from(self.args.tensors)))?;
        let is_own = tensor % self.args.processes == self.args.process;
        match self.random.below(4) {
            0 | 1 if is_own => self.put(tensor),
            2 if is_own => self.remove(tensor),
            0 => self.get_by_name(tensor),
            1 => self.get_by_handle(tensor),
            _ => self.gather(tensor),
        }
    }

    fn fault(&mut self, tensor: u16, text: &str) {
        self.report.faults.push(format!("tensor {tensor}: {text}"));
    }

    /// The last step that has begun, and the last that is done.
    fn begun_and_done(&self, tensor: u16) -> Result<(u64, u64)> {
        let mut bytes = [[0; 8]; 2];
        self.steps.read_exact_at(bytes.as_flattened_mut(), u64::from(tensor) * 16)?;
        Ok((u64::from_le_bytes(bytes[0]), u64::from_le_bytes(bytes[1])))
    }

    fn note(&self, tensor: u16, which: u64, step: u64) -> Result<()> {
        Ok(self.steps.write_all_at(&step.to_le_bytes(), u64::from(tensor) * 16 + which * 8)?)
    }

    fn put(&mut self, tensor: u16) -> Result<()> {
        let step = (self.begun_and_done(tensor)?.0 + 1) | 1;
        self.note(tensor, 0, step)?;
        let mut source = Source::new(tensor, u16::try_from(step)?);
        let options = PutOptions::new().overwrite(true);
        match self.client.put_with(&name_of(tensor), Dtype::U64, &[ROWS, ROW_WORDS], &mut source, &options) {
            Ok(_) => {
                self.report.puts += 1;
                self.note(tensor, 1, step)?;
            }
            // What was there before is still there.
            Err(Error::PoolFull { .. }) => self.report.full += 1,
            Err(error) => self.fault(tensor, &format!("put: {error}")),
        }
        Ok(())
    }

    fn remove(&mut self, tensor: u16) -> Result<()> {
        let (begun, done) = self.begun_and_done(tensor)?;
        let step = (begun + 2) & !1;
        self.note(tensor, 0, step)?;
        match self.client.remove(&name_of(tensor)) {
            Ok(()) if done % 2 == 1 => self.report.removes += 1,
            Err(Error::NotFound { .. }) if done % 2 == 0 => self.report.missing += 1,
            result => self.fault(tensor, &format!("remove after step {done}: {result:?}")),
        }
        self.note(tensor, 1, step)
    }

    fn get_by_name(&mut self, tensor: u16) -> Result<()> {
        let client = self.client.clone();
        let done = self.begun_and_done(tensor)?.1;
        match client.get(&name_of(tensor)) {
            Ok(got) => self.check_whole(tensor, done, got.as_bytes()),
            Err(error) => self.unread(tensor, done, &error),
        }
    }

    fn get_by_handle(&mut self, tensor: u16) -> Result<()> {
        let done = self.begun_and_done(tensor)?.1;
        let Some(handle) = self.handle(tensor, done)? else { return Ok(()) };
        let mut out = std::mem::take(&mut self.out);
        let got = handle.get_into(&mut out);
        let checked = match got {
            Ok(()) => self.check_whole(tensor, done, &out),
            Err(error) => self.unread(tensor, done, &error),
        };
        self.out = out;
        checked
    }

    fn gather(&mut self, tensor: u16) -> Result<()> {
        let done = self.begun_and_done(tensor)?.1;
        let Some(handle) = self.handle(tensor, done)? else { return Ok(()) };
        let rows: [u64; BATCH] = std::array::from_fn(|_| self.random.below(ROWS));
        match handle.gather(&rows) {
            Ok(got) => {
                let pieces: Vec<_> = rows.into_iter().zip(got.as_bytes().chunks_exact(ROW_BYTES)).collect();
                self.check(tensor, done, &pieces)
            }
            Err(error) => self.unread(tensor, done, &error),
        }
    }

    /// A handle that was opened at any time before: the tensor may have been replaced or removed since.
    fn handle(&mut self, tensor: u16, done: u64) -> Result<Option<Handle>> {
        let at = usize::from(tensor);
        if self.handles[at].is_none() {
            match self.client.open(&name_of(tensor)) {
                Ok(handle) => self.handles[at] = Some(handle),
                Err(error) => self.unread(tensor, done, &error)?,
            }
        }
        Ok(self.handles[at].clone())
    }

    fn check_whole(&mut self, tensor: u16, done: u64, bytes: &[u8]) -> Result<()> {
        self.check(tensor, done, &[(0, bytes)])
    }

    /// `pieces` are what was read from the rows named on, all in one call.
    fn check(&mut self, tensor: u16, done: u64, pieces: &[(u64, &[u8])]) -> Result<()> {
        let begun = self.begun_and_done(tensor)?.0;
        self.report.reads += 1;
        let first = pieces.first().and_then(|(_, bytes)| bytes.first_chunk::<8>());
        let (found, version, place) = parts(first.map_or(0, |word| u64::from_le_bytes(*word)));
        let (step, is_put) = (u64::from(version), version % 2 == 1);
        if found != tensor || !is_put || step < done || step > begun {
            let text =
                format!("word of tensor {found}, version {version}, place {place}; steps {done} to {begun}");
            self.fault(tensor, &text);
        }
        let wrong: u64 =
            pieces.iter().map(|(row, bytes)| mismatches(bytes, tensor, version, row * ROW_WORDS)).sum();
        if wrong > 0 {
            self.fault(tensor, &format!("{wrong} words differ from version {version}"));
        }
        Ok(())
    }

    fn unread(&mut self, tensor: u16, done: u64, error: &Error) -> Result<()> {
        let begun = self.begun_and_done(tensor)?.0;
        let was_there_all_the_time = begun == done && done % 2 == 1;
        if !matches!(error, Error::NotFound { .. }) || was_there_all_the_time {
            self.fault(tensor, &format!("steps {done} to {begun}: {error}"));
        }
        self.report.missing += 1;
        Ok(())
    }
}
