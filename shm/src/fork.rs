//! Noticing a fork without a system call, and closing a child's copies of descriptors.
//!
//! A page that the kernel wipes in a forked child holds a random word; a session remembers the word it saw.
//! In the child the word is zero, or another one if the child attached again, so a look at it shows the fork.
//! The child's copies of [`Unshared`] descriptors are replaced by `/dev/null` in an atfork handler: else a parent that
//! dies would not look dead to the other side, its leases would hold memory, and its lock would keep a successor out.
//! Its mappings of shared memory are left out of the child, and made inaccessible there (`fork/ranges.rs`).

#![expect(
    unsafe_code,
    reason = "maps a page, registers the atfork handler, replaces descriptors in a forked child"
)]

pub(crate) mod ranges;

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};

mod unshared;

pub use unshared::Unshared;

const PAGE_BYTES: usize = 4096;

/// Proof of which process a session belongs to.
#[derive(Clone, Copy, Debug)]
pub struct ForkCookie {
    word: &'static AtomicU64,
    seen: u64,
}

impl ForkCookie {
    /// The cookie of the calling process.
    ///
    /// # Errors
    /// [`Error::Map`] when the page cannot be mapped, [`Error::Io`] when the kernel returns no random number.
    pub fn current() -> Result<Self> {
        let word = page()?;
        if word.load(Ordering::Relaxed) == 0 {
            let fresh = random()? | 1;
            // Another thread may have been first: whichever word is there is this process's.
            let _ = word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(Self { word, seen: word.load(Ordering::Relaxed) })
    }

    /// Whether the calling process is the one that this cookie was taken in.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.seen
    }
}

/// The word on the wiped page; made once per process image.
fn page() -> Result<&'static AtomicU64> {
    static PAGE: OnceLock<core::result::Result<&'static AtomicU64, Errno>> = OnceLock::new();
    PAGE.get_or_init(make_page).map_err(|source| Error::Map { len: PAGE_BYTES as u64, source })
}

fn make_page() -> core::result::Result<&'static AtomicU64, Errno> {
    let len = NonZeroUsize::new(PAGE_BYTES).ok_or(Errno::EINVAL)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: no address is passed, so no existing mapping changes.
    let base = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
    // SAFETY: the range is the page mapped above; wiping happens in children only.
    unsafe { madvise(base, PAGE_BYTES, MmapAdvise::MADV_WIPEONFORK) }?;
    // SAFETY: the handler only makes async-signal-safe calls (`dup3`, `mmap`) and uses atomics.
    let registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if registered != 0 {
        return Err(Errno::from_raw(registered));
    }
    // SAFETY: the page is never unmapped, is aligned and zeroed, and is only touched through this atomic.
    Ok(unsafe { base.cast::<AtomicU64>().as_ref() })
}

/// A number that no other process image has: from the kernel.
///
/// # Errors
/// [`Error::Io`] when the kernel returns none.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the buffer is valid for the length that is passed.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(got) != Ok(bytes.len()) {
        return Err(Error::Io { operation: "get a random number", source: std::io::Error::last_os_error() });
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// Runs in a forked child: the numbers stay valid, so dropping them closes nothing of the parent.
extern "C" fn in_child() {
    ranges::cover();
    unshared::each(|null, descriptor| {
        // SAFETY: `dup3` is async-signal-safe; `descriptor` is open and owned by an `Unshared` of this image.
        unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) };
    });
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::*;

    #[test]
    fn a_cookie_is_at_home_in_its_own_process() {
        let (a, b) = (ForkCookie::current().unwrap(), ForkCookie::current().unwrap());
        assert!(a.is_here() && b.is_here() && a.seen == b.seen && a.seen != 0);
    }

    /// The permissions of the mapping at an address, as the system shows them; async-signal-safe enough for a test's child.
    fn permissions(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap_or(0));
            (from..to).contains(&address).then(|| rest.to_owned())
        })
    }

    #[test]
    fn a_forked_child_has_inaccessible_memory_in_place_of_its_parents_mappings() {
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};

        let segment = crate::segment::Segment::create(1 << 20).unwrap();
        let client = crate::segment::ClientSegment::adopt(&segment, 1 << 20).unwrap();
        let address = client.map.range().0.addr().get();
        assert!(permissions(address).unwrap().contains("memfd"));
        // SAFETY: the child reads a file and maps memory, which glibc allows, and ends without destructors.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let covered = permissions(address).is_some_and(|line| line.starts_with("---p"));
                let has_file =
                    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("memfd"));
                // Neither ends what its parent had, nor takes what comes there next.
                drop(client);
                let is_kept = permissions(address).is_some_and(|line| line.starts_with("---p"));
                let own = crate::segment::Segment::create(1 << 20).unwrap();
                own.word(0).unwrap().store(7, Ordering::Relaxed);
                drop(segment);
                let is_right = own.word(0).unwrap().load(Ordering::Relaxed) == 7;
                let bits = [covered, !has_file, is_kept, is_right].map(i32::from);
                // SAFETY: ends the child without running destructors.
                unsafe { libc::_exit(bits[0] | bits[1] << 1 | bits[2] << 2 | bits[3] << 3) };
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 15)));
                assert_eq!(client.map.word(0).unwrap().load(Ordering::Relaxed), 0);
            }
        }
    }

    #[test]
    fn a_forked_child_is_noticed_and_loses_the_sockets_at_any_number() {
        use nix::fcntl::{FcntlArg, fcntl};
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, recv, setsockopt, socketpair, sockopt};
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};

        let cookie = ForkCookie::current().unwrap();
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        let pair =
            || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (mut ours, theirs): (Vec<_>, Vec<_>) = (0..300).map(|_| pair()).unzip();
        // The highest number that this process may have, where that is not beyond reason.
        let highest = i32::try_from(hard.min(1 << 16)).unwrap() - 1;
        let (high, of_high) = pair();
        let number = fcntl(&high, FcntlArg::F_DUPFD_CLOEXEC(highest)).unwrap();
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        ours.push(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
        drop(high);
        let sessions: Vec<_> = ours.into_iter().map(|fd| Unshared::new(fd).unwrap()).collect();
        let (tell, told) = nix::unistd::pipe().unwrap();
        // SAFETY: the child makes only async-signal-safe calls before `_exit`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let mut byte = [0];
                // Wait until the parent has dropped its ends, so that only a kept copy could hold a socket open.
                let _ = nix::unistd::read(&tell, &mut byte);
                // SAFETY: ends the child without running destructors.
                unsafe { libc::_exit(i32::from(cookie.is_here())) };
            }
            ForkResult::Parent { child } => {
                drop(sessions);
                // The child replaces its copies while this goes on, so the end may come a moment later.
                let limit = nix::sys::time::TimeVal::new(60, 0);
                let received: Vec<_> = theirs
                    .iter()
                    .chain([&of_high])
                    .map(|theirs| {
                        setsockopt(theirs, sockopt::ReceiveTimeout, &limit).unwrap();
                        recv(theirs.as_raw_fd(), &mut [0; 8], nix::sys::socket::MsgFlags::empty())
                    })
                    .collect();
                nix::unistd::write(&told, b"x").unwrap();
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                assert!(received.iter().all(|received| *received == Ok(0)), "{received:?}");
            }
        }
    }
}
