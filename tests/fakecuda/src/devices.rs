//! The driver itself, its only device, and the context of that.

use std::cell::Cell;
use std::ffi::c_int;

use crate::args::{Host, Out};
use crate::capture;
use crate::code::Code;
use crate::schedule;
use crate::state::Handle;

pub(crate) const CONTEXT: Handle = Handle(0xC0FF_EE00);
const NAME: &[u8] = b"fakecuda CPU device\0";
const VERSION: c_int = 13000;

thread_local! {
    static CURRENT: Cell<Handle> = const { Cell::new(Handle(0)) };
}

/// Whether this thread has a context.
pub(crate) fn has_context() -> bool {
    CURRENT.get() != Handle(0)
}

driver_call!(fn cuInit(flags: u32) needs Nothing |state| {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if !state.settings.has_device {
        return Err(Code::NO_DEVICE);
    }
    state.initialized = true;
    Ok(())
});

driver_call!(fn cuDriverGetVersion(version: Out<c_int>) needs Nothing |_state| { version.set(VERSION) });

driver_call!(fn cuDeviceGetCount(count: Out<c_int>) needs Init |_state| { count.set(1) });

driver_call!(fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) needs Init |_state| {
    if ordinal != 0 {
        return Err(Code::INVALID_DEVICE);
    }
    device.set(0)
});

driver_call!(fn cuDeviceGetName(name: Host, len: c_int, _device: c_int) needs Init |_state| {
    let len = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
    name.of::<u8>().set_all(&NAME[..NAME.len().min(len)])
});

driver_call!(fn cuDeviceGetUuid_v2(uuid: Host, _device: c_int) needs Init |_state| {
    uuid.of::<u8>().set_all(&[0xFA; 16])
});

driver_call!(fn cuDeviceTotalMem_v2(len: Out<usize>, _device: c_int) needs Init |state| {
    len.set(state.memory.arena.limit)
});

driver_call!(fn cuDevicePrimaryCtxRetain(context: Out<Handle>, _device: c_int) needs Init |state| {
    state.contexts += 1;
    context.set(CONTEXT)
});

driver_call!(fn cuDevicePrimaryCtxRelease_v2(_device: c_int) needs Init |state| {
    state.contexts = state.contexts.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
    if state.contexts > 0 {
        return Ok(());
    }
    // An error that stays has been answered before.
    schedule::drain_all(state).ok();
    let (allocations, registrations) = (state.memory.arena.live(), state.memory.host.live());
    if state.settings.tell_leaks && allocations + registrations > 0 {
        complain!(
            "{allocations} live device allocations and {registrations} pieces of host memory at the context's end"
        );
    }
    state.memory.host.tell_unmapped();
    Ok(())
});

driver_call!(fn cuCtxSetCurrent(context: Handle) needs Init |_state| {
    if context != CONTEXT && context != Handle(0) {
        return Err(Code::INVALID_CONTEXT);
    }
    CURRENT.set(context);
    Ok(())
});

driver_call!(fn cuCtxGetCurrent(context: Out<Handle>) needs Init |_state| { context.set(CURRENT.get()) });

driver_call!(fn cuCtxGetDevice(device: Out<c_int>) needs Context |_state| { device.set(0) });

driver_call!(fn cuCtxSetFlags(_flags: u32) needs Context |_state| { Ok(()) });

driver_call!(fn cuCtxSynchronize() needs Context |state| {
    capture::refuse(state, "cuCtxSynchronize")?;
    schedule::drain_all(state)
});
