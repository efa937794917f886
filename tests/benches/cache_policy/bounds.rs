//! What the policies are measured against: static sets, a fully associative LRU, and one that knows the future.

use crate::traces::{ROWS, Trace};

const NONE: u32 = u32::MAX;

/// The hit rate if those rows were always there, and no others.
pub(crate) fn fixed(trace: &Trace, rows: &[u32]) -> f64 {
    let mut is_kept = vec![false; ROWS as usize];
    rows.iter().for_each(|&row| is_kept[row as usize] = true);
    rate(trace, 1 << 20, |ids| ids.iter().filter(|&&row| is_kept[row as usize]).count())
}

/// Rows by how often one half of the trace asks for them, most often first.
pub(crate) fn by_frequency(trace: &Trace, counted_half: bool) -> Vec<u32> {
    let mut counts = vec![0_u32; ROWS as usize];
    for (_, ids) in trace.waves(1 << 20).filter(|&(is_counted, _)| is_counted == counted_half) {
        ids.iter().for_each(|&row| counts[row as usize] += 1);
    }
    let mut rows: Vec<_> = (0..ROWS).collect();
    rows.sort_by_key(|&row| std::cmp::Reverse(counts[row as usize]));
    rows
}

/// Hits per request over the counted half.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(trace: &Trace, wave: usize, mut hits_of: impl FnMut(&[u32]) -> usize) -> f64 {
    let (mut hits, mut requests) = (0, 0);
    for (is_counted, ids) in trace.waves(wave) {
        let found = hits_of(ids);
        if is_counted {
            (hits, requests) = (hits + found, requests + ids.len());
        }
    }
    hits as f64 / requests as f64
}

/// Least recently used of all lines; every miss comes in.
pub(crate) fn full_lru(trace: &Trace, n_lines: usize, wave: usize) -> f64 {
    let mut list = List { next: vec![NONE; ROWS as usize + 1], last: vec![NONE; ROWS as usize + 1] };
    (list.next[ROWS as usize], list.last[ROWS as usize]) = (ROWS, ROWS);
    let mut len = 0;
    rate(trace, wave, |ids| {
        let hits = ids.iter().filter(|&&row| list.next[row as usize] != NONE).count();
        for &row in ids {
            if list.next[row as usize] == NONE {
                len += 1;
            } else {
                list.unlink(row);
            }
            list.link(row);
            if len > n_lines {
                let oldest = list.last[ROWS as usize];
                list.unlink(oldest);
                list.next[oldest as usize] = NONE;
                len -= 1;
            }
        }
        hits
    })
}

/// A ring of rows through a root that is no row, the newest behind it.
struct List {
    next: Vec<u32>,
    last: Vec<u32>,
}

impl List {
    fn unlink(&mut self, row: u32) {
        let (before, after) = (self.last[row as usize], self.next[row as usize]);
        self.next[before as usize] = after;
        self.last[after as usize] = before;
    }

    fn link(&mut self, row: u32) {
        let first = self.next[ROWS as usize];
        (self.next[row as usize], self.last[row as usize]) = (first, ROWS);
        (self.next[ROWS as usize], self.last[first as usize]) = (row, row);
    }
}

/// Belady's MIN by waves: what is asked for latest leaves, and a row that is asked for later than all stays outside.
///
/// Fully associative. Of waves that ask for a row once each it is the best there can be.
pub(crate) fn min(trace: &Trace, n_lines: usize, wave: usize) -> f64 {
    let next_uses = next_uses(trace, wave);
    let mut due = vec![NONE; ROWS as usize];
    // Rows by the wave that asks for them next; a row whose `due` says otherwise has moved on.
    let mut waiting: Vec<Vec<u32>> = Vec::new();
    let (mut now, mut at, mut len, mut latest) = (0_u32, 0, 0, 0);
    rate(trace, wave, |ids| {
        let hits = ids.iter().filter(|&&row| due[row as usize] == now).count();
        for (&row, &next) in ids.iter().zip(&next_uses[at..]) {
            if due[row as usize] == now {
                due[row as usize] = NONE;
                len -= 1;
            }
            if next != NONE && due[row as usize] == NONE {
                due[row as usize] = next;
                len += 1;
                latest = latest.max(next as usize);
                waiting.resize(waiting.len().max(latest + 1), Vec::new());
                waiting[next as usize].push(row);
            }
        }
        while len > n_lines {
            match waiting[latest].pop() {
                Some(row) if due[row as usize] as usize == latest => {
                    due[row as usize] = NONE;
                    len -= 1;
                }
                Some(_) => {}
                None => latest -= 1,
            }
        }
        (now, at) = (now + 1, at + ids.len());
        hits
    })
}

/// For every request the next wave that asks for the same row, if that wave counts: other hits are worth nothing.
fn next_uses(trace: &Trace, wave: usize) -> Vec<u32> {
    let waves: Vec<_> = trace.waves(wave).zip(0_u32..).collect();
    let (mut seen, mut uses) = (vec![NONE; ROWS as usize], Vec::with_capacity(trace.ids.len()));
    for ((is_counted, ids), number) in waves.into_iter().rev() {
        uses.extend(ids.iter().rev().map(|&row| seen[row as usize]));
        let worth = if is_counted { number } else { NONE };
        ids.iter().for_each(|&row| seen[row as usize] = worth);
    }
    uses.reverse();
    uses
}
