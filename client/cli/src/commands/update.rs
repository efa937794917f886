//! `tierpack update`: new values for rows of a tensor, which keeps its place and everybody's handles.
//!
//! More than 16 MiB are updates of 16 MiB, one after the other: readers see the rows change as the bar moves, and when
//! one fails, the rows before it keep their new values.

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use tierpack_client::{Dtype, Error, Handle};
use tierpack_shm::message::MAX_CHUNK_BYTES;

use super::{DEFAULT_NAMESPACE, byte_bar, connect};
use crate::files::{self, FileTensor, ReadAs, SourceFile, npy};
use crate::output::Output;
use crate::{escape, table};

/// Arguments of `update`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the tensor
    name: String,
    /// Rows to change: an npy file of integers, or a list such as 0,5,10-20 [default: all]
    #[arg(long, value_name = "FILE.npy|LIST")]
    rows: Option<String>,
    /// New values: an npy or safetensors file with as many rows, of the tensor's dtype and row length
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    #[command(flatten)]
    read_as: ReadAs,
    /// Namespace of the tensor
    #[arg(long, value_name = "NS", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The rows to change.
#[derive(Debug)]
enum Rows {
    /// All of so many.
    All(u64),
    /// These, in this order.
    Listed(Vec<i128>),
    /// Those that a file lists: a few are in memory at a time.
    File(SourceFile, FileTensor),
}

/// Row numbers that are looked at in one step.
const STEP_ROWS: usize = 1 << 16;

/// What was done, as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    namespace: &'a str,
    name: &'a str,
    rows: u64,
    raw_bytes: u64,
    revision: u64,
}

/// Updates rows.
///
/// # Errors
/// The files do not suit the tensor, a row does not exist, or the daemon refuses; for the first two nothing has
/// changed.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut Output) -> Result<()> {
    let source = SourceFile::open(&args.from)?;
    let (tensors, _) = files::read(&source, args.read_as, || Ok(args.name.clone()))?;
    let values = choose(tensors, &args.name, &args.from)?;
    let client = connect(socket, &args.namespace)?;
    let named = || format!("update tensor {}", escape::quoted(&args.name));
    let handle = client.open(&args.name).with_context(named)?;
    let rows = match &args.rows {
        None => Rows::All(handle.n_rows()),
        Some(list) => Rows::read(list)?,
    };
    rows.check(handle.n_rows()).with_context(named)?;
    check_values(&values, &handle, rows.len(), &args.from)?;
    let revision = send(&handle, &rows, &source, &values).with_context(named)?;
    let (rows, raw_bytes) = (rows.len(), values.raw_bytes());
    if args.json {
        let (namespace, name) = (&args.namespace, &args.name);
        let document = Document { namespace, name, rows, raw_bytes, revision };
        serde_json::to_writer(&mut *out, &document)?;
        writeln!(out)?;
        return Ok(());
    }
    let (name, size) = (escape::cell(&args.name), table::size(raw_bytes));
    let plural = if rows == 1 { "" } else { "s" };
    writeln!(out, "updated {rows} row{plural} of {name}, {size}: revision {revision}")?;
    Ok(())
}

/// The tensor of the file that has the values: the one of that name, or the only one.
fn choose(tensors: Vec<FileTensor>, name: &str, path: &Path) -> Result<FileTensor> {
    let n = tensors.len();
    let chosen = tensors.into_iter().find(|tensor| n == 1 || tensor.name == name);
    chosen.with_context(|| {
        format!("{} holds {n} tensors, none of them {}", path.display(), escape::quoted(name))
    })
}

/// Refuses values that are not so many rows of the tensor.
fn check_values(values: &FileTensor, handle: &Handle, n_rows: u64, path: &Path) -> Result<()> {
    let (dtype, row_bytes) = (handle.dtype(), handle.row_bytes());
    let (found, path) = (values.dtype, path.display());
    ensure!(found == dtype, "{path} holds {found}, the tensor is {dtype}: convert the values first");
    let (needed, found) = (u128::from(n_rows) * u128::from(row_bytes), values.raw_bytes());
    ensure!(
        needed == u128::from(found),
        "{path} holds {} of {found} bytes, {n_rows} rows of {row_bytes} bytes are needed: {needed} bytes",
        table::shape(&values.shape)
    );
    Ok(())
}

