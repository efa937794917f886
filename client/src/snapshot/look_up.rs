//! Looking up all that a snapshot reads, as of one moment.
//!
//! ```text
//! open      the daemon opens all tensors; every reply has the same even count of names
//! lease     on every slot: what is published now stays
//! names     the same count: all that was opened is what the names mean
//! words     of every block; from here on the ring of changed blocks says which to load again
//! pass      count of updates even; changed words again; both counts as they were: that was the moment
//! finish    generations and segments were looked up as well: what is stored later is not held
//! ```
//!
//! Names that change begin it again. From the fourth time on the daemon is asked to let commits wait meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tierpack_shm::attachment::{Attachment, Generation, Guard, NoGuard};
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::{MAX_SEGMENTS, page};
use tierpack_shm::message::{OpenTensor, Reply, Request, Which};
use tierpack_shm::publish::load_word;
use tierpack_shm::ring::Drained;
use tierpack_shm::seqcount::{is_still, steady};
use tierpack_shm::sync::AtomicU64;
use tierpack_shm::types::{BlockWord, UNIT_BYTES, index};

use super::{Found, Snapshot};
use crate::blocks::not_resident;
use crate::client::Client;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::handle::{Fault, geometry};
use crate::overlays::chain;
use crate::protocol::ProtocolFault;
use crate::session::Session;

const OPERATION: &str = "take a snapshot";
/// Tries before commits are held.
const FREE_TRIES: u32 = 3;
/// Looks at the words that changed before the tensors are opened again.
const MAX_PASSES: usize = 100;
/// Between two tries.
const PAUSE: Duration = Duration::from_micros(200);
/// Bytes of names in one request, far below the limit of a message.
const NAMES_BYTES: usize = 32 << 10;

/// Why a try did not succeed.
enum Missed {
    Fault(Fault),
    /// Something changed meanwhile.
    Changed,
}

impl<F: Into<Fault>> From<F> for Missed {
    fn from(fault: F) -> Self {
        Self::Fault(fault.into())
    }
}

/// Takes a snapshot of the tensors of these names, sorted, or of all.
pub(super) fn take(client: &Client, names: Option<&[String]>) -> Result<Snapshot> {
    let deadline = client.shared.deadline();
    let mut tries = 0;
    loop {
        let session = client.shared.session(&deadline)?;
        let asking = Asking { client, session: &session, deadline: &deadline };
        let hold = if tries < FREE_TRIES { None } else { Some(asking.hold()?) };
        let attempt = asking.attempt(names);
        drop(hold);
        match attempt {
            Ok(snapshot) => return Ok(snapshot),
            Err(Missed::Fault(
                Fault::Failed(Error::Disconnected { .. }) | Fault::NoGuard(NoGuard::HungUp),
            )) if tries < FREE_TRIES => {}
            Err(Missed::Fault(Fault::Failed(error))) => return Err(error),
            Err(Missed::Fault(Fault::NoGuard(NoGuard::Forked))) => return Err(Error::Forked),
            Err(Missed::Fault(Fault::NoGuard(NoGuard::TooManyLeases))) => {
                return Err(Error::TooManyLeases { limit: page::N_LEASES });
            }
            Err(Missed::Fault(Fault::NoGuard(NoGuard::HungUp))) => return Err(session.lost(OPERATION)),
            Err(Missed::Changed | Missed::Fault(_)) => std::thread::sleep(PAUSE),
        }
        tries += 1;
        if deadline.left().is_zero() {
            return Err(deadline.passed("take a snapshot of a namespace that changes all the time"));
        }
    }
}

/// Who asks which daemon until when.
struct Asking<'a> {
    client: &'a Client,
    session: &'a Arc<Session>,
    deadline: &'a Deadline,
}

/// Commits wait until it is dropped, or for as long as the daemon allows.
struct Hold<'a>(&'a Asking<'a>);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let namespace = self.0.client.namespace.to_string();
        // It ends by itself where that fails.
        let _ = self.0.ask(Request::Release { namespace }).is_ok();
    }
}

impl<'a> Asking<'a> {
    fn ask(&self, request: Request) -> Result<Reply> {
        self.session.request(&self.client.subject(OPERATION, ""), request, self.deadline)
    }

