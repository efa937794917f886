//! What the session thread has to send without having been asked: acknowledgements, and aborts of puts that nobody
//! waits for.
//!
//! The thread is the only one that receives, so it never waits to send: what the socket does not take is kept here and
//! sent when there is room.
//! Every message to the daemon goes out under the outbox's lock, after all that is kept here, so that callers that
//! fill the socket cannot keep an acknowledgement from the daemon.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use tierpack_shm::error::Error as ShmError;
use tierpack_shm::layout::MAX_SEGMENTS;
use tierpack_shm::message::{ClientMessage, Request, SegmentId, encode};
use tierpack_shm::socket;

use super::UNASKED_LIMIT;
use crate::deadline::Deadline;

/// Segments that one message names: it stays far below the limit of a message.
const MAX_NAMED: usize = 2048;

/// Segments and messages that may wait; with more than that no message of the daemon is read.
///
/// A daemon that uses an index again only after its segment was returned never causes so many.
const MAX_WAITING: usize = 2 * MAX_SEGMENTS;

/// What waits to be sent.
#[derive(Debug)]
enum Waiting {
    Unmapped {
        namespace: u32,
        segments: Vec<SegmentId>,
    },
    Detach {
        namespace: u32,
    },
    /// The id of the request, and the put.
    PutAbort {
        id: u64,
        transfer: u64,
    },
}

/// What waits to be sent, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Waiting>,
    /// Segments and messages in `waiting`.
    weight: usize,
    /// The last message has been sent: nothing follows it.
    is_closed: bool,
}

impl Outbox {
    /// Segments of a namespace that were unmapped.
    pub(super) fn unmapped(&mut self, namespace: u32, segments: Vec<SegmentId>) {
        self.weight += segments.len();
        if let Some(Waiting::Unmapped { namespace: last, segments: known }) = self.waiting.back_mut()
            && *last == namespace
            && known.len() + segments.len() <= MAX_NAMED
        {
            known.extend(segments);
            return;
        }
        let runs = segments.chunks(MAX_NAMED);
        self.waiting.extend(runs.map(|run| Waiting::Unmapped { namespace, segments: run.to_vec() }));
    }

    /// A namespace of which nothing is mapped any more: that says all that waits about its segments.
    pub(super) fn detach(&mut self, namespace: u32) {
        self.waiting.retain(
            |waiting| !matches!(waiting, Waiting::Unmapped { namespace: of, .. } if *of == namespace),
        );
        self.waiting.push_back(Waiting::Detach { namespace });
        self.weight = self.waiting.iter().map(Waiting::weight).sum();
    }

    /// A put that nobody waits for.
    pub(super) fn put_abort(&mut self, id: u64, transfer: u64) {
        self.weight += 1;
        self.waiting.push_back(Waiting::PutAbort { id, transfer });
    }

    pub(super) fn is_full(&self) -> bool {
        self.weight > MAX_WAITING
    }

    /// Sends what waits as far as the socket takes it.
    ///
    /// # Errors
    /// [`ShmError::WouldBlock`] when something is left; else as [`socket::send`], and nothing is left.
    pub(super) fn flush(&mut self, socket: impl AsFd) -> Result<(), ShmError> {
        while let Some(waiting) = self.waiting.front() {
            match encode(&waiting.message()).and_then(|bytes| socket::send(&socket, &bytes, &[])) {
                Ok(()) => {}
                Err(ShmError::WouldBlock) => return Err(ShmError::WouldBlock),
                Err(error) => {
                    self.waiting.clear();
                    self.weight = 0;
                    return Err(error);
                }
            }
            self.weight -= waiting.weight();
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Sends a message if there is room for it after all that waits.
    ///
    /// # Errors
    /// As [`Outbox::flush`]; [`ShmError::Closed`] after the last message.
    pub(super) fn send(
        &mut self,
        socket: impl AsFd,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ShmError> {
        if self.is_closed {
            return Err(ShmError::Closed);
        }
        self.flush(&socket)?;
        socket::send(&socket, bytes, descriptors)
    }

    /// Says goodbye if there is room, and sends nothing after it.
    pub(super) fn close(&mut self, socket: impl AsFd) {
        let sent = encode(&ClientMessage::Goodbye).and_then(|bytes| self.send(socket, &bytes, &[]));
        if let Err(error) = sent {
            // The daemon then keeps the leases, which have ended, until this process does.
            tracing::debug!(error = %error, "no goodbye");
        }
        (self.is_closed, self.weight) = (true, 0);
        self.waiting.clear();
    }
}

impl Waiting {
    fn weight(&self) -> usize {
        match self {
            Self::Unmapped { segments, .. } => segments.len(),
            Self::Detach { .. } | Self::PutAbort { .. } => 1,
        }
    }

    fn message(&self) -> ClientMessage {
        match self {
            Self::Unmapped { namespace, segments } => {
                ClientMessage::Unmapped { namespace: *namespace, segments: segments.clone() }
            }
            Self::Detach { namespace } => ClientMessage::Detach { namespace: *namespace },
            Self::PutAbort { id, transfer } => ClientMessage::Request {
                id: *id,
                deadline_ms: Deadline::after(UNASKED_LIMIT).left_ms(),
                request: Request::PutAbort { transfer: *transfer },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tierpack_shm::message::{MAX_MESSAGE_BYTES, decode};
    use tierpack_shm::segment::SegmentKind;

    use super::*;

    fn segment(index: u32) -> SegmentId {
        SegmentId { kind: SegmentKind::Data, index, serial: u64::MAX - u64::from(index) }
    }

    #[test]
    fn what_waits_is_joined_bounded_and_fits_its_messages() {
        let mut outbox = Outbox::default();
        for index in 0..5000 {
            outbox.unmapped(7, vec![segment(index)]);
        }
        outbox.unmapped(8, (0..5000).map(segment).collect());
        outbox.put_abort(1, 2);
        assert_eq!((outbox.waiting.len(), outbox.weight, outbox.is_full()), (7, 10_001, false));
        for waiting in &outbox.waiting {
            let bytes = encode(&waiting.message()).unwrap();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES);
            decode::<ClientMessage>(&bytes).unwrap();
        }
        outbox.detach(8);
        assert_eq!((outbox.waiting.len(), outbox.weight), (5, 5002));
        outbox.unmapped(9, (0..70_000).map(segment).collect());
        assert!(outbox.is_full());
    }
}
