//! What is legal passes in every order, with the right values.

use cusim::{Kernel, Opts, Order, Shape};

use crate::harness::{Arg, launch, run};

#[test]
fn divergence_is_legal() {
    for order in Order::ALL {
        let mut out = [0; 32];
        run("legal_divergence", Shape::linear(1, 32), &mut [Arg::Words(&mut out)], order).expect("legal");
        for (lane, got) in (0..).zip(out) {
            let (mut mine, mut other): (u32, u32) = (lane, lane ^ 1);
            for _ in 0..if lane < 16 { 3 } else { 7 } {
                (mine, other) = (mine + other, other + mine);
            }
            assert_eq!(got, mine, "lane {lane} in order {order:?}");
        }
    }
}

#[test]
fn syncwarp_orders_shared_memory() {
    for order in Order::ALL {
        let mut out = [0; 32];
        run("legal_syncwarp", Shape::linear(1, 32), &mut [Arg::Words(&mut out)], order).expect("legal");
        assert!((0..32).map(|lane| (lane + 1) % 32).eq(out), "{order:?}");
    }
}

#[test]
fn a_warp_may_poll_a_flag_that_another_sets() {
    for order in Order::ALL {
        let (mut flag, mut out) = ([0], [0]);
        let mut args = [Arg::Words(&mut flag), Arg::Words(&mut out)];
        run("legal_flag", Shape::linear(1, 64), &mut args, order).expect("legal");
        assert_eq!((flag, out), ([1], [42]));
    }
}

/// The order that each lane drew its number in.
fn drawn(opts: Opts) -> Vec<u32> {
    let (mut counter, mut out) = ([0_u32], [0_u32; 32]);
    let addresses = [counter.as_mut_ptr(), out.as_mut_ptr()];
    let mut args = addresses.map(|words| (words.addr() as u64).to_ne_bytes().to_vec());
    let kernel = Kernel::find("legal_order").expect("it is exported");
    launch(kernel, Shape::linear(1, 32), &mut args, opts).expect("legal");
    out.to_vec()
}

#[test]
fn lanes_run_forward_in_reverse_or_at_random_by_seed() {
    let forward: Vec<u32> = (0..32).collect();
    assert_eq!(drawn(Opts::order(0, 1)), forward);
    assert!(drawn(Opts::order(1, 1)).into_iter().rev().eq(forward.clone()));
    let random = |seed| drawn(Opts::order(2, seed));
    assert_eq!(random(1), random(1));
    assert_ne!(random(1), random(2));
    let mut sorted = random(3);
    sorted.sort_unstable();
    assert_eq!(sorted, forward);
}

#[test]
fn threads_know_where_they_are() {
    for order in Order::ALL {
        let mut out = [0; 12 * 24];
        let shape = Shape { grid: [3, 2, 2], block: [4, 3, 2], shared_bytes: 0 };
        let stats = run("legal_places", shape, &mut [Arg::Words(&mut out)], order).expect("legal");
        assert!(out.iter().zip(0_u32..).all(|(got, at)| *got == (((at / 24) << 16) | (at % 24))));
        assert_eq!((stats.blocks, stats.threads), (12, 288));
    }
}
