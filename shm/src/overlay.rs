//! Overlays: the rows of a block that changed, stored next to the block.
//!
//! An overlay is an extent that never changes: a header, row numbers in ascending order, and the rows, raw.
//! Its header holds the block word that it covers, which may be another overlay: at most
//! [`overlay::MAX_CHAIN`] of them, and then a block.
//! A reader looks for a row from the newest overlay down.
//! Source: design brief, section 7; LAYOUT.md, section "Overlay".

use crate::layout::overlay;
use crate::types::{BlockWord, UNIT_BYTES, index};

const ROW_NUMBER_BYTES: u64 = 4;

/// What is wrong with the bytes of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayFault {
    /// It ends within its header, or before what its header says.
    #[error("overlay of {got} bytes is cut off: {needed} are needed")]
    Truncated {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// A header field that contradicts the others.
    #[error("overlay has {field} {found}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
    /// The checksum does not match.
    #[error("overlay has CRC32C {found:#010x}, its header says {needed:#010x}")]
    Checksum {
        /// That of the bytes.
        found: u32,
        /// That of the header.
        needed: u32,
    },
}

/// A checked view of an overlay's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Overlay<'a> {
    covered: BlockWord,
    depth: u64,
    row_bytes: usize,
    numbers: &'a [[u8; 4]],
    rows: &'a [u8],
    bytes: &'a [u8],
}

