//! Requests: carried out by worker threads, answered through the poll loop.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use tierpack_shm::chunk::{Chunk, ChunkWriter};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::message::{
    Blob, ErrorCode, MAX_FILE_METADATA_BYTES, MAX_INLINE_BYTES, Refusal, Reply, Request, encode,
};

use super::events::{Event, Events};
use super::queue::{Class, Queue, Takes};
use super::shares::Load;
use crate::error::{Error, Result, chain};
use crate::priority;
use crate::store::access::{Caller, Right};
use crate::store::transfer::{ChunkData, Transfers};
use crate::store::{Outcome, Store};

/// Bytes of entries in one page of a list, well below the limit of a message.
const PAGE_BYTES: usize = 48 << 10;

/// When it is tried again.
const CHUNK_RETRY: Duration = Duration::from_millis(100);
/// How long a chunk waits for clients to unmap segments that return to the system, or for compaction to empty some; it
/// takes no worker meanwhile.
const CHUNK_WAIT: Duration = Duration::from_secs(5);

/// A request on its way to a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) session: u64,
    pub(crate) caller: Arc<Caller>,
    pub(crate) id: u64,
    pub(crate) deadline: Instant,
    pub(crate) request: Request,
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) load: Load,
    pub(crate) waiting: Waiting,
}

/// How far a chunk is that has waited for memory.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Until when it waits at most, once it has.
    until: Option<Instant>,
    /// Its blocks that are stored.
    done: u64,
    /// Its bytes, once they were looked at.
    data: Option<ChunkData>,
}

/// What came of an attempt to carry out a request.
enum Attempt {
    Done(Outcome<Reply>, Vec<OwnedFd>),
    /// There is no room before a segment has come back.
    Waits(Job),
}

/// How long a request takes.
pub(crate) fn class(request: &Request) -> Class {
    match request {
        Request::Attach { .. }
        | Request::Open { .. }
        | Request::OpenMany { .. }
        | Request::Hold { .. }
        | Request::Release { .. }
        | Request::FileMetadata { .. }
        | Request::List { .. }
        | Request::NamespaceList { .. } => Class::LookUp,
        Request::PutBegin(_)
        | Request::PutSample { .. }
        | Request::PutChunk { .. }
        | Request::PutCommit { .. }
        | Request::PutAbort { .. }
        | Request::TransactionBegin { .. }
        | Request::TransactionClaim { .. }
        | Request::TransactionCommit { .. }
        | Request::TransactionAbort { .. }
        | Request::Remove { .. }
        | Request::Verify { .. }
        | Request::NamespaceCreate { .. }
        | Request::NamespaceChange { .. }
        | Request::NamespaceRemove { .. }
        | Request::Update(_)
        | Request::Fold { .. }
        | Request::Refit { .. } => Class::Bulk,
    }
}

/// The worker threads and their queue.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(super) queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `n` workers, and one that takes nothing but look-ups.
    pub(crate) fn start(
        n: usize,
        store: &Arc<Store>,
        transfers: &Arc<Transfers>,
        events: &Events,
    ) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let start_one = |takes| {
            let context = Context {
                store: Arc::clone(store),
                transfers: Arc::clone(transfers),
                events: events.clone(),
                queue: Arc::clone(&queue),
            };
            let name = if takes == Takes::LookUps { "look-ups" } else { "worker" };
            queue.count_worker(true);
            let run = move || {
                if takes == Takes::Everything {
                    priority::lower();
                }
                context.run(takes);
            };
            let started = thread::Builder::new().name(name.to_owned()).spawn(run);
            started.map_err(|source| Error::Thread { name, source })
        };
        let takes = std::iter::repeat_n(Takes::Everything, n).chain([Takes::LookUps]);
        let threads = takes.map(start_one).collect::<Result<_>>()?;
        Ok(Self { queue, threads })
    }

    /// Waits for the jobs that workers have, at most until `deadline`; what takes longer ends with the process.
    pub(crate) fn finish(self, deadline: Instant) {
        if !self.queue.wait_ended(deadline) {
            return tracing::warn!("a request that takes long is given up");
        }
        for thread in self.threads {
            // A panic was caught and reported as an event.
            let _ = thread.join().is_ok();
        }
    }
}

