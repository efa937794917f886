//! The escapes of a `planes:4` block: a sorted list of which elements have no code, with their exponents.
//!
//! An entry is a word of 32 bits: the element's number in the block, 18 bits, then its exponent, 11 bits.
//! Only records that contain an escape code look at the list.
//! Source: FORMAT.md, section "Codecs planes".

use crate::error::{Error, Result};

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 4;

/// Bits of an element's number: a block has at most 256 Ki elements of one byte.
const ELEM_BITS: u32 = 18;

/// The entry of element `elem` of a block.
pub(crate) fn entry(elem: usize, exponent: u16) -> [u8; ENTRY_BYTES] {
    let elem = u32::try_from(elem).expect("a block has at most 2^18 elements that planes encode");
    (elem | u32::from(exponent) << ELEM_BITS).to_le_bytes()
}

/// The elements that a list has entries for.
pub(crate) fn elements(list: &[u8]) -> impl Iterator<Item = usize> {
    let mask = (1 << ELEM_BITS) - 1;
    list.as_chunks().0.iter().map(move |entry| (u32::from_le_bytes(*entry) & mask) as usize)
}

/// The list, read for one record after the other.
#[derive(Debug)]
pub(crate) struct Escapes<'a> {
    list: &'a [[u8; ENTRY_BYTES]],
    /// The record's first element in the block.
    first: usize,
    /// The next entry; `None` before the first is asked for.
    next: Option<usize>,
    /// An element that has an escape code and no entry.
    missing: Option<usize>,
}

impl<'a> Escapes<'a> {
    /// The list of a block.
    #[inline]
    pub(crate) fn new(list: &'a [u8]) -> Self {
        Self { list: list.as_chunks().0, first: 0, next: None, missing: None }
    }

    /// Goes on to the record that starts with element `first`.
    #[inline]
    pub(crate) fn start(&mut self, first: usize) {
        self.first = first;
    }

    /// The exponent of element `elem` of the record; later ones are asked for later.
    ///
    /// 0 where the list has none; [`Escapes::finish`] then fails.
    pub(crate) fn exponent(&mut self, elem: usize) -> u16 {
        let elem = self.first + elem;
        let number =
            |entry: &[u8; ENTRY_BYTES]| (u32::from_le_bytes(*entry) & ((1 << ELEM_BITS) - 1)) as usize;
        let mut next = self.next.unwrap_or_else(|| self.list.partition_point(|entry| number(entry) < elem));
        while self.list.get(next).is_some_and(|entry| number(entry) < elem) {
            next += 1;
        }
        self.next = Some(next);
        match self.list.get(next) {
            Some(entry) if number(entry) == elem => {
                u16::try_from(u32::from_le_bytes(*entry) >> ELEM_BITS).unwrap_or(u16::MAX)
            }
            _ => {
                self.missing = self.missing.or(Some(elem));
                0
            }
        }
    }

    /// Whether every element that was asked for has an entry.
    pub(crate) fn finish(&self) -> Result<()> {
        self.missing.map_or(Ok(()), |elem| Err(Error::NoEscape { elem: elem as u64 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_element() {
        let list = [entry(3, 5), entry(900, 2047), entry((1 << 18) - 1, 1)].concat();
        let mut escapes = Escapes::new(&list);
        escapes.start(3);
        assert_eq!([0, 897].map(|elem| escapes.exponent(elem)), [5, 2047]);
        assert_eq!(escapes.finish(), Ok(()));
        assert_eq!(escapes.exponent(898), 0);
        assert_eq!(escapes.finish(), Err(Error::NoEscape { elem: 901 }));
        let mut escapes = Escapes::new(&list);
        escapes.start(900);
        assert_eq!(escapes.exponent(0), 2047);
        escapes.start(1 << 17);
        assert_eq!(escapes.exponent((1 << 17) - 1), 1);
    }
}
