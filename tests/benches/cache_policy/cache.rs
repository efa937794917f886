//! A set-associative cache that many warps use at a time, by waves.
//!
//! A wave is what is in flight together. All its probes come first, so a row that is asked for twice misses twice.
//! Then each miss chooses a way from what the set was after the probes, for its fetch takes longer than all probes.
//! A way has one winner per wave: a later miss that chose it too loses its claim and bypasses, as a failed
//! compare-and-swap does. A miss whose row another has inserted meanwhile inserts nothing.
//! Headers of sets are stored whole and race: the last store of a wave wins.

use crate::numbers::{Rng, high};
use crate::policies::{Choice, Line, Policy};
use crate::traces::{Trace, hash};

/// Rows in flight: 132 multiprocessors with 32 warps each, a row per warp.
pub(crate) const WAVE: usize = 4096;
pub(crate) const EMPTY: u32 = u32::MAX;

/// Which set a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    Hash,
    Modulo,
}

/// What a simulation varies besides the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) lines: usize,
    pub(crate) ways: usize,
    pub(crate) wave: usize,
    pub(crate) index: Index,
}

/// Sums over the counted half of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) inserts: u64,
    /// Claims lost.
    pub(crate) conflicts: u64,
    /// Misses that the policy did not admit.
    pub(crate) bypasses: u64,
}

struct Cache<P> {
    shape: Shape,
    n_sets: u64,
    tags: Vec<u32>,
    /// The wave in which a line was last written.
    written: Vec<u32>,
    /// The wave in which a hit was last noted there.
    noted: Vec<u32>,
    policy: P,
    rng: Rng,
}

/// Hits and more of a policy over a trace.
pub(crate) fn simulate<P: Policy>(
    trace: &Trace,
    shape: Shape,
    policy: impl FnOnce(usize, usize) -> P,
) -> Counts {
    let n_sets = (shape.lines / shape.ways).max(1);
    let n_lines = n_sets * shape.ways;
    let mut cache = Cache {
        shape,
        n_sets: n_sets as u64,
        tags: vec![EMPTY; n_lines],
        written: vec![0; n_lines],
        noted: vec![0; n_lines],
        policy: policy(n_sets, shape.ways),
        rng: Rng::new(shape.lines as u64),
    };
    let mut counts = Counts::default();
    let (mut misses, mut choices) = (Vec::new(), Vec::new());
    for ((is_counted, ids), wave) in trace.waves(shape.wave).zip(1..) {
        misses.clear();
        choices.clear();
        for &row in ids {
            let set = cache.set_of(row);
            match cache.find(set, row) {
                Some(way) => cache.note_hit(Line { set, way }, wave),
                None => misses.push((row, set)),
            }
        }
        for &(row, set) in &misses {
            choices.push(cache.choose(row, set));
        }
        let mut sums = Counts::default();
        for (&(row, set), choice) in misses.iter().zip(&choices) {
            cache.insert(row, set, choice, wave, &mut sums);
        }
        if is_counted {
            counts.requests += ids.len() as u64;
            counts.hits += (ids.len() - misses.len()) as u64;
            counts.inserts += sums.inserts;
            counts.conflicts += sums.conflicts;
            counts.bypasses += sums.bypasses;
        }
    }
    counts
}

impl<P: Policy> Cache<P> {
    fn set_of(&self, row: u32) -> usize {
        match self.shape.index {
            Index::Hash => high(u64::from(hash(row)) * self.n_sets) as usize,
            Index::Modulo => row as usize % (self.tags.len() / self.shape.ways),
        }
    }

    fn find(&self, set: usize, tag: u32) -> Option<usize> {
        let ways = self.shape.ways;
        let tags = &self.tags[set * ways..][..ways];
        // Without an early end the compiler compares all ways at once.
        let mut found = 0_u32;
        for (way, &other) in tags.iter().enumerate() {
            found |= u32::from(other == tag) << way;
        }
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    /// An empty way if there is one, else what the policy says.
    /// Hits of one wave on one line read the same counter and store the same, so they are one.
    fn note_hit(&mut self, line: Line, wave: u32) {
        let noted = &mut self.noted[line.set * self.shape.ways + line.way];
        if std::mem::replace(noted, wave) != wave {
            self.policy.hit(line, &mut self.rng);
        }
    }

    fn choose(&mut self, row: u32, set: usize) -> Choice {
        let ways = self.shape.ways;
        let start = self.rng.below(16) as usize;
        let tags = &self.tags[set * ways..][..ways];
        match (0..ways).map(|n| (start + n) % ways).find(|&way| tags[way] == EMPTY) {
            Some(way) => Choice::take(way),
            None => self.policy.choose(set, row, &mut self.rng),
        }
    }

    fn insert(&mut self, row: u32, set: usize, choice: &Choice, wave: u32, sums: &mut Counts) {
        self.policy.commit(set, row, choice, &mut self.rng);
        let Some(way) = choice.way else {
            sums.bypasses += 1;
            return;
        };
        let line = set * self.shape.ways + way;
        if self.written[line] == wave {
            sums.conflicts += 1;
        } else if self.find(set, row).is_none() {
            let evicted = std::mem::replace(&mut self.tags[line], row);
            self.written[line] = wave;
            self.policy.fill(Line { set, way }, choice, evicted);
            sums.inserts += 1;
        }
    }
}
