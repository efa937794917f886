//! Synthetic traces: which rows each batch of a gather asks for.
//!
//! Sources and parameters stand in `tests/data/traces/README.md`, with the checksum of every trace.

use crate::numbers::{PowerLaw, Rng, high, mix};

/// Requests of a trace, half of which warm up.
pub(crate) const REQUESTS: usize = 2 << 20;
/// A line for every trace.
pub(crate) const CHECKSUMS: &str = include_str!("../../data/traces/checksums.txt");
/// Rows of the tensor.
pub(crate) const ROWS: u32 = 1 << ROW_BITS;
const ROW_BITS: u32 = 20;
/// A batch of independent requests.
const BATCH: usize = 32 << 10;

/// Names of the traces, in the order of the tables.
pub(crate) const NAMES: [&str; 8] = [
    "zipf-0.80",
    "zipf-1.05",
    "zipf-1.30",
    "gnn-degree",
    "gnn-shuffled",
    "dlrm-drift",
    "zipf-scan",
    "kv-loop",
];

/// Rows in the order of requests, cut into batches.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) ids: Vec<u32>,
    /// Where each batch ends.
    pub(crate) ends: Vec<usize>,
    /// Rows by their probability or degree, best first, where the generator knows one that never changes.
    pub(crate) by_popularity: Option<Vec<u32>>,
}

impl Trace {
    /// Makes the trace of that name, with about as many requests.
    pub(crate) fn new(name: &'static str, requests: usize) -> Self {
        let mut trace = Self { name, ids: Vec::new(), ends: Vec::new(), by_popularity: None };
        match name {
            "zipf-0.80" => trace.zipf(requests, 0.80),
            "zipf-1.05" => trace.zipf(requests, 1.05),
            "zipf-1.30" => trace.zipf(requests, 1.30),
            "gnn-degree" => trace.gnn(requests, |node| node),
            "gnn-shuffled" => trace.gnn(requests, scramble),
            "dlrm-drift" => trace.drift(requests),
            "zipf-scan" => trace.scan(requests),
            _ => trace.kv_loop(requests),
        }
        trace
    }

    /// Batches cut into waves of at most that many requests, and whether a wave counts: the first half warms up.
    pub(crate) fn waves(&self, wave: usize) -> impl Iterator<Item = (bool, &[u32])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let batches =
            starts.zip(&self.ends).map(|(start, &end)| (start * 2 >= self.ids.len(), &self.ids[start..end]));
        batches.flat_map(move |(counts, ids)| ids.chunks(wave).map(move |ids| (counts, ids)))
    }

    /// What the list of checksums says of the trace.
    pub(crate) fn line(&self) -> String {
        format!("{} {} {} {:016x}", self.name, self.ids.len(), self.ends.len(), self.checksum())
    }

    /// FNV-1a over rows and ends.
    fn checksum(&self) -> u64 {
        let words = self.ids.iter().map(|&id| u64::from(id)).chain(self.ends.iter().map(|&end| end as u64));
        words.fold(0xCBF2_9CE4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01B3))
    }

    fn end_batch(&mut self) {
        self.ends.push(self.ids.len());
    }

    /// Independent draws from a power law over rows in no order.
    fn zipf(&mut self, requests: usize, exponent: f64) {
        let (law, mut rng) = (PowerLaw::new(ROWS, exponent), Rng::new(1));
        while self.ids.len() < requests {
            self.ids.extend((0..BATCH).map(|_| scramble(law.draw(rng.draw()))));
            self.end_batch();
        }
        self.by_popularity = Some((0..ROWS).map(scramble).collect());
    }

    /// Two hops of neighbor sampling on a power-law graph; a batch names each node once, as samplers do.
    fn gnn(&mut self, requests: usize, id_of: fn(u32) -> u32) {
        let (graph, mut rng) = (Graph::new(), Rng::new(2));
        let mut seen = vec![u32::MAX; ROWS as usize];
        let mut seeds: Vec<_> =
            (0..ROWS).filter(|&node| mix(u64::from(node)).is_multiple_of(TRAINING)).collect();
        let mut next = seeds.len();
        let mut nodes = Vec::new();
        for batch in 0.. {
            if self.ids.len() >= requests {
                break;
            }
            nodes.clear();
            for _ in 0..SEEDS {
                if next == seeds.len() {
                    shuffle(&mut seeds, &mut rng);
                    next = 0;
                }
                nodes.push(seeds[next]);
                next += 1;
            }
            graph.sample(&mut nodes, &mut rng);
            let is_new = |&node: &u32| std::mem::replace(&mut seen[node as usize], batch) != batch;
            self.ids.extend(nodes.iter().copied().filter(is_new).map(id_of));
            self.end_batch();
        }
        self.by_popularity = Some((0..ROWS).map(id_of).collect());
    }

    /// A power law whose ranks change hands: every day a tenth of them name other rows.
    fn drift(&mut self, requests: usize) {
        const DAYS: usize = 8;
        let (law, mut rng) = (PowerLaw::new(ROWS, 1.05), Rng::new(3));
        let mut row_of: Vec<_> = (0..ROWS).map(scramble).collect();
        for day in 1..=DAYS {
            while self.ids.len() < requests * day / DAYS {
                self.ids.extend((0..BATCH).map(|_| row_of[law.draw(rng.draw()) as usize]));
                self.end_batch();
            }
            for rank in 0..ROWS as usize {
                if rng.once_in(10) {
                    row_of.swap(rank, rng.below(ROWS) as usize);
                }
            }
        }
    }

    /// Three batches of a power law, then one of a sweep over all rows in their order, and so on.
    fn scan(&mut self, requests: usize) {
        let (law, mut rng, mut next) = (PowerLaw::new(ROWS, 1.05), Rng::new(4), 0);
        while self.ids.len() < requests {
            if self.ends.len() % 4 == 3 {
                self.ids.extend((next..).take(BATCH).map(|row| row % ROWS));
                next = (next + (32 << 10)) % ROWS;
            } else {
                self.ids.extend((0..BATCH).map(|_| scramble(law.draw(rng.draw()))));
            }
            self.end_batch();
        }
    }

    /// Sequences of 1 Ki to 16 Ki rows, read whole in turn again and again; now and then one ends, and another begins.
    fn kv_loop(&mut self, requests: usize) {
        const SEQUENCES: usize = 32;
        let (mut rng, mut free) = (Rng::new(5), 0);
        let mut begin = |rng: &mut Rng| {
            let len = (1 << (10 + rng.below(4))) + rng.below(8 << 10);
            let start = free;
            free = (free + len) % ROWS;
            (start, len)
        };
        let mut sequences: Vec<_> = (0..SEQUENCES).map(|_| begin(&mut rng)).collect();
        while self.ids.len() < requests {
            for sequence in &mut sequences {
                if rng.once_in(64) {
                    *sequence = begin(&mut rng);
                }
                let (start, len) = *sequence;
                self.ids.extend((start..start + len).map(|row| row % ROWS));
                self.end_batch();
            }
        }
    }
}

