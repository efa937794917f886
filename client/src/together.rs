//! Reads of several tensors that belong together: all are of one moment as far as puts and removals go.
//!
//! Each tensor is read as by itself. At the end every handle must still be on the publication that was read, while the
//! count of names is even and stays the same: then all were current together at that moment, and so were their values.
//! Else what was replaced is opened again, and all is read again.
//! An update in place is seen as by [`Handle::get`]; a [`Snapshot`](crate::Snapshot) is of one moment in that too.

use std::sync::Arc;
use std::time::Duration;

use tierpack_shm::seqcount::{is_still, steady};

use crate::client::Client;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::handle::{Fault, Handle, Opened, Recovery};
use crate::read::{read_rows, read_whole};
use crate::row_id::RowId;
use crate::tensor::Tensor;

/// Between two looks at names that are changing.
const PAUSE: Duration = Duration::from_micros(50);

impl Client {
    /// Gets several tensors, all of one moment: of tensors that one transaction replaces, never some old and some new.
    ///
    /// # Errors
    /// As [`Handle::get`], with the tensor's name; [`Error::Deadline`](crate::Error::Deadline) when they are replaced again and again.
    pub fn get_many(&self, tensors: &[&Handle]) -> Result<Vec<Tensor>> {
        let take = |handle: &&Handle| handle.new_tensor().map_err(|error| error.of(handle, tensors.len()));
        let mut all: Vec<Tensor> = tensors.iter().map(take).collect::<Result<_>>()?;
        read_together(self, tensors, |idx, opened| read_whole(opened, all[idx].as_mut_bytes()))?;
        Ok(all)
    }

    /// Gathers rows of several tensors, all of one moment as by [`Client::get_many`]; each result as by
    /// [`Handle::gather`].
    ///
    /// # Errors
    /// As [`Handle::gather`], with the tensor's name; [`Error::Deadline`](crate::Error::Deadline) when they are replaced again and again.
    pub fn gather_many<I: RowId>(&self, gathers: &[(&Handle, &[I])]) -> Result<Vec<Tensor>> {
        let take = |&(handle, rows): &(&Handle, &[I])| {
            handle.new_rows(rows).map_err(|error| error.of(handle, gathers.len()))
        };
        let mut all: Vec<Tensor> = gathers.iter().map(take).collect::<Result<_>>()?;
        let handles: Vec<&Handle> = gathers.iter().map(|(handle, _)| *handle).collect();
        read_together(self, &handles, |idx, opened| {
            read_rows(opened, gathers[idx].1, all[idx].as_mut_bytes())
        })?;
        Ok(all)
    }
}

/// Reads each tensor, all again until they were current together.
fn read_together(
    client: &Client,
    handles: &[&Handle],
    mut read: impl FnMut(usize, &Opened) -> core::result::Result<(), Fault>,
) -> Result<()> {
    let (deadline, mut recovery) = (client.shared.deadline(), Recovery::default());
    loop {
        let opened: Vec<Arc<Opened>> = handles.iter().map(|handle| handle.opened()).collect();
        let mut read_all = || {
            for (idx, opened) in opened.iter().enumerate() {
                read(idx, opened).map_err(|fault| (idx, fault))?;
            }
            are_current(&opened, &deadline)
        };
        let Err((idx, fault)) = read_all() else { return Ok(()) };
        let recovered = handles[idx].prepare_retry(fault, &opened[idx], &mut recovery);
        recovered.map_err(|error| error.of(handles[idx], handles.len()))?;
    }
}

/// Whether all tensors are current at one moment; else which is not, and why.
pub(crate) fn are_current(
    opened: &[Arc<Opened>],
    deadline: &Deadline,
) -> core::result::Result<(), (usize, Fault)> {
    loop {
        let seen: Option<Vec<u64>> =
            opened.iter().map(|opened| steady(opened.attachment().names())).collect();
        for (idx, opened) in opened.iter().enumerate() {
            opened.guard().map_err(|reason| (idx, reason.into()))?;
        }
        let unchanged = |seen: Vec<u64>| {
            opened.iter().zip(seen).all(|(opened, seen)| is_still(opened.attachment().names(), seen))
        };
        if opened.len() <= 1 || seen.is_some_and(unchanged) {
            return Ok(());
        }
        if deadline.left().is_zero() {
            return Err((0, deadline.passed("read several tensors whose names change all the time").into()));
        }
        std::thread::sleep(PAUSE);
    }
}