struct Context {
    store: Arc<Store>,
    transfers: Arc<Transfers>,
    events: Events,
    queue: Arc<Queue>,
}

impl Drop for Context {
    fn drop(&mut self) {
        self.queue.count_worker(false);
    }
}

impl Context {
    fn run(&self, takes: Takes) {
        let mut in_a_row = 0;
        while let Some(job) = self.queue.next(takes, &mut in_a_row) {
            let (session, id, load, class) = (job.session, job.id, job.load, class(&job.request));
            let returns = self.store.budget.returns();
            let done = catch_unwind(AssertUnwindSafe(|| self.carry_out(job)));
            match done {
                Ok(Attempt::Waits(mut job)) => {
                    let latest = (Instant::now() + CHUNK_WAIT).min(job.deadline);
                    let until = (*job.waiting.until.get_or_insert(latest)).min(Instant::now() + CHUNK_RETRY);
                    self.queue.park(job, until, || self.store.budget.returns() != returns);
                }
                Ok(Attempt::Done(result, descriptors)) => {
                    self.events.send(Event::Done { session, id, result, descriptors, load, class });
                }
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                    self.events.send(Event::Panicked(text.unwrap_or_else(|| "a worker panicked".to_owned())));
                    return;
                }
            }
        }
    }

    fn carry_out(&self, mut job: Job) -> Attempt {
        let mut descriptors = Vec::new();
        let result = if job.deadline < Instant::now() && job.waiting.until.is_none() {
            Err(Refusal::new(
                ErrorCode::Deadline,
                "the request waited past its deadline for a worker: try again",
            ))
        } else if matches!(job.request, Request::PutChunk { .. }) {
            match self.chunk(&mut job) {
                Ok(false) => return Attempt::Waits(job),
                whole => whole.map(|_| Reply::Done),
            }
        } else {
            self.reply(job, &mut descriptors)
        };
        reach(Point::ReplyUnsent);
        Attempt::Done(result, descriptors)
    }

    /// Stores what a chunk has left to store; says whether it found room for all.
    fn chunk(&self, job: &mut Job) -> Outcome<bool> {
        let Request::PutChunk { transfer, first_block, data } = &mut job.request else { return Ok(true) };
        let Waiting { until, done, data: known } = &mut job.waiting;
        let data = match known {
            Some(data) => data,
            None => {
                let blob = std::mem::replace(data, Blob::Inline(Vec::new()));
                known.insert(chunk_data(blob, job.descriptors.pop())?)
            }
        };
        let may_wait = until.is_none_or(|until| Instant::now() < until);
        let asked = (job.session, &*job.caller);
        self.transfers.chunk(&self.store, asked, (*transfer, *first_block), data, (done, may_wait))
    }

    fn reply(&self, job: Job, descriptors: &mut Vec<OwnedFd>) -> Outcome<Reply> {
        let (store, session, caller) = (&*self.store, job.session, &*job.caller);
        let passed = job.descriptors.into_iter().next();
        match job.request {
            // The poll loop answers the first: it alone knows what each session holds. The other may wait.
            Request::Attach { .. } | Request::PutChunk { .. } => {
                Err(Refusal::new(ErrorCode::Internal, "this request is carried out elsewhere"))
            }
            Request::Open { namespace, name } => store.namespace(&namespace)?.open(&name, caller),
            Request::OpenMany { namespace, which } => {
                let (namespace, mut page) = (store.namespace(&namespace)?, Page::default());
                let (names, more) = namespace.open_many(&which, caller, |tensor| page.take(tensor))?;
                Ok(Reply::OpenedMany {
                    namespace: namespace.id.namespace,
                    names,
                    tensors: page.entries,
                    more,
                })
            }
            Request::Hold { namespace } => store.namespace(&namespace)?.hold(session, caller),
            Request::Release { namespace } => {
                store.namespace(&namespace)?.release(session);
                Ok(Reply::Done)
            }
            Request::FileMetadata { namespace, name } => {
                let Some(text) = store.readable(&namespace, caller)?.file_metadata(&name)? else {
                    return Ok(Reply::FileMetadata(None));
                };
                blob(&text, descriptors).map(|blob| Reply::FileMetadata(Some(blob)))
            }
            Request::PutBegin(mut begin) => {
                let text = begin.file_metadata.take().map(|blob| text_of(blob, passed)).transpose()?;
                let transfer = self.transfers.begin(store, session, caller, begin, text)?;
                reach(Point::PutBegun);
                Ok(Reply::Transfer { transfer })
            }
            Request::PutSample { transfer, data } => {
                let data = chunk_data(data, passed)?;
                self.transfers.sample(store, (session, caller), transfer, &data).map(|()| Reply::Done)
            }
            Request::PutCommit { transfer } => {
                self.transfers.commit(store, (session, caller), transfer).map(Reply::Committed)
            }
            Request::PutAbort { transfer } => {
                self.transfers.abort(store, session, transfer).map(|()| Reply::Done)
            }
            Request::TransactionBegin { namespace, overwrite } => {
                let begun = store.transactions.begin(store, (session, caller), &namespace, overwrite);
                begun.map(|transaction| Reply::Transaction { transaction })
            }
            Request::TransactionClaim { transaction, names } => {
                let claimed = store.transactions.claim(store, (session, caller), transaction, names);
                claimed.map(|()| Reply::Done)
            }
            Request::TransactionCommit { transaction } => {
                let done = store.transactions.commit(store, (session, caller), transaction);
                done.map(|()| Reply::Done)
            }
            Request::TransactionAbort { transaction } => {
                store.transactions.abort(store, session, transaction);
                Ok(Reply::Done)
            }
            Request::Remove { namespace, name } => {
                let namespace = store.namespace(&namespace)?;
                namespace.check(caller, Right::Write)?;
                namespace.remove(&name)?;
                store.reclaim_one(&namespace);
                Ok(Reply::Done)
            }
            Request::Verify { namespace, name, first_block } => {
                store.readable(&namespace, caller)?.verify(&name, first_block)
            }
            Request::List { namespace, after } => list(store, caller, namespace.as_deref(), after.as_ref()),
            Request::NamespaceCreate { namespace, change } => {
                store.create_namespace(&namespace, caller, &change).map(|()| Reply::Done)
            }
            Request::NamespaceChange { namespace, change } => {
                store.change_namespace(&namespace, caller, &change).map(|()| Reply::Done)
            }
            Request::NamespaceRemove { namespace, with_tensors } => {
                store.remove_namespace(&namespace, caller, with_tensors).map(|()| Reply::Done)
            }
            Request::Update(mut update) => {
                let data = std::mem::replace(&mut update.data, Blob::Inline(Vec::new()));
                let revision = store.update(caller, &update, &chunk_data(data, passed)?)?;
                Ok(Reply::Updated { revision })
            }
            Request::Fold { namespace, name } => {
                store.fold(caller, &namespace, &name, job.deadline).map(|()| Reply::Done)
            }
            Request::Refit { namespace, name, mode } => {
                store.refit(caller, &namespace, &name, mode).map(Reply::Drift)
            }
            Request::NamespaceList { after } => {
                let mut page = Page::default();
                let all = store.list_namespaces(caller, after.as_deref(), |entry| page.take(entry));
                Ok(Reply::Namespaces { entries: page.entries, more: !all })
            }
        }
    }
}

