//! Why a session ended, and the error that its callers get for it.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use tierpack_shm::error::Error as ShmError;

use crate::error::Error;
use crate::protocol::ProtocolFault;

/// Why a session ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    HungUp,
    Fault(Arc<ProtocolFault>),
    /// The system refused this process something.
    System(Arc<ShmError>),
    /// This process has closed the socket.
    SocketClosed,
}

impl End {
    pub(super) fn error(&self, operation: &'static str) -> Error {
        match self {
            Self::HungUp => Error::Disconnected { operation },
            Self::Fault(fault) => Error::Protocol { operation, source: Arc::clone(fault) },
            Self::System(source) => Error::System { operation, source: again(source) },
            Self::SocketClosed => Error::System { operation, source: socket_closed() },
        }
    }
}

impl From<ShmError> for End {
    fn from(error: ShmError) -> Self {
        match error {
            ShmError::Closed => Self::HungUp,
            error if is_of_the_system(&error) => Self::System(Arc::new(error)),
            error => Self::from(ProtocolFault::Message(error)),
        }
    }
}

impl From<ProtocolFault> for End {
    fn from(fault: ProtocolFault) -> Self {
        Self::Fault(Arc::new(fault))
    }
}

/// Whether the system refused this process something: the daemon broke no protocol.
pub(super) fn is_of_the_system(error: &ShmError) -> bool {
    matches!(error, ShmError::Io { .. } | ShmError::Map { .. } | ShmError::DescriptorsCut)
}

/// The same error of the system once more.
fn again(error: &ShmError) -> ShmError {
    match error {
        ShmError::Map { len, source } => ShmError::Map { len: *len, source: *source },
        ShmError::Io { operation, source } => {
            let source =
                source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error);
            ShmError::Io { operation, source }
        }
        _ => ShmError::DescriptorsCut,
    }
}

pub(super) fn socket_closed() -> ShmError {
    let operation = "use the session's socket, which this process has closed";
    ShmError::Io { operation, source: Errno::EBADF.into() }
}
