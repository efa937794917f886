//! Functions for memory of the host.

use super::host::Kind;
use crate::args::{Host, Out};
use crate::attributes::{self, number};
use crate::capture;
use crate::code::Code;
use crate::schedule;

driver_call!(fn cuMemHostAlloc(at: Out<Host>, len: usize, flags: u32) needs Context |state| {
    capture::refuse(state, "cuMemHostAlloc")?;
    state.health()?;
    if flags & !7 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let address = state.memory.host.allocate(len, flags, Kind::PageLocked)?;
    at.set(Host::at(address))
});

driver_call!(fn cuMemFreeHost(at: Host) needs Context |state| {
    capture::refuse(state, "cuMemFreeHost")?;
    schedule::drain_all(state)?;
    state.memory.host.release(at.address(), Kind::PageLocked)
});

driver_call!(fn cuMemHostRegister_v2(at: Host, len: usize, flags: u32) needs Context |state| {
    capture::refuse(state, "cuMemHostRegister")?;
    state.health()?;
    if attributes::value(state, number::HOST_REGISTER_SUPPORTED) == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let can_read_only = attributes::value(state, number::READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
    state.memory.host.register(at.address(), len, flags, can_read_only)
});

// Work that is still to come is not run: it loses its memory, as it may on a GPU.
driver_call!(fn cuMemHostUnregister(at: Host) needs Context |state| {
    capture::refuse(state, "cuMemHostUnregister")?;
    match state.memory.host.unregister(at.address())? {
        None => Ok(()),
        Some(code) => {
            state.sticky = Some(code);
            Err(code)
        }
    }
});

driver_call!(fn cuMemHostGetDevicePointer_v2(device: Out<u64>, at: Host, flags: u32) needs Context |state| {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let address = state.memory.host.device_address(at.address()).ok_or(Code::INVALID_VALUE)?;
    device.set(address)
});

driver_call!(fn cuMemHostGetFlags(flags: Out<u32>, at: Host) needs Context |state| {
    flags.set(state.memory.host.flags(at.address()).ok_or(Code::INVALID_VALUE)?)
});
