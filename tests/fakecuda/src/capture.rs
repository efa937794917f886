//! Graph capture, and what is refused while it goes on: a refused call also invalidates the capture.
//!
//! Stricter than a driver in one point: the thread that captures is refused even in the mode `relaxed`, since
//! TierPack never registers, allocates or loads there.

use std::cell::Cell;
use std::thread::{self, ThreadId};

use crate::args::Out;
use crate::code::{Answer, Code};
use crate::ops::Op;
use crate::state::{Guard, Handle};

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// What a stream was given since its capture began.
pub(crate) struct Capture {
    pub(crate) ops: Vec<Op>,
    mode: u32,
    thread: ThreadId,
    valid: bool,
}

thread_local! {
    /// What this thread takes from captures of others.
    static EXCHANGED: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl Capture {
    /// Whether it forbids what might break it on this thread.
    fn forbids(&self) -> bool {
        self.thread == thread::current().id() || (self.mode == GLOBAL && EXCHANGED.get() == GLOBAL)
    }

    pub(crate) fn check_thread(&self) -> Answer {
        if !self.valid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let is_mine = self.mode == RELAXED || self.thread == thread::current().id();
        if is_mine { Ok(()) } else { Err(Code::STREAM_CAPTURE_WRONG_THREAD) }
    }
}

pub(crate) fn is_on(state: &Guard, stream: Handle) -> bool {
    state.streams.get(&stream.canonical()).is_some_and(|stream| stream.capture.is_some())
}

/// Invalidates the captures of streams for which `which` says so; whether there were any.
fn invalidate(state: &mut Guard, which: impl Fn(Handle, bool, &Capture) -> bool) -> bool {
    let mut found = false;
    for (handle, stream) in &mut state.streams {
        if let Some(capture) = &mut stream.capture
            && which(*handle, stream.non_blocking, capture)
        {
            (capture.valid, found) = (false, true);
        }
    }
    found
}

pub(crate) fn invalidate_all(state: &mut Guard) {
    invalidate(state, |_, _, _| true);
}

/// Refuses a call that must not be made while this thread, or any in mode `global`, captures.
pub(crate) fn refuse(state: &mut Guard, name: &str) -> Answer {
    if !invalidate(state, |_, _, capture| capture.forbids()) {
        return Ok(());
    }
    complain!("{name} during a capture, which is lost");
    Err(Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses a call on a stream that captures.
pub(crate) fn refuse_on(state: &mut Guard, stream: Handle, name: &str) -> Answer {
    let stream = stream.canonical();
    if !invalidate(state, |handle, _, _| handle == stream) {
        return Ok(());
    }
    complain!("{name} on a stream that captures: the capture is lost");
    Err(Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses work on the legacy stream while a capture goes on that would depend on it, or that forbids it.
pub(crate) fn refuse_legacy(state: &mut Guard, stream: Handle) -> Answer {
    if stream != Handle::LEGACY {
        return Ok(());
    }
    if invalidate(state, |_, non_blocking, _| !non_blocking) {
        complain!(
            "use of the legacy stream during the capture of a stream that waits for it: the capture is lost"
        );
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    refuse(state, "use of the legacy stream")
}

driver_call!(fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) needs Context |_state| {
    let asked = mode.value().filter(|mode| *mode <= RELAXED).ok_or(Code::INVALID_VALUE)?;
    mode.set(EXCHANGED.replace(asked))
});

driver_call!(fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) needs Context |state| {
    state.health()?;
    if mode > RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    if stream.canonical() == Handle::LEGACY {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let stream = state.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
    if stream.capture.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    stream.capture = Some(Capture { ops: Vec::new(), mode, thread: thread::current().id(), valid: true });
    Ok(())
});

driver_call!(fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) needs Context |state| {
    let found = state.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
    let capture = found.capture.as_ref().ok_or(Code::ILLEGAL_STATE)?;
    let checked = capture.check_thread();
    if checked == Err(Code::STREAM_CAPTURE_WRONG_THREAD) {
        return checked;
    }
    let ops = found.capture.take().map(|capture| capture.ops).unwrap_or_default();
    graph.set(Handle(0))?;
    checked?;
    let new = state.handle();
    state.graphs.insert(new, ops);
    graph.set(new)
});

driver_call!(fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) needs Context |state| {
    let stream = state.streams.get(&stream.canonical()).ok_or(Code::INVALID_HANDLE)?;
    status.set(match &stream.capture {
        None => 0,
        Some(capture) if capture.valid => 1,
        Some(_) => 2,
    })
});
