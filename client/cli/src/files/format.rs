//! Which format a file has, by its first bytes or by the user's choice.
//!
//! The end of a name decides only where the bytes say nothing, so that a damaged file is refused by the reader of what it
//! was to be, which has the numbers.

use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;
use tierpack_client::Dtype;
use tierpack_shm::types::UnknownDtype;

use super::SourceFile;
use super::safetensors::MAX_HEADER_BYTES;

/// Bytes that tell a format.
const HEAD_BYTES: u64 = 16;

const DTYPE_HELP: &str =
    "Dtype of an npy file's elements where npy has none: bf16, f8_e4m3 and others that ml_dtypes writes";

/// A format of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One array of `NumPy`
    Npy,
    /// Named tensors
    Safetensors,
}

/// What the user says of an input.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct ReadAs {
    /// Format of the input, whatever its first bytes say
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    // Not a comment for the help: the names of dtypes are no code there.
    #[arg(long, value_name = "DTYPE", value_parser = dtype, help = DTYPE_HELP)]
    pub(crate) dtype: Option<Dtype>,
}

fn dtype(text: &str) -> Result<Dtype, UnknownDtype> {
    text.to_ascii_uppercase().parse()
}

/// The format of `source`.
///
/// # Errors
/// It is neither; the error says what it looks like.
pub(super) fn detect(source: &SourceFile) -> Result<Format> {
    let head = head(source)?;
    if head.starts_with(b"\x93NUMPY") {
        return Ok(Format::Npy);
    }
    if let [prefix @ .., b'{'] = head.get(..9).unwrap_or_default()
        && let Ok(prefix) = prefix.try_into()
        && u64::from_le_bytes(prefix) <= MAX_HEADER_BYTES
    {
        return Ok(Format::Safetensors);
    }
    let (kind, remedy) = known(&head).unwrap_or_else(|| (unknown(&head), SAVE));
    match by_name(source.path()) {
        Some(format) if known(&head).is_none() => Ok(format),
        _ => bail!("{} is neither npy nor safetensors but {kind}: {remedy}", source.path().display()),
    }
}

fn head(source: &SourceFile) -> Result<Vec<u8>> {
    let mut head = vec![0; usize::try_from(source.len().min(HEAD_BYTES))?];
    source.read_exact_at(&mut head, 0)?;
    Ok(head)
}

fn by_name(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "npy" => Some(Format::Npy),
        "safetensors" => Some(Format::Safetensors),
        _ => None,
    }
}

const SAVE: &str = "save it by numpy.save or safetensors, or pass --format if it is one of them";
const SAVE_EACH: &str =
    "load it where it was made, and save its tensors by safetensors or each by numpy.save";
const UNPACK: &str = "unpack it first";

/// What other files start with.
fn known(head: &[u8]) -> Option<(String, &'static str)> {
    let starts: [(&[u8], &str, &str); 12] = [
        (b"PK\x03\x04", "a zip archive, as numpy.savez and torch.save write", SAVE_EACH),
        (b"\x89HDF\r\n", "HDF5", SAVE_EACH),
        (b"GGUF", "GGUF", SAVE_EACH),
        (b"PAR1", "Parquet", SAVE_EACH),
        (b"ARROW1", "Arrow", SAVE_EACH),
        (b"\x1f\x8b", "compressed by gzip", UNPACK),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd", UNPACK),
        (b"\xfd7zXZ", "compressed by xz", UNPACK),
        (b"BZh", "compressed by bzip2", UNPACK),
        (b"version https://", "a pointer of Git LFS", "fetch the file by `git lfs pull`"),
        (b"\x7fELF", "a program", SAVE),
        (b"<", "HTML or XML", "download the file itself, not its page"),
    ];
    let found = starts.iter().find(|(start, ..)| head.starts_with(start));
    match (found, head) {
        (Some((_, kind, remedy)), _) => Some(((*kind).to_owned(), remedy)),
        (None, [0x80, 2..=5, ..]) => Some(("a Python pickle".to_owned(), SAVE_EACH)),
        _ => None,
    }
}

fn unknown(head: &[u8]) -> String {
    if head.is_empty() {
        "empty".to_owned()
    } else if head.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        "text".to_owned()
    } else {
        let bytes: Vec<_> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("unknown, with the first bytes {}", bytes.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, bytes: &[u8]) -> Result<Format> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join(name);
        std::fs::write(&path, bytes)?;
        detect(&SourceFile::open(&path)?)
    }

    #[test]
    fn the_bytes_decide_and_then_the_name() {
        let safetensors = [&2_u64.to_le_bytes()[..], b"{}"].concat();
        for name in ["x", "x.npy", "x.safetensors", "x.bin"] {
            assert_eq!(found(name, b"\x93NUMPY\x01\x00").unwrap(), Format::Npy, "{name}");
            assert_eq!(found(name, &safetensors).unwrap(), Format::Safetensors, "{name}");
        }
        for damaged in [&b""[..], b"\x92NUMPY", b"words of text {", &[0; 100]] {
            assert_eq!(found("x.NPY", damaged).unwrap(), Format::Npy);
            assert_eq!(found("x.safetensors", damaged).unwrap(), Format::Safetensors);
            assert!(found("x", damaged).is_err());
        }
    }

    #[test]
    fn an_error_says_what_the_file_looks_like_and_the_way_out() {
        let cases: [(&[u8], &[&str]); 8] = [
            (b"PK\x03\x04rest", &["zip archive", "torch.save", "numpy.save"]),
            (b"\x80\x04\x95rest", &["Python pickle", "safetensors"]),
            (b"\x1f\x8brest", &["gzip", "unpack"]),
            (b"version https://git-lfs.github.com", &["Git LFS", "git lfs pull"]),
            (b"<!DOCTYPE html>", &["HTML", "download"]),
            (b"1 2 3\n", &["text", "--format"]),
            (b"", &["empty", "--format"]),
            (b"\xff\x00\x01", &["ff 00 01", "--format"]),
        ];
        for (bytes, parts) in cases {
            let error = found("x.bin", bytes).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        assert!(found("x.npy", b"PK\x03\x04").is_err(), "a known other format, whatever its name");
    }
}
