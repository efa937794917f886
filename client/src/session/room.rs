//! Segments that were announced and could not be mapped, for want of addresses or descriptors.
//!
//! What is mapped is read on; only who needs such a segment tries again, and fails as long as there is no room.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tierpack_shm::attachment::Attachment;
use tierpack_shm::error::Error as ShmError;
use tierpack_shm::segment::SegmentKind;
use tierpack_shm::socket::MAX_DESCRIPTORS;
use tierpack_shm::types::index;

use super::{Inner, State};

/// Namespace, kind and index of a segment.
pub(super) type Key = (u32, SegmentKind, u32);

/// A segment that was announced and is not mapped.
#[derive(Debug)]
pub(super) enum Apart {
    /// The system did not map it.
    Unmapped { fd: OwnedFd, len: u64 },
    /// Its descriptor was lost at this process's limit.
    Cut,
}

impl State {
    /// Maps a segment that could not be mapped before; leaves the namespace, to attach again, if it never came.
    /// Says whether it was one of these.
    ///
    /// The attachment is not closed: of one that is, nothing may be mapped any more.
    ///
    /// # Errors
    /// Why there is still no room.
    pub(super) fn map_apart(
        &mut self,
        inner: &Inner,
        attachment: &Arc<Attachment>,
        key: Key,
    ) -> Result<bool, ShmError> {
        match self.apart.get(&key) {
            None => return Ok(false),
            Some(Apart::Unmapped { fd, len }) => {
                attachment.map(key.1, index(u64::from(key.2)), fd, *len)?;
                self.apart.remove(&key);
            }
            Some(Apart::Cut) => {
                check_descriptors_left(inner)?;
                self.leave(attachment);
                inner.changed.notify_all();
            }
        }
        Ok(true)
    }
}

/// Whether an attach would now get its descriptors.
fn check_descriptors_left(inner: &Inner) -> Result<(), ShmError> {
    let copy = |_| inner.socket.as_fd().try_clone_to_owned();
    let copies: std::io::Result<Vec<OwnedFd>> = (0..MAX_DESCRIPTORS + 2).map(copy).collect();
    copies.map(drop).map_err(|_| ShmError::DescriptorsCut)
}
