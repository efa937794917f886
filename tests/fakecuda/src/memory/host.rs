//! Memory of the host that the device may use: registered, page-locked, managed.

use std::collections::BTreeMap;

use super::Place;
use super::maps::{self, Mapping};
use crate::code::{Answer, Code};
use crate::raw::{self, Access, PAGE};

/// Flags of `cuMemHostRegister` and `cuMemHostAlloc`.
pub(crate) const DEVICEMAP: u32 = 2;
pub(crate) const IOMEMORY: u32 = 4;
pub(crate) const READ_ONLY: u32 = 8;
const FLAGS: u32 = 0xF;
/// From here on one call fails on drivers of the 580 series, as users report.
const TOO_LONG: usize = 512 << 30;

/// Who gave the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Registered,
    PageLocked,
    Managed,
}

struct Piece {
    len: usize,
    flags: u32,
    kind: Kind,
    device: u64,
    /// The second mapping, if the device has one: start and length.
    alias: Option<(u64, usize)>,
    /// What was mapped there when it was registered.
    mappings: Vec<Mapping>,
}

pub(crate) struct HostMemory {
    pieces: BTreeMap<u64, Piece>,
    alias: bool,
}

fn length(from: u64, to: u64) -> usize {
    usize::try_from(to - from).expect("a length has 64 bits")
}

impl HostMemory {
    pub(crate) fn new(alias: bool) -> Self {
        Self { pieces: BTreeMap::new(), alias }
    }

    pub(crate) fn live(&self) -> usize {
        self.pieces.len()
    }

    /// Registers memory of the program. `can_read_only` is what the device answers for attribute 113.
    pub(crate) fn register(&mut self, at: u64, len: usize, flags: u32, can_read_only: bool) -> Answer {
        let end = super::end(at, len).ok_or(Code::INVALID_VALUE)?;
        if at == 0 || len == 0 || flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & IOMEMORY != 0 || (flags & READ_ONLY != 0 && !can_read_only) {
            return Err(Code::NOT_SUPPORTED);
        }
        if len >= TOO_LONG {
            complain!("registration of {len} bytes in one call: pieces have at most 64 GiB");
            return Err(Code::OUT_OF_MEMORY);
        }
        if self.pieces.iter().any(|(start, piece)| at < start + piece.bytes() && *start < end) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let mappings = mapped(at, end, flags)?;
        let (low, high) = (at & !(PAGE - 1), end.next_multiple_of(PAGE));
        let other = if self.alias { raw::alias(low, length(low, high)) } else { None };
        if let Some(other) = other {
            let access = if flags & READ_ONLY != 0 { Access::Read } else { Access::ReadWrite };
            raw::protect(other, length(low, high), access);
        }
        let piece = Piece {
            len,
            flags,
            kind: Kind::Registered,
            device: other.map_or(at, |other| other + (at - low)),
            alias: other.map(|other| (other, length(low, high))),
            mappings,
        };
        self.pieces.insert(at, piece);
        Ok(())
    }

    /// Ends a registration; a mapping that is gone is an error that stays.
    pub(crate) fn unregister(&mut self, at: u64) -> Result<Option<Code>, Code> {
        let Some(piece) = self.pieces.get(&at) else { return Err(Code::HOST_MEMORY_NOT_REGISTERED) };
        if piece.kind != Kind::Registered {
            return Err(Code::INVALID_VALUE);
        }
        let gone = !piece.is_mapped(at);
        if gone {
            complain!(
                "{} bytes at {at:#x} were unmapped before cuMemHostUnregister: the device may still read them",
                piece.len
            );
        }
        if let Some((alias, len)) = piece.alias {
            raw::unmap(alias, len);
        }
        self.pieces.remove(&at);
        Ok(gone.then_some(Code::ILLEGAL_ADDRESS))
    }

    /// New memory that both sides use at one address.
    pub(crate) fn allocate(&mut self, len: usize, flags: u32, kind: Kind) -> Result<u64, Code> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let at = raw::map(len, Access::ReadWrite).ok_or(Code::OUT_OF_MEMORY)?;
        let flags = flags | DEVICEMAP;
        let piece = Piece { len, flags, kind, device: at, alias: None, mappings: Vec::new() };
        self.pieces.insert(at, piece);
        Ok(at)
    }

    pub(crate) fn release(&mut self, at: u64, kind: Kind) -> Answer {
        match self.pieces.get(&at) {
            Some(piece) if piece.kind == kind => raw::unmap(at, piece.len),
            _ => return Err(Code::INVALID_VALUE),
        }
        self.pieces.remove(&at);
        Ok(())
    }

    /// The device's address of an address of the host.
    pub(crate) fn device_address(&self, at: u64) -> Option<u64> {
        let (start, piece) = self.pieces.range(..=at).next_back()?;
        (at < start + piece.bytes() && piece.flags & DEVICEMAP != 0).then(|| piece.device + (at - start))
    }

    pub(crate) fn flags(&self, at: u64) -> Option<u32> {
        let (start, piece) = self.pieces.range(..=at).next_back()?;
        (at < start + piece.bytes()).then_some(piece.flags)
    }

    /// Whether the host's bytes stay where they are, so that a copy may read them later.
    pub(crate) fn is_page_locked(&self, at: u64, len: usize) -> bool {
        let Some((start, piece)) = self.pieces.range(..=at).next_back() else { return false };
        super::end(at, len).is_some_and(|end| end <= start + piece.bytes())
    }

    pub(crate) fn place(&self, at: u64, len: usize) -> Option<Place> {
        let end = super::end(at, len)?;
        let holds = |from: u64, piece: &Piece| from <= at && end <= from + piece.bytes();
        let mut pieces = self.pieces.iter();
        pieces.find(|(start, piece)| holds(**start, piece) || holds(piece.device, piece)).map(
            |(start, piece)| Place::Host {
                start: *start,
                device: piece.device,
                len: piece.len,
                managed: piece.kind == Kind::Managed,
            },
        )
    }

    /// Says which registrations lost their memory; how many did.
    pub(crate) fn tell_unmapped(&self) -> usize {
        let gone: Vec<_> = self.pieces.iter().filter(|(at, piece)| !piece.is_mapped(**at)).collect();
        for (at, piece) in &gone {
            complain!("{} bytes at {at:#x} were unmapped and never unregistered", piece.len);
        }
        gone.len()
    }
}

impl Piece {
    fn bytes(&self) -> u64 {
        u64::try_from(self.len).expect("a length has 64 bits")
    }

    fn is_mapped(&self, at: u64) -> bool {
        self.kind != Kind::Registered
            || maps::covering(at, at + self.bytes()).is_some_and(|now| maps::same(&self.mappings, &now))
    }
}

/// The mappings of a range that may be registered with these flags.
fn mapped(at: u64, end: u64, flags: u32) -> Result<Vec<Mapping>, Code> {
    let Some(mappings) = maps::covering(at, end) else {
        complain!("registration of {at:#x} to {end:#x}, which is not mapped in full");
        return Err(Code::INVALID_VALUE);
    };
    if mappings.iter().any(|mapping| !mapping.readable) {
        complain!("registration of {at:#x} to {end:#x}, which cannot be read");
        return Err(Code::INVALID_VALUE);
    }
    if flags & READ_ONLY == 0 && mappings.iter().any(|mapping| !mapping.writable) {
        complain!("registration of {at:#x} to {end:#x}, which is read-only, without the flag READ_ONLY");
        return Err(Code::INVALID_VALUE);
    }
    Ok(mappings)
}
