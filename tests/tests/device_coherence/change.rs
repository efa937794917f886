//! What happens to a tensor while its rows are gathered, and the versions that its rows may have meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use tierpack_client::{Client, CodecId, Error, RefitMode};
use tierpack_shm::faults::Point;
use tierpack_tests::rows::Table;
use tierpack_tests::{Daemon, eventually};

/// The tensor that changes.
pub(crate) const TARGET: u16 = 1;
/// Its rows: two blocks, and a short one.
pub(crate) const ROWS: u64 = 1100;
/// A row of every block.
pub(crate) const FEW: [u64; 4] = [3, 600, 1030, 1099];
/// More than an overlay chain may be long.
const MANY: u16 = 12;
/// Rows of a tensor that needs segments of its own.
const BIG_ROWS: u64 = 16 << 10;
/// Rows of one of those that stay when segments are emptied.
const SMALL_ROWS: u64 = 2048;
const SMALLS: usize = 16;

/// A change; version 2 and those behind it are its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    UpdateFew,
    UpdateAll,
    /// Until overlays are put into their blocks.
    UpdateMany,
    Refit,
    /// A refit of blocks that have overlays.
    RefitUpdated,
    Overwrite,
    RemoveAndPut,
    /// Another tensor comes and goes where the blocks were, and they come back there.
    ReuseExtents,
    /// Blocks are moved, segments given back and made again.
    EmptySegments,
}

use Change::{
    EmptySegments, Overwrite, Refit, RefitUpdated, RemoveAndPut, ReuseExtents, UpdateAll, UpdateFew,
    UpdateMany,
};