fn header_word(bytes: &[u8], at: u64) -> Option<u64> {
    let word = bytes.get(index(at)..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}

/// Bytes of an overlay of `n_rows` rows of `row_bytes` bytes, and the offset of its first row.
const fn lengths(n_rows: u64, row_bytes: u64) -> Option<(u64, u64)> {
    let Some(numbers) = n_rows.checked_mul(ROW_NUMBER_BYTES) else { return None };
    let Some(rows_at) = (overlay::BYTES + numbers).checked_next_multiple_of(UNIT_BYTES) else { return None };
    let Some(rows) = n_rows.checked_mul(row_bytes) else { return None };
    match rows_at.checked_add(rows) {
        Some(len) => Some((len, rows_at)),
        None => None,
    }
}

/// Bytes of an overlay of `n_rows` rows of `row_bytes` bytes; `None` when that overflows.
pub const fn encoded_len(n_rows: u64, row_bytes: u64) -> Option<u64> {
    match lengths(n_rows, row_bytes) {
        Some((len, _)) => Some(len),
        None => None,
    }
}

/// Bytes of the overlay that starts with `header`, as it says itself; nothing is checked.
#[inline]
pub fn stated_len(header: &[u8]) -> Option<u64> {
    header_word(header, overlay::LEN_AT)
}

/// Writes an overlay over `covered` in place of what `out` holds.
///
/// `depth` is the number of overlays below this one; `rows` are sorted by number, each once, all of `row_bytes` bytes.
///
/// # Panics
/// When a row has another length, or all together are more than memory holds: the caller has cut them by the geometry.
pub fn encode<'r>(
    covered: BlockWord,
    depth: u64,
    row_bytes: u64,
    rows: impl ExactSizeIterator<Item = (u32, &'r [u8])> + Clone,
    out: &mut Vec<u8>,
) {
    let n_rows = rows.len() as u64;
    let (len, rows_at) = lengths(n_rows, row_bytes).expect("the caller has cut the rows by the geometry");
    out.clear();
    out.resize(index(len), 0);
    let fields = [
        (overlay::MAGIC_AT, overlay::MAGIC),
        (overlay::COVERED_AT, covered.bits()),
        (overlay::N_ROWS_AT, n_rows),
        (overlay::ROW_BYTES_AT, row_bytes),
        (overlay::ROWS_AT, rows_at),
        (overlay::DEPTH_AT, depth),
        (overlay::LEN_AT, len),
    ];
    for (at, value) in fields {
        out[index(at)..][..8].copy_from_slice(&value.to_le_bytes());
    }
    let (front, values) = out.split_at_mut(index(rows_at));
    for ((number, _), target) in rows.clone().zip(front[index(overlay::BYTES)..].as_chunks_mut().0) {
        *target = number.to_le_bytes();
    }
    let row_bytes = index(row_bytes);
    for ((_, row), n) in rows.zip(0..) {
        values[n * row_bytes..(n + 1) * row_bytes].copy_from_slice(row);
    }
    let checksum = checksum(out);
    out[index(overlay::CRC_AT)..][..8].copy_from_slice(&u64::from(checksum).to_le_bytes());
}

/// CRC32C of everything but the word that holds it.
fn checksum(bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(index(overlay::CRC_AT));
    crc32c::crc32c_append(crc32c::crc32c(before), &rest[8..])
}

impl<'a> Overlay<'a> {
    /// Checks the header of an overlay whose bytes start `bytes`, except its checksum.
    ///
    /// # Errors
    /// [`OverlayFault::Truncated`] and [`OverlayFault::Field`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, OverlayFault> {
        let got = bytes.len() as u64;
        let word = |at| header_word(bytes, at).ok_or(OverlayFault::Truncated { needed: overlay::BYTES, got });
        let field = |field, found| OverlayFault::Field { field, found };
        let magic = word(overlay::MAGIC_AT)?;
        if magic != overlay::MAGIC {
            return Err(field("magic", magic));
        }
        let (n_rows, row_bytes) = (word(overlay::N_ROWS_AT)?, word(overlay::ROW_BYTES_AT)?);
        let (len, rows_at) = lengths(n_rows, row_bytes).ok_or(field("n_rows", n_rows))?;
        if word(overlay::ROWS_AT)? != rows_at {
            return Err(field("rows_at", word(overlay::ROWS_AT)?));
        }
        if word(overlay::LEN_AT)? != len {
            return Err(field("len", word(overlay::LEN_AT)?));
        }
        let depth = word(overlay::DEPTH_AT)?;
        if depth >= overlay::MAX_CHAIN {
            return Err(field("depth", depth));
        }
        let bytes = bytes.get(..index(len)).ok_or(OverlayFault::Truncated { needed: len, got })?;
        let (front, rows) = bytes.split_at(index(rows_at));
        let numbers = &front[index(overlay::BYTES)..].as_chunks().0[..index(n_rows)];
        let covered = BlockWord::from_bits(word(overlay::COVERED_AT)?);
        Ok(Self { covered, depth, row_bytes: index(row_bytes), numbers, rows, bytes })
    }

    /// Compares the checksum.
    ///
    /// # Errors
    /// [`OverlayFault::Checksum`] with both.
    pub fn verify(&self) -> Result<(), OverlayFault> {
        let needed = header_word(self.bytes, overlay::CRC_AT).unwrap_or_default();
        let found = checksum(self.bytes);
        let needed = u32::try_from(needed).unwrap_or(!found);
        if found == needed { Ok(()) } else { Err(OverlayFault::Checksum { found, needed }) }
    }

    /// The word below.
    #[inline]
    pub const fn covered(&self) -> BlockWord {
        self.covered
    }

    /// Overlays below this one.
    #[inline]
    pub const fn depth(&self) -> u64 {
        self.depth
    }

    /// Rows that it holds.
    #[inline]
    pub const fn n_rows(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Bytes of a row.
    #[inline]
    pub const fn row_bytes(&self) -> u64 {
        self.row_bytes as u64
    }

    /// Where its first row starts, from its first byte.
    #[inline]
    pub const fn rows_at(&self) -> u64 {
        (self.bytes.len() - self.rows.len()) as u64
    }

    #[inline]
    fn number(&self, n: usize) -> u32 {
        u32::from_le_bytes(self.numbers[n])
    }

    /// The bytes of a row of the block, if this overlay holds it.
    #[inline]
    pub fn find(&self, row_in_block: u64) -> Option<&'a [u8]> {
        let wanted = u32::try_from(row_in_block).ok()?;
        let n = self.numbers.binary_search_by(|number| u32::from_le_bytes(*number).cmp(&wanted)).ok()?;
        self.rows.get(n * self.row_bytes..(n + 1) * self.row_bytes)
    }

    /// Writes its rows over those of the block's raw bytes.
    ///
    /// # Errors
    /// [`OverlayFault::Field`] when a row does not lie in `raw`.
    pub fn apply(&self, raw: &mut [u8]) -> Result<(), OverlayFault> {
        for (n, row) in (0..self.numbers.len()).zip(self.rows.chunks_exact(self.row_bytes.max(1))) {
            let number = self.number(n);
            let at = index(u64::from(number)).checked_mul(self.row_bytes);
            let target = at.and_then(|at| raw.get_mut(at..)?.get_mut(..self.row_bytes));
            let fault = OverlayFault::Field { field: "row number", found: u64::from(number) };
            target.ok_or(fault)?.copy_from_slice(row);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn overlay(rows: &[(u32, Vec<u8>)], row_bytes: u64) -> Vec<u8> {
        let mut out = vec![0xA5; 3];
        let covered = BlockWord::resident(77, 3, BlockWord::RAW, 9);
        encode(covered, 2, row_bytes, rows.iter().map(|(number, row)| (*number, &row[..])), &mut out);
        assert_eq!(encoded_len(rows.len() as u64, row_bytes), Some(out.len() as u64));
        out
    }

    #[test]
    fn what_is_written_is_found() {
        let bytes = overlay(&[(1, vec![1; 5]), (4, vec![4; 5]), (u32::MAX, vec![9; 5])], 5);
        assert_eq!(stated_len(&bytes), Some(bytes.len() as u64));
        let overlay = Overlay::parse(&bytes).unwrap();
        overlay.verify().unwrap();
        assert_eq!((overlay.covered().offset(), overlay.depth(), overlay.n_rows()), (77, 2, 3));
        assert_eq!(overlay.find(4), Some(&[4; 5][..]));
        assert_eq!(bytes[index(overlay.rows_at())..][..5], [1; 5]);
        assert_eq!(overlay.find(u64::from(u32::MAX)), Some(&[9; 5][..]));
        assert_eq!((overlay.find(0), overlay.find(5), overlay.find(u64::MAX)), (None, None, None));
        let mut raw = vec![0; 25];
        let beyond = OverlayFault::Field { field: "row number", found: u64::from(u32::MAX) };
        assert_eq!(overlay.apply(&mut raw), Err(beyond));
        assert_eq!((&raw[5..10], &raw[20..]), (&[1; 5][..], &[4; 5][..]));
    }

    #[test]
    fn rows_without_bytes_are_no_rows_to_write() {
        let bytes = overlay(&[(0, vec![]), (1, vec![])], 0);
        let overlay = Overlay::parse(&bytes).unwrap();
        assert_eq!(overlay.find(1), Some(&[][..]));
        overlay.apply(&mut []).unwrap();
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_noticed() {
        let bytes = overlay(&[(0, vec![7; 9]), (3, vec![8; 9])], 9);
        for len in 0..bytes.len() {
            assert!(Overlay::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            let parsed = Overlay::parse(&damaged);
            assert!(parsed.is_err() || parsed.unwrap().verify().is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_overlay_or_a_fault(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&overlay::MAGIC.to_le_bytes());
            }
            if let Ok(overlay) = Overlay::parse(&bytes) {
                let _ = (overlay.verify().is_ok(), overlay.find(0), overlay.apply(&mut [0; 64]).is_ok());
            }
        }
    }
}
