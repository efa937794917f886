//! A put under way: begin, chunks of whole blocks, commit.
//!
//! A chunk is read from the source straight into a memory file of its own, which is sealed before it is sent; while the
//! daemon works on one chunk, the next is read.
//! A transfer that is dropped before its commit takes the put back.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tierpack_kernels::fit::{pieces, seed};
use tierpack_kernels::geometry::Geometry;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{Entry, MAX_CHUNK_BYTES, MAX_FILE_METADATA_BYTES, PutBegin, Reply, Request};
use tierpack_shm::types::{CodecChoice, CodecId, Dtype};

use crate::chunk::Chunk;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject};
use crate::put::{PutOptions, geometry};
use crate::repeat::while_busy;
use crate::session::{Answer, Pending, Session};

const OPERATION: &str = "put a tensor";

/// A put that has begun; dropping it before the commit takes it back.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    client: &'a Client,
    session: Arc<Session>,
    subject: Subject<'a>,
    geometry: Geometry,
    id: u64,
    in_flight: Option<InFlight>,
    is_open: bool,
}

/// A chunk that the daemon has not answered yet.
#[derive(Debug)]
struct InFlight {
    pending: Pending,
    first_block: u64,
    chunk: Chunk,
}

impl<'a> Transfer<'a> {
    /// Begins a put; as a part of a transaction in the session of that one.
    pub(crate) fn begin(
        client: &'a Client,
        transaction: Option<(&Arc<Session>, u64)>,
        name: &'a str,
        (dtype, shape): (Dtype, &[u64]),
        options: &PutOptions,
    ) -> Result<Self> {
        let subject = client.subject(OPERATION, name);
        let geometry = geometry(name, (dtype, shape), options)?;
        let metadata = metadata_chunk(&options.file_metadata)?;
        let begin = PutBegin {
            namespace: client.namespace.to_string(),
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            access: options.access,
            row_elems: options.row_elems,
            codec: options.codec,
            overwrite: options.overwrite,
            file_metadata: metadata.as_ref().map(|chunk| chunk.blob.clone()),
            transaction: transaction.map(|(_, id)| id),
        };
        let descriptor = metadata.as_ref().and_then(Chunk::descriptor);
        let deadline = client.shared.deadline();
        let ask = |session: &Arc<Session>| {
            let request = Request::PutBegin(begin.clone());
            match session.ask(&subject, request, descriptor, &deadline)? {
                Answer::Reply(Reply::Transfer { transfer: id }, _) => {
                    let session = Arc::clone(session);
                    Ok(Self { client, session, subject, geometry, id, in_flight: None, is_open: true })
                }
                _ => Err(subject.fault(ProtocolFault::Reply)),
            }
        };
        match transaction {
            Some((session, _)) => ask(session),
            // May be repeated: what a session that hangs up has begun is gone.
            None => client.shared.with_session(&deadline, ask),
        }
    }

    /// Sends all blocks and commits.
    pub(crate) fn finish(mut self, reader: &mut dyn Read) -> Result<Entry> {
        self.send_blocks(reader)?;
        self.commit()
    }

    /// As [`Transfer::finish`], from a source that can go back.
    pub(crate) fn finish_from(self, choice: CodecChoice, source: &mut (impl Read + Seek)) -> Result<Entry> {
        // The first chunk has all of what is shorter.
        if self.geometry.raw_bytes() > MAX_CHUNK_BYTES && choice != CodecChoice::Only(CodecId::Raw) {
            self.send_sample(source)?;
        }
        self.finish(source)
    }

    fn send_blocks(&mut self, reader: &mut dyn Read) -> Result<()> {
        let geometry = self.geometry;
        let (mut first_block, mut got) = (0, 0);
        while first_block < geometry.n_blocks() {
            let (end_block, len) = chunk_at(&geometry, first_block);
            let chunk = Chunk::new(len, |buf| fill(reader, buf, &mut got, geometry.raw_bytes()))?;
            self.finish_chunk()?;
            let pending = self.send_chunk(first_block, &chunk)?;
            reach(Point::ChunkSent);
            self.in_flight = Some(InFlight { pending, first_block, chunk });
            first_block = end_block;
        }
        self.finish_chunk()
    }

