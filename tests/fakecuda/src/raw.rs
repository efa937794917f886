//! Memory by its address: the only module that touches it.
//!
//! Who calls answers for the range: the device's own memory while it is open, or memory that a caller of the driver
//! named and keeps until the operation has run. Host code that breaks this gets the fault that it would get from the
//! driver.
#![expect(unsafe_code, reason = "memory by its address")]

use std::ffi::CStr;

pub(crate) const PAGE: u64 = 4096;

/// What may be done with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    Read,
    ReadWrite,
}

impl Access {
    fn protection(self) -> i32 {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).expect("addresses have 64 bits"))
}

pub(crate) fn copy(to: u64, from: u64, len: usize) {
    // SAFETY: the caller answers for both ranges; they may overlap.
    unsafe { std::ptr::copy(pointer::<u8>(from), pointer::<u8>(to), len) };
}

pub(crate) fn write(to: u64, bytes: &[u8]) {
    // SAFETY: the caller answers for the range.
    unsafe { std::ptr::copy(bytes.as_ptr(), pointer::<u8>(to), bytes.len()) };
}

pub(crate) fn fill(at: u64, value: u8, len: usize) {
    // SAFETY: the caller answers for the range.
    unsafe { pointer::<u8>(at).write_bytes(value, len) };
}

pub(crate) fn read(at: u64, len: usize) -> Vec<u8> {
    // SAFETY: the caller answers for the range, which is copied at once.
    unsafe { std::slice::from_raw_parts(pointer::<u8>(at), len) }.to_vec()
}

/// The text from there up to its NUL.
pub(crate) fn text(at: u64) -> Vec<u8> {
    // SAFETY: the caller of the driver has a text with its NUL there.
    unsafe { CStr::from_ptr(pointer(at)) }.to_bytes().to_vec()
}

/// New memory of zeros.
pub(crate) fn map(len: usize, access: Access) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access.protection(), flags, -1, 0) };
    (at != libc::MAP_FAILED).then(|| at.expose_provenance() as u64)
}

/// Another mapping of the same pages; `None` where they are not shared memory.
pub(crate) fn alias(at: u64, len: usize) -> Option<u64> {
    // SAFETY: with an old size of 0, nothing happens to the mapping that is there.
    let other = unsafe { libc::mremap(pointer(at), 0, len, libc::MREMAP_MAYMOVE) };
    (other != libc::MAP_FAILED).then(|| other.expose_provenance() as u64)
}

pub(crate) fn protect(at: u64, len: usize, access: Access) -> bool {
    // SAFETY: pages of a mapping of ours.
    unsafe { libc::mprotect(pointer(at), len, access.protection()) == 0 }
}

pub(crate) fn unmap(at: u64, len: usize) {
    // SAFETY: a mapping of ours, which the device no longer names.
    unsafe { libc::munmap(pointer(at), len) };
}

/// Runs `end` when the process exits.
pub(crate) fn at_exit(end: extern "C" fn()) {
    // SAFETY: the function lives as long as this library, which nothing unloads.
    unsafe { libc::atexit(end) };
}

/// Calls back into the program.
pub(crate) fn call(function: extern "C" fn(*mut std::ffi::c_void), data: u64) {
    function(pointer(data));
}
