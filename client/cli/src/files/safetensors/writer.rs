//! Writing a safetensors file, one tensor at a time.
//!
//! `target.rs` says how the file comes by its name.
//! Order and padding are those of the safetensors crate: by descending dtype, then name; header in steps of 8 bytes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use safetensors::tensor::TensorInfo;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use tierpack_client::Entry;

use super::super::raw_len;
use super::super::target::Target;
use super::header::METADATA_KEY;
use super::{MAX_HEADER_BYTES, to_file_dtype};
use crate::escape;

/// Which tensors a file will hold, in their order, and its header.
#[derive(Debug)]
pub(crate) struct Plan {
    tensors: Vec<(Entry, TensorInfo)>,
    data_len: u64,
}

impl Plan {
    /// Orders `entries` as the file will hold them.
    ///
    /// # Errors
    /// A tensor that a safetensors file cannot hold.
    pub(crate) fn new(entries: Vec<Entry>) -> Result<Self> {
        let mut tensors = Vec::with_capacity(entries.len());
        for entry in entries {
            let shown = escape::quoted(&entry.name);
            ensure!(entry.name != METADATA_KEY, "tensor {shown}: a safetensors file reserves that name");
            ensure!(
                raw_len(entry.dtype, &entry.shape) == Some(entry.raw_bytes),
                "tensor {shown}: the pool lists {} bytes for {} {:?}",
                entry.raw_bytes,
                entry.dtype,
                entry.shape
            );
            let shape = entry.shape.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>()?;
            let dtype = to_file_dtype(entry.dtype)?;
            tensors.push((entry, TensorInfo { dtype, shape, data_offsets: (0, 0) }));
        }
        tensors.sort_by(|(left_entry, left), (right_entry, right)| {
            right.dtype.cmp(&left.dtype).then_with(|| left_entry.name.cmp(&right_entry.name))
        });
        let mut data_len: u64 = 0;
        for (entry, info) in &mut tensors {
            let end = data_len
                .checked_add(entry.raw_bytes)
                .with_context(|| format!("{data_len} and {} bytes pass 64 bits", entry.raw_bytes))?;
            info.data_offsets = (usize::try_from(data_len)?, usize::try_from(end)?);
            data_len = end;
        }
        Ok(Self { tensors, data_len })
    }

    /// The tensors, in the order of their bytes.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.tensors.iter().map(|(entry, _)| entry)
    }

    /// Bytes of all tensors.
    pub(crate) fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Length and header, as they are at the start of the file.
    fn front(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
        let mut front = vec![0; 8];
        serde_json::to_writer(&mut front, &HeaderText { plan: self, metadata })
            .context("write the header")?;
        front.resize(front.len().next_multiple_of(8), b' ');
        let header_len = front.len() as u64 - 8;
        ensure!(
            header_len <= MAX_HEADER_BYTES,
            "a header of {header_len} bytes for {} tensors is above the limit of {MAX_HEADER_BYTES}: \
             write several files",
            self.tensors.len()
        );
        front[..8].copy_from_slice(&header_len.to_le_bytes());
        Ok(front)
    }
}

/// The header as JSON: metadata first, sorted, so that equal pools are written as equal files.
struct HeaderText<'a> {
    plan: &'a Plan,
    metadata: &'a BTreeMap<String, String>,
}

impl Serialize for HeaderText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA_KEY, self.metadata)?;
        }
        for (entry, info) in &self.plan.tensors {
            map.serialize_entry(&entry.name, info)?;
        }
        map.end()
    }
}

/// A file that is being written; dropped before [`Output::finish`], it leaves nothing.
#[derive(Debug)]
pub(crate) struct Output {
    file: Target,
    left: u64,
}

impl Output {
    /// Starts the file that will become `target`, with the header of `plan`.
    ///
    /// # Errors
    /// As [`Target::create`]; or the header is too long.
    pub(crate) fn create(target: &Path, plan: &Plan, metadata: &BTreeMap<String, String>) -> Result<Self> {
        let front = plan.front(metadata)?;
        let file = Target::create(target)?;
        let mut output = Self { file, left: plan.data_len + front.len() as u64 };
        output.write(&front)?;
        Ok(output)
    }

    /// Whether the bytes go to standard output, which then has no room for other text.
    pub(crate) fn is_stdout(&self) -> bool {
        self.file.is_stdout()
    }

    /// Appends the next bytes.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let more = bytes.len() as u64;
        self.left = self
            .left
            .checked_sub(more)
            .with_context(|| format!("{more} bytes where only {} are left of the file", self.left))?;
        self.file.write(bytes)
    }

    /// Names the complete file.
    ///
    /// # Errors
    /// Tensors are missing, or the file cannot be saved or named.
    pub(crate) fn finish(self) -> Result<()> {
        ensure!(self.left == 0, "{} bytes are missing from {}", self.left, self.file.path().display());
        self.file.finish()
    }
}
