//! Updates: new values for rows of a tensor, which keeps its place and its handles.
//!
//! Rows are cut into requests of consecutive pieces; a row that fits a block is one piece, a longer one has one per
//! block.
//! The daemon makes a request visible as a whole and then answers: a caller that has the answer reads what it wrote.
//! A request may be repeated: it writes the same values to the same rows.

use std::io;
use std::ops::Range;

use tierpack_kernels::geometry::Geometry;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{ErrorCode, MAX_CHUNK_BYTES, Reply, Request, Update};
use tierpack_shm::types::index;

use crate::chunk::Chunk;
use crate::client::Client;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::handle::{Handle, Opened};
use crate::protocol::ProtocolFault;
use crate::read::check_len;
use crate::repeat::{is_replaced, while_busy, while_replaced};
use crate::row_id::RowId;

const OPERATION: &str = "update a tensor";
/// Bytes of a piece's number.
const NUMBER_BYTES: u64 = 8;

/// Writes the values at an offset among those of all rows.
type Fill<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

impl Handle {
    /// Updates rows and returns the tensor's revision then.
    ///
    /// `values` are the rows one behind the other, row-major and little-endian: `rows.len()` times
    /// [`Handle::row_bytes`] bytes.
    /// A row that is named twice gets its last value.
    /// When this returns, every read of every process that begins later sees the new values, and
    /// [`Handle::revision`] counts the update.
    ///
    /// Readers meanwhile see each row old or new, never a mixture; of a row that is longer than a block, each of its
    /// blocks.
    /// More than 16 MiB are several updates, made one after the other: each counts, and when one fails, the rows of
    /// those before it keep their new values.
    /// When the daemon hangs up in the middle, a part may be made and counted twice.
    ///
    /// The tensor keeps its publication: views that are open show what they did.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::NotGatherable`] and [`Error::BufferLength`], before anything is sent;
    /// [`Error::NotFound`], [`Error::Replaced`], [`Error::Lost`], [`Error::PoolFull`], [`Error::Quota`],
    /// [`Error::Denied`]; as every call that asks the daemon, [`Error::Disconnected`], [`Error::Deadline`].
    pub fn update<I: RowId>(&self, rows: &[I], values: &[u8]) -> Result<u64> {
        self.client().shared.check_here()?;
        let needed = self.check_rows(rows)?;
        check_len(values, needed)?;
        self.update_all(rows, needed, &mut |offset, buf| {
            buf.copy_from_slice(&values[index(offset)..][..buf.len()]);
            Ok(())
        })
    }

