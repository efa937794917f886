//! Reading: the tier walk behind `get` and `gather`.
//!
//! A read takes a guard, loads the words of a batch of blocks, finishes its lease, and copies from where the words say the
//! bytes are; the next batch takes another guard.
//! With one tier that is short: every block is in the pool, raw or encoded.
//!
//! ```text
//! guard          lease + checks: session alive, same process, same publication
//! word           per block: resident? overlay? raw?
//! overlay        newest that holds the row, else the block below (overlays.rs)
//! finish         nothing is looked up any more: what is stored from now on is not held
//! bytes          header (64 B, not looked at) + rows at fixed stride
//! raw: copy      row = block bytes [64 + row_in_block * row_bytes ..]
//! else: decode   with the coder of the word's generation, kept by the handle (decode.rs)
//! ```
//!
//! Blocks are found and copied by `blocks.rs`, rows by `gather.rs`.
//!
//! No system call, no lock and no allocation from the guard to its end; counters are words of the client page.
//! Row numbers are checked before anything is read, so that a call that fails for one leaves the output untouched.

use tierpack_shm::page::Counter;

use crate::blocks::copy_run;
use crate::error::{Error, Result};
use crate::gather::copy_rows;
use crate::handle::{Fault, Handle, Opened};
use crate::row_id::RowId;
use crate::tensor::Tensor;

impl Handle {
    /// Gets the whole tensor.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it was removed, [`Error::Replaced`] when its name holds another dtype or shape now,
    /// [`Error::Lost`] when the daemon was restarted, [`Error::NoDaemon`] when there is none,
    /// [`Error::TooManyLeases`], [`Error::Forked`], [`Error::Memory`].
    pub fn get(&self) -> Result<Tensor> {
        let mut tensor = self.new_tensor()?;
        self.get_into(tensor.as_mut_bytes())?;
        Ok(tensor)
    }

    /// Gets the whole tensor into `out`, which has [`Handle::raw_bytes`] bytes.
    ///
    /// After an error `out` holds anything.
    ///
    /// # Errors
    /// [`Error::BufferLength`]; else as [`Handle::get`].
    pub fn get_into(&self, out: &mut [u8]) -> Result<()> {
        check_len(out, u128::from(self.raw_bytes()))?;
        self.attempt(|opened| read_whole(opened, out))
    }

    /// Gathers rows along the leading dimension, in the order and as often as `rows` names them.
    ///
    /// The result has the tensor's shape with `rows.len()` in front.
    /// A tensor of rank 1 is one row, or rows of the length that it was put with.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::NotGatherable`]; else as [`Handle::get`].
    pub fn gather<I: RowId>(&self, rows: &[I]) -> Result<Tensor> {
        let mut tensor = self.new_rows(rows)?;
        self.gather_checked(rows, tensor.as_mut_bytes())?;
        Ok(tensor)
    }

    /// Gathers rows into `out`, which has `rows.len()` times [`Handle::row_bytes`] bytes.
    ///
    /// # Errors
    /// [`Error::BufferLength`]; else as [`Handle::gather`].
    /// A row out of range leaves `out` untouched; after another error it holds anything.
    pub fn gather_into<I: RowId>(&self, rows: &[I], out: &mut [u8]) -> Result<()> {
        let needed = self.check_rows(rows)?;
        check_len(out, needed)?;
        self.gather_checked(rows, out)
    }

    /// Room for the whole tensor.
    pub(crate) fn new_tensor(&self) -> Result<Tensor> {
        // Before the queues of buffers: a fork must not touch them.
        self.client().shared.check_here()?;
        self.new_room(self.shape(), self.raw_bytes())
    }

    /// Room for rows, whose numbers are checked.
    pub(crate) fn new_rows<I: RowId>(&self, rows: &[I]) -> Result<Tensor> {
        self.client().shared.check_here()?;
        let bytes = self.check_rows(rows)?;
        let len = u64::try_from(bytes).map_err(|_| Error::Memory { bytes })?;
        self.new_room(self.gathered_shape(rows.len()), len)
    }

    fn new_room(&self, shape: Vec<u64>, len: u64) -> Result<Tensor> {
        Ok(Tensor::new(self.dtype(), shape, self.client().shared.buffers.take(len)?))
    }

    /// The shape of so many rows.
    pub(crate) fn gathered_shape(&self, n_rows: usize) -> Vec<u64> {
        let mut shape = vec![n_rows as u64];
        match self.shape_ref() {
            [_, inner @ ..] if !inner.is_empty() => shape.extend(inner),
            _ => shape.push(self.geometry().row_elems()),
        }
        shape
    }

    /// Checks every row number; returns the bytes of all rows.
    #[inline]
    pub(crate) fn check_rows<I: RowId>(&self, rows: &[I]) -> Result<u128> {
        let geometry = self.geometry();
        if !geometry.is_gatherable() {
            return Err(Error::NotGatherable { dtype: self.dtype(), shape: self.shape() });
        }
        let n_rows = geometry.n_rows();
        match rows.iter().position(|row| row.row().is_none_or(|row| row >= n_rows)) {
            Some(position) => Err(Error::RowOutOfRange { position, row: rows[position].value(), n_rows }),
            None => Ok(rows.len() as u128 * u128::from(geometry.row_bytes())),
        }
    }

    /// The rows are in range and `out` has their length.
    #[inline]
    fn gather_checked<I: RowId>(&self, rows: &[I], out: &mut [u8]) -> Result<()> {
        self.attempt(|opened| read_rows(opened, rows, out))
    }
}

pub(crate) fn check_len(out: &[u8], needed: u128) -> Result<()> {
    let got = out.len() as u64;
    if u128::from(got) == needed { Ok(()) } else { Err(Error::BufferLength { needed, got }) }
}

/// Reads the whole tensor, whose length `out` has: the blocks lie one behind the other in it.
#[inline]
pub(crate) fn read_whole(opened: &Opened, out: &mut [u8]) -> core::result::Result<(), Fault> {
    let n_blocks = opened.geometry.n_blocks();
    let guard = if out.is_empty() { opened.guard()? } else { copy_run(opened, 0..n_blocks, out)? };
    guard.check_held()?;
    guard.count(Counter::Gets, 1);
    guard.count(Counter::Bytes, out.len() as u64);
    Ok(())
}

/// Reads rows that are in range, and whose length `out` has.
#[inline]
pub(crate) fn read_rows<I: RowId>(
    opened: &Opened,
    rows: &[I],
    out: &mut [u8],
) -> core::result::Result<(), Fault> {
    let guard = if out.is_empty() { opened.guard()? } else { copy_rows(opened, rows, out)? };
    guard.check_held()?;
    guard.count(Counter::Gathers, 1);
    guard.count(Counter::Rows, rows.len() as u64);
    guard.count(Counter::Bytes, out.len() as u64);
    Ok(())
}
