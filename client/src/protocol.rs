//! What the daemon's answers mean where they are no success: refusals, and breaches of the protocol.
//!
//! A refusal is a code and a text, and becomes an [`Error`] in one function, `refused`.

use std::sync::Arc;

use tierpack_shm::message::{ErrorCode, Refusal};
use tierpack_shm::segment::SegmentKind;

use crate::error::Error;

/// What the daemon did against the protocol.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolFault {
    /// A message or descriptor is not what it must be.
    #[error(transparent)]
    Message(#[from] tierpack_shm::error::Error),
    /// The reply is not one to the request.
    #[error("the reply is not one to the request")]
    Reply,
    /// The page of a list does not follow on the page before.
    #[error("the list does not go on after {0:?}")]
    List(
        /// The last name before.
        String,
    ),
    /// Something about a namespace that is not attached, or is attached already.
    #[error("a message about namespace {0}, out of turn")]
    Namespace(
        /// The namespace.
        u32,
    ),
    /// A segment that cannot be mapped or unmapped in its turn.
    #[error("{} segment {index} with serial {serial}, out of turn", kind.name())]
    Segment {
        /// What it holds.
        kind: SegmentKind,
        /// Its index.
        index: u32,
        /// Its serial number.
        serial: u64,
    },
    /// A tensor that contradicts itself.
    #[error("a tensor of {found} bytes whose dtype and shape give {needed}")]
    Entry {
        /// Bytes by the entry.
        found: u64,
        /// Bytes by dtype and shape; 0 when they are not possible.
        needed: u64,
    },
}

/// What a request is about, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) operation: &'static str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Subject<'_> {
    /// The daemon broke the protocol in its answer.
    pub(crate) fn fault(&self, fault: impl Into<ProtocolFault>) -> Error {
        Error::Protocol { operation: self.operation, source: Arc::new(fault.into()) }
    }
}

/// The error that a refusal becomes: the one place that looks at codes.
pub(crate) fn refused(refusal: Refusal, subject: &Subject<'_>, deadline_seconds: f64) -> Error {
    let operation = subject.operation;
    let (namespace, name) = (subject.namespace.to_owned(), subject.name.to_owned());
    let text = one_line(&refusal.text);
    match refusal.code() {
        Some(ErrorCode::Busy) => Error::Busy { operation, text },
        Some(ErrorCode::PoolFull) => Error::PoolFull { operation, text },
        Some(ErrorCode::NotFound) => Error::NotFound { namespace, name },
        Some(ErrorCode::Exists) => Error::Exists { namespace, name },
        Some(ErrorCode::Invalid) => Error::Invalid { operation, text },
        Some(ErrorCode::Deadline) => Error::Deadline { operation, seconds: deadline_seconds },
        Some(ErrorCode::Denied) => Error::Denied { operation, text },
        Some(ErrorCode::Limit) => Error::Limit { operation, text },
        Some(ErrorCode::Stopping) => Error::Stopping { operation },
        Some(ErrorCode::Replaced) => Error::Refused { operation, code: refusal.code, text },
        Some(ErrorCode::Quota) => Error::Quota { operation, text },
        Some(ErrorCode::Internal) => Error::Internal { operation, text },
        _ => Error::Refused { operation, code: refusal.code, text },
    }
}

/// Text of the daemon may quote names: nothing in it may act on a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_becomes_an_error_that_keeps_the_text_or_the_names() {
        let subject = Subject { operation: "put", namespace: "ns", name: "weights" };
        for &code in ErrorCode::ALL {
            let error = refused(Refusal::new(code, "the\ttext"), &subject, 30.0).to_string();
            let told = error.contains("the\\ttext")
                || error.contains("weights")
                || error.contains("30 s")
                || error.contains("shutting down");
            assert!(told && !error.contains('\n'), "{code:?}: {error}");
        }
        let unknown = Refusal { code: 999, text: "new".to_owned() };
        assert_eq!(refused(unknown, &subject, 1.0).to_string(), "put: refused with code 999: new");
    }
}
