//! Streams.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};

use crate::args::{Host, Out};
use crate::capture::{self, Capture};
use crate::code::Code;
use crate::ops::Op;
use crate::schedule;
use crate::state::Handle;

/// Priorities that streams may have, from the least to the greatest.
const PRIORITIES: (c_int, c_int) = (0, -5);
const NON_BLOCKING: u32 = 1;

impl Handle {
    /// The stream without a name, which other streams wait for.
    pub(crate) const LEGACY: Self = Self(0);
    pub(crate) const PER_THREAD: Self = Self(2);

    /// The legacy stream has two names.
    pub(crate) fn canonical(self) -> Self {
        if self == Self(1) { Self::LEGACY } else { self }
    }
}

#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) queue: VecDeque<Op>,
    /// Whether a thread runs an operation of it.
    pub(crate) working: bool,
    /// The last record that it has come to.
    pub(crate) reached: u64,
    pub(crate) capture: Option<Capture>,
    /// Whether the legacy stream need not wait for it.
    pub(crate) non_blocking: bool,
    priority: c_int,
}

fn stream(flags: u32, priority: c_int) -> Stream {
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    Stream { non_blocking: flags & NON_BLOCKING != 0, priority, ..Stream::default() }
}

driver_call!(fn cuStreamCreate(handle: Out<Handle>, flags: u32) needs Context |state| {
    let new = state.handle();
    state.streams.insert(new, stream(flags, 0));
    handle.set(new)
});

driver_call!(
    fn cuStreamCreateWithPriority(handle: Out<Handle>, flags: u32, priority: c_int) needs Context |state| {
        let new = state.handle();
        state.streams.insert(new, stream(flags, priority));
        handle.set(new)
    }
);

driver_call!(fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) needs Context |_state| {
    least.set_if_asked(PRIORITIES.0);
    greatest.set_if_asked(PRIORITIES.1);
    Ok(())
});

driver_call!(fn cuStreamGetPriority(handle: Handle, priority: Out<c_int>) needs Context |state| {
    let stream = state.streams.get(&handle.canonical()).ok_or(Code::INVALID_HANDLE)?;
    priority.set(stream.priority)
});

driver_call!(fn cuStreamGetFlags(handle: Handle, flags: Out<u32>) needs Context |state| {
    let stream = state.streams.get(&handle.canonical()).ok_or(Code::INVALID_HANDLE)?;
    flags.set(stream.non_blocking.into())
});

// A driver lets the work of a destroyed stream go on; here it runs before the stream is gone.
driver_call!(fn cuStreamDestroy_v2(handle: Handle) needs Context |state| {
    if handle.canonical() == Handle::LEGACY || !state.streams.contains_key(&handle) {
        return Err(Code::INVALID_HANDLE);
    }
    let drained = schedule::drain(state, handle, None);
    state.streams.remove(&handle);
    drained
});

driver_call!(fn cuStreamSynchronize(handle: Handle) needs Context |state| {
    if !state.streams.contains_key(&handle.canonical()) {
        return Err(Code::INVALID_HANDLE);
    }
    capture::refuse_on(state, handle, "cuStreamSynchronize")?;
    capture::refuse_legacy(state, handle.canonical())?;
    schedule::drain(state, handle, None)?;
    state.health()
});

// Runs nothing: work that is only asked about may still be to come.
driver_call!(fn cuStreamQuery(handle: Handle) needs Context |state| {
    capture::refuse_on(state, handle, "cuStreamQuery")?;
    state.health()?;
    let stream = state.streams.get(&handle.canonical()).ok_or(Code::INVALID_HANDLE)?;
    if stream.queue.is_empty() && !stream.working { Ok(()) } else { Err(Code::NOT_READY) }
});

driver_call!(
    fn cuLaunchHostFunc(handle: Handle, function: Option<extern "C" fn(*mut c_void)>, data: Host) needs Context
    |state| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        schedule::push(state, handle, Op::Host { function, data: data.address() })
    }
);
