//! Memory of the device: a part of the address space that the host cannot touch.
//!
//! Behind each allocation lies a gap with a canary, which a write past the end kills; new and freed bytes are poison.

use std::collections::BTreeMap;

use crate::code::Code;
use crate::raw::{self, Access};

const SIZE: usize = 64 << 30;
const GRAIN: usize = 512;
const CANARY: u8 = 0xFD;
const NEW: u8 = 0xA5;
const FREED: u8 = 0xDD;

pub(crate) struct Arena {
    base: u64,
    /// Start and length of what is free; neighbors are merged.
    free: BTreeMap<u64, usize>,
    allocated: BTreeMap<u64, usize>,
    used: usize,
    pub(crate) limit: usize,
    /// How many work in it now.
    open: u32,
    protect: bool,
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).expect("a length has 64 bits")
}

/// What an allocation takes, with the gap behind it.
fn taken(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(GRAIN)?.checked_add(GRAIN)
}

impl Arena {
    pub(crate) fn new(limit: usize, protect: bool) -> Self {
        let access = if protect { Access::None } else { Access::ReadWrite };
        let base = raw::map(SIZE, access).expect("there is address space for the device's memory");
        let free = BTreeMap::from([(base, SIZE)]);
        Self { base, free, allocated: BTreeMap::new(), used: 0, limit, open: 0, protect }
    }

    /// Lets the device work in its memory, until as many calls of [`Arena::close`].
    pub(crate) fn open(&mut self) {
        self.open += 1;
        if self.open == 1 && self.protect {
            raw::protect(self.base, SIZE, Access::ReadWrite);
        }
    }

    pub(crate) fn close(&mut self) {
        self.open -= 1;
        if self.open == 0 && self.protect {
            raw::protect(self.base, SIZE, Access::None);
        }
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    pub(crate) fn live(&self) -> usize {
        self.allocated.len()
    }

    /// The allocation in which `len` bytes from `at` lie.
    pub(crate) fn allocation(&self, at: u64, len: usize) -> Option<(u64, usize)> {
        let (start, size) = self.allocated.range(..=at).next_back()?;
        (super::end(at, len)? <= start + as_u64(*size)).then_some((*start, *size))
    }

    pub(crate) fn allocate(&mut self, len: usize) -> Result<u64, Code> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let need = taken(len).ok_or(Code::OUT_OF_MEMORY)?;
        if need > self.free_bytes() {
            return Err(Code::OUT_OF_MEMORY);
        }
        let fits = self.free.iter().find(|(_, size)| **size >= need);
        let (at, size) = fits.map(|(at, size)| (*at, *size)).ok_or(Code::OUT_OF_MEMORY)?;
        self.free.remove(&at);
        if size > need {
            self.free.insert(at + as_u64(need), size - need);
        }
        self.used += need;
        self.open();
        raw::fill(at, NEW, len);
        raw::fill(at + as_u64(len), CANARY, need - len);
        self.close();
        self.allocated.insert(at, len);
        Ok(at)
    }

    /// Frees an allocation; an error where something wrote past its end.
    pub(crate) fn release(&mut self, at: u64) -> Result<(), Code> {
        let len = self.allocated.remove(&at).ok_or(Code::INVALID_VALUE)?;
        let need = taken(len).expect("it was allocated");
        self.open();
        let gap = raw::read(at + as_u64(len), need - len);
        raw::fill(at, FREED, len);
        self.close();
        self.used -= need;
        self.merge(at, need);
        match gap.iter().position(|byte| *byte != CANARY) {
            None => Ok(()),
            Some(past) => {
                complain!("write past the end of a {len}-byte device allocation, at +{past}");
                Err(Code::ILLEGAL_ADDRESS)
            }
        }
    }

    fn merge(&mut self, mut at: u64, mut len: usize) {
        if let Some((before, size)) = self.free.range(..at).next_back()
            && before + as_u64(*size) == at
        {
            (at, len) = (*before, size + len);
        }
        if let Some(size) = self.free.remove(&(at + as_u64(len))) {
            len += size;
        }
        self.free.insert(at, len);
    }
}
