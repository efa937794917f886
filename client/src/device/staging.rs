//! Staging buffers: as many as were asked for, used in turns.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tierpack_kernels::cuda::driver::{Device, GpuError, Stage};

/// The staging buffers of a GPU.
#[derive(Debug)]
pub(super) struct Staging {
    /// Bytes of a buffer, unless a block needs more.
    bytes: u64,
    most: usize,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Not in use by a thread; the one that was used longest ago first.
    free: VecDeque<Stage>,
    in_use: usize,
}

impl Staging {
    pub(super) fn new(bytes: u64, most: usize) -> Self {
        Self { bytes, most, state: Mutex::default(), given_back: Condvar::new() }
    }

    /// A buffer of at least `needed` bytes; waits while others have all of them.
    ///
    /// Who has one waits for the GPU only, never for another one.
    pub(super) fn take(&self, device: &Arc<Device>, needed: u64) -> Result<Stage, GpuError> {
        let mut state = self.state.lock();
        while state.in_use == self.most {
            self.given_back.wait(&mut state);
        }
        state.in_use += 1;
        let has_all = state.free.len() + state.in_use > self.most;
        let found = if has_all { state.free.pop_front() } else { None };
        drop(state);
        let made = match found {
            Some(stage) if stage.len() >= needed => Ok(stage),
            too_short => {
                // Before the longer one is made: memory may be short.
                drop(too_short);
                Stage::new(device, self.bytes.max(needed).next_multiple_of(4096))
            }
        };
        made.inspect_err(|_| self.count_back(None))
    }

    pub(super) fn give_back(&self, stage: Stage) {
        self.count_back(Some(stage));
    }

    fn count_back(&self, stage: Option<Stage>) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        state.free.extend(stage);
        drop(state);
        self.given_back.notify_one();
    }

    /// Frees the buffers; nobody has one.
    pub(super) fn clear(&self) {
        let free = std::mem::take(&mut self.state.lock().free);
        drop(free);
    }
}
