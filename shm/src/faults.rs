//! Fault points: named places where a test makes a process stop, die or fail.
//!
//! They exist with the feature `faults` alone, which only tests turn on; without it [`reach`] and [`check`] are empty, so
//! that the places which call them need no `cfg`.
//! A process that calls [`setup`] takes its points from the environment variable `FAILPOINTS`
//! (`POINT=ACTIONS;POINT=ACTIONS`); [`set`] changes one at any time.
//! Actions are those of the crate `fail`, with counts and probabilities (`3*off->1*return(kill)`, `5%return(kill)`);
//! `return(...)` takes `kill` (SIGKILL), `stop` (SIGSTOP, until a test sends SIGCONT), or at a point that can fail the
//! name of an errno.
//!
//! A new point is two lines here and its call; `tests/tests/fault_points.rs` does not compile until it has a run there.

use nix::errno::Errno;

macro_rules! points {
    ($($(#[$doc:meta])+ $point:ident = $name:literal $(can $fail:ident)?,)+) => {
        /// A fault point; each line says in which state the process that reaches it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Point {
            $($(#[$doc])+ $point,)+
        }

        impl Point {
            /// Every point.
            pub const ALL: &[Self] = &[$(Self::$point),+];

            /// Its name: where it is, what is done there, and how far that is.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$point => $name),+ }
            }

            /// Whether it can return an errno: it is before a call of the system that can fail.
            pub const fn can_fail(self) -> bool {
                match self { $(Self::$point => points!(@can $($fail)?)),+ }
            }
        }
    };
    (@can fail) => { true };
    (@can) => { false };
}

points! {
    /// The daemon owns its path by the lock, and has bound no socket.
    StartLocked = "daemon.start.locked",
    /// Both sockets are bound: clients can connect, and nobody answers yet.
    StartBound = "daemon.start.bound",
    /// A put is in the table with its room reserved; no chunk of it has come.
    PutBegun = "daemon.put.begun",
    /// A block is encoded into an extent that no put has yet.
    PutEncoded = "daemon.put.encoded",
    /// All blocks are there, and the put is out of the table; nothing can be seen.
    PutBeforePublish = "daemon.put.before_publish",
    /// The new tensor can be seen, and so can the one that it replaces.
    PutPublished = "daemon.put.published",
    /// A tensor is hidden and the epoch has stepped; its memory is not in the queue of what is retired.
    EpochStepped = "daemon.retire.epoch_stepped",
    /// No lease holds what was retired, and it is not free yet.
    BeforeFree = "daemon.reclaim.before_free",
    /// A segment is made and in the budget; no pool has it, and nobody was notified.
    SegmentMade = "daemon.segment.made",
    /// Sessions were asked to unmap a segment, and none has answered.
    SegmentRetired = "daemon.segment.retired",
    /// A session's client page is made; the namespace does not count its leases yet.
    AttachPage = "daemon.attach.page_made",
    /// A request is carried out, and its client does not know.
    ReplyUnsent = "daemon.reply.unsent",
    /// The blocks of an update are prepared; no word names them.
    UpdatePrepared = "daemon.update.prepared",
    /// A block's word is swapped, and the daemon's own record says what it said before.
    WordSwapped = "daemon.blocks.word_swapped",
    /// A block of several is stored and recorded; the others are not.
    BetweenWords = "daemon.blocks.between_words",
    /// All words are stored and recorded; the update is not counted, and nothing is retired.
    WordsStored = "daemon.blocks.words_stored",
    /// A block is encoded again with the values that it has; its word is not swapped.
    RewriteEncoded = "daemon.rewrite.encoded",
    /// A fit is about to begin, where a panic is caught.
    Fitting = "daemon.refit.fitting",
    /// The metadata of a refit are stored; the tensor has no such generation.
    RefitPlanned = "daemon.refit.planned",
    /// The generation is entered; no block is encoded with it.
    RefitBegun = "daemon.refit.begun",
    /// A block of a refit is stored; the others are not.
    RefitBetweenBlocks = "daemon.refit.between_blocks",
    /// The index of a generation that no block needs is retired, and not free.
    IndexRetired = "daemon.refit.index_retired",
    /// A segment is closed for what is new; nothing has moved.
    SegmentClosed = "daemon.compact.segment_closed",
    /// A block is copied to another segment; its word is not swapped.
    BlockCopied = "daemon.compact.block_copied",
    /// Metadata are copied to another segment; their address is not swapped.
    MetadataCopied = "daemon.compact.metadata_copied",
    /// The daemon has retired some of the tensors of a removed namespace, and holds no lock.
    BatchRetired = "daemon.namespace.batch_retired",
    /// The thread of the stats socket is about to look for readers.
    StatsTurn = "daemon.thread.stats",
    /// A thread of the closer has taken a descriptor, and not closed it.
    CloserTurn = "daemon.thread.closer",
    /// The thread that frees segments has one that nobody maps any more.
    FreerTurn = "daemon.thread.freer",
    /// The log writer has taken a line, and not written it.
    LogTurn = "daemon.thread.log",
    /// The daemon is about to take in a connection that waits.
    Accept = "daemon.accept" can fail,
    /// The daemon is about to make the memory file of a segment.
    SegmentCreate = "daemon.segment.create" can fail,
    /// The daemon is about to make the memory file of a client page.
    PageCreate = "daemon.page.create" can fail,
    /// A segment, a page or a chunk is about to be sealed, by whichever process made it.
    Seal = "memory.seal" can fail,
    /// A lease is in the client page; its publication is not checked.
    LeaseTaken = "client.lease.taken",
    /// A read is over, and its lease is still in the client page.
    LeaseEnding = "client.lease.ending",
    /// A block's word is loaded, and nothing of the block is copied.
    CopyWordLoaded = "client.get.word_loaded",
    /// A block of several is copied or decoded, and the next is not: the lease is finished, or ended before the next batch.
    CopyBetweenBlocks = "client.get.between_blocks",
    /// The word of a row's block is loaded, and nothing of the row is copied.
    GatherWordLoaded = "client.gather.word_loaded",
    /// A row of several is copied or decoded, and the next is not: the lease is finished, or ended before the next batch.
    GatherBetweenRows = "client.gather.between_rows",
    /// An overlay is found, and what it covers is not looked at.
    OverlayFound = "client.overlay.found",
    /// A view has its words, and has not looked at its blocks.
    ViewWordsLoaded = "client.view.words_loaded",
    /// A snapshot has loaded the word of a block, for the first time or again.
    SnapshotWordLoaded = "client.snapshot.word_loaded",
    /// The session has the descriptor of a segment that it has not mapped.
    SegmentReceived = "client.segment.received",
    /// The session knows that a segment is retired, and still maps it.
    SegmentUnmapping = "client.segment.unmapping",
    /// The client is about to map a segment.
    SegmentMap = "client.segment.map" can fail,
    /// A chunk is on its way, and its answer is not awaited.
    ChunkSent = "client.put.chunk_sent",
    /// An update is on its way, and its answer is not awaited.
    UpdateSent = "client.update.sent",
    /// Every chunk is answered, and the commit is not sent.
    BeforeCommit = "client.put.before_commit",
}

/// `FAILPOINTS`, or what was passed to [`set`], is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault point {entry:?}: {cause}")]
pub struct BadAction {
    /// The entry.
    pub entry: String,
    /// What is wrong with it.
    pub cause: String,
}

/// Where a process may stop, die, or wait.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn reach(_point: Point) {}

/// As [`reach`], and the call that comes next may fail.
///
/// # Errors
/// Never: this build has no fault points.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn check(_point: Point) -> Result<(), Errno> {
    Ok(())
}

/// Does nothing: this build has no fault points.
///
/// # Errors
/// Never.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn setup() -> Result<(), BadAction> {
    Ok(())
}

