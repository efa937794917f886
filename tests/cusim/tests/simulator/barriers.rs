//! Rules of `__syncthreads`, and of loops that poll.

use cusim::{Order, Shape};

use crate::harness::{Arg, YIELDS, breaks, rule, run};

#[test]
fn no_barrier_after_an_exit() {
    let texts = [
        (Order::Forward, "exited while 32 threads wait in __syncthreads at"),
        (Order::Reverse, "__syncthreads after 32 of 64 threads of the block have exited"),
    ];
    for (order, part) in texts {
        let mut out = [0; 128];
        let mut args = [Arg::Words(&mut out)];
        let text = run("broken_barrier_after_exit", Shape::linear(1, 64), &mut args, order);
        let text = text.expect_err("broken").to_string();
        assert!(text.contains(part), "{order:?}: {text}");
    }
}

#[test]
fn a_barrier_and_a_warp_never_meet() {
    let waits = [
        "deadlock",
        "warp 1: lanes 00000100 wait in __syncwarp(mask ffffffff)",
        "for lanes fffffeff",
        "warp 0: lanes ffffffff wait in __syncthreads",
        "warp 1: lanes fffffeff wait in __syncthreads",
    ];
    breaks("broken_barrier_and_warp", 64, &waits);
}

#[test]
fn a_thread_block_waits_in_one_barrier_at_a_time() {
    breaks("broken_barrier_sites", 64, &["while other threads wait in the one at"]);
}

#[test]
fn polling_for_what_nobody_does_is_a_livelock() {
    for order in Order::ALL {
        let (mut flag, mut out) = ([0], [0]);
        let mut args = [Arg::Words(&mut flag), Arg::Words(&mut out)];
        let error = run("broken_livelock", Shape::linear(1, 64), &mut args, order);
        let text = rule(error);
        assert!(
            text.contains(&format!("lane 0: livelock: {} yields without progress", YIELDS + 1)),
            "{text}"
        );
    }
}
