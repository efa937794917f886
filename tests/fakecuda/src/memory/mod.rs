//! Memory of the device, and memory of the host that the device may read.

mod api;
mod arena;
mod host;
mod host_api;
mod maps;

use crate::code::{Answer, Code};
use crate::settings::Settings;

pub(crate) use api::release;
pub(crate) use arena::Arena;
pub(crate) use host::HostMemory;

pub(crate) struct Memory {
    pub(crate) arena: Arena,
    pub(crate) host: HostMemory,
}

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device {
        start: u64,
        len: usize,
    },
    /// Registered, page-locked or managed memory; `device` is the device's address of it.
    Host {
        start: u64,
        device: u64,
        len: usize,
        managed: bool,
    },
}

impl Memory {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { arena: Arena::new(settings.memory, settings.protect), host: HostMemory::new(settings.alias) }
    }

    /// What `len` bytes from `at` lie in, by an address of the device or of the host.
    pub(crate) fn place(&self, at: u64, len: usize) -> Option<Place> {
        if let Some((start, len)) = self.arena.allocation(at, len) {
            return Some(Place::Device { start, len });
        }
        self.host.place(at, len)
    }

    /// Whether the device may use these bytes.
    pub(crate) fn on_device(&self, at: u64, len: usize) -> Answer {
        if len == 0 || self.place(at, len).is_some() { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}

/// The end of a range, if there is one.
pub(crate) fn end(at: u64, len: usize) -> Option<u64> {
    at.checked_add(u64::try_from(len).ok()?)
}