    fn hold(&'a self) -> Result<Hold<'a>> {
        match self.ask(Request::Hold { namespace: self.client.namespace.to_string() })? {
            Reply::Held { .. } => Ok(Hold(self)),
            _ => Err(self.fault()),
        }
    }

    fn fault(&self) -> Error {
        self.client.subject(OPERATION, "").fault(ProtocolFault::Reply)
    }

    fn attempt(&self, names: Option<&[String]>) -> core::result::Result<Snapshot, Missed> {
        let (number, seen, opened) = self.open(names)?;
        let subject = self.client.subject(OPERATION, "");
        let attachment = self.session.attach(&subject, number, self.deadline)?;
        let mut tensors = Vec::with_capacity(opened.len());
        let (mut file_metadata, mut first_word) = (BTreeMap::new(), 0);
        for OpenTensor { entry, row_elems, slot, file_metadata: text } in opened {
            let geometry = geometry(&entry, row_elems).map_err(|fault| subject.fault(fault))?;
            if let Some(text) = text.filter(|text| !file_metadata.contains_key(text)) {
                match self.client.file_metadata(&entry.name) {
                    Err(Error::NotFound { .. }) => return Err(Missed::Changed),
                    found => file_metadata.insert(text, found?),
                };
            }
            let n_blocks = index(geometry.n_blocks());
            let (file_metadata, generations) = (text, Box::default());
            tensors.push(Found { entry, slot, geometry, file_metadata, first_word, generations });
            first_word += n_blocks;
        }
        let guard = Guard::every(Arc::clone(&attachment))?;
        if !is_still(attachment.names(), seen) {
            return Err(Missed::Changed);
        }
        let looked_up = words(&guard, &tensors, seen)
            .and_then(|words| look_up(&guard, &mut tensors, &words).map(|()| words));
        let words = match looked_up {
            Ok(words) => words,
            Err(Missed::Fault(Fault::NoGuard(NoGuard::NotMapped(kind, segment_idx)))) => {
                drop(guard);
                self.session.wait_mapped(&attachment, (kind, segment_idx), self.deadline)?;
                return Err(Missed::Changed);
            }
            Err(missed) => return Err(missed),
        };
        guard.finish();
        let (session, client) = (Arc::clone(self.session), self.client.clone());
        Ok(Snapshot { guard, attachment, session, client, tensors, words, file_metadata })
    }

    /// Opens the tensors, sorted by name, with the number of the namespace and the count of its names.
    fn open(&self, names: Option<&[String]>) -> core::result::Result<(u32, u64, Vec<OpenTensor>), Missed> {
        let (mut opened, mut seen): (Vec<OpenTensor>, _) = (Vec::new(), None);
        loop {
            let asked = names.map(|names| first_names(&names[opened.len()..]));
            let which = match asked {
                Some(asked) => Which::Named(asked.to_vec()),
                None => Which::After(opened.last().map(|tensor| tensor.entry.name.clone())),
            };
            let namespace = self.client.namespace.to_string();
            let reply = self.ask(Request::OpenMany { namespace, which })?;
            let Reply::OpenedMany { namespace, names: count, tensors, more } = reply else {
                return Err(self.fault().into());
            };
            if *seen.get_or_insert((namespace, count)) != (namespace, count) || count % 2 == 1 {
                return Err(Missed::Changed);
            }
            // A reply that does not go on would make this loop endless.
            let last = opened.last().map(|tensor| &tensor.entry.name);
            let is_next = tensors.first().is_none_or(|first| last < Some(&first.entry.name))
                && tensors.is_sorted_by(|a, b| a.entry.name < b.entry.name);
            let are_asked = asked.is_none_or(|asked| {
                tensors.len() <= asked.len()
                    && asked.iter().zip(&tensors).all(|(name, got)| *name == got.entry.name)
            });
            if !is_next || !are_asked || (more && tensors.is_empty()) {
                return Err(self.fault().into());
            }
            if let Some(missing) = asked.and_then(|asked| asked.get(tensors.len())).filter(|_| !more) {
                let (namespace, name) = (self.client.namespace.to_string(), missing.clone());
                return Err(Error::NotFound { namespace, name }.into());
            }
            opened.extend(tensors);
            if !more && names.is_none_or(|names| opened.len() == names.len()) {
                return Ok((namespace, count, opened));
            }
        }
    }
}

/// As many as one request names.
fn first_names(names: &[String]) -> &[String] {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len() + 4;
        bytes <= NAMES_BYTES
    };
    &names[..names.iter().take_while(fits).count()]
}

