//! Rules of the collectives of a warp.

use cusim::{Error, Kernel, Opts, Order, Shape};

use crate::harness::{Arg, breaks, run};

#[test]
fn a_mask_must_name_its_caller() {
    breaks("broken_mask_without_caller", 32, &["__ballot_sync mask fffffffe does not name the calling lane"]);
}

#[test]
fn a_mask_must_not_name_lanes_that_the_thread_block_lacks() {
    breaks("broken_absent_lanes", 20, &["names lanes the block does not have (fff00000)"]);
}

#[test]
fn a_mask_must_not_name_lanes_that_have_exited() {
    breaks("broken_exited_lane", 32, &["__shfl_sync", "mask ffffffff", "exited"]);
    let mut out = [0; 128];
    let named = run("broken_exited_lane", Shape::linear(1, 32), &mut [Arg::Words(&mut out)], Order::Forward);
    assert!(named.expect_err("broken").to_string().contains("names exited lanes 00000020"));
}

#[test]
fn a_lane_must_not_exit_while_others_wait_for_it() {
    let mut out = [0; 128];
    let broken = |order, out: &mut [u32]| {
        run("broken_exit_while_awaited", Shape::linear(1, 32), &mut [Arg::Words(out)], order)
    };
    let text = broken(Order::Forward, &mut out).expect_err("broken").to_string();
    assert!(text.contains("lane 5: exited while lanes 0000001f wait for it in __shfl_sync"), "{text}");
    let text = broken(Order::Reverse, &mut out).expect_err("broken").to_string();
    assert!(text.contains("lane 5: exited while lanes ffffffc0 wait for it in __shfl_sync"), "{text}");
}

#[test]
fn exits_are_forgiven_where_they_are_not_strict() {
    let mut out = [7_u32; 32];
    let address = (out.as_mut_ptr().addr() as u64).to_ne_bytes().to_vec();
    let opts = Opts { strict_exit: false, ..Opts::default() };
    let kernel = Kernel::find("broken_exit_while_awaited").expect("it is exported");
    assert_eq!((kernel.name(), kernel.params()), ("broken_exit_while_awaited", &[8][..]));
    crate::harness::launch(kernel, Shape::linear(1, 32), &mut [address], opts).expect("it is forgiven");
    assert_eq!((out[0], out[5], out[31]), (0, 7, 0));
}

#[test]
fn masks_that_never_meet_are_a_deadlock_that_lists_who_waits_for_whom() {
    let waits = [
        "deadlock in kernel broken_masks_never_meet",
        "lanes 0000000f wait in __ballot_sync(mask 000000ff)",
        "for lanes 000000f0",
        "lanes fffffff0 wait in __ballot_sync(mask ffffffff)",
        "for lanes 0000000f",
    ];
    breaks("broken_masks_never_meet", 32, &waits);
}

#[test]
fn operations_that_never_meet_are_a_deadlock() {
    let waits = [
        "deadlock",
        "lanes 0000ffff wait in __ballot_sync(mask ffffffff)",
        "lanes ffff0000 wait in __any_sync(mask ffffffff)",
    ];
    breaks("broken_operations_never_meet", 32, &waits);
}

#[test]
fn widths_that_never_meet_are_a_deadlock() {
    let waits =
        ["deadlock", "lanes 0000ffff wait in __shfl_xor_sync", "lanes ffff0000 wait in __shfl_xor_sync"];
    breaks("broken_widths_never_meet", 32, &waits);
}

#[test]
fn a_shuffle_must_not_read_a_lane_outside_its_mask() {
    breaks("broken_shuffle_source", 32, &["__shfl_sync reads lane 20, which is not in mask 0000ffff"]);
}

#[test]
fn a_launch_must_fit_the_gpu_and_the_kernel() {
    let mut out = [0; 32];
    let shapes = [
        Shape::linear(0, 32),
        Shape::linear(1, 0),
        Shape::linear(1, 1025),
        Shape { grid: [1, 65536, 1], ..Shape::linear(1, 32) },
        Shape::linear(1, 32).shared(228 << 10),
    ];
    for shape in shapes {
        let error = run("legal_syncwarp", shape, &mut [Arg::Words(&mut out)], Order::Forward);
        let Err(Error::Launch(text)) = error else { panic!("{shape:?}: {error:?}") };
        assert!(text.contains("invalid launch configuration of kernel legal_syncwarp"), "{text}");
    }
    let params = run("legal_syncwarp", Shape::linear(1, 32), &mut [Arg::Number(1)], Order::Forward);
    assert_eq!(
        params.expect_err("of another size").to_string(),
        "kernel legal_syncwarp takes parameters of [8] bytes, not of [4]"
    );
    let unknown = run("no_such_kernel", Shape::linear(1, 32), &mut [], Order::Forward);
    assert_eq!(unknown, Err(Error::UnknownKernel { name: "no_such_kernel".to_owned() }));
}
