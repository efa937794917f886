//! Memory that a process has freed and its allocator keeps.

#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator is asked to return memory")
)]

/// Returns to the system what was freed, where the allocator keeps it and can be asked: glibc's does and can.
///
/// It takes each of the allocator's locks for the time of a walk over what is free, so call it seldom.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no preconditions; it changes only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
