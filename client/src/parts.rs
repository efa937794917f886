//! Reading a tensor part by part, for who does not want all of it in memory.
//!
//! A part is whole blocks, as many as fit the caller's buffer, so that each block is decoded once and in place.
//! All parts are of one publication: what is put under the name meanwhile ends the read with an error, because its
//! blocks may lie elsewhere and its values belong to others.
//! No lease is held between two parts, so a slow reader holds back no memory.

use std::ops::Range;

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::attachment::SlotRef;
use tierpack_shm::page::Counter;
use tierpack_shm::types::index;

use crate::blocks::copy_run;
use crate::error::{Error, Result};
use crate::handle::{Fault, Handle, Opened};

/// A read of a whole tensor in parts, made by [`Handle::parts`].
#[derive(Debug)]
pub struct Parts {
    handle: Handle,
    /// Where the tensor was published, and by which daemon.
    publication: (SlotRef, u64),
    next_block: u64,
    n_blocks: u64,
}

impl Handle {
    /// Starts to read the whole tensor part by part, in the order of its bytes.
    ///
    /// Every part is of the tensor as it was last put before this call; updates of rows are seen as they come.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let config = tierpack_daemon::Config::embedded(folder.path().join("control.sock"), 64 << 20)?;
    /// # let daemon = tierpack_daemon::Embedded::start(&config)?;
    /// # let client = tierpack_client::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("weight", tierpack_client::Dtype::U8, &[1 << 10, 1 << 11], &vec![7; 1 << 21])?;
    /// let mut parts = client.open("weight")?.parts()?;
    /// let (mut buf, mut total) = (vec![0; tierpack_client::Parts::MIN_BUFFER_BYTES], 0);
    /// loop {
    ///     let len = parts.read(&mut buf)?;
    ///     if len == 0 {
    ///         break;
    ///     }
    ///     total += len; // and write `buf[..len]` somewhere
    /// }
    /// assert_eq!(total, 1 << 21);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Handle::get`].
    pub fn parts(&self) -> Result<Parts> {
        self.attempt(|opened| {
            let guard = opened.guard()?;
            guard.check_held()?;
            guard.count(Counter::Gets, 1);
            let (publication, n_blocks) = (publication(opened), opened.geometry.n_blocks());
            Ok(Parts { handle: self.clone(), publication, next_block: 0, n_blocks })
        })
    }
}

impl Parts {
    /// A buffer of so many bytes holds a part of any tensor.
    pub const MIN_BUFFER_BYTES: usize = index(tierpack_kernels::geometry::MAX_BLOCK_RAW_BYTES);

    /// Fills the front of `buf` with the next part; returns its bytes, 0 when all parts have been read.
    ///
    /// A part that fails is read again by the next call.
    ///
    /// # Errors
    /// [`Error::Superseded`] when the tensor was put again or lost since the first part;
    /// [`Error::BufferLength`] when `buf` does not hold one block, which [`Parts::MIN_BUFFER_BYTES`] do;
    /// else as [`Handle::get`].
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        if self.next_block == self.n_blocks {
            return Ok(0);
        }
        let (first, n_blocks) = (self.next_block, self.n_blocks);
        let (len, end) = self.handle.attempt(|opened| {
            if publication(opened) != self.publication {
                return Err(Fault::Failed(self.superseded()));
            }
            let (len, end) = fitting(&opened.geometry, first..n_blocks, buf.len() as u64)?;
            let guard = copy_run(opened, first..end, &mut buf[..len])?;
            guard.check_held()?;
            guard.count(Counter::Bytes, len as u64);
            Ok((len, end))
        })?;
        self.next_block = end;
        Ok(len)
    }

    #[cold]
    fn superseded(&self) -> Error {
        let (namespace, name) = (self.handle.client().namespace.to_string(), self.handle.name().to_owned());
        Error::Superseded { namespace, name }
    }
}

fn publication(opened: &Opened) -> (SlotRef, u64) {
    (opened.slot, opened.instance())
}

/// The bytes of the blocks from the first of `blocks` on that fit `room`, and the block after them.
pub(crate) fn fitting(geometry: &Geometry, blocks: Range<u64>, room: u64) -> Result<(usize, u64)> {
    let (mut len, mut end) = (0, blocks.start);
    while end < blocks.end {
        let longer = len + geometry.block(end).raw_bytes;
        if longer > room {
            break;
        }
        (len, end) = (longer, end + 1);
    }
    if end == blocks.start {
        let needed = u128::from(geometry.block(end).raw_bytes);
        return Err(Error::BufferLength { needed, got: room });
    }
    Ok((index(len), end))
}
