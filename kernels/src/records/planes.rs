//! The records of `planes` blocks, one after the other, for whatever decodes one.
//!
//! A run of records is decoded by one call, so that what depends on the machine is chosen once per block, and
//! the loop over its records is compiled with the instructions of what it calls.

use tierpack_shm::types::index;

use super::{RAW_RECORD, Source};
use crate::cut::{Place, RECORD_ELEMS};
use crate::error::Result;
use crate::escapes::Escapes;
use crate::planes::{Planes, Schedule};
use crate::scalar::planes::Body;

/// Which record of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) run: u64,
    /// The number of the record in its run.
    pub(crate) record: u64,
}

/// One packed record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// Its first element in its run.
    pub(crate) first: usize,
    /// Its elements.
    pub(crate) n: usize,
    pub(crate) body: Body<'a>,
}

/// What decodes one record.
pub(crate) trait Kernel {
    /// Decodes a record into the first of `words`; what comes after them is decoded later and may be changed.
    ///
    /// `room` has the bytes of a [`super::Scratch`] body, to put a body together.
    ///
    /// # Errors
    /// How many bytes of the rest the record needs, where there are fewer; `words` then holds anything.
    fn decode(
        &self,
        planes: &Planes,
        record: &Record<'_>,
        words: &mut [u8],
        escapes: &mut Escapes<'_>,
        room: &mut [u8],
    ) -> core::result::Result<(), usize>;
}

impl Source<'_> {
    /// Decodes the records of any schedule from `position` on that `words` has room for.
    pub(crate) fn by_schedule<K: Kernel>(
        &self,
        planes: &Planes,
        kernel: &K,
        position: Position,
        words: &mut [u8],
        room: &mut [u8],
    ) -> Result<()> {
        match planes.schedule {
            Schedule::Four => self.headless(planes, kernel, position, words, room),
            _ => self.headed(planes, kernel, position, words, room),
        }
    }

    /// Decodes the records of `planes:4` from `position` on that `words` has room for.
    #[inline(always)]
    pub(crate) fn headless<K: Kernel>(
        &self,
        planes: &Planes,
        kernel: &K,
        mut position: Position,
        words: &mut [u8],
        room: &mut [u8],
    ) -> Result<()> {
        let run_elems = (self.grid.runs.records - 1) * RECORD_ELEMS + self.grid.runs.tail_elems;
        let mut escapes = Escapes::new(&self.bytes[index(self.grid.front_len())..]);
        let mut left = words;
        while !left.is_empty() {
            let (place, first, n) = self.locate(position);
            let body = Body {
                bytes: &self.bytes[index(place.offset)..],
                front_len: index(place.stride),
                rest_at: None,
            };
            escapes.start(index(position.run * run_elems) + first);
            let decoded = kernel.decode(planes, &Record { first, n, body }, left, &mut escapes, room);
            decoded.map_err(|needed| self.missing(0, needed))?;
            left = &mut left[index(place.raw_bytes)..];
            position = self.after(position);
        }
        escapes.finish()
    }

    /// Decodes the records of the other codecs from `position` on that `words` has room for.
    #[inline(always)]
    pub(crate) fn headed<K: Kernel>(
        &self,
        planes: &Planes,
        kernel: &K,
        mut position: Position,
        words: &mut [u8],
        room: &mut [u8],
    ) -> Result<()> {
        let mut none = Escapes::new(&[]);
        let mut left = words;
        while !left.is_empty() {
            let (place, first, n) = self.locate(position);
            let (head, body) = self.body(&place)?;
            if head & RAW_RECORD != 0 {
                self.raw_record(head, body.front(), &mut left[..index(place.raw_bytes)])?;
            } else {
                let decoded = kernel.decode(planes, &Record { first, n, body }, left, &mut none, room);
                decoded.map_err(|needed| self.missing(head, needed))?;
            }
            left = &mut left[index(place.raw_bytes)..];
            position = self.after(position);
        }
        Ok(())
    }

    /// Where a record is, its first element in its run, and its elements.
    #[inline(always)]
    fn locate(&self, position: Position) -> (Place, usize, usize) {
        let Position { run, record } = position;
        let last = record + 1 == self.grid.runs.records;
        let n = if last { self.grid.runs.tail_elems } else { RECORD_ELEMS };
        (self.grid.place(run, record), index(record * RECORD_ELEMS), index(n))
    }

    #[inline(always)]
    const fn after(&self, Position { run, record }: Position) -> Position {
        if record + 1 == self.grid.runs.records {
            Position { run: run + 1, record: 0 }
        } else {
            Position { run, record: record + 1 }
        }
    }
}