/// Refuses: this build has no fault points.
///
/// # Errors
/// Always.
#[cfg(not(feature = "faults"))]
pub fn set(point: Point, actions: &str) -> Result<(), BadAction> {
    let cause = "this build has no fault points: turn on the feature `faults`".to_owned();
    Err(BadAction { entry: format!("{}={actions}", point.name()), cause })
}

#[cfg(feature = "faults")]
pub use active::{check, reach, set, setup};

#[cfg(feature = "faults")]
mod active {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::{BadAction, Errno, Point};

    /// Whether any point was ever set: a process without one pays for a load.
    static IS_ARMED: AtomicBool = AtomicBool::new(false);

    /// What `return(...)` may name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Told {
        Raise(Signal),
        Fail(Errno),
    }

    fn told(text: &str) -> Option<Told> {
        Some(match text {
            "kill" => Told::Raise(Signal::SIGKILL),
            "stop" => Told::Raise(Signal::SIGSTOP),
            "EBUSY" => Told::Fail(Errno::EBUSY),
            "EMFILE" => Told::Fail(Errno::EMFILE),
            "ENFILE" => Told::Fail(Errno::ENFILE),
            "ENOBUFS" => Told::Fail(Errno::ENOBUFS),
            "ENOMEM" => Told::Fail(Errno::ENOMEM),
            "ENOSPC" => Told::Fail(Errno::ENOSPC),
            "EPERM" => Told::Fail(Errno::EPERM),
            _ => return None,
        })
    }

    /// Where a process may stop, die, or wait.
    ///
    /// # Panics
    /// When a test has asked for that.
    #[inline]
    pub fn reach(point: Point) {
        let passed = check(point);
        debug_assert!(passed.is_ok(), "`set` gives no errno to a point that cannot fail");
    }

    /// As [`reach`], and the call that comes next may fail.
    ///
    /// # Errors
    /// The errno that a test has asked for.
    ///
    /// # Panics
    /// As [`reach`].
    #[inline]
    pub fn check(point: Point) -> Result<(), Errno> {
        // Relaxed: `set` is called before what is to be caught begins; the registry has locks of its own.
        if IS_ARMED.load(Ordering::Relaxed) { act(point) } else { Ok(()) }
    }

    #[cold]
    fn act(point: Point) -> Result<(), Errno> {
        let asked = fail::eval(point.name(), |text| {
            text.as_deref().and_then(told).expect("`set` lets through what `told` knows")
        });
        match asked {
            Some(Told::Fail(errno)) => Err(errno),
            Some(Told::Raise(signal)) => {
                raise(signal).expect("a process may send itself a signal");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Sets the actions of a point in this process, in place of the ones that it had.
    ///
    /// # Errors
    /// [`BadAction`]: `fail` does not know them, or `return(...)` names nothing that this point can do.
    pub fn set(point: Point, actions: &str) -> Result<(), BadAction> {
        let bad = |cause| BadAction { entry: format!("{}={actions}", point.name()), cause };
        for action in actions.split("->") {
            let Some((_, returned)) = action.split_once("return") else { continue };
            let text = returned.trim().strip_prefix('(').and_then(|text| text.strip_suffix(')'));
            match text.and_then(told) {
                Some(Told::Fail(_)) if !point.can_fail() => {
                    return Err(bad("no call that can fail comes after this point".to_owned()));
                }
                Some(_) => {}
                None => return Err(bad(format!("return{returned} is neither kill, stop nor an errno"))),
            }
        }
        fail::cfg(point.name(), actions).map_err(bad)?;
        IS_ARMED.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the points that `FAILPOINTS` names; to be called before the process starts a thread.
    ///
    /// # Errors
    /// [`BadAction`]: as [`set`], or there is no such point.
    pub fn setup() -> Result<(), BadAction> {
        let text = std::env::var("FAILPOINTS").unwrap_or_default();
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            let bad = |cause: &str| BadAction { entry: entry.to_owned(), cause: cause.to_owned() };
            let (name, actions) = entry.split_once('=').ok_or_else(|| bad("has no `=`"))?;
            let point = Point::ALL.iter().find(|point| point.name() == name);
            set(*point.ok_or_else(|| bad("no point has this name"))?, actions)?;
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_fails_as_often_as_it_was_told() {
            set(Point::SegmentMap, "1*off->2*return(ENOMEM)->off").unwrap();
            let results: Vec<_> = (0..5).map(|_| check(Point::SegmentMap)).collect();
            let failed = Err(Errno::ENOMEM);
            assert_eq!(results, [Ok(()), failed, failed, Ok(()), Ok(())]);
        }

        #[test]
        fn what_a_point_cannot_do_is_refused() {
            assert!(set(Point::PutBegun, "return(ENOSPC)").is_err());
            assert!(set(Point::PageCreate, "return(ENOSUCH)").is_err());
            assert!(set(Point::PageCreate, "return").is_err());
            assert!(set(Point::PageCreate, "explode").is_err());
            assert!(set(Point::PutBegun, "off").is_ok());
        }

        #[test]
        fn a_panic_names_what_it_was_told() {
            set(Point::BeforeCommit, "1*panic(a test asked for this)").unwrap();
            let caught = std::panic::catch_unwind(|| reach(Point::BeforeCommit)).unwrap_err();
            assert_eq!(caught.downcast_ref::<String>().unwrap(), "a test asked for this");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_of_one_point() {
        let names: std::collections::BTreeSet<_> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }
}
