//! The loops of a kernel's instructions.
//!
//! The assembler moves rare code behind the end of a kernel and branches back from there, so that a branch backward
//! is not yet a loop: it is one where every way to the branch comes by its target.

/// What an instruction does to the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// On to the instruction of this index, or perhaps to the next one.
    Branch {
        to: usize,
        perhaps: bool,
    },
    End,
}

/// A loop: indexes of its instructions, in order, those of loops within it too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) body: Vec<usize>,
    /// Loops around it.
    pub(crate) depth: usize,
}

/// The instructions that may follow each.
fn followers(flow: &[Flow]) -> Vec<Vec<usize>> {
    let next = |i: usize| (i + 1 < flow.len()).then_some(i + 1);
    let follow = |(i, flow): (usize, &Flow)| match *flow {
        Flow::Next => next(i).into_iter().collect(),
        Flow::Branch { to, perhaps } => next(i).filter(|_| perhaps).into_iter().chain([to]).collect(),
        Flow::End => Vec::new(),
    };
    flow.iter().enumerate().map(follow).collect()
}

/// Instructions in an order in which each comes before those that follow it, but for loops.
fn order(followers: &[Vec<usize>]) -> Vec<usize> {
    let (mut order, mut seen) = (Vec::new(), vec![false; followers.len()]);
    let mut stack = vec![(0, 0)];
    seen[0] = true;
    while let Some((at, tried)) = stack.pop() {
        if let Some(&next) = followers[at].get(tried) {
            stack.push((at, tried + 1));
            if !seen[next] {
                seen[next] = true;
                stack.push((next, 0));
            }
        } else {
            order.push(at);
        }
    }
    order.reverse();
    order
}

/// For each instruction the last one that every way to it comes by; itself for the first and for those that no way
/// leads to.
///
/// Source: Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm", 2001.
fn dominators(followers: &[Vec<usize>], order: &[usize]) -> Vec<usize> {
    let mut number = vec![usize::MAX; followers.len()];
    order.iter().enumerate().for_each(|(n, &at)| number[at] = n);
    let mut before = vec![Vec::new(); followers.len()];
    for &at in order {
        followers[at].iter().for_each(|&next| before[next].push(at));
    }
    let mut found: Vec<Option<usize>> = vec![None; followers.len()];
    found[0] = Some(0);
    let mut changed = true;
    while changed {
        changed = false;
        for &at in &order[1..] {
            let mut common: Option<usize> = None;
            for &from in before[at].iter().filter(|&&from| found[from].is_some()) {
                common = Some(common.map_or(from, |mut a| {
                    let mut b = from;
                    while a != b {
                        let later = if number[a] > number[b] { &mut a } else { &mut b };
                        *later = found[*later].unwrap_or(0);
                    }
                    a
                }));
            }
            if found[at] != common {
                (found[at], changed) = (common, true);
            }
        }
    }
    found.into_iter().enumerate().map(|(at, found)| found.unwrap_or(at)).collect()
}

/// Every loop, by its first instruction; loops with the same one are one.
pub(crate) fn loops(flow: &[Flow]) -> Vec<Loop> {
    if flow.is_empty() {
        return Vec::new();
    }
    let followers = followers(flow);
    let order = order(&followers);
    let dominators = dominators(&followers, &order);
    let mut before = vec![Vec::new(); flow.len()];
    for &at in &order {
        followers[at].iter().for_each(|&next| before[next].push(at));
    }
    let dominates = |head: usize, mut at: usize| {
        while at != head && dominators[at] != at {
            at = dominators[at];
        }
        at == head
    };
    let mut found: Vec<Loop> = Vec::new();
    let mut heads = order.clone();
    heads.sort_unstable();
    for head in heads {
        let mut left: Vec<_> = before[head].iter().copied().filter(|&at| dominates(head, at)).collect();
        if left.is_empty() {
            continue;
        }
        let mut inside = vec![false; flow.len()];
        inside[head] = true;
        while let Some(at) = left.pop() {
            if !inside[at] {
                inside[at] = true;
                left.extend(&before[at]);
            }
        }
        let body: Vec<_> = (0..flow.len()).filter(|&at| inside[at]).collect();
        // A lone branch to itself is the end of a kernel.
        if body.len() > 1 {
            let depth = found.iter().filter(|outer| outer.body.contains(&head)).count();
            found.push(Loop { body, depth });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_told_from_branches_backward() {
        let to = |to| Flow::Branch { to, perhaps: true };
        let back = |to| Flow::Branch { to, perhaps: false };
        let flow = [
            Flow::Next,
            Flow::Next,
            to(8), // Rare code of the loop,
            Flow::Next,
            to(3), // an inner loop,
            to(1), // the loop,
            Flow::End,
            back(7), // the end of the kernel,
            Flow::Next,
            back(3), // back from the rare code.
        ];
        let found = loops(&flow);
        assert_eq!(
            found,
            [Loop { body: vec![1, 2, 3, 4, 5, 8, 9], depth: 0 }, Loop { body: vec![3, 4], depth: 1 }]
        );
        assert_eq!(loops(&[]), []);
        assert_eq!(loops(&[Flow::Next, Flow::End]), []);
    }
}
