//! What writers have begun and done, in a file that outlives each of them, and their locks.
//!
//! Two words per unit: the last revision whose write has begun, and the last that is done.
//! A read that starts after revision `a` was done and ends before `b` has begun may see `a` to `b - 1`, nothing else.
//!
//! Who writes rows holds the tensor's lock together with others; who puts, removes or updates all of it holds it alone.
//! The kernel gives up the locks of a process that was killed.
//! Its last request may still be on its way then: the unit's words differ, and the next writer waits a while before it
//! writes more, after which it says so by [`SETTLED`].

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::spec::Spec;

const ENTRY_BYTES: usize = 16;
/// In the first word: no request is on its way, whatever the second says.
const SETTLED: u64 = 1 << 32;

/// What is known of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The last revision whose write has begun.
    pub(super) begun: u32,
    /// The last revision whose write was answered.
    pub(super) done: u32,
    /// Whether no write is on its way, although the last was not answered as asked.
    pub(super) is_settled: bool,
}

impl Entry {
    /// As a write of the next revision begins.
    pub(super) fn next(self) -> Self {
        Self { begun: self.begun + 1, is_settled: false, ..self }
    }

    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let begun = u64::from(self.begun) | if self.is_settled { SETTLED } else { 0 };
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&begun.to_le_bytes());
        bytes[8..].copy_from_slice(&u64::from(self.done).to_le_bytes());
        bytes
    }

    /// Whether a write may be on its way whose writer is gone.
    pub(super) fn is_open(self) -> bool {
        self.begun != self.done && !self.is_settled
    }

    fn parse(bytes: [u8; ENTRY_BYTES]) -> Self {
        let [begun, done] =
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
        let low = |word: u64| u32::try_from(word & 0xFFFF_FFFF).expect("32 bits");
        Self { begun: low(begun), done: low(done), is_settled: begun & SETTLED != 0 }
    }
}

/// The file and the folder of the locks.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    folder: PathBuf,
}

/// Holds a tensor's lock.
#[derive(Debug)]
pub(super) struct Lock {
    _file: Flock<File>,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Together with others who write other rows.
    Shared,
    /// Alone.
    Alone,
}

