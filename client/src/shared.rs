//! What all clones of a client share: the settings, the buffers, and the session of the moment.
//!
//! A call that needs the daemon asks for the session; when that one has hung up, one thread connects again while the
//! others wait for it.
//! Lock: `link`; it is never held while connecting or while a session ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tierpack_shm::fork::ForkCookie;

use crate::buffers::Buffers;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::session::Session;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) socket: PathBuf,
    pub(crate) buffers: Arc<Buffers>,
    cookie: ForkCookie,
    limit: Duration,
    link: Mutex<Link>,
    changed: Condvar,
}

#[derive(Debug)]
struct Link {
    session: Arc<Session>,
    is_connecting: bool,
}

impl Shared {
    pub(crate) fn new(
        socket: PathBuf,
        session: Session,
        cookie: ForkCookie,
        limit: Duration,
        buffers: Arc<Buffers>,
    ) -> Self {
        let link = Mutex::new(Link { session: Arc::new(session), is_connecting: false });
        Self { socket, buffers, cookie, limit, link, changed: Condvar::new() }
    }

    /// Whether this process is the one that connected: no lock may be touched before this is known.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.cookie.is_here()
    }

    /// # Errors
    /// [`Error::Forked`] in a fork of the process that connected.
    #[inline]
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// A deadline that starts now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.limit)
    }

    /// The instance id of the daemon that was spoken to last.
    pub(crate) fn instance(&self) -> u64 {
        self.link.lock().session.instance()
    }

    /// The session; a new one when the last has hung up.
    ///
    /// # Errors
    /// [`Error::Forked`], or why there is no new one.
    pub(crate) fn session(&self, deadline: &Deadline) -> Result<Arc<Session>> {
        self.check_here()?;
        let mut link = self.link.lock();
        loop {
            if link.session.is_alive() {
                return Ok(Arc::clone(&link.session));
            }
            if !link.is_connecting {
                break;
            }
            if self.changed.wait_until(&mut link, deadline.at()).timed_out() {
                return Err(deadline.passed("connect to the daemon again"));
            }
        }
        link.is_connecting = true;
        drop(link);
        self.connect_again(deadline)
    }

    /// The caller has set `is_connecting`.
    fn connect_again(&self, deadline: &Deadline) -> Result<Arc<Session>> {
        let connected = Session::connect(&self.socket, self.cookie, deadline).map(Arc::new);
        let mut link = self.link.lock();
        link.is_connecting = false;
        let fresh = connected.as_ref().ok().map(Arc::clone);
        let old = fresh.map(|fresh| std::mem::replace(&mut link.session, fresh));
        drop(link);
        self.changed.notify_all();
        // Outside the lock: the last owner waits for the session's thread.
        drop(old);
        if let Ok(session) = &connected {
            tracing::debug!(instance = session.instance(), "connected again");
        }
        connected
    }

    /// Runs `call`, which may be repeated, with the session; once more if that hangs up in the middle.
    pub(crate) fn with_session<T>(
        &self,
        deadline: &Deadline,
        call: impl Fn(&Arc<Session>) -> Result<T>,
    ) -> Result<T> {
        match call(&self.session(deadline)?) {
            Err(Error::Disconnected { .. }) => call(&self.session(deadline)?),
            done => done,
        }
    }
}
