//! `cargo bench -p tierpack-tests --bench cache_policy [-- --json OUT]`: which rows should a cache in GPU memory keep?
//!
//! Simulates replacement policies of a set-associative cache that thousands of warps fill at the same time, over
//! synthetic traces (`tests/data/traces/README.md`), next to static sets, a fully associative LRU and Belady's MIN.
//! It counts hits and measures no time, so its figures are the same on every machine.
//! `kernels/CACHE.md` holds them, and what follows from them.

#![forbid(unsafe_code)]

#[path = "cache_policy/bounds.rs"]
mod bounds;
#[path = "cache_policy/cache.rs"]
mod cache;
#[path = "cache_policy/contest.rs"]
mod contest;
#[path = "cache_policy/history.rs"]
mod history;
#[path = "cache_policy/numbers.rs"]
mod numbers;
#[path = "cache_policy/policies.rs"]
mod policies;
#[path = "cache_policy/tables.rs"]
mod tables;
#[path = "cache_policy/traces.rs"]
mod traces;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use cache::{Shape, WAVE};
use contest::{RULES, Rule, lines, shape, variants};
use tables::{Document, Row};
use traces::{CHECKSUMS, NAMES, REQUESTS, Trace};

/// Sizes of the cache in percent of all rows.
const SIZES: [usize; 6] = [1, 2, 5, 10, 20, 50];
/// Traces and sizes of the tables of sensitivity.
const VARIED: [&str; 5] = ["zipf-1.05", "gnn-degree", "gnn-shuffled", "dlrm-drift", "kv-loop"];
const VARIED_SIZES: [usize; 2] = [2, 10];

/// Simulates replacement policies for the cache in GPU memory.
#[derive(Debug, Parser)]
struct Args {
    /// Write {"results": [...]} to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What cargo passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// One row of the document to be.
#[derive(Debug)]
struct Job<'a> {
    trace: &'a Trace,
    table: &'static str,
    name: &'static str,
    size_percent: usize,
    task: Task,
}

#[derive(Debug)]
enum Task {
    Simulate(Rule, Shape),
    FullLru,
    /// Kept all the time: the rows that the first half asked for most, those of the second, the popular ones.
    Learned,
    Best,
    Popular,
    Min,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let traces = parallel(&NAMES, |name| Trace::new(name, REQUESTS));
    let known: Vec<_> = CHECKSUMS.lines().collect();
    let wrong: Vec<_> =
        traces.iter().map(Trace::line).filter(|line| !known.contains(&line.as_str())).collect();
    ensure!(wrong.is_empty(), "tests/data/traces/checksums.txt lacks these lines:\n{}", wrong.join("\n"));
    let jobs: Vec<_> = traces.iter().flat_map(|trace| main_jobs(trace).chain(varied_jobs(trace))).collect();
    let results: Vec<Row> = parallel(&jobs, Job::run).into_iter().flatten().collect();
    tables::write(&results, &mut std::io::stdout().lock())?;
    if let Some(path) = args.json {
        // Cargo starts a benchmark in the folder of its package, and leaves `PWD` alone.
        let path =
            std::env::var_os("PWD").map_or_else(|| path.clone(), |folder| PathBuf::from(folder).join(&path));
        let text = serde_json::to_string_pretty(&Document { results })?;
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn main_jobs(trace: &Trace) -> impl Iterator<Item = Job<'_>> {
    let job = move |name, size_percent, task| Job { trace, table: "", name, size_percent, task };
    SIZES.into_iter().flat_map(move |size| {
        let rules =
            RULES.into_iter().map(move |(name, rule)| job(name, size, Task::Simulate(rule, shape(size))));
        let others = [
            ("LRU, fully associative", Task::FullLru),
            ("static: hot in warm-up", Task::Learned),
            ("static: by popularity", Task::Popular),
            ("static: hot in hindsight", Task::Best),
            ("MIN, fully associative", Task::Min),
        ];
        rules.chain(others.into_iter().map(move |(name, task)| job(name, size, task)))
    })
}

fn varied_jobs(trace: &Trace) -> impl Iterator<Item = Job<'_>> {
    let variants = variants().into_iter().filter(|_| VARIED.contains(&trace.name));
    variants.flat_map(move |variant| {
        VARIED_SIZES.into_iter().map(move |size_percent| {
            let shape =
                Shape { ways: variant.ways, wave: variant.wave, index: variant.index, ..shape(size_percent) };
            let task = Task::Simulate(variant.rule, shape);
            Job { trace, table: variant.table, name: variant.name, size_percent, task }
        })
    })
}

impl Job<'_> {
    /// `None` where the trace has nothing of the kind.
    fn run(&self) -> Option<Row> {
        let n_lines = lines(self.size_percent);
        let kept = |rows: &[u32]| bounds::fixed(self.trace, &rows[..n_lines]);
        let row = Row::new(self.table, self.trace.name, self.name, self.size_percent);
        let rate = match self.task {
            Task::Simulate(rule, shape) => return Some(row.with_counts(&rule.run(self.trace, shape))),
            Task::FullLru => bounds::full_lru(self.trace, n_lines, WAVE),
            Task::Learned => kept(&bounds::by_frequency(self.trace, false)),
            Task::Popular => kept(self.trace.by_popularity.as_ref()?),
            Task::Best => kept(&bounds::by_frequency(self.trace, true)),
            Task::Min => bounds::min(self.trace, n_lines, WAVE),
        };
        Some(Row { hit_percent: 100.0 * rate, ..row })
    }
}

/// Maps on all cores; results come in the order of the items.
fn parallel<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let places = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        places.map_while(|at| items.get(at).map(|item| (at, map(item)))).collect::<Vec<_>>()
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    done.sort_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, result)| result).collect()
}
