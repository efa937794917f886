//! Putting: begin, chunks of whole blocks, commit.
//!
//! Nothing is visible before the commit, and a put that fails anywhere leaves nothing.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek};

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::message::Entry;
use tierpack_shm::types::{Access, CodecChoice, Dtype, Prefer};

use crate::client::{Client, check_name};
use crate::error::{Error, Result};
use crate::transfer::Transfer;

/// Settings of a put.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// Which codec: by default the one that stores a sample in the fewest bytes.
    pub codec: CodecChoice,
    /// Whether a tensor of that name is replaced; else it is an error that there is one.
    pub overwrite: bool,
    /// What the blocks are cut for.
    pub access: Access,
    /// Elements of a row, for tensors of rank 0 or 1, which are otherwise one row.
    pub row_elems: Option<u64>,
    /// Metadata of the file that the tensor comes from, to be kept with it.
    pub file_metadata: BTreeMap<String, String>,
}

impl PutOptions {
    /// No overwriting, access by rows, nothing else.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which codec.
    #[must_use]
    pub fn codec(mut self, codec: CodecChoice) -> Self {
        self.codec = codec;
        self
    }

    /// What the codec is chosen by: fewest bytes, or a fast decoder among those that save nearly as much.
    ///
    /// Only where the codec is chosen: it changes nothing after [`PutOptions::codec`] with one codec.
    #[must_use]
    pub fn prefer(mut self, prefer: Prefer) -> Self {
        if let CodecChoice::Auto(current) = &mut self.codec {
            *current = prefer;
        }
        self
    }

    /// Whether a tensor of that name is replaced.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// What the blocks are cut for.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Elements of a row, for tensors of rank 0 or 1.
    #[must_use]
    pub fn row_elems(mut self, row_elems: u64) -> Self {
        self.row_elems = Some(row_elems);
        self
    }

    /// Metadata of the file that the tensor comes from.
    #[must_use]
    pub fn file_metadata(mut self, metadata: BTreeMap<String, String>) -> Self {
        self.file_metadata = metadata;
        self
    }
}

impl Client {
    /// Stores a tensor under a name that is free; `bytes` are row-major and little-endian.
    ///
    /// # Errors
    /// As [`Client::put_with`]; [`Error::BufferLength`] when `bytes` are not those of the shape.
    pub fn put(&self, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Result<Entry> {
        let options = PutOptions::new();
        check_len(name, (dtype, shape), &options, bytes)?;
        self.put_from(name, dtype, shape, &mut Cursor::new(bytes), &options)
    }

    /// Stores a tensor whose bytes lie in `source` from its position, such as a file: the codec is chosen by parts of
    /// the whole tensor, which are read first.
    ///
    /// # Errors
    /// As [`Client::put_with`].
    pub fn put_from(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        source: &mut (impl Read + Seek),
        options: &PutOptions,
    ) -> Result<Entry> {
        let put = Transfer::begin(self, None, name, (dtype, shape), options)?;
        put.finish_from(options.codec, source)
    }

    /// Stores a tensor whose bytes come from `reader`, which is read as far as the shape needs.
    ///
    /// The codec is chosen by the first 16 MiB, since a reader cannot go back: where `reader` can, [`Client::put_from`]
    /// chooses by all of it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::PoolFull`], [`Error::Denied`], [`Error::Limit`]; [`Error::Shape`] and
    /// [`Error::NameTooLong`]; [`Error::Source`] when the bytes end early.
    /// Nothing of the tensor is kept then; only [`Error::Disconnected`] and [`Error::Deadline`] leave open whether
    /// the last step, the commit, was done.
    pub fn put_with(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        reader: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<Entry> {
        Transfer::begin(self, None, name, (dtype, shape), options)?.finish(reader)
    }
}

/// Refuses bytes that are not those of the shape.
pub(crate) fn check_len(name: &str, of: (Dtype, &[u64]), options: &PutOptions, bytes: &[u8]) -> Result<()> {
    let (needed, got) = (geometry(name, of, options)?.raw_bytes(), bytes.len() as u64);
    if needed == got { Ok(()) } else { Err(Error::BufferLength { needed: u128::from(needed), got }) }
}

/// The geometry that the daemon will come to; what it would refuse is refused here.
pub(crate) fn geometry(
    name: &str,
    (dtype, shape): (Dtype, &[u64]),
    options: &PutOptions,
) -> Result<Geometry> {
    check_name(name)?;
    Geometry::new(dtype, shape, options.access, options.row_elems)
        .map_err(|source| Error::Shape { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use tierpack_shm::types::CodecId;

    use super::*;

    #[test]
    fn a_preference_is_for_the_choice_alone() {
        assert_eq!(PutOptions::new().codec, CodecChoice::Auto(Prefer::Ratio));
        assert_eq!(PutOptions::new().prefer(Prefer::Speed).codec, CodecChoice::Auto(Prefer::Speed));
        let ibp = CodecChoice::Only(CodecId::Ibp);
        assert_eq!(PutOptions::new().codec(ibp).prefer(Prefer::Speed).codec, ibp);
    }
}
