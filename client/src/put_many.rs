//! Puts of several tensors that become visible in one step, or not at all.

use std::io::{Cursor, Read, Seek};
use std::sync::Arc;

use tierpack_shm::message::{Entry, Reply, Request};
use tierpack_shm::types::Dtype;

use crate::client::{Client, check_name};
use crate::error::{Error, Result};
use crate::protocol::{ProtocolFault, Subject};
use crate::put::{PutOptions, check_len};
use crate::session::{Answer, Session};
use crate::transfer::Transfer;

const OPERATION: &str = "put several tensors";
/// Bytes of names that one message claims.
const CLAIM_BYTES: usize = 16 << 10;

/// A put of several tensors under way; dropping it before the commit leaves nothing of it.
///
/// From the beginning nobody else puts, updates or removes tensors of its names: they are refused with
/// [`Error::Busy`] once their deadline has passed.
#[derive(Debug)]
pub struct PutMany<'a> {
    client: &'a Client,
    session: Arc<Session>,
    id: u64,
    is_open: bool,
}

impl Client {
    /// Begins to put tensors of these names, which become visible together when [`PutMany::commit`] returns.
    ///
    /// # Errors
    /// [`Error::Exists`] for a tensor that exists, unless they are to `overwrite`;
    /// [`Error::Busy`] while another put of several tensors has claimed a name;
    /// [`Error::NameTooLong`], [`Error::Denied`],
    /// [`Error::Limit`].
    pub fn put_many<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        overwrite: bool,
    ) -> Result<PutMany<'_>> {
        let (subject, deadline) = (self.subject(OPERATION, ""), self.shared.deadline());
        let put = self.shared.with_session(&deadline, |session| {
            let request = Request::TransactionBegin { namespace: self.namespace.to_string(), overwrite };
            match session.ask(&subject, request, None, &deadline)? {
                Answer::Reply(Reply::Transaction { transaction: id }, _) => {
                    Ok(PutMany { client: self, session: Arc::clone(session), id, is_open: true })
                }
                _ => Err(subject.fault(ProtocolFault::Reply)),
            }
        })?;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for name in names {
            check_name(name)?;
            if bytes + name.len() > CLAIM_BYTES {
                put.claim(&std::mem::take(&mut batch))?;
                bytes = 0;
            }
            bytes += name.len() + size_of::<u64>();
            batch.push(name);
        }
        put.claim(&batch)?;
        Ok(put)
    }
}

impl PutMany<'_> {
    fn claim(&self, names: &[&str]) -> Result<()> {
        let claim = |subject: &str, names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let request = Request::TransactionClaim { transaction: self.id, names };
            self.done(&self.client.subject(OPERATION, subject), &request)
        };
        match claim("", names) {
            Err(error) if !matches!(error, Error::Disconnected { .. } | Error::Deadline { .. }) => {
                // Nothing of the batch was claimed: one after the other, so that the error names the tensor.
                names.iter().try_for_each(|name| claim(name, &[name]))
            }
            done => done,
        }
    }

    fn done(&self, subject: &Subject<'_>, request: &Request) -> Result<()> {
        match self.session.ask(subject, request.clone(), None, &self.client.shared.deadline())? {
            Answer::Reply(Reply::Done, _) => Ok(()),
            _ => Err(subject.fault(ProtocolFault::Reply)),
        }
    }

    /// Stores one of the tensors, as [`Client::put`] does.
    ///
    /// # Errors
    /// As [`Client::put`]; the whole put cannot be committed then unless this tensor is put again.
    pub fn put(&self, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Result<Entry> {
        let options = PutOptions::new();
        check_len(name, (dtype, shape), &options, bytes)?;
        self.put_from(name, dtype, shape, &mut Cursor::new(bytes), &options)
    }

    /// Stores one of the tensors, as [`Client::put_with`] does.
    ///
    /// # Errors
    /// As [`PutMany::put`].
    pub fn put_with(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        reader: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<Entry> {
        self.begin(name, (dtype, shape), options)?.finish(reader)
    }

    /// Stores one of the tensors, as [`Client::put_from`] does.
    ///
    /// # Errors
    /// As [`PutMany::put`].
    pub fn put_from(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        source: &mut (impl Read + Seek),
        options: &PutOptions,
    ) -> Result<Entry> {
        self.begin(name, (dtype, shape), options)?.finish_from(options.codec, source)
    }

    fn begin<'t>(&'t self, name: &'t str, of: (Dtype, &[u64]), options: &PutOptions) -> Result<Transfer<'t>> {
        Transfer::begin(self.client, Some((&self.session, self.id)), name, of, options)
    }

    /// Makes all of them visible in one step.
    ///
    /// # Errors
    /// When a tensor is missing or the daemon refuses, nothing is visible and nothing is left.
    /// Only [`Error::Disconnected`] and [`Error::Deadline`] leave
    /// open whether it was done.
    pub fn commit(mut self) -> Result<()> {
        let subject = self.client.subject(OPERATION, "");
        self.done(&subject, &Request::TransactionCommit { transaction: self.id })?;
        self.is_open = false;
        Ok(())
    }
}

impl Drop for PutMany<'_> {
    fn drop(&mut self) {
        if !self.is_open || !self.client.shared.is_here() {
            return;
        }
        // If the daemon is gone, so is the put.
        let subject = self.client.subject(OPERATION, "");
        let _ = self.done(&subject, &Request::TransactionAbort { transaction: self.id }).is_ok();
    }
}
