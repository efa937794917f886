//! Refits: how well a tensor's metadata still suit it, and new metadata for it.

use std::time::Duration;

use tierpack_shm::message::{Drift, RefitMode, RefitState, Reply, Request};

use crate::client::{Client, check_name};
use crate::error::Result;
use crate::protocol::ProtocolFault;
use crate::repeat::while_replaced;

/// Between two looks at a refit under way.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

impl Client {
    /// How well a tensor's metadata still suit it; nothing is computed for it.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; as every call that asks the daemon.
    pub fn drift(&self, name: &str) -> Result<Drift> {
        check_name(name)?;
        self.ask_refit(name, RefitMode::Look)
    }

    /// Looks how new metadata would suit a tensor, may have the daemon make them, and waits until it has done so.
    ///
    /// Readers go on meanwhile, and every row keeps its value.
    /// `progress` hears of (blocks left, blocks in all) until nothing is left to do.
    /// It waits as long as the refit takes; one that is held ([`RefitState::Held`]) waits for readers, so drop views
    /// before.
    /// A refit that did not succeed says so in [`Drift::last_failure`].
    ///
    /// # Errors
    /// As [`Client::drift`]; [`crate::Error::Denied`] where the namespace is not ours to write.
    pub fn refit(&self, name: &str, mode: RefitMode, mut progress: impl FnMut(u64, u64)) -> Result<Drift> {
        check_name(name)?;
        let mut drift = self.ask_refit(name, mode)?;
        while drift.state != RefitState::Idle {
            progress(drift.blocks_left, drift.n_blocks);
            std::thread::sleep(LOOK_PAUSE);
            drift = self.ask_refit(name, RefitMode::Look)?;
        }
        progress(drift.blocks_left, drift.n_blocks);
        Ok(drift)
    }

    /// May be repeated: a refit that is asked for twice is made once.
    fn ask_refit(&self, name: &str, mode: RefitMode) -> Result<Drift> {
        let subject = self.subject("refit a tensor", name);
        let deadline = self.shared.deadline();
        let reply = self.shared.with_session(&deadline, |session| {
            while_replaced(&subject, &deadline, || {
                let (namespace, name) = (self.namespace.to_string(), name.to_owned());
                session.request(&subject, Request::Refit { namespace, name, mode }, &deadline)
            })
        })?;
        match reply {
            Reply::Drift(drift) => Ok(drift),
            _ => Err(subject.fault(ProtocolFault::Reply)),
        }
    }
}

#[cfg(test)]
mod tests;
