//! Rules of `cp.async`, poison, and faults.

use cusim::{Order, Shape};

use crate::harness::{Arg, rule, run};

const SHAPE: Shape = Shape::linear(1, 32).shared(512);

#[test]
fn a_copy_must_be_aligned() {
    let (mut from, mut out) = (vec![0; 132], [0; 32]);
    let mut args = [Arg::Words(&mut from), Arg::Words(&mut out)];
    let error = run("broken_copy_alignment", SHAPE, &mut args, Order::Forward);
    let text = rule(error);
    assert!(text.contains("cp.async misaligned: shared ") && text.contains("size 16"), "{text}");
}

#[test]
fn a_thread_has_a_limit_of_copies_in_flight() {
    let (mut from, mut out) = (vec![0; 128], [0; 32]);
    let mut args = [Arg::Words(&mut from), Arg::Words(&mut out)];
    let error = run("broken_copies_in_flight", Shape::linear(1, 1).shared(16), &mut args, Order::Forward);
    let text = rule(error);
    assert!(text.contains("more than 1024 cp.async in flight"), "{text}");
}

#[test]
fn a_read_before_the_wait_sees_poison() {
    for order in Order::ALL {
        let (mut from, mut out) = (vec![1; 128], [0; 32]);
        let mut args = [Arg::Words(&mut from), Arg::Words(&mut out)];
        run("broken_read_before_wait", SHAPE, &mut args, order).expect("poison is no error");
        assert_eq!(out, [0xCDCD_CDCD; 32]);
    }
}

#[test]
fn unwritten_shared_memory_is_poison() {
    let mut out = [0; 64];
    run("broken_unwritten_shared", SHAPE, &mut [Arg::Words(&mut out)], Order::Forward)
        .expect("poison is no error");
    assert_eq!(out, [0xA5A5_A5A5; 64]);
}

/// `ThreadSanitizer` reports it: see `planted`.
#[cfg(not(sanitizer = "thread"))]
#[test]
fn a_missing_syncwarp_gives_wrong_values() {
    for order in Order::ALL {
        let mut out = [0; 32];
        run("broken_race", Shape::linear(1, 32), &mut [Arg::Words(&mut out)], order)
            .expect("a race is no error");
        let right = (0..32).map(|lane| (lane + 1) % 32);
        assert!(right.zip(out).any(|(right, got)| right != got), "{order:?}");
    }
}

/// Sanitizers report such faults themselves.
#[cfg(not(sanitizer))]
mod faults {
    use std::thread;

    use cusim::Error;

    use super::*;

    fn fault(kernel: &str, arg: Arg<'_>) -> String {
        let error = run(kernel, Shape::linear(1, 32), &mut [arg], Order::Forward);
        assert!(matches!(error, Err(Error::Fault(_))), "{error:?}");
        error.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn an_address_without_memory_is_an_illegal_access() {
        let text = fault("broken_address", Arg::Address(0x1000));
        assert!(text.contains("lane 0: illegal memory access at 0x1000 (signal 11)"), "{text}");
        // The next launch on this thread is none the wiser.
        let mut out = [0; 32];
        run("legal_syncwarp", Shape::linear(1, 32), &mut [Arg::Words(&mut out)], Order::Forward)
            .expect("the runtime survives a fault");
        assert_eq!(out[0], 1);
    }

    #[test]
    fn an_overflow_of_a_stack_is_an_illegal_access() {
        let mut out = [0; 32];
        assert!(fault("broken_stack", Arg::Words(&mut out)).contains("illegal memory access"));
    }

    #[test]
    fn threads_that_launch_at_once_keep_their_faults_apart() {
        thread::scope(|scope| {
            for address in [0x1000, 0x2000, 0x3000, 0x4000] {
                scope.spawn(move || {
                    for _ in 0..50 {
                        let text = fault("broken_address", Arg::Address(address));
                        assert!(text.contains(&format!("at {address:#x} ")), "{text}");
                    }
                });
            }
        });
    }
}