impl Ledger {
    /// Makes the files.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(super) fn create(folder: &Path, specs: &[Spec]) -> Result<()> {
        let units: usize = specs.iter().map(Spec::n_units).sum();
        let file = File::create(Self::path(folder)).context("create the ledger")?;
        file.set_len((units * ENTRY_BYTES) as u64).context("size the ledger")?;
        for spec in specs {
            File::create(folder.join(&spec.name)).context("create a lock")?;
        }
        Ok(())
    }

    /// Opens them.
    ///
    /// # Errors
    /// They are not there.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let file =
            File::options().read(true).write(true).open(Self::path(folder)).context("open the ledger")?;
        Ok(Self { file, folder: folder.to_owned() })
    }

    fn path(folder: &Path) -> PathBuf {
        folder.join("ledger")
    }

    /// Takes a tensor's lock, if it is free.
    ///
    /// # Errors
    /// The system refuses for another reason.
    pub(super) fn try_lock(&self, spec: &Spec, mode: Mode) -> Result<Option<Lock>> {
        let file = File::open(self.folder.join(&spec.name)).context("open a lock")?;
        let how = match mode {
            Mode::Shared => FlockArg::LockSharedNonblock,
            Mode::Alone => FlockArg::LockExclusiveNonblock,
        };
        match Flock::lock(file, how) {
            Ok(file) => Ok(Some(Lock { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno).context("lock a tensor"),
        }
    }

    /// The entries of some units of a tensor.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(&self, spec: &Spec, units: Range<usize>, out: &mut Vec<Entry>) -> Result<()> {
        let mut bytes = vec![0; units.len() * ENTRY_BYTES];
        self.file.read_exact_at(&mut bytes, Self::at(spec, units.start)).context("read the ledger")?;
        out.clear();
        out.extend(bytes.as_chunks().0.iter().map(|entry| Entry::parse(*entry)));
        Ok(())
    }

    /// The entry of one unit.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn entry(&self, spec: &Spec, unit: usize) -> Result<Entry> {
        let mut bytes = [0; ENTRY_BYTES];
        self.file.read_exact_at(&mut bytes, Self::at(spec, unit)).context("read the ledger")?;
        Ok(Entry::parse(bytes))
    }

    /// Notes that the write of a revision begins.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&self, spec: &Spec, unit: usize, revision: u32) -> Result<()> {
        self.write(Self::at(spec, unit), u64::from(revision))
    }

    /// Notes that the write of a revision is done.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn finish(&self, spec: &Spec, unit: usize, revision: u32) -> Result<()> {
        self.write(Self::at(spec, unit) + 8, u64::from(revision))
    }

    /// Notes all entries of a tensor at once, for one who holds its lock alone.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write_all(&self, spec: &Spec, entries: &[Entry]) -> Result<()> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        self.file.write_all_at(&bytes, Self::at(spec, 0)).context("write the ledger")
    }

    /// Notes that no write of a unit is on its way any more.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn settle(&self, spec: &Spec, unit: usize, begun: u32) -> Result<()> {
        self.write(Self::at(spec, unit), u64::from(begun) | SETTLED)
    }

    fn write(&self, at: u64, word: u64) -> Result<()> {
        self.file.write_all_at(&word.to_le_bytes(), at).context("write the ledger")
    }

    fn at(spec: &Spec, unit: usize) -> u64 {
        ((spec.first_unit + unit) * ENTRY_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec;
    use super::*;

    #[test]
    fn a_write_is_open_until_it_is_done_or_settled() {
        let (folder, specs) = (tempfile::tempdir().unwrap(), spec::all().unwrap());
        Ledger::create(folder.path(), &specs).unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        let (spec, last) = (&specs[10], specs[10].n_units() - 1);
        assert_eq!(ledger.entry(spec, last).unwrap(), Entry::default());
        ledger.begin(spec, last, 5).unwrap();
        assert!(ledger.entry(spec, last).unwrap().is_open());
        ledger.settle(spec, last, 5).unwrap();
        let entry = ledger.entry(spec, last).unwrap();
        assert!(!entry.is_open() && (entry.begun, entry.done) == (5, 0));
        ledger.begin(spec, last, 6).unwrap();
        assert!(ledger.entry(spec, last).unwrap().is_open());
        ledger.finish(spec, last, 6).unwrap();
        let mut all = Vec::new();
        ledger.read(spec, 0..spec.n_units(), &mut all).unwrap();
        assert!(
            !all[last].is_open() && all[last].done == 6 && all[..last].iter().all(|entry| entry.begun == 0)
        );
        assert_eq!(ledger.entry(&specs[11], 0).unwrap(), Entry::default());
        let next: Vec<_> = all.iter().map(|entry| entry.next()).collect();
        ledger.write_all(spec, &next).unwrap();
        ledger.read(spec, 0..spec.n_units(), &mut all).unwrap();
        assert!(all == next && all[last].begun == 7 && all.iter().all(|entry| entry.is_open()));
        assert_eq!(ledger.entry(&specs[11], 0).unwrap(), Entry::default());
    }

    #[test]
    fn a_lock_is_shared_or_alone() {
        let (folder, specs) = (tempfile::tempdir().unwrap(), spec::all().unwrap());
        Ledger::create(folder.path(), &specs).unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        let lock = |spec: usize, mode| ledger.try_lock(&specs[spec], mode).unwrap();
        let (one, two) = (lock(0, Mode::Shared), lock(0, Mode::Shared));
        assert!(
            one.is_some()
                && two.is_some()
                && lock(0, Mode::Alone).is_none()
                && lock(1, Mode::Alone).is_some()
        );
        drop((one, two));
        let alone = lock(0, Mode::Alone);
        assert!(alone.is_some() && lock(0, Mode::Shared).is_none());
    }
}