/// Sends the values in steps; returns the revision after the last.
fn send(handle: &Handle, rows: &Rows, source: &SourceFile, values: &FileTensor) -> Result<u64> {
    let row_bytes = handle.row_bytes();
    // A longer row goes in parts of its own.
    let step_rows = (MAX_CHUNK_BYTES / (row_bytes + 8)).max(1);
    let bar = byte_bar("update", values.raw_bytes());
    let (mut first, mut revision) = (0, None);
    while first < rows.len() && row_bytes > 0 {
        let (end, start) = (rows.len().min(first + step_rows), values.range.start + first * row_bytes);
        let mut fill = |offset, buf: &mut [u8]| {
            let from = start + offset;
            bar.set_position(from - values.range.start);
            source.range(from..from + buf.len() as u64).read_exact(buf)
        };
        revision = Some(handle.update_with(&rows.part(first..end)?, &mut fill)?);
        first = end;
    }
    bar.finish_and_clear();
    // Nothing to write is no update, but a tensor that is gone is an error all the same.
    match revision {
        Some(revision) => Ok(revision),
        None => Ok(handle.update::<u64>(&[], &[])?),
    }
}

impl Rows {
    /// Reads a list, or the file that it names.
    fn read(list: &str) -> Result<Self> {
        let path = Path::new(list);
        let is_npy = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"));
        let may_be_list = list.chars().all(|c| c.is_ascii_digit() || " ,-".contains(c));
        if is_npy || (!may_be_list && path.is_file()) {
            Self::from_file(Path::new(list))
        } else {
            Self::from_list(list)
        }
    }

