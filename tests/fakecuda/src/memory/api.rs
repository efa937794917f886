//! Functions for memory of the device.

use std::ffi::c_int;

use super::Place;
use super::host::Kind;
use crate::args::{Array, Host, Out};
use crate::capture;
use crate::code::{Answer, Code};
use crate::devices::CONTEXT;
use crate::ops::Op;
use crate::schedule;
use crate::state::{Guard, Handle};

fn allocate(state: &mut Guard, at: Out<u64>, len: usize) -> Answer {
    state.health()?;
    let address = state.memory.arena.allocate(len)?;
    at.set(address)
}

driver_call!(fn cuMemAlloc_v2(at: Out<u64>, len: usize) needs Context |state| {
    capture::refuse(state, "cuMemAlloc")?;
    allocate(state, at, len)
});

driver_call!(fn cuMemAllocAsync(at: Out<u64>, len: usize, stream: Handle) needs Context |state| {
    capture::refuse_on(state, stream, "cuMemAllocAsync")?;
    allocate(state, at, len)
});

// The memory may be used by work that has not run: a driver waits for it, too.
driver_call!(fn cuMemFree_v2(at: u64) needs Context |state| {
    capture::refuse(state, "cuMemFree")?;
    if at == 0 {
        return Ok(());
    }
    schedule::drain_all(state)?;
    if state.memory.host.release(at, Kind::Managed).is_ok() {
        return Ok(());
    }
    release(state, at)
});

/// Frees memory of the device; a damaged canary is an error that stays.
pub(crate) fn release(state: &mut Guard, at: u64) -> Answer {
    let released = state.memory.arena.release(at);
    if released == Err(Code::ILLEGAL_ADDRESS) {
        state.sticky = Some(Code::ILLEGAL_ADDRESS);
    }
    released
}

driver_call!(fn cuMemFreeAsync(at: u64, stream: Handle) needs Context |state| {
    capture::refuse_on(state, stream, "cuMemFreeAsync")?;
    if at == 0 {
        return Ok(());
    }
    if state.memory.arena.allocation(at, 1).is_none_or(|(start, _)| start != at) {
        return Err(Code::INVALID_VALUE);
    }
    schedule::push(state, stream, Op::Free(at))
});

driver_call!(fn cuMemAllocManaged(at: Out<u64>, len: usize, _flags: u32) needs Context |state| {
    capture::refuse(state, "cuMemAllocManaged")?;
    let address = state.memory.host.allocate(len, 0, Kind::Managed)?;
    at.set(address)
});

driver_call!(fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) needs Context |state| {
    free.set(state.memory.arena.free_bytes())?;
    total.set(state.memory.arena.limit)
});

// The location is a struct of 8 bytes, which travels as a number.
driver_call!(fn cuMemAdvise_v2(at: u64, len: usize, _advice: u32, _location: u64) needs Context |state| {
    state.memory.on_device(at, len)
});

driver_call!(
    fn cuMemPrefetchAsync_v2(at: u64, len: usize, _location: u64, _flags: u32, _stream: Handle) needs Context
    |state| { state.memory.on_device(at, len) }
);

/// Numbers of `CUpointer_attribute`.
mod attribute {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const RANGE_START: u32 = 11;
    pub(super) const RANGE_SIZE: u32 = 12;
    pub(super) const MAPPED: u32 = 13;
}

/// Stores one attribute of the memory at `at`, which lies in `place`.
fn tell(place: Place, at: u64, asked: u32, out: Host) -> Answer {
    let (start, len, managed) = match place {
        Place::Device { start, len } => (start, len, false),
        Place::Host { start, len, managed, .. } => (start, len, managed),
    };
    // The addresses of the byte on the device and on the host.
    let (device, host) = match place {
        Place::Device { .. } => (at, None),
        Place::Host { start, device, .. } => {
            let by = at.checked_sub(start).filter(|by| *by < as_u64(len)).unwrap_or_else(|| at - device);
            (device + by, Some(start + by))
        }
    };
    match asked {
        attribute::CONTEXT => out.of().set(CONTEXT),
        attribute::MEMORY_TYPE => out.of::<u32>().set(if host.is_none() || managed { 2 } else { 1 }),
        attribute::DEVICE_POINTER => out.of().set(device),
        attribute::HOST_POINTER => out.of().set(host.ok_or(Code::INVALID_VALUE)?),
        attribute::IS_MANAGED => out.of::<u32>().set(managed.into()),
        attribute::DEVICE_ORDINAL => out.of::<c_int>().set(0),
        attribute::RANGE_START => out.of().set(start),
        attribute::RANGE_SIZE => out.of().set(len),
        attribute::MAPPED => out.of::<u8>().set(1),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).expect("a length has 64 bits")
}

driver_call!(fn cuPointerGetAttribute(out: Host, attribute: u32, at: u64) needs Context |state| {
    let place = state.memory.place(at, 1).ok_or(Code::INVALID_VALUE)?;
    tell(place, at, attribute, out)
});

// An address that the driver does not know is no error here: everything about it is 0.
driver_call!(
    fn cuPointerGetAttributes(n: u32, attributes: Array<u32>, outs: Array<Host>, at: u64) needs Context |state| {
        let n = usize::try_from(n).expect("a number of attributes");
        let place = state.memory.place(at, 1);
        for (asked, out) in attributes.read(n)?.into_iter().zip(outs.read(n)?) {
            match (place, asked) {
                (Some(place), _) => tell(place, at, asked, out)?,
                (None, attribute::DEVICE_ORDINAL) => out.of::<c_int>().set(-2)?,
                (None, attribute::MEMORY_TYPE | attribute::IS_MANAGED) => out.of::<u32>().set(0)?,
                (None, attribute::MAPPED) => out.of::<u8>().set(0)?,
                (None, _) => out.of::<u64>().set(0)?,
            }
        }
        Ok(())
    }
);
