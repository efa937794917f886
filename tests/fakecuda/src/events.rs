//! Events.

use std::time::Instant;

use crate::args::Out;
use crate::capture;
use crate::code::{Answer, Code};
use crate::ops::Op;
use crate::schedule;
use crate::state::{Guard, Handle};

const DISABLE_TIMING: u32 = 2;

pub(crate) struct Event {
    /// The number and the stream of its last record; 0 before one.
    pub(crate) sequence: u64,
    pub(crate) stream: Handle,
    /// Whether its last record is part of a capture.
    captured: bool,
    done: u64,
    at: Option<Instant>,
    timing: bool,
}

impl Event {
    /// The stream has come to this record.
    pub(crate) fn reached(&mut self, sequence: u64, at: Instant) {
        if sequence > self.done {
            self.done = sequence;
            self.at = Some(at);
        }
    }

    fn is_done(&self) -> bool {
        self.done >= self.sequence
    }
}

fn event(state: &Guard, handle: Handle) -> Result<&Event, Code> {
    state.events.get(&handle).ok_or(Code::INVALID_HANDLE)
}

/// Numbers a record of the event on a stream.
pub(crate) fn stamp(state: &mut Guard, handle: Handle, stream: Handle) -> Result<Op, Code> {
    state.sequence += 1;
    let sequence = state.sequence;
    let event = state.events.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    (event.sequence, event.stream, event.captured) = (sequence, stream, false);
    Ok(Op::Record { event: handle, sequence })
}

driver_call!(fn cuEventCreate(handle: Out<Handle>, flags: u32) needs Context |state| {
    let new = state.handle();
    let timing = flags & DISABLE_TIMING == 0;
    let event = Event { sequence: 0, stream: Handle::LEGACY, captured: false, done: 0, at: None, timing };
    state.events.insert(new, event);
    handle.set(new)
});

driver_call!(fn cuEventDestroy_v2(handle: Handle) needs Context |state| {
    state.events.remove(&handle).map(drop).ok_or(Code::INVALID_HANDLE)
});

driver_call!(fn cuEventRecord(handle: Handle, stream: Handle) needs Context |state| {
    let stream = stream.canonical();
    event(state, handle)?;
    if !state.streams.contains_key(&stream) {
        return Err(Code::INVALID_HANDLE);
    }
    let record = stamp(state, handle, stream)?;
    if capture::is_on(state, stream)
        && let Some(event) = state.events.get_mut(&handle)
    {
        event.captured = true;
    }
    schedule::push(state, stream, record)
});

driver_call!(fn cuEventSynchronize(handle: Handle) needs Context |state| {
    let event = event(state, handle)?;
    if event.captured {
        return Err(Code::CAPTURED_EVENT);
    }
    if !event.is_done() {
        let (stream, sequence) = (event.stream, event.sequence);
        schedule::drain(state, stream, Some(sequence))?;
    }
    state.health()
});

// Runs nothing: work that is only asked about may still be to come.
driver_call!(fn cuEventQuery(handle: Handle) needs Context |state| {
    state.health()?;
    let event = event(state, handle)?;
    if event.captured {
        return Err(Code::CAPTURED_EVENT);
    }
    if event.is_done() { Ok(()) } else { Err(Code::NOT_READY) }
});

driver_call!(fn cuStreamWaitEvent(stream: Handle, handle: Handle, _flags: u32) needs Context |state| {
    let event = event(state, handle)?;
    let (captured, recorded, done) = (event.captured, event.sequence != 0, event.is_done());
    let wait = Op::Wait { stream: event.stream, sequence: event.sequence };
    let in_order = event.stream == stream.canonical();
    if !state.streams.contains_key(&stream.canonical()) {
        return Err(Code::INVALID_HANDLE);
    }
    if !recorded {
        return Ok(());
    }
    isolate(state, stream, captured)?;
    // What comes before it in the same stream runs before it anyway.
    if done || in_order {
        return Ok(());
    }
    schedule::push(state, stream, wait)
});

/// A capture holds what its own stream was given: waiting across its border ends it, and is not modeled.
fn isolate(state: &mut Guard, stream: Handle, captured: bool) -> Answer {
    if captured == capture::is_on(state, stream) {
        return Ok(());
    }
    complain!("a stream waits across the border of a capture");
    capture::invalidate_all(state);
    Err(Code::STREAM_CAPTURE_ISOLATION)
}

driver_call!(fn cuEventElapsedTime_v2(milliseconds: Out<f32>, from: Handle, to: Handle) needs Context |state| {
    let (from, to) = (event(state, from)?, event(state, to)?);
    if !from.timing || !to.timing {
        return Err(Code::INVALID_HANDLE);
    }
    if !from.is_done() || !to.is_done() {
        return Err(Code::NOT_READY);
    }
    let (Some(from), Some(to)) = (from.at, to.at) else { return Err(Code::INVALID_HANDLE) };
    milliseconds.set(to.saturating_duration_since(from).as_secs_f32() * 1e3)
});