/// Entries of one reply, until it is full.
#[derive(Debug)]
struct Page<T> {
    entries: Vec<T>,
    bytes: usize,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), bytes: 0 }
    }
}

impl<T: Serialize> Page<T> {
    /// Takes an entry if it fits, the first in any case; says whether it did.
    fn take(&mut self, entry: T) -> bool {
        // An entry that cannot be encoded alone is longer than any limit on names and ranks allows.
        self.bytes += encode(&entry).map_or(PAGE_BYTES, |encoded| encoded.len());
        let fits = self.bytes <= PAGE_BYTES || self.entries.is_empty();
        if fits {
            self.entries.push(entry);
        }
        fits
    }
}

/// A page of the list: entries after `after` that the caller may read, in order.
fn list(
    store: &Store,
    caller: &Caller,
    namespace: Option<&str>,
    after: Option<&(String, String)>,
) -> Outcome<Reply> {
    let mut page = Page::default();
    let namespaces = match namespace.map(|name| store.readable(name, caller)) {
        Some(Ok(namespace)) => vec![namespace],
        // A namespace that no put has made yet holds nothing.
        Some(Err(refusal)) if refusal.code() == Some(ErrorCode::NotFound) => Vec::new(),
        Some(Err(refusal)) => return Err(refusal),
        None => store.namespaces().into_iter().filter(|namespace| namespace.is_readable(caller)).collect(),
    };
    let more = namespaces.iter().any(|namespace| {
        let start = match after {
            Some((before, _)) if *before > namespace.name => return false,
            Some((before, name)) if *before == namespace.name => Some(name.as_str()),
            _ => None,
        };
        !namespace.list(start, |entry| page.take(entry))
    });
    Ok(Reply::Listed { entries: page.entries, more })
}

