//! Tensor files: what `put` reads and `get` writes.
//!
//! A file is never mapped: one that shrinks or changes during an import is an error, not a SIGBUS.
//! Every length in a file is checked against the file's own length before memory is taken for it.
//! Readers return a list of [`FileTensor`]s first, all checked, and stream the data of each afterwards.

mod format;
pub(crate) mod index;
pub(crate) mod npy;
pub(crate) mod safetensors;
mod target;

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::OFlag;
use tierpack_client::Dtype;
use tierpack_shm::message::{MAX_NAME_BYTES, MAX_RANK};

use format::Format;
pub(crate) use format::ReadAs;

use crate::escape;

/// One tensor of a file: what it is, and which bytes of the file hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileTensor {
    /// Its name, at most 4096 bytes.
    pub(crate) name: String,
    /// Its element type.
    pub(crate) dtype: Dtype,
    /// Its shape; the bytes that follow from it are the length of `range`.
    pub(crate) shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub(crate) range: Range<u64>,
}

impl FileTensor {
    /// Bytes of data.
    pub(crate) fn raw_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Elements.
    pub(crate) fn n_elems(&self) -> u64 {
        // Checked by `raw_len` when the file was read.
        self.shape.iter().product()
    }

    /// Renames the tensor.
    ///
    /// # Errors
    /// The name is too long.
    pub(crate) fn rename(&mut self, name: String) -> Result<()> {
        check_limits(&name, self.shape.len())?;
        self.name = name;
        Ok(())
    }
}

/// Refuses what no pool takes, before any tensor of the file is put.
///
/// # Errors
/// A name or a rank beyond the limit.
fn check_limits(name: &str, rank: usize) -> Result<()> {
    let (len, shown) = (name.len(), escape::quoted(name));
    ensure!(
        len <= MAX_NAME_BYTES,
        "tensor {shown}: a name of {len} bytes is above the limit of {MAX_NAME_BYTES}"
    );
    ensure!(rank <= MAX_RANK, "tensor {shown}: {rank} dimensions are above the limit of {MAX_RANK}");
    Ok(())
}

/// Reads and checks the header of a file; returns its tensors and its metadata.
///
/// `name` is asked for where the format has no names.
///
/// # Errors
/// The file is neither npy nor safetensors, is malformed, or is not what `read_as` says.
pub(crate) fn read(
    source: &SourceFile,
    read_as: ReadAs,
    name: impl FnOnce() -> Result<String>,
) -> Result<(Vec<FileTensor>, BTreeMap<String, String>)> {
    let format = match read_as.format {
        Some(format) => format,
        None => format::detect(source)?,
    };
    match (format, read_as.dtype) {
        (Format::Npy, dtype) => Ok((vec![npy::read(source, name()?, dtype)?], BTreeMap::new())),
        (Format::Safetensors, None) => {
            let contents = safetensors::read(source)?;
            Ok((contents.tensors, contents.metadata))
        }
        (Format::Safetensors, Some(dtype)) => bail!(
            "--dtype {dtype} is for npy files, and {} is safetensors, which names its dtypes: leave it out",
            source.path().display()
        ),
    }
}

/// Bytes of a tensor, `None` where the product passes 64 bits or is not whole bytes.
fn raw_len(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    // In this order, as the safetensors crate does: a zero before a large dimension keeps the product small.
    let elems = shape.iter().try_fold(1_u64, |elems, &n| elems.checked_mul(n))?;
    let bits = elems.checked_mul(u64::from(dtype.bits()))?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// A regular file that is being imported, and what it looked like when it was opened.
#[derive(Debug)]
pub(crate) struct SourceFile {
    file: File,
    path: PathBuf,
    len: u64,
    modified: (i64, i64),
}

impl SourceFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // Without O_NONBLOCK, opening a pipe would wait for a writer.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        let found = file.metadata().with_context(|| format!("read the length of {}", path.display()))?;
        ensure!(
            found.is_file(),
            "{} is not a regular file: data is imported from files only",
            path.display()
        );
        Ok(Self { file, path: path.to_owned(), len: found.len(), modified: modified(&found) })
    }

    /// Where the file was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` from the bytes at `offset`.
    ///
    /// # Errors
    /// The bytes cannot be read, or the file has become shorter.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file
            .read_exact_at(buf, offset)
            .with_context(|| format!("read {} bytes at {offset} of {}", buf.len(), self.path.display()))
    }

    /// The bytes in `range`; their last read fails if the file has changed by then.
    pub(crate) fn range(&self, range: Range<u64>) -> RangeReader<'_> {
        RangeReader { source: self, start: range.start, range }
    }

    /// Compares length and modification time with those at opening.
    ///
    /// # Errors
    /// The file was changed, or can no longer be examined.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let now =
            self.file.metadata().with_context(|| format!("read the length of {}", self.path.display()))?;
        let path = self.path.display();
        if now.len() != self.len {
            bail!(
                "{path} changed during the import, from {} to {} bytes: import it when nothing writes to it",
                self.len,
                now.len()
            );
        }
        if modified(&now) != self.modified {
            bail!("{path} was written during the import: import it when nothing writes to it");
        }
        Ok(())
    }
}