    fn from_list(list: &str) -> Result<Self> {
        /// Rows that a list makes: more need a file.
        const MOST: usize = 1 << 24;
        let mut rows = Vec::new();
        for part in list.split(',') {
            let number = |text: &str| {
                let part = escape::quoted(part);
                text.trim().parse::<u32>().with_context(|| {
                    format!("{part} in --rows is neither a row nor a range: pass a list such as 0,5,10-20")
                })
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            ensure!(first <= last, "range {first}-{last} in --rows runs backwards");
            let n = usize::try_from(last - first)?;
            ensure!(rows.len() + n < MOST, "--rows lists over {MOST} rows: pass a .npy file of them");
            rows.extend((first..=last).map(i128::from));
        }
        Ok(Self::Listed(rows))
    }

    fn from_file(path: &Path) -> Result<Self> {
        let source = SourceFile::open(path)?;
        let tensor = npy::read(&source, "rows".to_owned(), None)?;
        integers(tensor.dtype, &[]).with_context(|| format!("read {}", path.display()))?;
        Ok(Self::File(source, tensor))
    }

    fn len(&self) -> u64 {
        match self {
            Self::All(n) => *n,
            Self::Listed(rows) => rows.len() as u64,
            Self::File(_, tensor) => tensor.shape.iter().product(),
        }
    }

    /// Refuses a row that the tensor does not have, before anything is sent.
    fn check(&self, n_rows: u64) -> Result<()> {
        if matches!(self, Self::All(_)) {
            return Ok(());
        }
        for step in steps(0..self.len()) {
            let (first, rows) = (step.start, self.numbers(step)?);
            if let Some(at) = rows.iter().position(|row| !(0..i128::from(n_rows)).contains(row)) {
                let position = usize::try_from(first)? + at;
                return Err(Error::RowOutOfRange { position, row: rows[at], n_rows }.into());
            }
        }
        Ok(())
    }

    /// The numbers at these positions.
    fn numbers(&self, positions: Range<u64>) -> Result<Vec<i128>> {
        match self {
            Self::All(_) => Ok(positions.map(i128::from).collect()),
            Self::Listed(rows) => {
                Ok(rows[usize::try_from(positions.start)?..usize::try_from(positions.end)?].to_vec())
            }
            Self::File(source, tensor) => {
                let start = tensor.range.start;
                let width = u64::from(tensor.dtype.bits()) / 8;
                let mut bytes = Vec::new();
                let range = start + positions.start * width..start + positions.end * width;
                source.range(range).read_to_end(&mut bytes).context("read the rows")?;
                integers(tensor.dtype, &bytes)
            }
        }
    }

    /// The rows at these positions, which have been checked.
    fn part(&self, positions: Range<u64>) -> Result<Vec<u64>> {
        let mut rows = Vec::new();
        for step in steps(positions) {
            for number in self.numbers(step)? {
                rows.push(u64::try_from(number)?);
            }
        }
        Ok(rows)
    }
}

/// Positions, as many at a time as are looked at in one step.
fn steps(positions: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = positions.end;
    positions.step_by(STEP_ROWS).map(move |first| first..end.min(first + STEP_ROWS as u64))
}

/// The integers of an array.
fn integers(dtype: Dtype, bytes: &[u8]) -> Result<Vec<i128>> {
    fn each<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> i128) -> Vec<i128> {
        bytes.as_chunks::<N>().0.iter().map(|word| convert(*word)).collect()
    }
    Ok(match dtype {
        Dtype::U8 => each(bytes, |word| u8::from_le_bytes(word).into()),
        Dtype::I8 => each(bytes, |word| i8::from_le_bytes(word).into()),
        Dtype::U16 => each(bytes, |word| u16::from_le_bytes(word).into()),
        Dtype::I16 => each(bytes, |word| i16::from_le_bytes(word).into()),
        Dtype::U32 => each(bytes, |word| u32::from_le_bytes(word).into()),
        Dtype::I32 => each(bytes, |word| i32::from_le_bytes(word).into()),
        Dtype::U64 => each(bytes, |word| u64::from_le_bytes(word).into()),
        Dtype::I64 => each(bytes, |word| i64::from_le_bytes(word).into()),
        other => bail!("{other} are no row numbers: save an array of integers"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_rows_and_ranges_in_its_order() {
        let rows = |list| Rows::from_list(list).map(|rows| rows.part(0..rows.len()).unwrap());
        assert_eq!(rows("0,5,10-12").unwrap(), [0, 5, 10, 11, 12]);
        assert_eq!(rows(" 7 , 3-3,7").unwrap(), [7, 3, 7]);
        for bad in ["", ",", "1,", "a", "-1", "1-", "-", "3-1", "1-2-3", "0x1", "4294967296", "0-4294967295"]
        {
            assert!(rows(bad).is_err(), "{bad:?}");
        }
        let error = rows("1,x\n").unwrap_err().to_string();
        assert!(error.contains(r#""x\n""#) && error.contains("0,5,10-20"), "{error}");
    }

    #[test]
    fn a_row_that_is_not_there_is_named_by_its_position() {
        let rows = Rows::Listed(vec![0, 9, 10, -1]);
        let refused = |rows: &Rows| rows.check(10).unwrap_err().downcast::<Error>().unwrap();
        let error = refused(&rows);
        assert!(matches!(error, Error::RowOutOfRange { position: 2, row: 10, n_rows: 10 }), "{error}");
        let error = refused(&Rows::Listed(vec![3, -1]));
        assert!(matches!(error, Error::RowOutOfRange { position: 1, row: -1, .. }), "{error}");
        assert!(Rows::All(10).check(10).is_ok());
    }

    #[test]
    fn integers_of_every_type_keep_their_value() {
        assert_eq!(integers(Dtype::U8, &[255, 0]).unwrap(), [255, 0]);
        assert_eq!(integers(Dtype::I16, &[0xFF, 0xFF]).unwrap(), [-1]);
        assert_eq!(integers(Dtype::U64, &[0xFF; 8]).unwrap(), [i128::from(u64::MAX)]);
        assert_eq!(integers(Dtype::I64, &i64::MIN.to_le_bytes()).unwrap(), [i128::from(i64::MIN)]);
        assert!(integers(Dtype::F32, &[0; 4]).unwrap_err().to_string().contains("F32"));
    }
}
