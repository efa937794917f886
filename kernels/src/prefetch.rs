//! A hint to the processor that bytes will be read soon.
//!
//! A gather knows its next rows; their cache lines can travel while the current row is copied or decoded.
#![expect(unsafe_code, reason = "the prefetch instruction is reached through a raw pointer")]

/// What one prefetch brings: a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Asks for the cache lines of `bytes`; changes nothing but time, and does nothing on processors other than x86-64.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        bytes.chunks(LINE_BYTES).chain(bytes.last().map(core::slice::from_ref)).for_each(|line| {
            // SAFETY: the pointer is that of a live slice; a prefetch reads nothing that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_may_be_asked_for_and_stay_as_they_are() {
        let bytes: Vec<u8> = (0..=255).collect();
        for start in 0..70 {
            for len in [0, 1, 63, 64, 65, 128] {
                prefetch(&bytes[start..][..len]);
            }
        }
        assert!(bytes.iter().zip(0..=255).all(|(byte, n)| *byte == n));
    }
}
