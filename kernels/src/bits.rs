//! Bits in bytes, the least significant first: how every packed record is written and read.

/// Writes the low `n_bits` bits of `value` at bit `at`; the bits there are zero.
pub(crate) fn put(out: &mut [u8], at: usize, value: u64, n_bits: u32) {
    let value = u128::from(value & low(n_bits)) << (at % 8);
    let n_bytes = (at % 8 + n_bits as usize).div_ceil(8);
    for (byte, value) in out[at / 8..][..n_bytes].iter_mut().zip(value.to_le_bytes()) {
        *byte |= value;
    }
}

/// Reads `n_bits` bits from bit `at`; bits after the end count as zero.
pub(crate) fn take(bits: &[u8], at: usize, n_bits: u32) -> u64 {
    let there = bits.get(at / 8..).unwrap_or(&[]);
    let mut bytes = [0; 16];
    let n_bytes = there.len().min(9);
    bytes[..n_bytes].copy_from_slice(&there[..n_bytes]);
    let value = u128::from_le_bytes(bytes) >> (at % 8);
    #[expect(clippy::cast_possible_truncation, reason = "the bits asked for are the low ones, at most 64")]
    let value = value as u64;
    value & low(n_bits)
}

/// The lowest `n_bits` bits.
pub(crate) const fn low(n_bits: u32) -> u64 {
    if n_bits >= 64 { u64::MAX } else { (1 << n_bits) - 1 }
}

/// The bits of `word` that `mask` marks, moved together: `pext`, one run of ones at a time.
pub(crate) fn extract(word: u64, mask: u64) -> u64 {
    let (mut packed, mut at, mut left) = (0, 0, mask);
    while left != 0 {
        let start = left.trailing_zeros();
        let len = (left >> start).trailing_ones();
        packed |= (word >> start & low(len)) << at;
        at += len;
        left &= !(low(len) << start);
    }
    packed
}

/// The low bits of `packed` on the places that `mask` marks: `pdep`, one run of ones at a time.
pub(crate) fn deposit(packed: u64, mask: u64) -> u64 {
    let (mut word, mut packed, mut left) = (0, packed, mask);
    while left != 0 {
        let start = left.trailing_zeros();
        let len = (left >> start).trailing_ones();
        word |= (packed & low(len)) << start;
        packed = packed.checked_shr(len).unwrap_or(0);
        left &= !(low(len) << start);
    }
    word
}

/// Up to 8 bytes as a number; missing ones are 0.
#[inline(always)]
pub(crate) fn read_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_move_as_pext_and_pdep_do() {
        assert_eq!(extract(0xABCD, 0x0FF0), 0xBC);
        assert_eq!(deposit(0xBC, 0x0FF0), 0x0BC0);
        for mask in [0, 1, 1 << 63, u64::MAX, 0x8001_7FFE_0F0F_A5A5] {
            let word = 0x0123_4567_89AB_CDEF;
            assert_eq!(deposit(extract(word, mask), mask), word & mask);
        }
    }

    #[test]
    fn bits_after_the_end_are_zero() {
        let mut bytes = [0; 9];
        put(&mut bytes, 3, u64::MAX, 64);
        assert_eq!(take(&bytes, 3, 64), u64::MAX);
        assert_eq!(take(&bytes, 60, 64), 0x7F);
        assert_eq!(take(&bytes, 1000, 8), 0);
    }
}
