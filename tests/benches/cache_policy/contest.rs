//! The policies by name, and what is varied of the chosen one.

use crate::cache::{Counts, Index, Shape, WAVE, simulate};
use crate::history::{S3Fifo, TinyLfu};
use crate::policies::{COUNT2, Clock, Counters, Knobs, Oldest, OnHit, Random, SRRIP, WhenWarm};
use crate::traces::{ROWS, Trace};

/// A policy and its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Random,
    Fifo,
    Lru,
    Clock,
    Counters(Knobs),
    TinyLfu,
    S3Fifo,
}

/// Rows of the main table.
pub(crate) const RULES: [(&str, Rule); 12] = [
    ("random", Rule::Random),
    ("FIFO", Rule::Fifo),
    ("LRU", Rule::Lru),
    ("CLOCK", Rule::Clock),
    ("SRRIP", Rule::Counters(SRRIP)),
    ("SRRIP, 1/4 of hits", Rule::Counters(Knobs { sample: 4, ..SRRIP })),
    ("same, bypass if warm", Rule::Counters(Knobs { sample: 4, when_warm: WhenWarm::Cool, ..SRRIP })),
    ("BRRIP", Rule::Counters(Knobs { first_once_in: 32, ..SRRIP })),
    ("LFU4, admits 1/4", Rule::Counters(Knobs { top: 15, admit: 4, admit_cold: 1, ..COUNT2 })),
    ("TinyLFU of misses", Rule::TinyLfu),
    ("S3-FIFO", Rule::S3Fifo),
    ("count2", Rule::Counters(COUNT2)),
];

impl Rule {
    pub(crate) fn run(self, trace: &Trace, shape: Shape) -> Counts {
        match self {
            Self::Random => simulate(trace, shape, |_, ways| Random(ways)),
            Self::Fifo => simulate(trace, shape, |n_sets, ways| Oldest::new(n_sets, ways, false)),
            Self::Lru => simulate(trace, shape, |n_sets, ways| Oldest::new(n_sets, ways, true)),
            Self::Clock => simulate(trace, shape, Clock::new),
            Self::Counters(knobs) => {
                simulate(trace, shape, |n_sets, ways| Counters::new(n_sets, ways, knobs))
            }
            Self::TinyLfu => simulate(trace, shape, TinyLfu::new),
            Self::S3Fifo => simulate(trace, shape, S3Fifo::new),
        }
    }
}

/// Lines for a share of all rows.
pub(crate) const fn lines(size_percent: usize) -> usize {
    ROWS as usize * size_percent / 100
}

/// The shape of the main table.
pub(crate) const fn shape(size_percent: usize) -> Shape {
    Shape { lines: lines(size_percent), ways: 8, wave: WAVE, index: Index::Hash }
}

/// A row of a table of sensitivity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    pub(crate) rule: Rule,
    pub(crate) ways: usize,
    pub(crate) wave: usize,
    pub(crate) index: Index,
}

/// Everything that is varied.
pub(crate) fn variants() -> Vec<Variant> {
    let rule = Rule::Counters(COUNT2);
    let base = Variant { table: "", name: "", rule, ways: 8, wave: WAVE, index: Index::Hash };
    let knobs = |table, name, knobs| Variant { table, name, rule: Rule::Counters(knobs), ..base };
    let ways = |name, ways, rule| Variant { table: "Ways", name, ways, rule, ..base };
    let sample = |name, sample| knobs("Hits that are noted", name, Knobs { sample, ..COUNT2 });
    let bits = |name, top| knobs("Bits of a counter", name, Knobs { top, ..COUNT2 });
    let cold =
        |name, admit_cold| knobs("Admission where all counters are 0", name, Knobs { admit_cold, ..COUNT2 });
    let admit = |name, admit| knobs("Admission everywhere", name, Knobs { admit, admit_cold: 1, ..COUNT2 });
    let rules = |name, knobs_of| knobs("Rules, one changed at a time", name, knobs_of);
    let wave = |name, wave| Variant { table: "Rows in flight", name, wave, ..base };
    let index = |name, index| Variant { table: "Set of a row", name, index, ..base };
    vec![
        ways("LRU, 4", 4, Rule::Lru),
        ways("LRU, 8", 8, Rule::Lru),
        ways("LRU, 16", 16, Rule::Lru),
        ways("count2, 4", 4, rule),
        ways("count2, 8", 8, rule),
        ways("count2, 16", 16, rule),
        sample("all", 1),
        sample("1/2", 2),
        sample("1/4", 4),
        sample("1/16", 16),
        bits("1", 1),
        bits("2", 3),
        bits("3", 7),
        bits("4", 15),
        cold("all", 1),
        cold("1/4", 4),
        cold("1/16", 16),
        cold("1/64", 64),
        admit("all", 1),
        admit("1/2", 2),
        admit("1/8", 8),
        rules("none", COUNT2),
        rules("a hit sets 3", Knobs { on_hit: OnHit::Top, ..COUNT2 }),
        rules("a row begins with 1", Knobs { first: 1, ..COUNT2 }),
        rules("a warm set is lowered and taken", Knobs { when_warm: WhenWarm::Take, ..COUNT2 }),
        wave("1", 1),
        wave("512", 512),
        wave("4096", WAVE),
        wave("32768", 32 << 10),
        index("hash", Index::Hash),
        index("row modulo sets", Index::Modulo),
    ]
}
