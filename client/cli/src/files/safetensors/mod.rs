//! Safetensors files: reading them as a stream, and writing them back.
//!
//! The types are those of the `safetensors` crate, and so are the rules of a header.
//! Its parser is not used: it wants the whole file in memory, keeps the last of two equal keys, and names no numbers.
//! A test compares what both accept.

mod header;
mod writer;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use safetensors::tensor::Dtype as FileDtype;
use tierpack_client::Dtype;

pub(super) use header::unique_texts;
pub(crate) use writer::{Output, Plan};

use super::{FileTensor, SourceFile, check_limits};

/// Longest header that is read or written, as in the safetensors crate.
pub(super) const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the header's length in front of it.
const PREFIX_BYTES: u64 = 8;

/// What a file holds: its tensors in the order of their bytes, and its `__metadata__`.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Every tensor, checked.
    pub(crate) tensors: Vec<FileTensor>,
    /// Free text that the file's author stored.
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Reads and checks the header of `source`.
///
/// # Errors
/// The file is not a safetensors file, or its header describes anything but exactly the bytes that follow it.
pub(crate) fn read(source: &SourceFile) -> Result<Contents> {
    parse(source).with_context(|| format!("read {} as safetensors", source.path().display()))
}

fn parse(source: &SourceFile) -> Result<Contents> {
    let header_len = header_len(source)?;
    let mut text = vec![0; usize::try_from(header_len)?];
    source.read_exact_at(&mut text, PREFIX_BYTES)?;
    let header = header::parse(&text)?;
    drop(text);
    let data_start = PREFIX_BYTES + header_len;
    let tensors = header::place(header.tensors, data_start, source.len() - data_start)?;
    tensors.iter().try_for_each(|tensor| check_limits(&tensor.name, tensor.shape.len()))?;
    Ok(Contents { tensors, metadata: header.metadata })
}

/// The length of the header, checked against the limit and the file.
fn header_len(source: &SourceFile) -> Result<u64> {
    let len = source.len();
    ensure!(len >= PREFIX_BYTES, "the file has {len} bytes, its header length alone needs {PREFIX_BYTES}");
    let mut prefix = [0; 8];
    source.read_exact_at(&mut prefix, 0)?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len <= MAX_HEADER_BYTES && header_len <= len - PREFIX_BYTES {
        return Ok(header_len);
    }
    let swapped = header_len.swap_bytes();
    if swapped > 0 && swapped <= MAX_HEADER_BYTES && swapped <= len - PREFIX_BYTES {
        bail!(
            "the header length {header_len} is malformed: read as big-endian it is {swapped}, \
             but safetensors is little-endian"
        );
    }
    ensure!(
        header_len <= MAX_HEADER_BYTES,
        "a header of {header_len} bytes is above the limit of {MAX_HEADER_BYTES}"
    );
    bail!("a header of {header_len} bytes does not fit the file, which has {len} bytes");
}

/// Our dtype for a file's.
fn from_file_dtype(dtype: FileDtype) -> Result<Dtype> {
    Ok(dtype.to_string().parse::<Dtype>()?)
}

/// A file's dtype for ours.
fn to_file_dtype(dtype: Dtype) -> Result<FileDtype> {
    use serde::Deserialize as _;
    use serde::de::value::{Error, StrDeserializer};
    FileDtype::deserialize(StrDeserializer::<Error>::new(dtype.name()))
        .with_context(|| format!("write dtype {dtype} to a safetensors file"))
}

#[cfg(test)]
mod tests;
