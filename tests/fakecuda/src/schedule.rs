//! When the work of streams runs: as late as is legal, at once, by chance, or on a thread.
//!
//! A stream is a queue. Who runs an operation takes it from the queue and marks the stream, so that another thread
//! waits and the order of the stream holds while kernels run without the lock.

use parking_lot::MutexGuard;

use crate::code::{Answer, Code};
use crate::ops::Op;
use crate::settings::Mode;
use crate::state::{Guard, Handle, PROGRESS, lock};

/// Appends an operation to a stream, or to its capture.
pub(crate) fn push(state: &mut Guard, stream: Handle, op: Op) -> Answer {
    state.health()?;
    let stream = stream.canonical();
    crate::capture::refuse_legacy(state, stream)?;
    let Some(found) = state.streams.get_mut(&stream) else { return Err(Code::INVALID_HANDLE) };
    if let Some(capture) = &mut found.capture {
        capture.check_thread()?;
        capture.ops.push(op);
        return Ok(());
    }
    found.queue.push_back(op);
    match state.settings.mode {
        Mode::Sync => drain(state, stream, None),
        Mode::Worker => {
            PROGRESS.notify_all();
            Ok(())
        }
        Mode::Late | Mode::Random => Ok(()),
    }
}

/// Runs what a stream holds, up to the record of that number if one is given.
pub(crate) fn drain(state: &mut Guard, stream: Handle, until: Option<u64>) -> Answer {
    let stream = stream.canonical();
    loop {
        state.health()?;
        let Some(found) = state.streams.get(&stream) else { return Ok(()) };
        if until.is_some_and(|sequence| found.reached >= sequence) {
            return Ok(());
        }
        if found.working {
            PROGRESS.wait(state);
        } else if !run_next(state, stream)? {
            return Ok(());
        }
    }
}

pub(crate) fn drain_all(state: &mut Guard) -> Answer {
    let mut streams: Vec<Handle> = state.streams.keys().copied().collect();
    streams.sort();
    for stream in streams {
        drain(state, stream, None)?;
    }
    state.health()
}

/// Runs the next operation of a stream that nobody works on; false without one.
fn run_next(state: &mut Guard, stream: Handle) -> Result<bool, Code> {
    let Some(found) = state.streams.get_mut(&stream) else { return Ok(false) };
    let Some(op) = found.queue.pop_front() else { return Ok(false) };
    found.working = true;
    let sequence = if let Op::Record { sequence, .. } = &op { Some(*sequence) } else { None };
    let answer = op.run(state);
    if let Some(found) = state.streams.get_mut(&stream) {
        found.working = false;
        found.reached = found.reached.max(sequence.unwrap_or(0));
    }
    PROGRESS.notify_all();
    answer.map(|()| true)
}

/// The streams that have work and are not worked on.
fn ready(state: &Guard) -> Vec<Handle> {
    let streams = state.streams.iter().filter(|(_, stream)| !stream.working && !stream.queue.is_empty());
    let mut ready: Vec<Handle> = streams.map(|(handle, _)| *handle).collect();
    ready.sort();
    ready
}

/// In mode `random`, each call may run some operations of some streams. What fails is answered by the next calls.
pub(crate) fn some_by_chance(state: &mut Guard) {
    if state.settings.mode != Mode::Random {
        return;
    }
    for stream in ready(state) {
        for _ in 0..state.random_below(4) {
            let is_free = state.streams.get(&stream).is_some_and(|stream| !stream.working);
            if !is_free || state.sticky.is_some() || run_next(state, stream) != Ok(true) {
                break;
            }
        }
    }
}

/// The thread of mode `worker`: one operation after the other, of streams by chance.
pub(crate) fn work() {
    let mut state = lock();
    loop {
        let ready = if state.sticky.is_some() { Vec::new() } else { ready(&state) };
        if ready.is_empty() {
            PROGRESS.wait(&mut state);
            continue;
        }
        let count = u64::try_from(ready.len()).expect("a number of streams");
        let chosen = usize::try_from(state.random_below(count)).expect("below the number of streams");
        // What fails stays in the state.
        run_next(&mut state, ready[chosen]).ok();
        // Other threads get their turn, between operations as on a GPU.
        MutexGuard::bump(&mut state);
    }
}
