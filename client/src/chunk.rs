//! Bytes on their way to the daemon, and requests that are offered again while it is busy.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tierpack_shm::chunk::ChunkWriter;
use tierpack_shm::message::{Blob, ErrorCode, MAX_INLINE_BYTES, Reply};
use tierpack_shm::types::index;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject};
use crate::session::{Answer, Pending};

/// Pauses before a request is offered again to a daemon that was busy: doubled from the first to the last.
const BUSY_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// Bytes in the message, or in a sealed memory file beside it.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) blob: Blob,
    descriptor: Option<OwnedFd>,
}

impl Chunk {
    /// Makes a chunk of `len` bytes, which `fill` writes.
    pub(crate) fn new(len: u64, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        if len <= MAX_INLINE_BYTES as u64 {
            let mut bytes = vec![0; index(len)];
            fill(&mut bytes)?;
            return Ok(Self { blob: Blob::Inline(bytes), descriptor: None });
        }
        let system = |source| Error::System { operation: "make a chunk of a tensor", source };
        let mut writer = ChunkWriter::new(len).map_err(system)?;
        fill(writer.as_mut_bytes())?;
        Ok(Self { blob: Blob::Descriptor { len }, descriptor: Some(writer.seal().map_err(system)?) })
    }

    /// The descriptor that a message with the blob names.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

/// Sends and waits, again and again while the daemon is busy, until the deadline.
///
/// For requests that may be repeated.
pub(crate) fn while_busy(
    subject: &Subject<'_>,
    deadline: &Deadline,
    mut send: impl FnMut() -> Result<Pending>,
) -> Result<Reply> {
    let (mut pause, longest) = BUSY_PAUSES;
    loop {
        match send()?.wait(subject) {
            Ok(Answer::Reply(reply, _)) => return Ok(reply),
            Ok(Answer::Attached(_)) => return Err(subject.fault(ProtocolFault::Reply)),
            Err(Error::Busy { .. }) if !deadline.left().is_zero() => {
                std::thread::sleep(pause.min(deadline.left()));
                pause = (pause * 2).min(longest);
            }
            Err(error) => return Err(error),
        }
    }
}

/// As [`while_busy`], also again and again while the tensor is replaced under the daemon's hands.
///
/// For requests that mean a name, whichever publication it has.
pub(crate) fn while_replaced(
    subject: &Subject<'_>,
    deadline: &Deadline,
    mut send: impl FnMut() -> Result<Pending>,
) -> Result<Reply> {
    loop {
        match while_busy(subject, deadline, &mut send) {
            Err(error) if is_replaced(&error) => {
                if deadline.left().is_zero() {
                    return Err(deadline.passed(subject.operation));
                }
            }
            answer => return answer,
        }
    }
}

/// Whether the daemon has found another publication under the name than the one it, or the caller, had begun with.
pub(crate) fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Refused { code, .. } if *code == ErrorCode::Replaced as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bytes_travel_in_the_message_and_large_ones_beside_it() {
        let chunk = |len| {
            let fill = |buf: &mut [u8]| {
                buf.fill(1);
                Ok(())
            };
            Chunk::new(len, fill).unwrap()
        };
        let small = chunk(MAX_INLINE_BYTES as u64);
        assert!(small.descriptor().is_none() && matches!(small.blob, Blob::Inline(bytes) if bytes[0] == 1));
        let large = chunk(MAX_INLINE_BYTES as u64 + 1);
        assert!(large.descriptor().is_some() && matches!(large.blob, Blob::Descriptor { len: 16_385 }));
    }
}
