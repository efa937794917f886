//! Descriptors that a forked child does not share: which they are, at any number.
//!
//! One bit per descriptor number, in chunks that are added as numbers grow and are never freed: the child reads them
//! without a lock, whatever the threads of its parent were doing.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

const WORD_BITS: usize = usize::BITS as usize;
const CHUNK_BITS: usize = 4096;

/// Bits of [`CHUNK_BITS`] descriptors, and the chunk of the next ones.
struct Chunk {
    words: [AtomicUsize; CHUNK_BITS / WORD_BITS],
    next: OnceLock<Box<Self>>,
}

impl Chunk {
    const fn new() -> Self {
        Self { words: [const { AtomicUsize::new(0) }; CHUNK_BITS / WORD_BITS], next: OnceLock::new() }
    }
}

static TABLE: Chunk = Chunk::new();
static DEV_NULL: OnceLock<core::result::Result<OwnedFd, i32>> = OnceLock::new();

/// The word and the bit of a descriptor.
fn bit_of(fd: RawFd) -> (&'static AtomicUsize, usize) {
    let number = usize::try_from(fd).unwrap_or(0);
    let mut chunk = &TABLE;
    for _ in 0..number / CHUNK_BITS {
        chunk = chunk.next.get_or_init(|| Box::new(Chunk::new()));
    }
    (&chunk.words[number % CHUNK_BITS / WORD_BITS], 1 << (number % WORD_BITS))
}

/// Calls `replace` with `/dev/null` and each registered descriptor; only reads atomics, for a forked child.
pub(super) fn each(replace: impl Fn(RawFd, RawFd)) {
    let Some(Ok(null)) = DEV_NULL.get() else { return };
    let (mut chunk, mut first) = (Some(&TABLE), 0);
    while let Some(found) = chunk {
        for (n, word) in found.words.iter().enumerate() {
            let mut left = word.load(Ordering::Relaxed);
            while left != 0 {
                let number = first + n * WORD_BITS + left.trailing_zeros() as usize;
                replace(null.as_raw_fd(), RawFd::try_from(number).unwrap_or(-1));
                left &= left - 1;
            }
        }
        (chunk, first) = (found.next.get().map(|next| &**next), first + CHUNK_BITS);
    }
}

/// A descriptor that is replaced by `/dev/null` in every forked child: its number stays valid there, and what it leads
/// to ends with this process.
///
/// A child that is forked between the call that made a descriptor and [`Unshared::new`] keeps it.
#[derive(Debug)]
pub struct Unshared<F: AsRawFd> {
    // Dropped before the descriptor is closed: from then on its number may be another's.
    registration: Registration,
    inner: F,
}

/// The bit of a descriptor in the table, until dropped.
#[derive(Debug)]
struct Registration(RawFd);

impl<F: AsRawFd> Unshared<F> {
    /// Registers a descriptor.
    ///
    /// # Errors
    /// [`Error::Io`] when `/dev/null` cannot be opened, [`Error::Map`] when forks cannot be noticed.
    pub fn new(inner: F) -> Result<Self> {
        super::page()?;
        let open = || {
            let file = File::open("/dev/null");
            file.map(OwnedFd::from).map_err(|error| error.raw_os_error().unwrap_or(0))
        };
        if let Err(errno) = DEV_NULL.get_or_init(open) {
            let source = std::io::Error::from_raw_os_error(*errno);
            return Err(Error::Io { operation: "open /dev/null", source });
        }
        let number = inner.as_raw_fd();
        let (word, bit) = bit_of(number);
        word.fetch_or(bit, Ordering::Relaxed);
        Ok(Self { registration: Registration(number), inner })
    }

    /// The descriptor, which forked children share again.
    pub fn into_inner(self) -> F {
        drop(self.registration);
        self.inner
    }
}

impl<F: AsRawFd> Deref for Unshared<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.inner
    }
}

impl<F: AsRawFd + AsFd> AsFd for Unshared<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<F: AsRawFd> AsRawFd for Unshared<F> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (word, bit) = bit_of(self.0);
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}