    /// Sends parts of the whole tensor, which starts at the position of the source; the codec is chosen by them.
    fn send_sample(&self, source: &mut (impl Read + Seek)) -> Result<()> {
        let geometry = &self.geometry;
        let pieces = pieces(geometry, 0..geometry.n_blocks(), seed(self.subject.name, 0));
        let len = pieces.iter().map(|piece| piece.in_block().len() as u64).sum();
        let needed = geometry.raw_bytes();
        let failed = |source| Error::Source { got: 0, needed, source };
        let start = source.stream_position().map_err(failed)?;
        let chunk = Chunk::new(len, |mut buf| {
            for piece in &pieces {
                let (range, piece) = (piece.in_tensor(), buf.split_at_mut(piece.in_block().len()));
                buf = piece.1;
                source.seek(SeekFrom::Start(start + range.start as u64)).map_err(failed)?;
                fill(source, piece.0, &mut (range.start as u64), needed)?;
            }
            Ok(())
        })?;
        source.seek(SeekFrom::Start(start)).map_err(failed)?;
        let request = || Request::PutSample { transfer: self.id, data: chunk.blob.clone() };
        match self.while_busy(|this| this.send(request(), chunk.descriptor()))? {
            Reply::Done => Ok(()),
            _ => Err(self.subject.fault(ProtocolFault::Reply)),
        }
    }

    fn send_chunk(&self, first_block: u64, chunk: &Chunk) -> Result<Pending> {
        let request = Request::PutChunk { transfer: self.id, first_block, data: chunk.blob.clone() };
        self.send(request, chunk.descriptor())
    }

    fn send(&self, request: Request, descriptor: Option<BorrowedFd<'_>>) -> Result<Pending> {
        let deadline = self.client.shared.deadline();
        self.session.send(&self.subject, request, descriptor, &deadline)
    }

    /// Waits until the daemon has taken the chunk that is on its way, and offers it again while it is busy.
    fn finish_chunk(&mut self) -> Result<()> {
        let Some(InFlight { pending, first_block, chunk }) = self.in_flight.take() else { return Ok(()) };
        let mut first = Some(pending);
        let answer = self.while_busy(|this| match first.take() {
            Some(pending) => Ok(pending),
            None => this.send_chunk(first_block, &chunk),
        })?;
        match answer {
            Reply::Done => Ok(()),
            _ => Err(self.subject.fault(ProtocolFault::Reply)),
        }
    }

    fn while_busy(&self, mut send: impl FnMut(&Self) -> Result<Pending>) -> Result<Reply> {
        while_busy(&self.client.shared.deadline(), || send(self)?.wait(&self.subject)?.reply(&self.subject))
    }

    fn commit(mut self) -> Result<Entry> {
        reach(Point::BeforeCommit);
        let reply = self.while_busy(|this| this.send(Request::PutCommit { transfer: this.id }, None))?;
        match reply {
            Reply::Committed(entry) => {
                self.is_open = false;
                Ok(entry)
            }
            _ => Err(self.subject.fault(ProtocolFault::Reply)),
        }
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        if !self.is_open || !self.client.shared.is_here() {
            return;
        }
        // The error that ended the put is what the caller hears of; if the daemon is gone, so is the transfer.
        if let Some(InFlight { pending, .. }) = self.in_flight.take() {
            let _ = pending.wait(&self.subject).is_ok();
        }
        let _ = self.while_busy(|this| this.send(Request::PutAbort { transfer: this.id }, None)).is_ok();
    }
}

/// The end and the bytes of the chunk that begins at block `first`: as many whole blocks as fit.
fn chunk_at(geometry: &Geometry, first: u64) -> (u64, u64) {
    let mut len = 0;
    for block_idx in first..geometry.n_blocks() {
        let raw_bytes = geometry.block(block_idx).raw_bytes;
        if len + raw_bytes > MAX_CHUNK_BYTES {
            return (block_idx, len);
        }
        len += raw_bytes;
    }
    (geometry.n_blocks(), len)
}

/// Reads until `buf` is full; `got` counts what has come of `needed` in the whole put.
fn fill(reader: &mut dyn Read, buf: &mut [u8], got: &mut u64, needed: u64) -> Result<()> {
    let mut rest = buf;
    while !rest.is_empty() {
        match reader.read(rest) {
            Ok(0) => {
                let source = io::Error::from(ErrorKind::UnexpectedEof);
                return Err(Error::Source { got: *got, needed, source });
            }
            Ok(n) => {
                // A reader that claims more than there was room for is taken to have filled it.
                let n = n.min(rest.len());
                *got += n as u64;
                rest = &mut rest[n..];
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Source { got: *got, needed, source }),
        }
    }
    Ok(())
}

fn metadata_chunk(metadata: &BTreeMap<String, String>) -> Result<Option<Chunk>> {
    if metadata.is_empty() {
        return Ok(None);
    }
    let json = serde_json::to_vec(metadata).expect("a map of strings is a JSON object");
    let (len, limit) = (json.len() as u64, MAX_FILE_METADATA_BYTES);
    if len > limit {
        return Err(Error::FileMetadataTooLong { len, limit });
    }
    let fill = |buf: &mut [u8]| {
        buf.copy_from_slice(&json);
        Ok(())
    };
    Chunk::new(len, fill).map(Some)
}

#[cfg(test)]
mod tests;