/// The words of all blocks at a moment at which names and values are those of one another.
fn words(
    guard: &Guard<Arc<Attachment>>,
    tensors: &[Found],
    seen: u64,
) -> core::result::Result<Vec<BlockWord>, Missed> {
    let attachment = guard.attachment();
    let mut tail = guard.changes();
    let mut words = Vec::new();
    load_all(guard, tensors, &mut words)?;
    let (mut by_slot, mut changed) = (HashMap::new(), Vec::new());
    for _ in 0..MAX_PASSES {
        let Some(updates) = steady(attachment.updates()) else {
            std::thread::yield_now();
            continue;
        };
        changed.clear();
        match guard.changed(tail, |block| changed.push(block)) {
            Drained::UpTo(next) => tail = next,
            Drained::Lapped(next) => {
                tail = next;
                changed.clear();
                load_all(guard, tensors, &mut words)?;
            }
        }
        if !changed.is_empty() && by_slot.is_empty() {
            by_slot = tensors.iter().map(|found| (found.slot.idx, found)).collect();
        }
        for block in &changed {
            // The others are not in the snapshot.
            let Some(found) = by_slot.get(&block.slot) else { continue };
            let block_idx = index(block.block_idx);
            let word = words_of(guard, found)?.get(block_idx).ok_or_else(|| found.corrupt())?;
            words[found.first_word + block_idx] = looked_at(word);
        }
        if !is_still(attachment.names(), seen) {
            return Err(Missed::Changed);
        }
        if is_still(attachment.updates(), updates) {
            return Ok(words);
        }
    }
    Err(Missed::Changed)
}

fn load_all(
    guard: &Guard<Arc<Attachment>>,
    tensors: &[Found],
    words: &mut Vec<BlockWord>,
) -> core::result::Result<(), Missed> {
    words.clear();
    for found in tensors {
        words.extend(words_of(guard, found)?.iter().map(looked_at));
    }
    Ok(())
}

fn looked_at(word: &AtomicU64) -> BlockWord {
    let word = load_word(word);
    reach(Point::SnapshotWordLoaded);
    word
}

fn words_of<'g>(
    guard: &'g Guard<Arc<Attachment>>,
    found: &Found,
) -> core::result::Result<&'g [AtomicU64], Missed> {
    // A tensor without blocks has no table to look at.
    if found.geometry.n_blocks() == 0 {
        return Ok(&[]);
    }
    let words = guard.look(found.slot).words().map_err(|reason| missed(reason.into(), found))?;
    if words.len() as u64 == found.geometry.n_blocks() { Ok(words) } else { Err(found.corrupt().into()) }
}

/// A fault of one tensor, with its name.
fn missed(fault: Fault, found: &Found) -> Missed {
    Missed::Fault(match fault {
        Fault::NoGuard(NoGuard::Corrupt) => found.corrupt().into(),
        Fault::NoGuard(NoGuard::NotMapped(_, segment_idx)) if segment_idx >= MAX_SEGMENTS => {
            found.corrupt().into()
        }
        fault => fault,
    })
}

/// Looks up what the words name, and that all of it is mapped.
fn look_up(
    guard: &Guard<Arc<Attachment>>,
    tensors: &mut [Found],
    words: &[BlockWord],
) -> core::result::Result<(), Missed> {
    for found in tensors {
        let words = &words[found.first_word..][..index(found.geometry.n_blocks())];
        let generations = generations(guard, found, words).map_err(|fault| missed(fault, found))?;
        found.generations = generations.into_iter().collect();
    }
    Ok(())
}

/// The generations that the words of one tensor name, by their indexes.
fn generations(
    guard: &Guard<Arc<Attachment>>,
    found: &Found,
    words: &[BlockWord],
) -> core::result::Result<BTreeMap<u8, Generation>, Fault> {
    let mut generations = BTreeMap::new();
    for (block_idx, &word) in (0..).zip(words) {
        let block = if word.is_overlay() {
            chain(guard, word, found.geometry.block(block_idx).row_bytes).collect()?.block
        } else {
            word
        };
        if !block.is_resident() {
            let source = Box::new(not_resident(block_idx));
            let (namespace, name) = (found.entry.namespace.clone(), found.entry.name.clone());
            return Err(Error::OfTensor { namespace, name, source }.into());
        }
        guard.stored(block, UNIT_BYTES)?;
        if let Some(idx) = (!block.is_raw()).then(|| block.generation_idx())
            && !generations.contains_key(&idx)
        {
            let generation = guard.look(found.slot).generation(idx)?;
            guard.metadata(generation)?;
            generations.insert(idx, generation);
        }
    }
    Ok(generations)
}
