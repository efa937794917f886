//! Copies and fills.
//!
//! Pageable memory of the host is read, or written, within the call; page-locked memory when the stream gets there.

use crate::args::Host;
use crate::capture;
use crate::code::{Answer, Code};
use crate::ops::Op;
use crate::raw;
use crate::schedule;
use crate::state::{Guard, Handle};

driver_call!(fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, len: usize, stream: Handle) needs Context |state| {
    state.memory.on_device(to, len)?;
    if len == 0 {
        return Ok(());
    }
    let from = from.address();
    let op = if state.memory.host.is_page_locked(from, len) {
        Op::Copy { to, from, len, pageable: false }
    } else {
        Op::Bytes { to, bytes: raw::read(from, len) }
    };
    schedule::push(state, stream, op)
});

driver_call!(fn cuMemcpyDtoHAsync_v2(to: Host, from: u64, len: usize, stream: Handle) needs Context |state| {
    state.memory.on_device(from, len)?;
    if len == 0 {
        return Ok(());
    }
    let pageable = !state.memory.host.is_page_locked(to.address(), len);
    schedule::push(state, stream, Op::Copy { to: to.address(), from, len, pageable })?;
    if pageable && !capture::is_on(state, stream) { schedule::drain(state, stream, None) } else { Ok(()) }
});

driver_call!(fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) needs Context |state| {
    state.memory.on_device(to, len)?;
    state.memory.on_device(from, len)?;
    schedule::push(state, stream, Op::Copy { to, from, len, pageable: false })
});

/// On the legacy stream, within the call.
fn now(state: &mut Guard, op: Op) -> Answer {
    schedule::push(state, Handle::LEGACY, op)?;
    schedule::drain(state, Handle::LEGACY, None)
}

driver_call!(fn cuMemcpyHtoD_v2(to: u64, from: Host, len: usize) needs Context |state| {
    state.memory.on_device(to, len)?;
    now(state, Op::Copy { to, from: from.address(), len, pageable: true })
});

driver_call!(fn cuMemcpyDtoH_v2(to: Host, from: u64, len: usize) needs Context |state| {
    state.memory.on_device(from, len)?;
    now(state, Op::Copy { to: to.address(), from, len, pageable: true })
});

driver_call!(fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) needs Context |state| {
    state.memory.on_device(to, len)?;
    state.memory.on_device(from, len)?;
    schedule::push(state, Handle::LEGACY, Op::Copy { to, from, len, pageable: false })
});

fn fill(state: &mut Guard, at: u64, value: &[u8], count: usize, stream: Handle) -> Answer {
    let len = value.len().checked_mul(count).ok_or(Code::INVALID_VALUE)?;
    state.memory.on_device(at, len)?;
    schedule::push(state, stream, Op::Fill { at, value: value.to_vec(), count })
}

driver_call!(fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: Handle) needs Context |state| {
    fill(state, at, &[value], count, stream)
});

driver_call!(fn cuMemsetD32Async(at: u64, value: u32, count: usize, stream: Handle) needs Context |state| {
    fill(state, at, &value.to_ne_bytes(), count, stream)
});

driver_call!(fn cuMemsetD8_v2(at: u64, value: u8, count: usize) needs Context |state| {
    fill(state, at, &[value], count, Handle::LEGACY)
});

driver_call!(fn cuMemsetD32_v2(at: u64, value: u32, count: usize) needs Context |state| {
    fill(state, at, &value.to_ne_bytes(), count, Handle::LEGACY)
});
