//! How a GPU reads the pool: what was chosen, what was found, and the step back to staging.

use parking_lot::Mutex;
use tierpack_kernels::cuda::driver::{Facts, GpuError};
use tierpack_shm::page::DeviceAccess;

use super::config::AccessChoice;

/// How a GPU reads the pool at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuAccess {
    /// The way.
    pub mode: DeviceAccess,
    /// Why it is not a better one; `None` where it was chosen, or is the best.
    pub reason: Option<String>,
    /// Segments that are registered for this GPU.
    pub registered_segments: u64,
    /// Their bytes.
    pub registered_bytes: u64,
}

/// The way of the moment. It only ever changes to staging.
#[derive(Debug)]
pub(super) struct AccessState {
    choice: AccessChoice,
    now: Mutex<(DeviceAccess, Option<String>)>,
}

impl AccessState {
    /// What the device can do of what is chosen.
    pub(super) fn new(choice: AccessChoice, facts: &Facts) -> Result<Self, GpuError> {
        let now = match choice {
            AccessChoice::Ats if !facts.reads_pageable => {
                let reason = "the GPU cannot read pageable memory (attribute 88 is 0)".to_owned();
                return Err(GpuError::NoAccess { asked: choice.name(), reason });
            }
            AccessChoice::Registered if let Some(reason) = facts.cannot_register() => {
                return Err(GpuError::NoAccess { asked: choice.name(), reason: reason.to_owned() });
            }
            AccessChoice::Ats => (DeviceAccess::Ats, None),
            AccessChoice::Registered => (DeviceAccess::Registered, None),
            AccessChoice::Staged => (DeviceAccess::Staged, None),
            // Without the processor's page tables every page costs a fault of the GPU first.
            AccessChoice::Auto if facts.reads_pageable && facts.uses_host_page_tables => {
                (DeviceAccess::Ats, None)
            }
            AccessChoice::Auto => match facts.cannot_register() {
                None => (DeviceAccess::Registered, None),
                Some(reason) => {
                    warn(reason);
                    (DeviceAccess::Staged, Some(reason.to_owned()))
                }
            },
        };
        Ok(Self { choice, now: Mutex::new(now) })
    }

    pub(super) fn mode(&self) -> DeviceAccess {
        self.now.lock().0
    }

    pub(super) fn now(&self) -> (DeviceAccess, Option<String>) {
        self.now.lock().clone()
    }

    /// Stages from now on, because of `error`; returns it where staging was not allowed or would not help.
    pub(super) fn fall_back(&self, error: GpuError) -> Result<(), GpuError> {
        let is_about_access = matches!(error, GpuError::Registration { .. } | GpuError::NoAccess { .. });
        if self.choice != AccessChoice::Auto || !is_about_access {
            return Err(error);
        }
        let reason = error.to_string();
        let mut now = self.now.lock();
        // Another thread may have been first: one warning.
        if now.0 != DeviceAccess::Staged {
            warn(&reason);
            *now = (DeviceAccess::Staged, Some(reason));
        }
        Ok(())
    }
}

fn warn(reason: &str) {
    tracing::warn!(reason, "the GPU reads the pool through staging buffers");
}