impl Change {
    pub(crate) const ALL: &[Self] = &[
        UpdateFew,
        UpdateAll,
        UpdateMany,
        Refit,
        RefitUpdated,
        Overwrite,
        RemoveAndPut,
        ReuseExtents,
        EmptySegments,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            UpdateFew => "update of rows",
            UpdateAll => "update of all rows",
            UpdateMany => "updates until a fold",
            Refit => "refit",
            RefitUpdated => "refit of overlays",
            Overwrite => "put over it",
            RemoveAndPut => "remove and put",
            ReuseExtents => "extents reused",
            EmptySegments => "segments emptied",
        }
    }

    /// Whether the tensor is another afterwards, so that a reader has to ask the daemon where it is.
    pub(crate) const fn replaces(self) -> bool {
        matches!(self, Overwrite | RemoveAndPut)
    }

    /// A codec that it works with: there is nothing to fit to raw blocks.
    pub(crate) const fn codec(self, codec: CodecId) -> CodecId {
        match (self, codec) {
            (Refit | RefitUpdated, CodecId::Raw) => CodecId::Ibp,
            _ => codec,
        }
    }

    /// Points of the daemon that lie on its way; `device_coherence` with `TIERPACK_CASES=full` tries all.
    pub(crate) const fn points(self) -> &'static [Point] {
        use Point::{
            AttachPage, BeforeFree, BetweenWords, BlockCopied, EpochStepped, Fitting, IndexRetired,
            MetadataCopied, PutBeforePublish, PutBegun, PutEncoded, PutPublished, RefitBegun,
            RefitBetweenBlocks, RefitPlanned, ReplyUnsent, RewriteEncoded, SegmentClosed, SegmentMade,
            SegmentRetired, UpdatePrepared, WordSwapped, WordsStored,
        };
        match self {
            UpdateFew => &[
                UpdatePrepared,
                WordSwapped,
                BetweenWords,
                WordsStored,
                EpochStepped,
                RewriteEncoded,
                BeforeFree,
                AttachPage,
                ReplyUnsent,
            ],
            UpdateAll => &[
                UpdatePrepared,
                WordSwapped,
                BetweenWords,
                WordsStored,
                EpochStepped,
                BeforeFree,
                ReplyUnsent,
            ],
            UpdateMany => &[
                UpdatePrepared,
                WordSwapped,
                BetweenWords,
                WordsStored,
                EpochStepped,
                RewriteEncoded,
                BeforeFree,
                ReplyUnsent,
            ],
            Refit | RefitUpdated => &[
                Fitting,
                RefitPlanned,
                RefitBegun,
                RewriteEncoded,
                RefitBetweenBlocks,
                WordSwapped,
                WordsStored,
                IndexRetired,
                EpochStepped,
                BeforeFree,
                ReplyUnsent,
            ],
            Overwrite | RemoveAndPut => {
                &[PutBegun, PutEncoded, PutBeforePublish, PutPublished, EpochStepped, BeforeFree, ReplyUnsent]
            }
            ReuseExtents => &[
                PutBegun,
                PutEncoded,
                PutPublished,
                UpdatePrepared,
                WordSwapped,
                BetweenWords,
                WordsStored,
                EpochStepped,
                BeforeFree,
                ReplyUnsent,
            ],
            EmptySegments => &[
                SegmentClosed,
                BlockCopied,
                MetadataCopied,
                WordSwapped,
                SegmentRetired,
                SegmentMade,
                UpdatePrepared,
                BetweenWords,
                WordsStored,
                EpochStepped,
                BeforeFree,
            ],
        }
    }

    /// The rows that every step writes.
    pub(crate) fn rows(self) -> Vec<u64> {
        match self {
            UpdateFew | UpdateMany => FEW.to_vec(),
            Refit | RefitUpdated => Vec::new(),
            _ => (0..ROWS).collect(),
        }
    }

    /// The version of those rows in the end.
    pub(crate) const fn last(self) -> u16 {
        match self {
            Refit | RefitUpdated => 1,
            UpdateMany => 1 + MANY,
            ReuseExtents => 3,
            _ => 2,
        }
    }

    pub(crate) fn prepare(self, client: &Client, table: &Table) -> Result<(), Error> {
        if self == EmptySegments {
            // Fills most of a segment: metadata of others find room behind it.
            small(7, CodecId::Raw, 1536).put(client, "first", 1)?;
        }
        table.put(client, "target", 1)?;
        match self {
            RefitUpdated => client.update("target", &FEW, &table.rows(FEW, 1)).map(drop),
            EmptySegments => (0..SMALLS)
                .try_for_each(|n| small(6, CodecId::Ibp, SMALL_ROWS).put(client, &format!("small-{n}"), 1)),
            _ => Ok(()),
        }
    }

    /// Does it, and says how far it has come.
    pub(crate) fn run(
        self,
        (daemon, client): (&Daemon, &Client),
        table: &Table,
        progress: &Progress,
    ) -> Result<(), Error> {
        let update = |version| {
            let rows = self.rows();
            client.update("target", &rows, &table.rows(rows.iter().copied(), version))?;
            progress.acknowledge(version);
            Ok(())
        };
        match self {
            UpdateFew | UpdateAll => update(2),
            UpdateMany => (2..=self.last()).try_for_each(update),
            Refit | RefitUpdated => client.refit("target", RefitMode::Force, |_, _| ()).map(drop),
            Overwrite => {
                table.put(client, "target", 2)?;
                progress.acknowledge(2);
                Ok(())
            }
            RemoveAndPut => {
                client.remove("target")?;
                progress.acknowledge(2);
                table.put(client, "target", 2)?;
                progress.is_back.store(true, Ordering::SeqCst);
                Ok(())
            }
            ReuseExtents => {
                update(2)?;
                small(8, table.codec, ROWS).put(client, "neighbor", 1)?;
                client.remove("neighbor")?;
                update(3)
            }
            EmptySegments => {
                client.remove("first")?;
                for n in (0..SMALLS).filter(|n| n % 4 != 0) {
                    client.remove(&format!("small-{n}"))?;
                }
                // Those in which nothing is left, and then those that blocks were moved out of.
                eventually("sparse segments that are given back", || {
                    let pool = daemon.stats().pool;
                    let is_dense = pool.segment_bytes < pool.used_bytes + (2 << 20);
                    (is_dense && pool.returning_bytes == 0).then_some(())
                });
                update(2)
            }
        }
    }

    /// Brings version 1 back, for another run.
    pub(crate) fn undo(self, client: &Client, table: &Table) -> Result<(), Error> {
        for entry in client.list()? {
            if entry.name != "target" {
                client.remove(&entry.name)?;
            }
        }
        client.remove("target")?;
        self.prepare(client, table)
    }

    /// Waits for what the daemon does in the background, and has memory that was given back written again.
    pub(crate) fn settle(self, daemon: &Daemon, client: &Client) {
        let has_folded = || client.drift("target").expect("it is there").overlay_bytes == 0;
        if matches!(self, UpdateFew | UpdateMany | RefitUpdated) {
            eventually("all overlays in their blocks", || has_folded().then_some(()));
        }
        if self == EmptySegments {
            daemon.quiet();
            let big = small(9, CodecId::Raw, BIG_ROWS / 2);
            big.put(client, "big", 1).expect("room");
            client.remove("big").expect("it is there");
        }
    }
}

const fn small(tensor: u16, codec: CodecId, n_rows: u64) -> Table {
    Table { tensor, codec, n_rows }
}

/// How far a change has come: what was acknowledged must be seen.
#[derive(Debug)]
pub(crate) struct Progress {
    acknowledged: AtomicU16,
    /// Whether a tensor that was removed is there again.
    is_back: AtomicBool,
}

impl Progress {
    pub(crate) const fn new() -> Self {
        Self { acknowledged: AtomicU16::new(1), is_back: AtomicBool::new(false) }
    }

    pub(crate) fn acknowledge(&self, version: u16) {
        self.acknowledged.store(version, Ordering::SeqCst);
    }

    /// The version that the rows of the change have at least.
    pub(crate) fn least(&self) -> u16 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Whether who asks now may hear that the tensor is not there.
    pub(crate) fn may_be_gone(&self, change: Change) -> bool {
        change == RemoveAndPut && !self.is_back.load(Ordering::SeqCst)
    }
}
