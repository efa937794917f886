//! How a client is connected.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tierpack_kernels::{CPU_VARIABLE, CPU_VARIABLE_NEEDED, Level};
use tierpack_shm::fork::ForkCookie;

use crate::address;
use crate::buffers::{Buffers, DEFAULT_KEPT_BYTES};
use crate::client::{Client, check_namespace};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::shared::Shared;

/// The namespace of a client that names none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// How long a call waits for the daemon by default.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    socket: Option<PathBuf>,
    namespace: String,
    deadline: Duration,
    kept_buffer_bytes: u64,
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        Self {
            socket: None,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            deadline: DEFAULT_DEADLINE,
            kept_buffer_bytes: DEFAULT_KEPT_BYTES,
        }
    }

    /// The daemon's control socket; else [`address::candidates`] are tried.
    ///
    /// A relative path is taken in the working directory of this call, also when the client connects again later.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(address::absolute(path.into()));
        self
    }

    /// The namespace; else `default`.
    #[must_use]
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = name.into();
        self
    }

    /// How long one call, or one chunk of a put, may wait for the daemon: 30 seconds by default, at most 49 days.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Bytes of dropped tensors' buffers that are kept for the next ones: 1 GiB by default.
    #[must_use]
    pub fn kept_buffer_bytes(mut self, bytes: u64) -> Self {
        self.kept_buffer_bytes = bytes;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::Setting`] for an unknown word in `TIERPACK_CPU`, [`Error::NoDaemon`] when none is found, [`Error::Version`] when it is of another release.
    pub fn connect(self) -> Result<Client> {
        let namespace = check_namespace(&self.namespace)?;
        Level::forced().map_err(|found| Error::Setting {
            name: CPU_VARIABLE,
            found,
            needed: CPU_VARIABLE_NEEDED,
        })?;
        let system = |source| Error::System { operation: "prepare to notice a fork", source };
        let cookie = ForkCookie::current().map_err(system)?;
        let deadline = Deadline::after(self.deadline);
        let candidates = self.socket.map_or_else(address::candidates, |socket| vec![socket]);
        let mut missed = Vec::new();
        for socket in candidates {
            match Session::connect(&socket, cookie, &deadline) {
                Ok(session) => {
                    let buffers = Buffers::new(self.kept_buffer_bytes, cookie);
                    let shared = Shared::new(socket, session, cookie, self.deadline, buffers);
                    return Ok(Client { shared: Arc::new(shared), namespace });
                }
                Err(Error::NoDaemon { tried }) => missed.extend(tried),
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoDaemon { tried: missed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_socket_is_that_of_the_directory_it_was_given_in() {
        let socket = ClientBuilder::new().socket("some/control.sock").socket.unwrap();
        assert_eq!(socket, std::env::current_dir().unwrap().join("some/control.sock"));
    }
}