fn modified(found: &Metadata) -> (i64, i64) {
    (found.mtime(), found.mtime_nsec())
}

/// Streams a range of a [`SourceFile`].
#[derive(Debug)]
pub(crate) struct RangeReader<'a> {
    source: &'a SourceFile,
    start: u64,
    /// What is left to read.
    range: Range<u64>,
}

impl Seek for RangeReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => self.start.checked_add(at),
            SeekFrom::Current(by) => self.range.start.checked_add_signed(by),
            SeekFrom::End(by) => self.range.end.checked_add_signed(by),
        };
        let is_within = |at: &u64| (self.start..=self.range.end).contains(at);
        self.range.start =
            at.filter(is_within).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.range.start - self.start)
    }
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.range.end - self.range.start;
        let wanted = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.source.file.read_at(&mut buf[..wanted], self.range.start)?;
        self.range.start += read as u64;
        // Checked before the last bytes are handed over, so that no tensor of a changed file is committed.
        if read == 0 || self.range.is_empty() {
            self.source.check_unchanged().map_err(io::Error::other)?;
        }
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{left} bytes are missing")));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_len_refuses_overflow_and_half_bytes() {
        assert_eq!(raw_len(Dtype::Bf16, &[3, 5]), Some(30));
        assert_eq!(raw_len(Dtype::F32, &[]), Some(4));
        assert_eq!(raw_len(Dtype::F32, &[0, 384]), Some(0));
        assert_eq!(raw_len(Dtype::F4, &[3]), None);
        assert_eq!(raw_len(Dtype::F6E2m3, &[4]), Some(3));
        assert_eq!(raw_len(Dtype::U8, &[1 << 32, 1 << 32]), None);
    }

    #[test]
    fn a_file_that_changes_is_refused_at_the_last_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        type Change = fn(&Path);
        let cases: [(&str, Change); 3] = [
            ("from 1000 to 0 bytes", |path| std::fs::write(path, b"").unwrap()),
            ("from 1000 to 1001 bytes", |path| std::fs::write(path, [7; 1001]).unwrap()),
            ("was written", |path| {
                std::fs::write(path, [8; 1000]).unwrap();
                let file = File::options().write(true).open(path).unwrap();
                file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            }),
        ];
        for (message, change) in cases {
            std::fs::write(&path, [7; 1000]).unwrap();
            let source = SourceFile::open(&path).unwrap();
            source.check_unchanged().unwrap();
            let mut reader = source.range(100..1000);
            let mut first = [0; 10];
            reader.read_exact(&mut first).unwrap();
            change(&path);
            let error = reader.read_to_end(&mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_range_streams_exactly_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, (0..=255).collect::<Vec<u8>>()).unwrap();
        let source = SourceFile::open(&path).unwrap();
        let mut read = Vec::new();
        source.range(3..250).read_to_end(&mut read).unwrap();
        assert_eq!(read, (3..250).collect::<Vec<u8>>());
        source.range(5..5).read_to_end(&mut read).unwrap();
        assert_eq!(read.len(), 247);
    }

    #[test]
    fn pipes_and_folders_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/zero")] {
            let error = SourceFile::open(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
