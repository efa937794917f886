//! Namespaces as wholes: who may read and write their tensors, and how much they may hold.

use tierpack_shm::message::{NamespaceChange, NamespaceEntry, Reply, Request};

use crate::client::{Client, check_namespace};
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject};

impl Client {
    /// Makes the namespace of this client, owned by the caller; mode 0600 and no quota unless `change` says otherwise.
    ///
    /// # Errors
    /// [`Error::NamespaceExists`], [`Error::Denied`] for an owner or group that the caller may not set.
    pub fn create_namespace(&self, change: &NamespaceChange) -> Result<()> {
        let (namespace, change) = (self.namespace_name().to_owned(), change.clone());
        self.administer("create a namespace", Request::NamespaceCreate { namespace, change })
    }

    /// Changes owner, group, mode or quota of the namespace of this client.
    ///
    /// Who may not read it any more is detached, is sent nothing more of it, and finds nothing new in what it maps.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], [`Error::Denied`] when the namespace is not the caller's.
    pub fn change_namespace(&self, change: &NamespaceChange) -> Result<()> {
        let (namespace, change) = (self.namespace_name().to_owned(), change.clone());
        self.administer("change a namespace", Request::NamespaceChange { namespace, change })
    }

    /// Removes the namespace of this client; its tensors go with it, or keep it, as the caller says.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], [`Error::Denied`], [`Error::Invalid`] when it holds tensors that are not to go.
    pub fn remove_namespace(&self, tensors: Tensors) -> Result<()> {
        let (namespace, with_tensors) = (self.namespace_name().to_owned(), tensors == Tensors::Remove);
        self.administer("remove a namespace", Request::NamespaceRemove { namespace, with_tensors })
    }

    /// Every namespace that is the caller's to read, by name.
    ///
    /// # Errors
    /// As every call that asks the daemon.
    pub fn namespaces(&self) -> Result<Vec<NamespaceEntry>> {
        let subject = self.subject("list namespaces", "");
        let mut all: Vec<NamespaceEntry> = Vec::new();
        loop {
            let after = all.last().map(|entry| entry.name.clone());
            let deadline = self.shared.deadline();
            let reply = self.shared.with_session(&deadline, |session| {
                session.request(&subject, Request::NamespaceList { after: after.clone() }, &deadline)
            })?;
            let Reply::Namespaces { entries, more } = reply else {
                return Err(subject.fault(ProtocolFault::Reply));
            };
            // A page that does not go on would make this loop endless.
            let is_next = entries.first().map(|entry| entry.name.clone()) > after;
            if (more || !entries.is_empty()) && !is_next {
                return Err(subject.fault(ProtocolFault::List(after.unwrap_or_default())));
            }
            all.extend(entries);
            if !more {
                return Ok(all);
            }
        }
    }

    fn administer(&self, operation: &'static str, request: Request) -> Result<()> {
        check_namespace(self.namespace_name())?;
        let subject = Subject { operation, namespace: self.namespace_name(), name: "" };
        let deadline = self.shared.deadline();
        let reply = self.shared.session(&deadline)?.request(&subject, request, &deadline);
        match reply.map_err(about_namespace)? {
            Reply::Done => Ok(()),
            _ => Err(subject.fault(ProtocolFault::Reply)),
        }
    }
}

/// The error about a tensor as one about the namespace, which is all that these requests name.
fn about_namespace(error: Error) -> Error {
    match error {
        Error::NotFound { namespace, .. } => Error::NoNamespace { namespace },
        Error::Exists { namespace, .. } => Error::NamespaceExists { namespace },
        error => error,
    }
}

/// What becomes of the tensors of a namespace that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensors {
    /// They are removed with it.
    Remove,
    /// There are none, or the namespace stays.
    Keep,
}
