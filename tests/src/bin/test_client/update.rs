//! Updates rows and reads them back, while other processes do the same to the same tensor.
//!
//! Every word of a row says which process wrote it, in which version and at which place.
//! Rows below [`SHARED`] are everybody's, of the others row `r` is that of process `r % processes`.
//! Versions of one process grow, so that whoever reads sees of each row and process what never goes back; and what a
//! process has updated itself it finds at once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tierpack_client::Handle;
use tierpack_tests::data::{Random, Words};
use tierpack_tests::reports::ChurnReport;

use crate::{connect, say, told};

const ROW_WORDS: u64 = 32;
const ROW_BYTES: usize = 256;
/// Rows that every process updates.
const SHARED: u64 = 16;
/// Rows of a read.
const BATCH: usize = 64;
/// One update in so many is of half of the rows of a process, and encodes blocks again instead of overlays.
const LARGE: u64 = 16;
const MAX_FAULTS: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tensor.
    #[arg(long)]
    tensor: String,
    /// Which process this is.
    #[arg(long)]
    process: u16,
    /// How many there are.
    #[arg(long)]
    processes: u16,
    /// How long to go on.
    #[arg(long)]
    millis: u64,
    /// Whether the words are such that codecs shorten them.
    #[arg(long)]
    compressible: bool,
    /// Others and the ones before are killed and begin again: versions go back, and the first fault ends it.
    #[arg(long)]
    killed: bool,
    /// Longer than this no call may take, in milliseconds.
    #[arg(long)]
    slowest_ms: Option<u64>,
}

struct Updates<'a> {
    args: &'a Args,
    words: Words,
    handle: Handle,
    random: Random,
    /// This process's last version.
    version: u16,
    /// The last version that was seen, by row and process.
    seen: Vec<u16>,
    report: ChurnReport,
}

pub(crate) fn run(socket: &Path, args: &Args) -> Result<()> {
    let handle = connect(socket)?.open(&args.tensor)?;
    let n_seen = usize::try_from(handle.n_rows())? * usize::from(args.processes);
    let mut updates = Updates {
        words: Words::new(args.compressible),
        handle,
        random: Random::new(u64::from(std::process::id())),
        version: 0,
        seen: vec![0; n_seen],
        report: ChurnReport::default(),
        args,
    };
    say(&format!("connected {}", std::process::id()))?;
    told()?;
    let end = Instant::now() + Duration::from_millis(args.millis);
    // The rest of its input tells it to stop.
    let is_told = Arc::new(AtomicBool::new(false));
    if args.killed {
        let is_told = Arc::clone(&is_told);
        std::thread::spawn(move || {
            let _ = told().is_ok();
            is_told.store(true, Ordering::Relaxed);
        });
    }
    while Instant::now() < end
        && !is_told.load(Ordering::Relaxed)
        && updates.report.faults.len() < MAX_FAULTS
        && updates.version < u16::MAX
    {
        updates.update()?;
        updates.read_any()?;
        if args.killed {
            updates.get()?;
            ensure!(updates.report.faults.is_empty(), "{:?}", updates.report.faults);
        }
    }
    say(&serde_json::to_string(&updates.report)?)
}

impl Updates<'_> {
    /// Updates own rows and shared ones, and reads them back.
    fn update(&mut self) -> Result<()> {
        let (n_rows, processes) = (self.handle.n_rows(), u64::from(self.args.processes));
        self.version += 1;
        let own: Vec<u64> =
            (SHARED..n_rows).filter(|row| row % processes == u64::from(self.args.process)).collect();
        let n_own = if self.random.below(LARGE) == 0 { own.len() / 2 } else { 5 };
        let mut rows: Vec<u64> = (0..n_own)
            .map(|_| own[usize::try_from(self.random.below(own.len() as u64)).unwrap_or(0)])
            .collect();
        rows.extend((0..2).map(|_| self.random.below(SHARED)));
        let mut values = vec![0; rows.len() * ROW_BYTES];
        for (row, bytes) in rows.iter().zip(values.chunks_exact_mut(ROW_BYTES)) {
            self.words.fill(bytes, self.args.process, self.version, row * ROW_WORDS);
        }
        let started = Instant::now();
        let revision = self.handle.update(&rows, &values)?;
        self.check_time(started, "update");
        self.report.puts += 1;
        if revision < self.report.puts || self.handle.revision()? < revision {
            self.fault(format!("revision {revision} after {} updates", self.report.puts));
        }
        self.read(&rows, true)
    }

    fn read_any(&mut self) -> Result<()> {
        let n_rows = self.handle.n_rows();
        let rows: Vec<u64> =
            (0..BATCH).map(|n| self.random.below(if n % 4 == 0 { SHARED } else { n_rows })).collect();
        self.read(&rows, false)
    }

    /// Reads rows; `is_own` says that this process has just updated them.
    fn read(&mut self, rows: &[u64], is_own: bool) -> Result<()> {
        let started = Instant::now();
        let tensor = self.handle.gather(rows)?;
        self.check_time(started, "gather");
        self.check(rows, tensor.as_bytes(), is_own)
    }

    /// Reads the whole tensor.
    fn get(&mut self) -> Result<()> {
        let started = Instant::now();
        let tensor = self.handle.get()?;
        self.check_time(started, "get");
        let rows: Vec<u64> = (0..self.handle.n_rows()).collect();
        self.check(&rows, tensor.as_bytes(), false)
    }

    fn check_time(&mut self, started: Instant, what: &str) {
        let took = started.elapsed().as_millis();
        if self.args.slowest_ms.is_some_and(|slowest| took > u128::from(slowest)) {
            self.fault(format!("{what} took {took} ms"));
        }
    }

    fn check(&mut self, rows: &[u64], found: &[u8], is_own: bool) -> Result<()> {
        for (row, bytes) in rows.iter().zip(found.chunks_exact(ROW_BYTES)) {
            self.report.reads += 1;
            let first = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let (writer, version) = self.words.origin(first);
            if self.words.mismatches(bytes, writer, version, row * ROW_WORDS) > 0
                || writer >= self.args.processes
            {
                self.fault(format!(
                    "row {row} is a mixture, it begins with process {writer} version {version}"
                ));
                continue;
            }
            if self.args.killed {
                continue;
            }
            let place = usize::try_from(*row)? * usize::from(self.args.processes) + usize::from(writer);
            let seen = self.seen[place];
            self.seen[place] = seen.max(version);
            if version < seen {
                self.fault(format!(
                    "row {row} of process {writer} went back from version {seen} to {version}"
                ));
            }
            let must_be_own = is_own && (*row >= SHARED || writer == self.args.process);
            if must_be_own && (writer, version) != (self.args.process, self.version) {
                let wanted = self.version;
                self.fault(format!(
                    "row {row} has version {version} of process {writer}, not {wanted} as written"
                ));
            }
        }
        Ok(())
    }

    fn fault(&mut self, text: String) {
        if self.report.faults.len() < MAX_FAULTS {
            self.report.faults.push(text);
        }
    }
}
