//! Memory files: made, sealed, measured, adopted.
//!
//! A memory file has no name that anybody could delete and no limit from /dev/shm.
//! The seals decide what a peer can do with it, and only the kernel enforces them.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::ftruncate;

use crate::error::{DescriptorFault, Error, Result};
use crate::faults::{self, Point};

/// Who may change a memory file after it is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seals {
    /// Only through writable mappings that exist already: the pool, written by the daemon alone.
    Pool,
    /// Anyone who has it, but not its length: client pages.
    Page,
    /// Nobody: a chunk or blob on its way.
    Frozen,
}

impl Seals {
    fn flags(self) -> SealFlag {
        let length = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        match self {
            Self::Pool => length | SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL,
            Self::Page => length | SealFlag::F_SEAL_SEAL,
            Self::Frozen => length | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL,
        }
    }
}

/// `MFD_NOEXEC_SEAL`, which neither nix nor libc names (linux/memfd.h).
const NOEXEC_SEAL: u32 = 0x8;

/// Makes a memory file of `len` bytes; `allocate` takes all its pages now.
pub(crate) fn create(name: &CStr, len: u64, allocate: bool, purpose: &'static str) -> Result<OwnedFd> {
    let fail = |source| Error::Create { len, purpose, source };
    let base = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // The noexec flag is refused by kernels before 6.3, its absence by some hardened later ones.
    let noexec = base | MFdFlags::from_bits_retain(NOEXEC_SEAL);
    let fd = match memfd_create(name, noexec) {
        Err(Errno::EINVAL) => memfd_create(name, base),
        other => other,
    }
    .map_err(fail)?;
    let signed = i64::try_from(len).map_err(|_| fail(Errno::EFBIG))?;
    if allocate {
        fill(signed, |at, len| fallocate(&fd, FallocateFlags::empty(), at, len)).map_err(fail)?;
    } else {
        ftruncate(&fd, signed).map_err(fail)?;
    }
    Ok(fd)
}

/// Bytes that one call allocates.
const FILL_BYTES: libc::off_t = 4 << 20;

/// Calls `allocate` for each part of a file, again after a signal: kernels before 5.18 undo what an interrupted call
/// has allocated, so the parts are short enough to get done between the signals of a busy timer.
fn fill(
    len: libc::off_t,
    mut allocate: impl FnMut(libc::off_t, libc::off_t) -> nix::Result<()>,
) -> nix::Result<()> {
    let mut at = 0;
    while at < len {
        let part = FILL_BYTES.min(len - at);
        match allocate(at, part) {
            Ok(()) => at += part,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// How often a seal is tried, and how long one waits in between; the kernel itself waits up to 150 ms in each try.
const SEAL_TRIES: u32 = 20;
const SEAL_PAUSE: Duration = Duration::from_millis(10);

/// Applies `seals` to a memory file.
pub(crate) fn seal(fd: impl AsFd, len: u64, seals: Seals) -> Result<()> {
    let mut tries = 1;
    loop {
        match faults::check(Point::Seal).and_then(|()| fcntl(&fd, FcntlArg::F_ADD_SEALS(seals.flags()))) {
            // While the kernel itself holds a page for a moment, to move it or to watch it, nobody may say that the
            // file is not written any more.
            Err(Errno::EBUSY) if tries < SEAL_TRIES => thread::sleep(SEAL_PAUSE),
            result => return result.map(drop).map_err(|source| Error::Seal { len, source }),
        }
        tries += 1;
    }
}

/// Checks that a peer's descriptor is a memory file of `len` bytes with at least `seals`.
///
/// Files in huge pages are refused: touching a hole of one can kill the process that touches it.
pub(crate) fn check(fd: impl AsFd, len: u64, seals: Seals, purpose: &'static str) -> Result<()> {
    let fault = |fault| Error::Descriptor { purpose, fault };
    let not_memory = || fault(DescriptorFault::NotAMemoryFile);
    let found = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| not_memory())?;
    if fstatfs(&fd).map_err(|_| not_memory())?.filesystem_type() != TMPFS_MAGIC {
        return Err(not_memory());
    }
    let needed = seals.flags().difference(SealFlag::F_SEAL_SEAL).bits();
    if found & needed != needed {
        return Err(fault(DescriptorFault::Seals { found, needed }));
    }
    let size = fstat(&fd).map_err(|_| not_memory())?.st_size;
    match u64::try_from(size) {
        Ok(size) if size == len => Ok(()),
        _ => Err(fault(DescriptorFault::Length { found: size.unsigned_abs(), needed: len })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_filled_although_signals_interrupt() {
        let (mut end, mut is_interrupted) = (0, false);
        let len = 3 * FILL_BYTES + 5;
        fill(len, |at, part| {
            is_interrupted = !is_interrupted;
            assert_eq!(at, end);
            if is_interrupted {
                return Err(Errno::EINTR);
            }
            end = at + part;
            Ok(())
        })
        .unwrap();
        assert_eq!(end, len);
        assert_eq!(fill(1, |_, _| Err(Errno::ENOSPC)), Err(Errno::ENOSPC));
    }
}
