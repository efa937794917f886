//! The ranges of mappings that a forked child must not have, for the handler that runs in the child.
//!
//! The kernel leaves them out of the child (`MADV_DONTFORK`), and the handler maps inaccessible memory over each, so
//! that nothing else of the child comes to lie where its parent's slices point.
//! Nothing here waits or takes a lock: any thread of the parent may have been in the middle of it.

#![expect(unsafe_code, reason = "keeps a list in leaked memory, and maps over ranges in a forked child")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Entries of one chunk of the list; a client of 100 GiB has some thousand ranges.
const PER_CHUNK: usize = 512;
/// In place of an address: an entry that somebody is about to fill.
const TAKEN: usize = 1;

/// One range; its address is 0 while the entry is free.
#[derive(Debug)]
struct Entry {
    base: AtomicUsize,
    len: AtomicUsize,
}

/// A part of the list, which only grows.
struct Chunk {
    entries: [Entry; PER_CHUNK],
    /// Entries that are not free, or about to be.
    used: AtomicUsize,
    next: AtomicPtr<Chunk>,
}

static FIRST: Chunk = Chunk::new();

impl Chunk {
    const fn new() -> Self {
        Self {
            entries: [const { Entry { base: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; PER_CHUNK],
            used: AtomicUsize::new(0),
            next: AtomicPtr::new(null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: the pointer is null or of a chunk that `grow` has leaked.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// The next chunk, which is made if there is none.
    fn grow(&self) -> &'static Self {
        let fresh = Box::into_raw(Box::new(Self::new()));
        // AcqRel: pairs with the Acquire in `next`.
        match self.next.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked by this call.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: made above, and seen by nobody.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: another thread has leaked it.
                unsafe { &*other }
            }
        }
    }
}

/// A range that is entered, until dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    entry: &'static Entry,
    used: &'static AtomicUsize,
}

/// Enters a range of mapped memory.
pub(crate) fn enter(base: usize, len: usize) -> Entered {
    let mut chunk = &FIRST;
    loop {
        if chunk.used.fetch_add(1, Ordering::Relaxed) < PER_CHUNK {
            let take = |entry: &&Entry| {
                entry.base.compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            };
            if let Some(entry) = chunk.entries.iter().find(take) {
                entry.len.store(len, Ordering::Relaxed);
                // Release: a child that sees the address sees the length.
                entry.base.store(base, Ordering::Release);
                return Entered { entry, used: &chunk.used };
            }
        }
        chunk.used.fetch_sub(1, Ordering::Relaxed);
        chunk = chunk.next().unwrap_or_else(|| chunk.grow());
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.entry.base.store(0, Ordering::Relaxed);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs in a forked child: takes every range out of the list and makes it inaccessible.
///
/// What the child maps for itself is entered like anything else: an [`Entered`] of its parent must not be dropped.
pub(super) fn cover() {
    let mut chunk = Some(&FIRST);
    while let Some(this) = chunk {
        for entry in &this.entries {
            let base = entry.base.swap(0, Ordering::Acquire);
            if base > TAKEN {
                let len = entry.len.load(Ordering::Relaxed);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
                // SAFETY: the range was one mapping of the parent, of which nothing can be used here; nothing else has
                // been mapped since the fork, and mapping no memory is a system call and no more.
                unsafe { libc::mmap(base as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
            }
        }
        this.used.store(0, Ordering::Relaxed);
        chunk = this.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_grows_and_its_entries_are_used_again() {
        let entered: Vec<Entered> = (0..2 * PER_CHUNK).map(|n| enter((n + 2) << 12, 4096)).collect();
        let mut places: Vec<_> = entered.iter().map(|one| std::ptr::from_ref(one.entry)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 2 * PER_CHUNK);
        drop(entered);
        let again = enter(1 << 12, 4096);
        assert_eq!(again.entry.base.load(Ordering::Relaxed), 1 << 12);
    }
}
