//! The client: a connection bound to one namespace, and every verb that asks the daemon.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tierpack_shm::chunk::Chunk;
use tierpack_shm::message::{
    Blob, Damage, Entry, FileMetadata, MAX_FILE_METADATA_BYTES, MAX_NAME_BYTES, MAX_NAMESPACE_BYTES, Reply,
    Request,
};
use tierpack_shm::stats::Stats;
use tierpack_shm::types::index;

use crate::builder::ClientBuilder;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::handle::{Handle, Opened};
use crate::protocol::{ProtocolFault, Subject};
use crate::repeat::is_replaced;
use crate::session::Answer;
use crate::shared::Shared;
use crate::stats_socket;
use crate::tensor::Tensor;

/// A connection to a daemon, bound to one namespace; cheap to clone, for any number of threads.
///
/// When the daemon has hung up, the next call that needs it connects again.
/// A fork of the process that connected cannot use it: every call returns [`Error::Forked`] at once.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) namespace: Arc<str>,
}

impl Client {
    /// Connects to the first daemon that [`crate::address::candidates`] lead to, with namespace `default`.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn connect() -> Result<Self> {
        Self::builder().connect()
    }

    /// Settings to connect with.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// The same connection, bound to another namespace; it needs not exist yet.
    ///
    /// # Errors
    /// [`Error::NameTooLong`] over 255 bytes.
    pub fn namespace(&self, name: &str) -> Result<Self> {
        Ok(Self { shared: Arc::clone(&self.shared), namespace: check_namespace(name)? })
    }

    /// The namespace.
    pub fn namespace_name(&self) -> &str {
        &self.namespace
    }

    /// The daemon's control socket.
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Opens a tensor: asks the daemon once, and what the handle reads afterwards is shared memory only.
    ///
    /// # Errors
    /// [`Error::NotFound`]; as every call, [`Error::Disconnected`], [`Error::Deadline`] and [`Error::Forked`].
    pub fn open(&self, name: &str) -> Result<Handle> {
        check_name(name)?;
        let opened = self.open_slot(name, &self.shared.deadline())?;
        Ok(Handle::new(self.clone(), name, opened))
    }

    /// Opens a tensor and gets all of it.
    ///
    /// # Errors
    /// As [`Client::open`] and [`Handle::get`].
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.open(name)?.get()
    }

    /// Removes a tensor; who reads it reads on.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Disconnected`] leaves open whether it was removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let subject = self.subject("remove a tensor", name);
        let (namespace, name) = (self.namespace.to_string(), name.to_owned());
        let deadline = self.shared.deadline();
        let session = self.shared.session(&deadline)?;
        match session.request(&subject, Request::Remove { namespace, name }, &deadline)? {
            Reply::Done => Ok(()),
            _ => Err(subject.fault(ProtocolFault::Reply)),
        }
    }

    /// The tensors of this namespace, by name; none when the namespace does not exist.
    ///
    /// # Errors
    /// [`Error::Denied`] when the namespace is not ours to read.
    pub fn list(&self) -> Result<Vec<Entry>> {
        match self.list_pages(Some(&self.namespace)) {
            Err(Error::NotFound { .. }) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// The tensors of every namespace that is ours to read, by namespace and name.
    ///
    /// # Errors
    /// As every call that asks the daemon.
    pub fn list_all(&self) -> Result<Vec<Entry>> {
        self.list_pages(None)
    }

    fn list_pages(&self, namespace: Option<&str>) -> Result<Vec<Entry>> {
        let subject = self.subject("list tensors", "");
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let key = |entry: &Entry| (entry.namespace.clone(), entry.name.clone());
            let after = all.last().map(key);
            let deadline = self.shared.deadline();
            let reply = self.shared.with_session(&deadline, |session| {
                let (namespace, after) = (namespace.map(str::to_owned), after.clone());
                session.request(&subject, Request::List { namespace, after }, &deadline)
            })?;
            let Reply::Listed { entries, more } = reply else {
                return Err(subject.fault(ProtocolFault::Reply));
            };
            // A page that does not go on would make this loop endless.
            let is_next = entries.first().map(key) > after;
            if (more || !entries.is_empty()) && !is_next {
                return Err(subject.fault(ProtocolFault::List(after.unwrap_or_default().1)));
            }
            all.extend(entries);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Checks every block of a tensor: stored bytes against their checksums, decoded bytes against the hash taken at
    /// the put.
    ///
    /// A tensor that is replaced meanwhile is checked from its first block on.
    /// `progress` hears of (blocks checked, blocks in all) as they go by.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first block that is not what was put; [`Error::NotFound`].
    pub fn verify(&self, name: &str, mut progress: impl FnMut(u64, u64)) -> Result<u64> {
        check_name(name)?;
        let subject = self.subject("verify a tensor", name);
        let (mut first_block, mut verified) = (0, 0);
        loop {
            let deadline = self.shared.deadline();
            let (namespace, name) = (self.namespace.to_string(), name.to_owned());
            let request = Request::Verify { namespace: namespace.clone(), name: name.clone(), first_block };
            let answer = self
                .shared
                .with_session(&deadline, |session| session.request(&subject, request.clone(), &deadline));
            let reply = match answer {
                // What was checked is no more: the blocks of the next one count from the start.
                Err(error) if is_replaced(&error) => {
                    (first_block, verified) = (0, 0);
                    continue;
                }
                answer => answer?,
            };
            let Reply::Verified { n_blocks, next_block, raw_bytes, damage } = reply else {
                return Err(subject.fault(ProtocolFault::Reply));
            };
            if let Some(Damage { block_idx, fault }) = damage {
                return Err(Error::Damaged { namespace, name, block_idx, fault });
            }
            verified += raw_bytes;
            progress(next_block, n_blocks);
            if next_block >= n_blocks {
                return Ok(verified);
            }
            // A reply that does not go on would make this loop endless.
            if next_block <= first_block {
                return Err(subject.fault(ProtocolFault::Reply));
            }
            first_block = next_block;
        }
    }

    /// The metadata of the file that a tensor came from: what a safetensors header calls `__metadata__`.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn file_metadata(&self, name: &str) -> Result<BTreeMap<String, String>> {
        check_name(name)?;
        let subject = self.subject("read a file's metadata", name);
        let deadline = self.shared.deadline();
        let answer = self.shared.with_session(&deadline, |session| {
            let (namespace, name) = (self.namespace.to_string(), name.to_owned());
            let request = Request::FileMetadata { namespace, name };
            session.ask(&subject, request, None, &deadline)
        })?;
        let Answer::Reply(Reply::FileMetadata(blob), descriptors) = answer else {
            return Err(subject.fault(ProtocolFault::Reply));
        };
        match blob {
            None => Ok(BTreeMap::new()),
            Some(Blob::Inline(bytes)) => parse_metadata(&bytes),
            Some(Blob::Descriptor { len }) => parse_metadata(&read_descriptor(&subject, len, descriptors)?),
        }
    }

    /// The daemon's counters, through its stats socket.
    ///
    /// # Errors
    /// [`Error::NoDaemon`], [`Error::Socket`], [`Error::Document`].
    pub fn stats(&self) -> Result<Stats> {
        self.shared.check_here()?;
        let path = stats_socket::path_beside(self.socket());
        let text = stats_socket::read_until(&path, &self.shared.deadline())?;
        let document = |source| Error::Document { what: "stats", len: text.len(), source };
        serde_json::from_str(&text).map_err(document)
    }

    pub(crate) fn subject<'a>(&'a self, operation: &'static str, name: &'a str) -> Subject<'a> {
        Subject { operation, namespace: &self.namespace, name }
    }

    /// What `open` asks, for a new handle or one that has to be opened again.
    pub(crate) fn open_slot(&self, name: &str, deadline: &Deadline) -> Result<Opened> {
        let subject = self.subject("open a tensor", name);
        self.shared.with_session(deadline, |session| {
            loop {
                let request = Request::Open { namespace: self.namespace.to_string(), name: name.to_owned() };
                let reply = session.request(&subject, request, deadline)?;
                let Reply::Opened { namespace, entry, row_elems, slot } = reply else {
                    return Err(subject.fault(ProtocolFault::Reply));
                };
                let attachment = session.attach(&subject, namespace, deadline)?;
                // Else the namespace was removed and made again between the two replies.
                if attachment.id().namespace == namespace {
                    return Opened::new(entry, row_elems, slot, attachment, Arc::clone(session))
                        .map_err(|fault| subject.fault(fault));
                }
                if deadline.left().is_zero() {
                    return Err(deadline.passed(subject.operation));
                }
            }
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.shared.is_here() {
            // The session and the queues of buffers may have been in the middle of a change: leave them alone.
            let _ = ManuallyDrop::new(Arc::clone(&self.shared));
        }
    }
}

fn parse_metadata(bytes: &[u8]) -> Result<FileMetadata> {
    let document = |source| Error::Document { what: "a file's metadata", len: bytes.len(), source };
    serde_json::from_slice(bytes).map_err(document)
}

fn read_descriptor(subject: &Subject<'_>, len: u64, descriptors: Vec<OwnedFd>) -> Result<Vec<u8>> {
    let limit = MAX_FILE_METADATA_BYTES;
    if len > limit {
        return Err(Error::FileMetadataTooLong { len, limit });
    }
    let fd = descriptors.into_iter().next().ok_or_else(|| subject.fault(ProtocolFault::Reply))?;
    let chunk = Chunk::adopt(fd, len).map_err(|source| subject.fault(source))?;
    let mut bytes = vec![0; index(len)];
    chunk.read_at(0, &mut bytes).map_err(|source| subject.fault(source))?;
    Ok(bytes)
}

pub(crate) fn check_namespace(name: &str) -> Result<Arc<str>> {
    check_len("namespace's name", name, MAX_NAMESPACE_BYTES)?;
    Ok(Arc::from(name))
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    check_len("tensor's name", name, MAX_NAME_BYTES)
}

fn check_len(what: &'static str, name: &str, limit: usize) -> Result<()> {
    if name.len() > limit { Err(Error::NameTooLong { what, len: name.len(), limit }) } else { Ok(()) }
}
