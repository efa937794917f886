//! The traces are the committed ones, and the simulator and its bounds do what they say.

#![forbid(unsafe_code)]

mod bounds;
mod cache;
mod contest;
mod history;
mod numbers;
mod policies;
mod traces;

use cache::{Counts, Index, Shape, WAVE};
use contest::{RULES, Rule, lines, shape, variants};
use numbers::{PowerLaw, Rng};
use policies::COUNT2;
use traces::{CHECKSUMS, NAMES, REQUESTS, ROWS, Trace};

/// A trace whose first half warms up and whose batches have one length.
fn trace(ids: Vec<u32>, batch: usize) -> Trace {
    let ends = (1..=ids.len() / batch).map(|n| n * batch).collect();
    Trace { name: "test", ids, ends, by_popularity: None }
}

/// Both halves the same, so that the first is counted as well.
fn twice(ids: &[u32]) -> Vec<u32> {
    [ids, ids].concat()
}

fn small(lines: usize, ways: usize, wave: usize) -> Shape {
    Shape { lines, ways, wave, index: Index::Hash }
}

fn hits(rule: Rule, trace: &Trace, shape: Shape) -> u64 {
    rule.run(trace, shape).hits
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn rate(counts: &Counts) -> f64 {
    counts.hits as f64 / counts.requests as f64
}

#[test]
fn traces_are_the_committed_ones() {
    let made: Vec<_> = NAMES.iter().map(|name| Trace::new(name, REQUESTS).line()).collect();
    assert_eq!(made, CHECKSUMS.lines().collect::<Vec<_>>());
    let mut changed = Trace::new("kv-loop", 1000);
    let before = changed.line();
    changed.ids[17] ^= 1;
    assert_ne!(changed.line(), before);
}

#[test]
fn a_power_law_is_drawn_as_often_as_it_says() {
    let (law, mut rng) = (PowerLaw::new(1000, 1.05), Rng::new(9));
    let total: f64 = (1..=1000).map(|k| f64::from(k).powf(-1.05)).sum();
    let mut counts = vec![0_u32; 1000];
    (0..1_000_000).for_each(|_| counts[law.draw(rng.draw()) as usize] += 1);
    for rank in [0_u32, 1, 9, 99, 999] {
        let expected = 1e6 * f64::from(rank + 1).powf(-1.05) / total;
        let (got, off) = (f64::from(counts[rank as usize]), 5.0 * expected.sqrt());
        assert!((got - expected).abs() < off, "rank {rank}: {got} draws, {expected:.0} expected");
    }
}

#[test]
fn samplers_name_a_node_once_per_batch_and_every_row_is_in_range() {
    for name in NAMES {
        let trace = Trace::new(name, 100_000);
        assert!(trace.ids.iter().all(|&row| row < ROWS), "{name}");
        if name.starts_with("gnn") {
            let mut first = trace.ids[..trace.ends[0]].to_vec();
            first.sort_unstable();
            assert!(first.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
        }
    }
}

#[test]
fn lru_of_one_set_is_lru_of_all_lines() {
    let mut rng = Rng::new(7);
    let ids: Vec<_> = (0..4000).map(|_| rng.below(8) * rng.below(8)).collect();
    let trace = trace(ids, 1);
    let full = bounds::full_lru(&trace, 16, 1);
    let set = rate(&Rule::Lru.run(&trace, small(16, 16, 1)));
    assert!((full - set).abs() < 1e-9 && full > 0.3 && full < 0.95, "{full} {set}");
}

/// The most hits that any choice of kept rows has, by trying all.
fn most_hits(ids: &[u32], kept: &[u32], n_lines: usize) -> u32 {
    let Some((&row, rest)) = ids.split_first() else { return 0 };
    if kept.contains(&row) {
        return 1 + most_hits(rest, kept, n_lines);
    }
    let mut best = most_hits(rest, kept, n_lines);
    if kept.len() < n_lines {
        best = best.max(most_hits(rest, &[kept, &[row]].concat(), n_lines));
    }
    for leaving in 0..kept.len() {
        let mut others = kept.to_vec();
        others[leaving] = row;
        best = best.max(most_hits(rest, &others, n_lines));
    }
    best
}

#[test]
fn min_is_the_best_that_trying_all_finds() {
    let mut rng = Rng::new(11);
    for n_lines in [1, 2] {
        for _ in 0..20 {
            // The half that warms up asks for rows that never come again.
            let ids: Vec<_> = (100..110).chain((0..10).map(|_| rng.below(5))).collect();
            let best = f64::from(most_hits(&ids[10..], &[], n_lines));
            let found = bounds::min(&trace(ids.clone(), 1), n_lines, 1) * 10.0;
            assert!((found - best).abs() < 1e-9, "{n_lines} lines, {ids:?}: {found} against {best}");
        }
    }
}

#[test]
fn no_policy_beats_min_and_all_keep_what_fits() {
    let few = trace(twice(&(0..64).collect::<Vec<_>>()), 64);
    for (name, rule) in RULES {
        // As many lines as rows of one set would need, so that none has to leave.
        assert_eq!(hits(rule, &few, small(16 << 10, 16, 64)), 64, "{name}");
    }
    for name in ["gnn-degree", "kv-loop"] {
        let trace = Trace::new(name, 300_000);
        let best = bounds::min(&trace, lines(2), WAVE);
        for (policy, rule) in RULES {
            let rate = rate(&rule.run(&trace, shape(2)));
            assert!(rate <= best, "{policy} on {name}: {rate} above {best}");
        }
    }
}

#[test]
fn a_wave_probes_before_it_inserts_and_a_way_has_one_winner() {
    // The same row twice in a wave misses twice and is inserted once.
    let same = trace(vec![1, 1, 5, 5], 2);
    assert_eq!(hits(Rule::Lru, &same, small(8, 8, 2)), 0);
    assert_eq!(hits(Rule::Lru, &same, small(8, 8, 1)), 1);
    // Every miss chooses the oldest way: one wins, seven lose.
    let crowd = trace((0..32).collect(), 8);
    let counts = Rule::Fifo.run(&crowd, small(8, 8, 8));
    assert_eq!((counts.requests, counts.hits, counts.inserts, counts.conflicts), (16, 0, 2, 14));
    let counts = Rule::Fifo.run(&crowd, small(8, 8, 1));
    assert_eq!((counts.inserts, counts.conflicts), (16, 0));
}

#[test]
fn count2_keeps_a_hot_row_through_a_sweep_and_lru_does_not() {
    let mut ids = Vec::new();
    for n in 0..400 {
        // The hot rows come again and again, and between them a row that never comes back.
        ids.extend([n % 4, 1000 + 3 * n, 1001 + 3 * n, 1002 + 3 * n]);
    }
    let trace = trace(ids, 4);
    let count2 = hits(Rule::Counters(COUNT2), &trace, small(8, 8, 1));
    assert!(count2 >= 190, "{count2} of 200 hits");
    assert_eq!(hits(Rule::Lru, &trace, small(8, 8, 1)), 0);
}

#[test]
fn count2_follows_when_all_hot_rows_change_at_once() {
    let mut rng = Rng::new(3);
    // 64 hot rows for a long time, then 64 others.
    let ids: Vec<_> = (0..40_000).map(|n| rng.below(64) + if n < 20_000 { 0 } else { 1000 }).collect();
    let trace = trace(ids, 100);
    let counts = Rule::Counters(COUNT2).run(&trace, small(128, 8, 100));
    assert!(rate(&counts) > 0.8, "{counts:?}");
}

#[test]
fn variants_change_one_thing_and_have_names_of_their_own() {
    let all = variants();
    for (n, variant) in all.iter().enumerate() {
        let is_same = |other: &&contest::Variant| (other.table, other.name) == (variant.table, variant.name);
        assert_eq!(all[..n].iter().find(is_same).map(|found| found.name), None, "{variant:?}");
        let changed = [
            variant.ways != 8,
            variant.wave != WAVE,
            variant.index != Index::Hash,
            format!("{:?}", variant.rule) != format!("{:?}", Rule::Counters(COUNT2)),
        ];
        let n_changed = changed.iter().filter(|&&is_changed| is_changed).count();
        assert!(n_changed <= 1 || variant.name.starts_with("LRU"), "{variant:?}");
    }
}

#[test]
fn static_sets_are_the_rows_they_say() {
    let ids = [&[1, 1, 1, 2][..], &[3, 3, 2, 1]].concat();
    let trace = trace(ids, 4);
    assert_eq!(bounds::by_frequency(&trace, false)[..2], [1, 2]);
    assert_eq!(bounds::by_frequency(&trace, true)[0], 3);
    assert!((bounds::fixed(&trace, &[1, 2]) - 0.5).abs() < 1e-9);
}
