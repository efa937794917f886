//! Replacement policies of one set: who leaves for a row that was not there, and whether it may come in.

use crate::numbers::Rng;

/// A way of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) set: usize,
    pub(crate) way: usize,
}

/// What a miss decided from the header as it saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// `None`: the row stays outside.
    pub(crate) way: Option<usize>,
    /// What to store as the header of the set, whether or not the claim is won.
    pub(crate) header: Option<u64>,
    /// How warm the row begins; `None`: as a row does that found an empty line.
    pub(crate) level: Option<u64>,
}

impl Choice {
    pub(crate) const OUTSIDE: Self = Self { way: None, header: None, level: None };

    pub(crate) fn take(way: usize) -> Self {
        Self { way: Some(way), ..Self::OUTSIDE }
    }
}

/// A policy, with its state for all sets.
pub(crate) trait Policy {
    /// A probe found its row here.
    fn hit(&mut self, line: Line, rng: &mut Rng);
    /// A miss in a full set. Reads only: others choose at the same time.
    fn choose(&self, set: usize, row: u32, rng: &mut Rng) -> Choice;
    /// The miss stores what it decided.
    fn commit(&mut self, set: usize, row: u32, choice: &Choice, rng: &mut Rng);
    /// The miss won its claim.
    fn fill(&mut self, line: Line, choice: &Choice, evicted: u32);
}

/// Four bits per way in one word per set.
#[derive(Debug)]
pub(crate) struct Nibbles {
    pub(crate) words: Vec<u64>,
    pub(crate) ways: usize,
}

pub(crate) fn nibble(word: u64, way: usize) -> u64 {
    word >> (4 * way) & 15
}

pub(crate) fn with(word: u64, way: usize, value: u64) -> u64 {
    word & !(15 << (4 * way)) | value << (4 * way)
}

impl Nibbles {
    pub(crate) fn new(n_sets: usize, ways: usize) -> Self {
        Self { words: vec![0; n_sets], ways }
    }

    pub(crate) fn at(&self, line: Line) -> u64 {
        nibble(self.words[line.set], line.way)
    }

    pub(crate) fn store(&mut self, line: Line, value: u64) {
        self.words[line.set] = with(self.words[line.set], line.way, value);
    }

    /// The least value, and a way that has it: the first one from a random way on, so that misses choose apart.
    pub(crate) fn least(&self, set: usize, rng: &mut Rng) -> (u64, usize) {
        let start = (rng.below(16) as usize) & (self.ways - 1);
        let mut best = (u64::MAX, 0);
        for n in 0..self.ways {
            let way = (start + n) & (self.ways - 1);
            let value = nibble(self.words[set], way);
            if value < best.0 {
                best = (value, way);
            }
        }
        best
    }

    /// The word with every way less by that much, which no way is below.
    pub(crate) fn lowered(&self, set: usize, by: u64) -> u64 {
        (0..self.ways).fold(self.words[set], |word, way| word - (by << (4 * way)))
    }
}

/// A way at random.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) usize);

impl Policy for Random {
    fn hit(&mut self, _: Line, _: &mut Rng) {}

    fn choose(&self, _: usize, _: u32, rng: &mut Rng) -> Choice {
        Choice::take((rng.below(16) as usize) & (self.0 - 1))
    }

    fn commit(&mut self, _: usize, _: u32, _: &Choice, _: &mut Rng) {}

    fn fill(&mut self, _: Line, _: &Choice, _: u32) {}
}

/// The oldest by insertion, or by use.
#[derive(Debug)]
pub(crate) struct Oldest {
    times: Vec<u32>,
    ways: usize,
    now: u32,
    is_by_use: bool,
}

impl Oldest {
    pub(crate) fn new(n_sets: usize, ways: usize, is_by_use: bool) -> Self {
        Self { times: vec![0; n_sets * ways], ways, now: 0, is_by_use }
    }

    fn touch(&mut self, line: Line) {
        self.now += 1;
        self.times[line.set * self.ways + line.way] = self.now;
    }
}

impl Policy for Oldest {
    fn hit(&mut self, line: Line, _: &mut Rng) {
        if self.is_by_use {
            self.touch(line);
        }
    }

    fn choose(&self, set: usize, _: u32, _: &mut Rng) -> Choice {
        let times = &self.times[set * self.ways..][..self.ways];
        let oldest = times.iter().enumerate().min_by_key(|&(_, time)| time);
        Choice::take(oldest.map_or(0, |(way, _)| way))
    }

    fn commit(&mut self, _: usize, _: u32, _: &Choice, _: &mut Rng) {}

    fn fill(&mut self, line: Line, _: &Choice, _: u32) {
        self.touch(line);
    }
}

