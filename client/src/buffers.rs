//! Buffers for results, used again: a loop of gets allocates once, and its pages are faulted in once.
//!
//! A buffer is a whole number of 64-byte lines, a power of two of them, and goes back to the queue of its class when
//! the tensor that owns it is dropped.
//! It is zeroed when it is made and never again: its taker overwrites what it shows.
//! What is kept is bounded by number and by bytes; more than that goes back to the system.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use tierpack_shm::fork::ForkCookie;
use tierpack_shm::types::index;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};

/// Classes: class `n` has `1 << n` lines; the last has 1 GiB.
const CLASSES: usize = 25;
/// Buffers that a class keeps.
const PER_CLASS: usize = 4;
/// What a client keeps by default.
pub(crate) const DEFAULT_KEPT_BYTES: u64 = 1 << 30;

/// What buffers are made of, so that every dtype is aligned in them, and a cache line starts with a row.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

const LINE_BYTES: u64 = size_of::<Line>() as u64;

/// The buffers that one client keeps.
pub(crate) struct Buffers {
    classes: [ArrayQueue<Vec<Line>>; CLASSES],
    kept_bytes: AtomicU64,
    limit_bytes: u64,
    cookie: ForkCookie,
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers")
            .field("kept_bytes", &self.kept_bytes)
            .field("limit_bytes", &self.limit_bytes)
            .finish_non_exhaustive()
    }
}

impl Buffers {
    pub(crate) fn new(limit_bytes: u64, cookie: ForkCookie) -> Arc<Self> {
        let classes = std::array::from_fn(|_| ArrayQueue::new(PER_CLASS));
        Arc::new(Self { classes, kept_bytes: AtomicU64::new(0), limit_bytes, cookie })
    }

    /// A buffer that shows `len` bytes; what is in them is left over from earlier use.
    ///
    /// The caller has checked that this process is the one that made the client.
    pub(crate) fn take(self: &Arc<Self>, len: u64) -> Result<Buffer> {
        let n_lines = len.div_ceil(LINE_BYTES);
        let class = n_lines.checked_next_power_of_two().map_or(u32::MAX, u64::trailing_zeros) as usize;
        let lines = match self.classes.get(class) {
            _ if n_lines == 0 => Vec::new(),
            Some(queue) => match queue.pop() {
                Some(lines) => {
                    self.kept_bytes.fetch_sub(bytes_of(&lines), Ordering::Relaxed);
                    lines
                }
                None => zeroed(1 << class, len)?,
            },
            None => zeroed(n_lines, len)?,
        };
        Ok(Buffer { lines, len: index(len), home: Arc::clone(self) })
    }

    fn give_back(&self, lines: Vec<Line>) {
        let class = lines.len().trailing_zeros() as usize;
        let (true, Some(queue)) = (lines.len().is_power_of_two(), self.classes.get(class)) else { return };
        let bytes = bytes_of(&lines);
        let kept = self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        if kept.saturating_add(bytes) > self.limit_bytes || queue.push(lines).is_err() {
            self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

fn bytes_of(lines: &[Line]) -> u64 {
    size_of_val(lines) as u64
}

fn zeroed(n_lines: u64, len: u64) -> Result<Vec<Line>> {
    Line::new_vec_zeroed(index(n_lines)).map_err(|_| Error::Memory { bytes: u128::from(len) })
}

/// A buffer that goes back when dropped.
pub(crate) struct Buffer {
    lines: Vec<Line>,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.lines.as_bytes()[..self.len]
    }

    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.lines.as_mut_bytes()[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.home.cookie.is_here() {
            self.home.give_back(std::mem::take(&mut self.lines));
        } else {
            // A thread that the fork left behind may have been in the middle of a queue: never touch them again.
            let _ = ManuallyDrop::new(Arc::clone(&self.home));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(limit_bytes: u64) -> Arc<Buffers> {
        Buffers::new(limit_bytes, ForkCookie::current().unwrap())
    }

    #[test]
    fn a_buffer_is_used_again_within_its_class() {
        let buffers = buffers(1 << 20);
        let mut first = buffers.take(100).unwrap();
        first.as_mut_bytes().fill(7);
        let address = first.as_bytes().as_ptr();
        assert_eq!((first.as_bytes().len(), address.addr() % 64), (100, 0));
        drop(first);
        let second = buffers.take(65).unwrap();
        assert_eq!((second.as_bytes().as_ptr(), second.as_bytes()), (address, &[7; 65][..]));
        assert_eq!(buffers.kept_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_kept_is_bounded_by_number_and_bytes() {
        let buffers = buffers(4096 * 3);
        let taken: Vec<_> = (0..10).map(|_| buffers.take(4096).unwrap()).collect();
        drop(taken);
        assert_eq!(buffers.kept_bytes.load(Ordering::Relaxed), 4096 * 3);
        let taken: Vec<_> = (0..10).map(|_| buffers.take(64).unwrap()).collect();
        drop(taken);
        assert_eq!(buffers.kept_bytes.load(Ordering::Relaxed), 4096 * 3);
        let roomy = Buffers::new(u64::MAX, ForkCookie::current().unwrap());
        let taken: Vec<_> = (0..10).map(|_| roomy.take(64).unwrap()).collect();
        drop(taken);
        assert_eq!(roomy.kept_bytes.load(Ordering::Relaxed), 64 * PER_CLASS as u64);
    }

    #[test]
    fn nothing_and_too_much_are_no_panic() {
        let buffers = buffers(1 << 20);
        assert_eq!(buffers.take(0).unwrap().as_bytes(), &[] as &[u8]);
        for len in [1 << 60, u64::MAX] {
            assert!(matches!(buffers.take(len), Err(Error::Memory { .. })), "{len}");
        }
    }
}
