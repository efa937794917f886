//! Policies that remember rows which are not there: `TinyLFU` with a sketch of misses, and S3-FIFO.

use crate::numbers::{Rng, high};
use crate::policies::{Choice, Line, Nibbles, Policy, nibble, with};
use crate::traces::hash;

/// `TinyLFU` (Einziger, Friedman, Manes 2017) for misses: a row comes in when it missed more often than the coldest
/// line was hit.
///
/// Half a byte per line counts hits, and a sketch of one cell of half a byte per line counts misses.
/// Nothing sweeps: a miss that is turned away lowers the coldest line now and then, and every miss lowers one cell
/// at random once in a while.
#[derive(Debug)]
pub(crate) struct TinyLfu {
    counters: Nibbles,
    sketch: Vec<u8>,
}

/// One rejected row in so many lowers the coldest line.
const COOL: u32 = 8;

impl TinyLfu {
    pub(crate) fn new(n_sets: usize, ways: usize) -> Self {
        Self { counters: Nibbles::new(n_sets, ways), sketch: vec![0; n_sets * ways] }
    }

    fn cell(&self, row: u32) -> usize {
        high(u64::from(hash(row ^ 0x5555_5555)) * self.sketch.len() as u64) as usize
    }
}

impl Policy for TinyLfu {
    fn hit(&mut self, line: Line, _: &mut Rng) {
        self.counters.store(line, (self.counters.at(line) + 1).min(15));
    }

    fn choose(&self, set: usize, row: u32, rng: &mut Rng) -> Choice {
        let misses = u64::from(self.sketch[self.cell(row)]) + 1;
        let (least, way) = self.counters.least(set, rng);
        if misses > least {
            return Choice { level: Some(misses.min(15)), ..Choice::take(way) };
        }
        let word = self.counters.words[set];
        let header = (least > 0 && rng.once_in(COOL)).then(|| with(word, way, least - 1));
        Choice { header, ..Choice::OUTSIDE }
    }

    fn commit(&mut self, set: usize, row: u32, choice: &Choice, rng: &mut Rng) {
        if let Some(header) = choice.header {
            self.counters.words[set] = header;
        }
        let cell = self.cell(row);
        self.sketch[cell] = if choice.way.is_some() { 0 } else { (self.sketch[cell] + 1).min(15) };
        let other = high(u64::from(high(rng.draw())) * self.sketch.len() as u64) as usize;
        self.sketch[other] = self.sketch[other].saturating_sub(1);
    }

    fn fill(&mut self, line: Line, choice: &Choice, _: u32) {
        self.counters.store(line, choice.level.unwrap_or(1));
    }
}

/// S3-FIFO (Yang and others 2023) inside a set: an eighth of the ways is the small queue, and a line changes its
/// queue where it lies.
///
/// A nibble per line: two bits of uses, and one that says small. Eight bits of fingerprint per line and a hand come
/// on top: more than a byte per line.
#[derive(Debug)]
pub(crate) struct S3Fifo {
    lines: Nibbles,
    hands: Vec<usize>,
    prints: Vec<u32>,
    print_hands: Vec<usize>,
}

const SMALL: u64 = 4;
const USES: u64 = 3;

impl S3Fifo {
    pub(crate) fn new(n_sets: usize, ways: usize) -> Self {
        let lines = Nibbles::new(n_sets, ways);
        Self { lines, hands: vec![0; n_sets], prints: vec![0; n_sets * ways], print_hands: vec![0; n_sets] }
    }

    /// The next way from the hand on of that queue that was not used; lowers the others that it passes.
    fn next(&self, word: &mut u64, hand: usize, queue: u64) -> Option<usize> {
        let ways = self.lines.ways;
        for n in 0..ways * 4 {
            let way = (hand + n) & (ways - 1);
            let value = nibble(*word, way);
            if value & SMALL == queue {
                if value & USES == 0 {
                    return Some(way);
                }
                *word = with(*word, way, value - 1);
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    fn hit(&mut self, line: Line, _: &mut Rng) {
        let value = self.lines.at(line);
        self.lines.store(line, value & SMALL | (value & USES).saturating_add(1).min(USES));
    }

    fn choose(&self, set: usize, row: u32, _: &mut Rng) -> Choice {
        let ways = self.lines.ways;
        let known = self.prints[set * ways..][..ways].contains(&print(row));
        let (mut word, hand) = (self.lines.words[set], self.hands[set]);
        let mut way = None;
        // A small line that was used moves to the large queue, until one is found that was not.
        let small: Vec<_> = (0..ways).filter(|&way| nibble(word, way) & SMALL != 0).collect();
        if small.len() >= (ways / 8).max(1) {
            for at in small {
                if nibble(word, at) & USES > 0 {
                    word = with(word, at, 0);
                } else if way.is_none() {
                    way = Some(at);
                }
            }
        }
        let way = way.or_else(|| self.next(&mut word, hand, 0)).or_else(|| self.next(&mut word, hand, SMALL));
        Choice { way, header: Some(word), level: Some(if known { 0 } else { SMALL }) }
    }

    fn commit(&mut self, set: usize, _: u32, choice: &Choice, _: &mut Rng) {
        if let Some(header) = choice.header {
            self.lines.words[set] = header;
        }
    }

    fn fill(&mut self, line: Line, choice: &Choice, evicted: u32) {
        let ways = self.lines.ways;
        let was_small = self.lines.at(line) & SMALL != 0;
        if was_small {
            let hand = &mut self.print_hands[line.set];
            self.prints[line.set * ways + *hand] = print(evicted);
            *hand = (*hand + 1) & (ways - 1);
        } else {
            self.hands[line.set] = (line.way + 1) & (ways - 1);
        }
        self.lines.store(line, choice.level.unwrap_or(SMALL));
    }
}

/// Eight bits that stand for a row.
fn print(row: u32) -> u32 {
    hash(row ^ 0x3333_3333) & 255
}