    /// As [`Handle::update`], with values that are asked for as they are sent: in parts of at most 16 MiB.
    ///
    /// `fill` writes the values that lie at an offset among those of all rows, one behind the other.
    /// It may be asked for the same values twice.
    ///
    /// # Errors
    /// [`Error::Source`] when `fill` fails: the values before the part that it was asked for are made.
    /// Else as [`Handle::update`].
    pub fn update_with<I: RowId>(
        &self,
        rows: &[I],
        fill: &mut (dyn FnMut(u64, &mut [u8]) -> io::Result<()> + '_),
    ) -> Result<u64> {
        self.client().shared.check_here()?;
        let needed = self.check_rows(rows)?;
        self.update_all(rows, needed, fill)
    }

    /// The rows have been checked, and have so many bytes.
    fn update_all<I: RowId>(&self, rows: &[I], bytes: u128, fill: &mut Fill<'_>) -> Result<u64> {
        if bytes == 0 {
            return self.revision();
        }
        let (mut revision, mut at) = (0, Position::default());
        while at.row < rows.len() {
            (revision, at) = self.update_some(rows, fill, at)?;
        }
        Ok(revision)
    }

    /// Updates of the tensor since it was put.
    ///
    /// The values that it counts are visible already.
    /// It starts at 0 again when the tensor is replaced by a put.
    ///
    /// # Errors
    /// As [`Handle::get`].
    pub fn revision(&self) -> Result<u64> {
        self.attempt(|opened| Ok(opened.guard()?.revision()?))
    }

    /// Sends one request, for the pieces from `at` on; says which come next.
    fn update_some<I: RowId>(
        &self,
        rows: &[I],
        fill: &mut Fill<'_>,
        at: Position,
    ) -> Result<(u64, Position)> {
        let deadline = self.client().shared.deadline();
        let mut at = at;
        loop {
            let opened = self.opened();
            // Another publication may be cut another way: a row that was begun is then sent from its start.
            at.piece = if opened.geometry.pieces_per_row() == at.pieces_per_row { at.piece } else { 0 };
            let cut = Cut::new(&opened.geometry, rows.len(), at);
            let chunk = cut.chunk(&opened.geometry, rows, fill)?;
            match self.send_update(&opened, &cut, &chunk, &deadline) {
                Ok(revision) => return Ok((revision, cut.next)),
                Err(error) if is_replaced(&error) => {
                    if deadline.left().is_zero() {
                        return Err(deadline.passed("update a tensor that is replaced again and again"));
                    }
                    self.reopen(&opened, &deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn send_update(&self, opened: &Opened, cut: &Cut, chunk: &Chunk, deadline: &Deadline) -> Result<u64> {
        let client = self.client();
        let subject = client.subject(OPERATION, self.name());
        client.shared.with_session(deadline, |session| {
            // A slot of another daemon means nothing to this one, but could be one of its own.
            if session.instance() != opened.instance() {
                let text = "the daemon was restarted".to_owned();
                return Err(Error::Refused { operation: OPERATION, code: ErrorCode::Replaced as u16, text });
            }
            let reply = while_busy(deadline, || {
                let request = Request::Update(Update {
                    namespace: client.namespace.to_string(),
                    name: self.name().to_owned(),
                    slot: opened.slot,
                    n_pieces: cut.n_pieces,
                    data: chunk.blob.clone(),
                });
                let pending = session.send(&subject, request, chunk.descriptor(), deadline)?;
                reach(Point::UpdateSent);
                pending.wait(&subject)?.reply(&subject)
            })?;
            match reply {
                Reply::Updated { revision } => Ok(revision),
                _ => Err(subject.fault(ProtocolFault::Reply)),
            }
        })
    }
}

impl Client {
    /// Opens a tensor and updates rows; returns its revision then.
    ///
    /// # Errors
    /// As [`Client::open`] and [`Handle::update`].
    pub fn update<I: RowId>(&self, name: &str, rows: &[I], values: &[u8]) -> Result<u64> {
        self.open(name)?.update(rows, values)
    }

    /// Has the daemon put the overlays of a tensor into their blocks.
    pub(crate) fn fold(&self, name: &str, deadline: &Deadline) -> Result<()> {
        let subject = self.subject("fold the updates of a tensor", name);
        let reply = self.shared.with_session(deadline, |session| {
            while_replaced(&subject, deadline, || {
                let (namespace, name) = (self.namespace.to_string(), name.to_owned());
                session.request(&subject, Request::Fold { namespace, name }, deadline)
            })
        })?;
        match reply {
            Reply::Done => Ok(()),
            _ => Err(subject.fault(ProtocolFault::Reply)),
        }
    }
}

/// A piece, by its row's position in the caller's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    row: usize,
    piece: u64,
    /// Of the geometry by which `piece` counts.
    pieces_per_row: u64,
}

/// The pieces of one request: consecutive, and so are their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    first: Position,
    n_pieces: u64,
    /// Their bytes, in those of all rows.
    values: Range<u64>,
    next: Position,
}

impl Cut {
    /// As many pieces from `first` on as one request holds.
    fn new(geometry: &Geometry, n_rows: usize, first: Position) -> Self {
        let pieces_per_row = geometry.pieces_per_row();
        let first = Position { pieces_per_row, ..first };
        let start = first.row as u64 * geometry.row_bytes() + piece_at(geometry, first.piece).start;
        let left = (n_rows - first.row) as u64 * pieces_per_row - first.piece;
        let (mut n_pieces, mut len) = (0, 0);
        if pieces_per_row == 1 {
            n_pieces = left.min(MAX_CHUNK_BYTES / (NUMBER_BYTES + geometry.row_bytes()));
            len = n_pieces * geometry.row_bytes();
        } else {
            while n_pieces < left {
                let piece = piece_at(geometry, (first.piece + n_pieces) % pieces_per_row);
                let longer = len + piece.end - piece.start;
                if longer + NUMBER_BYTES * (n_pieces + 1) > MAX_CHUNK_BYTES {
                    break;
                }
                (n_pieces, len) = (n_pieces + 1, longer);
            }
        }
        let end = first.piece + n_pieces;
        let row = first.row + index(end / pieces_per_row);
        let next = Position { row, piece: end % pieces_per_row, pieces_per_row };
        Self { first, n_pieces, values: start..start + len, next }
    }

    /// The numbers of the pieces, and their bytes.
    fn chunk<I: RowId>(&self, geometry: &Geometry, rows: &[I], fill: &mut Fill<'_>) -> Result<Chunk> {
        let pieces_per_row = geometry.pieces_per_row();
        let (numbers_len, needed) =
            (index(self.n_pieces * NUMBER_BYTES), self.values.end - self.values.start);
        Chunk::new(numbers_len as u64 + needed, |buf| {
            let (numbers, values) = buf.split_at_mut(numbers_len);
            for (piece, target) in (self.first.piece..).zip(numbers.as_chunks_mut().0) {
                let row = rows[self.first.row + index(piece / pieces_per_row)].row();
                let row = row.expect("the caller has checked every row");
                *target = (row * pieces_per_row + piece % pieces_per_row).to_le_bytes();
            }
            let source = |source| Error::Source { got: 0, needed, source };
            fill(self.values.start, values).map_err(source)
        })
    }
}

/// Where a piece of a row lies in the row's bytes: that of every row is where the first row's is.
fn piece_at(geometry: &Geometry, piece: u64) -> Range<u64> {
    if geometry.pieces_per_row() == 1 {
        return 0..geometry.row_bytes();
    }
    let shape = geometry.block(piece);
    shape.byte_offset..shape.byte_offset + shape.raw_bytes
}

#[cfg(test)]
mod tests;