/// Seed nodes of a batch.
const SEEDS: usize = 1024;
/// One node in so many is trained on.
const TRAINING: u64 = 32;
/// Neighbors taken per node of each hop.
const FAN_OUTS: [u32; 2] = [10, 5];
const MEAN_DEGREE: f64 = 16.0;

/// A graph in the manner of Chung and Lu that is never stored: neighbor j of a node is a function of both.
/// Nodes are in the order of their degrees, largest first.
struct Graph {
    law: PowerLaw,
    degrees: Vec<u32>,
}

impl Graph {
    /// The degree of rank k falls with k to the power of -0.75, so degree d has a frequency of about d to the -2.33.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a degree of 1 to a few 100 000"
    )]
    fn new() -> Self {
        let law = PowerLaw::new(ROWS, 0.75);
        let degree = |weight| (weight * MEAN_DEGREE + 0.5) as u32;
        Self { degrees: law.weights().iter().map(|weight| degree(weight).max(1)).collect(), law }
    }

    /// Appends the neighbors that both hops take. With more neighbors than it takes, one may come twice.
    fn sample(&self, nodes: &mut Vec<u32>, rng: &mut Rng) {
        let mut hop = 0..nodes.len();
        for fan_out in FAN_OUTS {
            for at in hop.clone() {
                let (node, degree) = (nodes[at], self.degrees[nodes[at] as usize]);
                for n in 0..fan_out.min(degree) {
                    let neighbor = if degree > fan_out { rng.below(degree) } else { n };
                    nodes.push(self.law.draw(mix(u64::from(node) << 32 | u64::from(neighbor))));
                }
            }
            hop = hop.end..nodes.len();
        }
    }
}

fn shuffle(nodes: &mut [u32], rng: &mut Rng) {
    for (at, n) in (1..nodes.len()).zip(2..) {
        nodes.swap(at, rng.below(n) as usize);
    }
}

/// A bijection of rows without order: hot rows are not neighbors.
fn scramble(row: u32) -> u32 {
    let row = row.wrapping_mul(0x9E37_79B1) % ROWS;
    let row = (row ^ (row >> 9)).wrapping_mul(0x85EB_CA6B) % ROWS;
    row ^ (row >> 11)
}

/// The row's place among sets and in sketches.
pub(crate) fn hash(row: u32) -> u32 {
    high(mix(u64::from(row) + 1))
}