/// A text as a message carries it.
fn blob(text: &[u8], descriptors: &mut Vec<OwnedFd>) -> Outcome<Blob> {
    if text.len() <= MAX_INLINE_BYTES {
        return Ok(Blob::Inline(text.to_vec()));
    }
    let failed = |error| Refusal::new(ErrorCode::Internal, chain(&error));
    let mut chunk = ChunkWriter::new(text.len() as u64).map_err(failed)?;
    chunk.as_mut_bytes().copy_from_slice(text);
    descriptors.push(chunk.seal().map_err(failed)?);
    Ok(Blob::Descriptor { len: text.len() as u64 })
}

fn chunk_data(data: Blob, passed: Option<OwnedFd>) -> Outcome<ChunkData> {
    match (data, passed) {
        (Blob::Inline(bytes), _) => Ok(ChunkData::Inline(bytes)),
        (Blob::Descriptor { len }, Some(fd)) => {
            let chunk = Chunk::adopt(fd, len);
            chunk.map(ChunkData::Sealed).map_err(|error| Refusal::new(ErrorCode::Invalid, chain(&error)))
        }
        (Blob::Descriptor { .. }, None) => {
            Err(Refusal::new(ErrorCode::Invalid, "the chunk's descriptor is missing"))
        }
    }
}

/// A text that came with a message.
fn text_of(blob: Blob, passed: Option<OwnedFd>) -> Outcome<Vec<u8>> {
    match chunk_data(blob, passed)? {
        ChunkData::Inline(bytes) => Ok(bytes),
        ChunkData::Sealed(chunk) if chunk.len() > MAX_FILE_METADATA_BYTES => {
            let len = chunk.len();
            let text = format!("file metadata of {len} bytes is over the limit of {MAX_FILE_METADATA_BYTES}");
            Err(Refusal::new(ErrorCode::Invalid, text))
        }
        ChunkData::Sealed(chunk) => {
            let mut text = vec![0; tierpack_shm::types::index(chunk.len())];
            chunk.read_at(0, &mut text).map_err(|error| Refusal::new(ErrorCode::Invalid, chain(&error)))?;
            Ok(text)
        }
    }
}