/// Second chance: a hand goes around, clears the bit of what was used and takes the first that was not.
#[derive(Debug)]
pub(crate) struct Clock {
    used: Nibbles,
    hands: Vec<usize>,
}

impl Clock {
    pub(crate) fn new(n_sets: usize, ways: usize) -> Self {
        Self { used: Nibbles::new(n_sets, ways), hands: vec![0; n_sets] }
    }
}

impl Policy for Clock {
    fn hit(&mut self, line: Line, _: &mut Rng) {
        self.used.store(line, 1);
    }

    fn choose(&self, set: usize, _: u32, _: &mut Rng) -> Choice {
        let (mut word, mut way) = (self.used.words[set], self.hands[set]);
        while nibble(word, way) == 1 {
            word = with(word, way, 0);
            way = (way + 1) & (self.used.ways - 1);
        }
        Choice { header: Some(word), ..Choice::take(way) }
    }

    fn commit(&mut self, set: usize, _: u32, choice: &Choice, _: &mut Rng) {
        if let Some(header) = choice.header {
            self.used.words[set] = header;
        }
    }

    fn fill(&mut self, line: Line, _: &Choice, _: u32) {
        self.used.store(line, 0);
        self.hands[line.set] = (line.way + 1) & (self.used.ways - 1);
    }
}

/// What `Counters` varies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knobs {
    /// The counter's largest value.
    pub(crate) top: u64,
    pub(crate) on_hit: OnHit,
    /// One hit in so many is noted.
    pub(crate) sample: u32,
    /// What a row begins with.
    pub(crate) first: u64,
    /// One row in so many begins with that, the others with 0.
    pub(crate) first_once_in: u32,
    /// One miss in so many may come in.
    pub(crate) admit: u32,
    /// One in so many where all counters are 0.
    pub(crate) admit_cold: u32,
    pub(crate) when_warm: WhenWarm,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum OnHit {
    Top,
    AddOne,
}

/// What a miss does in a set without a counter at 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WhenWarm {
    /// Lowers all by the least and takes that way.
    Take,
    /// Lowers all by one and stays outside.
    Cool,
}

/// The policy that `kernels/CACHE.md` chooses.
pub(crate) const COUNT2: Knobs = Knobs {
    top: 3,
    on_hit: OnHit::AddOne,
    sample: 1,
    first: 0,
    first_once_in: 1,
    admit: 1,
    admit_cold: 16,
    when_warm: WhenWarm::Cool,
};

/// Static RRIP with two bits (Jaleel and others 2010), counted from the other end.
pub(crate) const SRRIP: Knobs =
    Knobs { on_hit: OnHit::Top, first: 1, admit_cold: 1, when_warm: WhenWarm::Take, ..COUNT2 };

/// A small counter per line.
#[derive(Debug)]
pub(crate) struct Counters {
    counters: Nibbles,
    knobs: Knobs,
}

impl Counters {
    pub(crate) fn new(n_sets: usize, ways: usize, knobs: Knobs) -> Self {
        Self { counters: Nibbles::new(n_sets, ways), knobs }
    }
}

impl Policy for Counters {
    fn hit(&mut self, line: Line, rng: &mut Rng) {
        let now = self.counters.at(line);
        if now < self.knobs.top && rng.once_in(self.knobs.sample) {
            let value = match self.knobs.on_hit {
                OnHit::Top => self.knobs.top,
                OnHit::AddOne => now + 1,
            };
            self.counters.store(line, value);
        }
    }

    fn choose(&self, set: usize, _: u32, rng: &mut Rng) -> Choice {
        let knobs = &self.knobs;
        let is_cold = self.counters.words[set] == 0;
        if !rng.once_in(knobs.admit) || is_cold && !rng.once_in(knobs.admit_cold) {
            return Choice::OUTSIDE;
        }
        let level = Some(if rng.once_in(knobs.first_once_in) { knobs.first } else { 0 });
        let (least, way) = self.counters.least(set, rng);
        match knobs.when_warm {
            _ if least == 0 => Choice { level, ..Choice::take(way) },
            WhenWarm::Take => {
                Choice { way: Some(way), header: Some(self.counters.lowered(set, least)), level }
            }
            WhenWarm::Cool => Choice { header: Some(self.counters.lowered(set, 1)), ..Choice::OUTSIDE },
        }
    }

    fn commit(&mut self, set: usize, _: u32, choice: &Choice, _: &mut Rng) {
        if let Some(header) = choice.header {
            self.counters.words[set] = header;
        }
    }

    fn fill(&mut self, line: Line, choice: &Choice, _: u32) {
        self.counters.store(line, choice.level.unwrap_or(self.knobs.first));
    }
}
