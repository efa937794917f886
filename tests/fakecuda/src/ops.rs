//! The work of streams: what one operation is, and how it runs.
#![expect(unsafe_code, reason = "kernels follow the pointers they are given")]

use std::ffi::c_void;
use std::time::Instant;

use cusim::{Kernel, Shape};
use parking_lot::MutexGuard;

use crate::code::{Answer, Code};
use crate::memory;
use crate::raw;
use crate::schedule;
use crate::state::{Guard, Handle};

#[derive(Clone)]
pub(crate) enum Op {
    Launch {
        kernel: Kernel,
        shape: Shape,
        args: Vec<Vec<u8>>,
    },
    /// `pageable`: one side is memory of the host that the device knows nothing of.
    Copy {
        to: u64,
        from: u64,
        len: usize,
        pageable: bool,
    },
    /// Bytes that were read within the call.
    Bytes {
        to: u64,
        bytes: Vec<u8>,
    },
    Fill {
        at: u64,
        value: Vec<u8>,
        count: usize,
    },
    Free(u64),
    Record {
        event: Handle,
        sequence: u64,
    },
    /// Until another stream has come to this record.
    Wait {
        stream: Handle,
        sequence: u64,
    },
    Host {
        function: extern "C" fn(*mut c_void),
        data: u64,
    },
}

impl Op {
    /// Runs it; the stream that it belongs to is marked as working.
    pub(crate) fn run(self, state: &mut Guard) -> Answer {
        match self {
            Self::Launch { kernel, shape, args } => launch(state, kernel, &shape, args),
            Self::Copy { to, from, len, pageable } => {
                if !pageable {
                    known(state, to, len)?;
                    known(state, from, len)?;
                }
                opened(state, || raw::copy(to, from, len));
                Ok(())
            }
            Self::Bytes { to, bytes } => {
                known(state, to, bytes.len())?;
                opened(state, || raw::write(to, &bytes));
                Ok(())
            }
            Self::Fill { at, value, count } => {
                known(state, at, value.len() * count)?;
                let bytes = value.repeat(count);
                opened(state, || raw::write(at, &bytes));
                Ok(())
            }
            Self::Free(at) => memory::release(state, at),
            Self::Record { event, sequence } => {
                if let Some(event) = state.events.get_mut(&event) {
                    event.reached(sequence, Instant::now());
                }
                Ok(())
            }
            Self::Wait { stream, sequence } => schedule::drain(state, stream, Some(sequence)),
            Self::Host { function, data } => {
                MutexGuard::unlocked(state, || raw::call(function, data));
                Ok(())
            }
        }
    }
}

/// Lets the device work in its memory meanwhile.
fn opened(state: &mut Guard, work: impl FnOnce()) {
    state.memory.arena.open();
    work();
    state.memory.arena.close();
}

/// Memory that was there when the work was asked for may be gone when it runs.
fn known(state: &mut Guard, at: u64, len: usize) -> Answer {
    if state.memory.on_device(at, len).is_ok() {
        return Ok(());
    }
    complain!("work on {len} bytes at {at:#x}, which were freed or unregistered before it ran");
    state.sticky = Some(Code::ILLEGAL_ADDRESS);
    Err(Code::ILLEGAL_ADDRESS)
}

/// The kernel runs without the lock: other threads may call the driver, and poll what it writes.
fn launch(state: &mut Guard, kernel: Kernel, shape: &Shape, mut args: Vec<Vec<u8>>) -> Answer {
    let lanes = state.settings.lanes;
    state.memory.arena.open();
    let ran = MutexGuard::unlocked(state, || {
        // SAFETY: the sizes of the arguments are those of the image and of the kernel; what its pointers name is
        // the device's memory, which is open, or the host's duty. A fault is caught.
        unsafe { kernel.launch(shape, &mut args, lanes) }
    });
    state.memory.arena.close();
    let Err(error) = ran else { return Ok(()) };
    complain!("{error}");
    let fault = matches!(error, cusim::Error::Fault(_));
    let code = if fault { Code::ILLEGAL_ADDRESS } else { Code::LAUNCH_FAILED };
    state.sticky = Some(code);
    Err(code)
}
