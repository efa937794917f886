//! Requests that are sent again: while the daemon is busy, and while a tensor is replaced.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tierpack_shm::message::ErrorCode;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::protocol::Subject;

/// Pauses before a request is offered again to a daemon that was busy: doubled from the first to the last.
const BUSY_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// Asks again and again while the daemon is busy, until the deadline.
///
/// Any request may be repeated then: a busy daemon has done nothing of it.
pub(crate) fn while_busy<T>(deadline: &Deadline, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let (mut pause, longest) = BUSY_PAUSES;
    loop {
        match ask() {
            Err(busy @ Error::Busy { .. }) => {
                std::thread::sleep(jittered(pause).min(deadline.left()));
                if deadline.left().is_zero() {
                    // It says what was waited for.
                    return Err(busy);
                }
                pause = (pause * 2).min(longest);
            }
            answer => return answer,
        }
    }
}

/// From half of `pause` to all of it, so that those who were refused together do not come back together.
fn jittered(pause: Duration) -> Duration {
    // Each `RandomState` has keys of its own.
    let random = RandomState::new().hash_one(());
    pause / 2 + pause.mul_f64((random % 1024) as f64 / 2048.0)
}

/// Asks again and again while the tensor is replaced under the daemon's hands.
///
/// For requests that mean a name, whichever publication it has.
pub(crate) fn while_replaced<T>(
    subject: &Subject<'_>,
    deadline: &Deadline,
    mut ask: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match ask() {
            Err(error) if is_replaced(&error) => {
                if deadline.left().is_zero() {
                    return Err(deadline.passed(subject.operation));
                }
            }
            answer => return answer,
        }
    }
}

/// Whether the daemon has found another publication under the name than the one it, or the caller, had begun with.
pub(crate) fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Refused { code, .. } if *code == ErrorCode::Replaced as u16)
}

#[cfg(test)]
mod tests;
